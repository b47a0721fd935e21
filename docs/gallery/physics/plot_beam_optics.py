r"""
Aberrations of a beam line
==========================

A magnet maps where a particle enters, and how, to where it leaves, and how. The first derivative of that map is the
optics that one designs with, the second and third are its aberrations. This page gets all of them for lines of thick
magnets, checks that they are symplectic, and removes an aberration with a sextupole.
"""

# %%
# Magnets as functions
# --------------------
#
# A particle is a row :math:`(x, p_x, y, p_y, \delta)`: its distances from the axis, the transverse momenta in units of
# that of the design, and the relative excess of momentum. A sector bend by the angle :math:`\theta` on the radius
# :math:`\rho` is exact here: within it, particles go round circles. A quadrupole solves
# :math:`x'' = -k x / (1 + \delta)`. A sextupole, with the Hamiltonian
# :math:`(p_x^2 + p_y^2) / 2 (1 + \delta) + k_2 (x^3 - 3 x y^2) / 6`, is four steps of Forest's and Ruth's symplectic
# integrator of order 4 (1990).

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch

import hofunc

torch.set_default_dtype(torch.float64)

Map = Callable[[torch.Tensor], torch.Tensor]


def drift(length: float) -> Map:
    def through(particle: torch.Tensor) -> torch.Tensor:
        x, px, y, py, delta = particle.unbind(-1)
        return torch.stack([x + length * px / (1 + delta), px, y + length * py / (1 + delta), py, delta], -1)

    return through


def bend(angle: float, radius: float) -> Map:
    def through(particle: torch.Tensor) -> torch.Tensor:
        x, px, y, py, delta = particle.unbind(-1)
        in_plane = (1 + delta) ** 2 - py**2
        excess = (in_plane - px**2).sqrt() - 1 - x / radius
        left = px * math.cos(angle) + excess * math.sin(angle)
        forward = (in_plane - left**2).sqrt()
        x = radius * (forward - 1 + px * math.sin(angle) - excess * math.cos(angle))
        turned = angle + (px / in_plane.sqrt()).asin() - (left / in_plane.sqrt()).asin()
        return torch.stack([x, left, y + radius * py * turned, py, delta], -1)

    return through


def quadrupole(k: float, length: float) -> Map:
    def through(particle: torch.Tensor) -> torch.Tensor:
        x, px, y, py, delta = particle.unbind(-1)
        root = (k / (1 + delta)).sqrt()
        phase, stiffness = root * length, root * (1 + delta)
        focused = phase.cos() * x + phase.sin() * px / stiffness, phase.cos() * px - phase.sin() * stiffness * x
        spread = phase.cosh() * y + phase.sinh() * py / stiffness, phase.cosh() * py + phase.sinh() * stiffness * y
        return torch.stack([*focused, *spread, delta], -1)

    return through


def sextupole(k2: float | torch.Tensor, length: float, steps: int = 4) -> Map:
    cube = 1 / (2 - 2 ** (1 / 3))

    def through(particle: torch.Tensor) -> torch.Tensor:
        x, px, y, py, delta = particle.unbind(-1)
        for part in (cube, 1 - 2 * cube, cube) * steps:
            half = part * length / steps / 2 / (1 + delta)
            x, y = x + half * px, y + half * py
            kick = k2 * part * length / steps
            px, py = px - kick * (x**2 - y**2) / 2, py + kick * x * y
            x, y = x + half * px, y + half * py
        return torch.stack([x, px, y, py, delta], -1)

    return through


def line(*magnets: Map) -> Map:
    def through(particle: torch.Tensor) -> torch.Tensor:
        for magnet in magnets:
            particle = magnet(particle)
        return particle

    return through


# %%
# Transfer maps
# -------------
#
# In the usual names, :math:`z_i \to \sum_j R_{ij} z_j + \tfrac12 \sum_{jk} T_{ijk} z_j z_k
# + \tfrac16 \sum_{jkl} U_{ijkl} z_j z_k z_l + \dots`, where all terms are summed, with :math:`T` and :math:`U` the
# second and third derivatives on the axis: one call. Brown's tables (*A First- and Second-Order Matrix Theory*,
# SLAC-75, 1982) have, with momenta for slopes, and with :math:`K` the root of the strength of a quadrupole,
#
# .. math:: \text{bend:} \quad T_{xxx} = -\frac{\sin^2\theta}{\rho}, \quad T_{xx p} = \sin\theta \cos\theta, \quad
#           T_{xx\delta} = \sin^2\theta, \quad T_{x\delta\delta} = -\rho \sin^2\theta,
#
# .. math:: \text{sextupole:} \quad T_{xxx} = -\frac{k_2 L^2}{2}, \quad T_{xxp} = -\frac{k_2 L^3}{6}, \quad
#           T_{xpp} = -\frac{k_2 L^4}{12}, \quad T_{ppp} = -\frac{k_2 L^3}{3},
#
# .. math:: \text{quadrupole:} \quad T_{xx\delta} = \frac{K L}{2} \sin K L.
#
# The third order is left to programs, but for simple ones. From the perturbation of a sextupole by itself,
# :math:`U_{xxxx} = k_2^2 L^4 / 8` and :math:`U_{pxxx} = k_2^2 L^3 / 2`; and from the cosine of
# :math:`K L / \sqrt{1 + \delta}`, for the quadrupole,
# :math:`U_{xx\delta\delta} = -\tfrac14 K^2 L^2 \cos K L - \tfrac34 K L \sin K L`.

AXIS = torch.zeros(5)
X, P, DELTA = 0, 1, 4


def transfer(through: Map) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return R, T and U of a line."""
    return hofunc.derivatives(through, order=3)(AXIS)[1:]


theta, rho, k2, k, length = 0.4, 3.0, 7.0, 2.0, 0.5
of_bend, of_sextupole, of_quadrupole = map(transfer, (bend(theta, rho), sextupole(k2, length), quadrupole(k, length)))

# %%
# An aberration and its cure
# --------------------------
#
# A quadrupole is weaker for particles with more momentum, so that a beam has as many foci as momenta: the coefficient
# :math:`T_{xx\delta}` up to the focus. Behind a bend, particles are sorted by momentum, and a sextupole there is a
# quadrupole that grows with it. Since :math:`T` is affine in the strength of the sextupole, two maps say which cancels
# the aberration. What is left then is the sextupole's own, :math:`T_{xxx}`, a parabola, the same for all momenta.


def focusing(k2: float, space: float) -> Map:
    """Return a line of a bend, a sextupole and a lens."""
    return line(bend(0.3, 3.0), drift(1.0), sextupole(k2, 0.2), drift(0.1), quadrupole(1.5, 0.4), drift(space))


# parallel rays meet where R_xx is zero: x - p R_xx / R_px
from_lens = transfer(focusing(0.0, 0.0))[0]
space = (-from_lens[X, X] / from_lens[P, X]).item()
without, with_one = (transfer(focusing(k2, space))[1][X, X, DELTA].item() for k2 in (0.0, 1.0))
strength = without / (without - with_one)
corrected = transfer(focusing(strength, space))
print(f"T_xxd is {without:.3f} without and {corrected[1][X, X, DELTA]:.0e} with k2 = {strength:.2f}")


def taylor(of_line: tuple[torch.Tensor, ...], particles: torch.Tensor, order: int) -> torch.Tensor:
    """Return where particles leave by the map to some order."""
    r, t, u = of_line
    result = particles @ r.T
    if order > 1:
        result = result + torch.einsum("ijk, nj, nk -> ni", t, particles, particles) / 2
    if order > 2:
        result = result + torch.einsum("ijkl, nj, nk, nl -> ni", u, particles, particles, particles) / 6
    return result


figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
entering = torch.linspace(-0.01, 0.01, 41)
for k2, style, name in ((0.0, "--", "no sextupole"), (strength, "-", "sextupole")):
    through = focusing(k2, space)
    maps = transfer(through)
    for colour, delta in (("C0", -0.01), ("C2", 0.0), ("C1", 0.01)):
        rays = torch.zeros(41, 5)
        rays[:, X], rays[:, DELTA] = entering, delta
        middle = maps[0][X, DELTA] * delta + maps[1][X, DELTA, DELTA] * delta**2 / 2
        label = f"{name}, {100 * delta:+.0f} % momentum"
        left.plot(1e3 * entering, 1e6 * (through(rays)[:, X] - middle), colour + style, label=label)
        left.plot(1e3 * entering[::5], 1e6 * (taylor(maps, rays, 3)[::5, X] - middle), colour + ".")
left.set_xlabel("$x$ where rays enter, in mm")
left.set_ylabel("$x$ at the focus, from their middle, in μm")
left.set_title("tracked, and by the map of order 3 (dots)")
left.set_ylim(-100, 190)
left.legend(fontsize="small", loc="upper center")

direction = torch.tensor([1.0, 0.5, 0.8, -0.6, 1.0])
sizes = torch.logspace(-3.5, -1.5, 17)
particles = sizes[:, None] * direction
tracked = focusing(strength, space)(particles)
errors = [(tracked - taylor(corrected, particles, order)).norm(dim=-1) for order in (1, 2, 3)]
for order, error in enumerate(errors, 1):
    right.loglog(sizes, error, label=f"map of order {order}")
right.set_xlabel("size of $(x, p_x, y, p_y, \\delta)$ in m and rad")
right.set_ylabel("distance from what is tracked")
right.set_title("errors of maps")
right.legend()

# %%
# What is asserted: Brown's coefficients and those of order 3 above; that maps of order :math:`n` err by the power
# :math:`n + 1`; that the aberration is gone; and that the maps are symplectic to their order. With the symplectic
# matrix :math:`S` the Jacobian :math:`J` by :math:`(x, p_x, y, p_y)` has :math:`J^T S J = S` everywhere, hence on the
# axis
#
# .. math:: R^T S R = S, \qquad R^T S T_k + T_k^T S R = 0, \qquad
#           R^T S U_{kl} + T_k^T S T_l + T_l^T S T_k + U_{kl}^T S R = 0,
#
# for all five coordinates :math:`k, l`.

sine, cosine = math.sin(theta), math.cos(theta)
root = math.sqrt(k) * length
k2 = 7.0
expected = [
    (of_bend[1][X, X, X], -(sine**2) / rho),
    (of_bend[1][X, X, P], sine * cosine),
    (of_bend[1][X, X, DELTA], sine**2),
    (of_bend[1][X, DELTA, DELTA], -rho * sine**2),
    (of_sextupole[1][X, X, X], -k2 * length**2 / 2),
    (of_sextupole[1][X, X, P], -k2 * length**3 / 6),
    (of_sextupole[1][X, P, P], -k2 * length**4 / 12),
    (of_sextupole[1][P, P, P], -k2 * length**3 / 3),
    (of_sextupole[2][X, X, X, X], k2**2 * length**4 / 8),
    (of_sextupole[2][P, X, X, X], k2**2 * length**3 / 2),
    (of_quadrupole[1][X, X, DELTA], root / 2 * math.sin(root)),
    (of_quadrupole[2][X, X, DELTA, DELTA], -(root**2) / 4 * math.cos(root) - 3 * root / 4 * math.sin(root)),
]
for found, closed in expected:
    assert math.isclose(found, closed, rel_tol=1e-12), (found, closed)
assert abs(corrected[1][X, X, DELTA]) < 1e-12

symplectic = torch.zeros(4, 4)
symplectic[0, 1] = symplectic[2, 3] = 1
symplectic = symplectic - symplectic.T
r, t, u = corrected
r, t, u = r[:4, :4], t[:4, :4], u[:4, :4]
half = torch.einsum("ai, ab, bjk -> ijk", r, symplectic, t)
whole = torch.einsum("ai, ab, bjkl -> ijkl", r, symplectic, u)
square = torch.einsum("aik, ab, bjl -> ijkl", t, symplectic, t)
assert (r.T @ symplectic @ r - symplectic).abs().max() < 1e-13
assert (half - half.transpose(0, 1)).abs().max() < 1e-13 * half.abs().max()
rest = whole - whole.transpose(0, 1) + square + square.mT
assert rest.abs().max() < 1e-13 * whole.abs().max()

for order, error in enumerate(errors, 1):
    slope = math.log(error[4] / error[2]) / math.log(sizes[4] / sizes[2])
    assert math.isclose(slope, order + 1, rel_tol=0.02), slope
