r"""
Local energies of atoms
=======================

Where a wave function solves Schrödinger's equation, its Laplacian balances the potential at every point: the local
energy is constant. This page computes local energies of hydrogen and helium from the Laplacian of the logarithm of a
trial function, sees the cusps of electrons, and minimises the energy of helium by derivatives of those derivatives.
"""

# %%
# The local energy
# ----------------
#
# In atomic units, of :math:`H = -\tfrac12 \Delta + V` and a trial function :math:`\psi` it is
#
# .. math:: E_L = \frac{H \psi}{\psi} = -\tfrac12 \left(\Delta \ln|\psi| + |\nabla \ln|\psi||^2\right) + V .
#
# One program computes both terms for all rows of points: each node of :math:`\psi` carries one number for every
# coordinate and one for the Laplacian, never a Hessian. A row has the coordinates of all electrons.

from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch

import hofunc

torch.set_default_dtype(torch.float64)

Trial = Callable[[torch.Tensor], torch.Tensor]
TERMS = {"slope": "b, b i -> b i", "laplacian": "b, b i, b i -> b"}


def local_energy(log_psi: Trial, potential: Trial) -> Trial:
    """Return the function that computes it for rows of coordinates."""
    terms = hofunc.einsum(log_psi, TERMS)

    def energy(points: torch.Tensor) -> torch.Tensor:
        found = terms(points)
        return potential(points) - (found["laplacian"] + found["slope"].square().sum(-1)) / 2

    return energy


# %%
# Hydrogen
# --------
#
# With :math:`V = -1/r`, the function :math:`e^{-r}` has :math:`E_L = -\tfrac12` at every point, and so has any
# eigenfunction its :math:`-1 / 2 n^2`. Of the trial function :math:`e^{-\alpha r}` it is
# :math:`-\alpha^2 / 2 + (\alpha - 1) / r`, of mean :math:`\alpha^2 / 2 - \alpha` and standard deviation
# :math:`\alpha\, |\alpha - 1|` in the state :math:`\psi^2`: both are least where the function is right, and the spread
# vanishes. Integrals over :math:`r^2 e^{-2 \alpha r}` are sums by Gauss's and Laguerre's rule.


def hydrogen(x: torch.Tensor) -> torch.Tensor:
    return -1 / x.norm(dim=-1)


STATES = {
    "1s": (1, lambda x: -x.norm(dim=-1)),
    "2s": (2, lambda x: (2 - x.norm(dim=-1)).abs().log() - x.norm(dim=-1) / 2),
    "2p": (2, lambda x: x[:, 2].abs().log() - x.norm(dim=-1) / 2),
    "3d": (3, lambda x: (x[:, 0] * x[:, 1]).abs().log() - x.norm(dim=-1) / 3),
}
points = 2 * torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
levels = {name: local_energy(state, hydrogen)(points) for name, (_, state) in STATES.items()}
for name, values in levels.items():
    print(f"{name}: {values.min():.12f} to {values.max():.12f}")

nodes, weights = map(torch.from_numpy, np.polynomial.laguerre.laggauss(24))


def moments(alpha: float) -> tuple[float, float]:
    """Return mean and standard deviation of the local energy of exp(-alpha r)."""
    radii = nodes / (2 * alpha)
    at = radii[:, None] * torch.tensor([0.48, 0.6, 0.64])
    energy = local_energy(lambda x: -alpha * x.norm(dim=-1), hydrogen)(at)
    weight = weights * radii**2 / (weights * radii**2).sum()
    mean = (weight * energy).sum()
    return mean.item(), (weight * (energy - mean) ** 2).sum().sqrt().item()


exponents = np.linspace(0.5, 1.5, 41)
spread = np.array([moments(alpha) for alpha in exponents])

# %%
# Helium
# ------
#
# Two electrons repel each other: :math:`V = -2/r_1 - 2/r_2 + 1/r_{12}`. Of a product of two exponentials the local
# energy diverges where they meet. A factor of Padé and Jastrow, :math:`\exp \frac{r_{12}}{2 (1 + \beta r_{12})}`, has
# the slope 1/2 there which Kato's condition (1957) asks for, and the Laplacian of that cusp cancels the repulsion. By
# hand, with the exponent 2 (Thijssen, *Computational Physics*, 2007, section 12.2):
#
# .. math:: E_L = -4 + \frac{(\hat r_1 - \hat r_2) \cdot (r_1 - r_2)}{r_{12} (1 + \beta r_{12})^2}
#                 - \frac{1}{r_{12} (1 + \beta r_{12})^3} - \frac{1}{4 (1 + \beta r_{12})^4} + \frac{1}{r_{12}} .


def distances(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x[:, :3].norm(dim=-1), x[:, 3:].norm(dim=-1), (x[:, :3] - x[:, 3:]).norm(dim=-1)


def helium(x: torch.Tensor) -> torch.Tensor:
    first, second, apart = distances(x)
    return -2 / first - 2 / second + 1 / apart


def product(x: torch.Tensor, alpha: float | torch.Tensor = 2.0) -> torch.Tensor:
    first, second, _ = distances(x)
    return -alpha * (first + second)


def correlated(x: torch.Tensor, alpha: float | torch.Tensor = 2.0, beta: float | torch.Tensor = 0.15) -> torch.Tensor:
    apart = distances(x)[2]
    return product(x, alpha) + apart / (2 * (1 + beta * apart))


passing = torch.zeros(400, 6)  # the second electron passes the first at the distance of a few thousandths
passing[:, 0], passing[:, 4] = 0.5, 0.003
passing[:, 3] = torch.linspace(-1, 1.5, 400)
with_cusp, without_cusp = (local_energy(each, helium)(passing) for each in (correlated, product))

# %%
# The mean energy of helium is an integral over :math:`r_1, r_2, r_{12}`, which in the coordinates
# :math:`r_1 + r_{12} - r_2`, :math:`r_2 + r_{12} - r_1` and :math:`r_1 + r_2 - r_{12}`, each from zero to infinity, is
# one of smooth functions (Pekeris 1958), so that Laguerre's rule has it to many digits. It is a function of
# :math:`(\alpha, \beta)` with a Laplacian inside, and Newton's method takes its first and second derivatives from
# hofunc again: the fourth derivatives of :math:`\psi` that this needs are found as any others.

nodes, weights = map(torch.from_numpy, np.polynomial.laguerre.laggauss(16))
x, y, z = torch.cartesian_prod(nodes / 1.8, nodes / 1.8, nodes / 3.6).unbind(-1)
r1, r2, r12 = (y + z) / 2, (x + z) / 2, (x + y) / 2
volume = r1 * r2 * r12 * torch.cartesian_prod(*[weights * nodes.exp()] * 3).prod(-1)
cosine = (r1**2 + r2**2 - r12**2) / (2 * r1 * r2)
sine = (1 - cosine**2).clamp(min=0).sqrt()
places = torch.stack([0 * r1, 0 * r1, r1, r2 * sine, 0 * r2, r2 * cosine], -1)


def mean_energy(log_psi: Trial) -> torch.Tensor:
    density = volume * (2 * log_psi(places)).exp()
    return (density * local_energy(log_psi, helium)(places)).sum() / density.sum()


newton = hofunc.jit(hofunc.derivatives(lambda p: mean_energy(lambda x: correlated(x, p[0], p[1])), order=2))
parameters = torch.tensor([1.9, 0.3])
for _ in range(6):
    energy, slope, curvature = newton(parameters)
    parameters = parameters - torch.linalg.solve(curvature, slope)
energy, slope, curvature = newton(parameters)
print(f"helium: {energy:.6f} at {[round(each, 4) for each in parameters.tolist()]}, with a slope of {slope.norm():.0e}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
left.errorbar(exponents, spread[:, 0], spread[:, 1], fmt=".", color="C0", elinewidth=1, label="local energy")
left.plot(exponents, exponents**2 / 2 - exponents, "k:", label=r"$\alpha^2 / 2 - \alpha$")
left.set_xlabel(r"exponent $\alpha$ of the trial function")
left.set_ylabel("mean and standard deviation, in hartree")
left.set_title("hydrogen")
left.legend(loc="upper left")
right.plot(passing[:, 3], without_cusp, "C1", label="product of exponentials")
right.plot(passing[:, 3], with_cusp, "C0", label="with a cusp between electrons")
right.axvline(0, color="0.7", lw=1)
right.axvline(0.5, color="0.7", lw=1)
right.text(0.02, 11, "nucleus", color="0.4")
right.text(0.52, 11, "electron 1", color="0.4")
right.set_ylim(-8, 12)
right.set_xlabel("place of electron 2, in bohr")
right.set_ylabel("local energy, in hartree")
right.set_title("helium, one electron passing the other")
right.legend(loc="lower right")

# %%
# What is asserted: the levels of hydrogen at every point, to rounding beside the potential there; mean and spread; the
# local energy of helium by hand; of the product alone that the least mean is :math:`-(27/16)^2`; the mean energies
# that Thijssen found by Monte Carlo for the exponent 2 (table 12.1), within two of their standard errors; that
# Newton's method has stopped at a minimum; and that it lies between the limit of Hartree and Fock, -2.86168 (Clementi
# and Roetti 1974), and the exact -2.903724 (Pekeris 1959).

for name, (number, _) in STATES.items():
    torch.testing.assert_close(levels[name], torch.full((1000,), -1 / (2 * number**2)), rtol=0, atol=1e-8)
torch.testing.assert_close(levels["1s"], torch.full((1000,), -0.5), rtol=0, atol=1e-12)
np.testing.assert_allclose(spread[:, 0], exponents**2 / 2 - exponents, rtol=1e-11)
np.testing.assert_allclose(spread[:, 1], exponents * np.abs(exponents - 1), rtol=1e-11, atol=1e-13)

first, second, apart = distances(passing)
across = (passing[:, :3] / first[:, None] - passing[:, 3:] / second[:, None]) * (passing[:, :3] - passing[:, 3:])
padded = 1 + 0.15 * apart
by_hand = -4 + across.sum(-1) / (apart * padded**2) - 1 / (apart * padded**3) - 1 / (4 * padded**4) + 1 / apart
torch.testing.assert_close(with_cusp, by_hand, rtol=0, atol=1e-9)
torch.testing.assert_close(without_cusp, -4 + 1 / apart, rtol=0, atol=1e-9)

uncorrelated = hofunc.derivatives(lambda alpha: mean_energy(lambda x: product(x, alpha)), order=2)
of_product = torch.stack(uncorrelated(torch.tensor(27 / 16)))
torch.testing.assert_close(of_product, torch.tensor([-729 / 256, 0, 2]), rtol=1e-10, atol=1e-10)
published = {0.05: (-2.8713, 4e-4), 0.1: (-2.8770, 3e-4), 0.15: (-2.8778, 3e-4), 0.2: (-2.8767, 4e-4)}
for beta, (mean, standard_error) in published.items():
    assert abs(mean_energy(partial(correlated, beta=beta)) - mean) < 2 * standard_error
assert slope.norm() < 1e-12
assert (torch.linalg.eigvalsh(curvature) > 0).all()
assert -2.903724 < energy < -2.86168
