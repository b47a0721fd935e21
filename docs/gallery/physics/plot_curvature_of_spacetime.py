r"""
Curvature of surfaces and of spacetime
======================================

A metric is a function of coordinates, and its curvature is made of its first and second derivatives. This page gets the
Riemann tensor of any metric from one call of `hofunc.derivatives`, at a thousand points at once, and looks at a torus
and at the space around a black hole.
"""

# %%
# From a metric to its curvature
# ------------------------------
#
# Lengths are given by a metric, :math:`ds^2 = g_{ab}\, dx^a dx^b`. Commas being derivatives, as of
# :math:`g_{ab,c} = \partial g_{ab} / \partial x^c`, the Christoffel symbols and the Riemann tensor are
#
# .. math:: \Gamma_{abc} = \tfrac12 (g_{ab,c} + g_{ac,b} - g_{bc,a}),
#
# .. math:: R_{abcd} = \tfrac12 (g_{ad,bc} + g_{bc,ad} - g_{ac,bd} - g_{bd,ac})
#                      + g^{ef} (\Gamma_{ebc} \Gamma_{fad} - \Gamma_{ebd} \Gamma_{fac})
#
# (Landau and Lifshitz, *The Classical Theory of Fields*, section 92; Misner, Thorne and Wheeler, *Gravitation*, 1973).
# Below this is what is written. The metric takes points as rows and treats each by itself, so that its compact
# derivatives hold nothing but what one point says of itself: ``dense(keep_batch=True)`` has the points in front, once.

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from mpl_toolkits.mplot3d import Axes3D

import hofunc

torch.set_default_dtype(torch.float64)

Metric = Callable[[torch.Tensor], torch.Tensor]


def riemann(metric: Metric, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inverse metric (points, a, b) and the Riemann tensor (points, a, b, c, d), all indices lowered."""
    g, *compact = hofunc.derivatives(metric, order=2, layout="compact")(points)
    first, second = (each.dense(keep_batch=True) for each in compact)  # (points, a, b, c) and (points, a, b, c, d)
    inverse = torch.linalg.inv(g)
    christoffel = (first + first.mT - torch.einsum("nbca -> nabc", first)) / 2
    bent = torch.einsum("nadbc -> nabcd", second) + torch.einsum("nbcad -> nabcd", second)
    product = torch.einsum("nef, nebc, nfad -> nabcd", inverse, christoffel, christoffel)
    halves = bent / 2 + product
    return inverse, halves - halves.mT


def contracted(inverse: torch.Tensor, curvature: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the Ricci tensor R_bd, the Ricci scalar R, and the Kretschmann scalar R_abcd R^abcd of every point."""
    ricci = torch.einsum("nac, nabcd -> nbd", inverse, curvature)
    raised = torch.einsum("nae, nbf, ncg, ndh, nefgh -> nabcd", *[inverse] * 4, curvature)
    return ricci, (inverse * ricci).sum((1, 2)), (raised * curvature).sum((1, 2, 3, 4))


# %%
# Surfaces
# --------
#
# A surface in space lends its metric to its coordinates: :math:`g = J^T J` with the Jacobian :math:`J` of where a pair
# of them lies. That Jacobian is hofunc's as well, and is differentiated twice more. Of a sphere of radius 1 the Ricci
# scalar is 2. Of a torus with radii :math:`c > a` it is
#
# .. math:: R = 2 K = \frac{2 \cos v}{a (c + a \cos v)},
#
# positive outside, negative inside, and of mean zero over the area, as the theorem of Gauss and Bonnet has it.


def induced(surface: Metric) -> Metric:
    """Return the metric that space gives to a surface, which takes rows of coordinates to rows of places."""
    slope = hofunc.einsum(surface, "n x, n a -> n x a")

    def metric(points: torch.Tensor) -> torch.Tensor:
        tangents = slope(points)
        return tangents.mT @ tangents

    return metric


def sphere(points: torch.Tensor) -> torch.Tensor:
    theta, phi = points.unbind(-1)
    return torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], -1)


RING, TUBE = 2.0, 0.8


def torus(points: torch.Tensor) -> torch.Tensor:
    u, v = points.unbind(-1)
    radius = RING + TUBE * v.cos()
    return torch.stack([radius * u.cos(), radius * u.sin(), TUBE * v.sin()], -1)


angles = torch.linspace(0, 2 * math.pi, 49)
around = torch.cartesian_prod(angles, angles)
_, of_torus, _ = contracted(*riemann(induced(torus), around))
on_sphere = torch.cartesian_prod(torch.linspace(0.3, 2.8, 7), angles[:7])
_, of_sphere, _ = contracted(*riemann(induced(sphere), on_sphere))

# %%
# A black hole
# ------------
#
# Around a mass :math:`M`, with Schwarzschild's coordinates :math:`(t, r, \theta, \phi)` and
# :math:`c = G = 1`,
#
# .. math:: ds^2 = -\left(1 - \frac{2M}{r}\right) dt^2 + \frac{dr^2}{1 - 2M/r}
#                  + r^2 (d\theta^2 + \sin^2\theta \, d\phi^2).
#
# It is empty: the Ricci tensor vanishes. It is curved all the same, and by the Kretschmann scalar
# :math:`R_{abcd} R^{abcd} = 48 M^2 / r^6`, which is finite at the horizon :math:`r = 2M`, where only the coordinates
# fail, and not at the centre. Metric components in Gullstrand's and Painlevé's coordinates, in which falling observers
# keep the time, are regular at the horizon, and curvature does not depend on the choice:
#
# .. math:: ds^2 = -dt^2 + \left(dr + \sqrt{2M/r}\, dt\right)^2 + r^2 (d\theta^2 + \sin^2\theta \, d\phi^2).

MASS = 1.0


def schwarzschild(points: torch.Tensor) -> torch.Tensor:
    _, r, theta, _ = points.unbind(-1)
    lapse = 1 - 2 * MASS / r
    return torch.diag_embed(torch.stack([-lapse, 1 / lapse, r**2, (r * theta.sin()) ** 2], -1))


def painleve(points: torch.Tensor) -> torch.Tensor:
    _, r, theta, _ = points.unbind(-1)
    flow = (2 * MASS / r).sqrt()
    own = torch.diag_embed(torch.stack([flow**2 - 1, torch.ones_like(r), r**2, (r * theta.sin()) ** 2], -1))
    mixed = torch.zeros(4, 4)
    mixed[0, 1] = mixed[1, 0] = 1
    return own + flow[:, None, None] * mixed


radii = torch.logspace(-0.3, 1.3, 200)  # none of them the horizon's
outside = torch.stack([0 * radii, radii, 0.7 + 0 * radii, 0 * radii], -1)
inverse, curvature = riemann(schwarzschild, outside)
ricci, _, kretschmann = contracted(inverse, curvature)
_, _, of_painleve = contracted(*riemann(painleve, outside))

figure = plt.figure(figsize=(10, 4.2), layout="constrained")
left = figure.add_subplot(1, 2, 1, projection="3d")
right = figure.add_subplot(1, 2, 2)
assert isinstance(left, Axes3D)
grid = torus(around).reshape(49, 49, 3)
shade = plt.Normalize(-2 / (TUBE * (RING - TUBE)), 2 / (TUBE * (RING - TUBE)))
colours = plt.get_cmap("coolwarm")(shade(of_torus.reshape(49, 49).numpy()))
left.plot_surface(*grid.unbind(-1), facecolors=colours, rstride=1, cstride=1, shade=False)
left.set_box_aspect((1, 1, 0.3), zoom=1.4)
left.view_init(elev=50)
left.set_axis_off()
left.set_title("Ricci scalar of a torus")
figure.colorbar(plt.cm.ScalarMappable(shade, "coolwarm"), ax=left, shrink=0.6, location="bottom")
right.loglog(radii, kretschmann, lw=2, label="by Schwarzschild's coordinates")
right.loglog(radii[::12], of_painleve[::12], "o", ms=5, mfc="none", label="by Painlevé's coordinates")
right.loglog(radii, 48 * MASS**2 / radii**6, "k:", label="$48 M^2 / r^6$")
right.axvline(2 * MASS, color="0.6", lw=1)
right.text(2.1 * MASS, 1e2, "horizon", color="0.4")
right.set_xlabel("$r / M$")
right.set_ylabel("Kretschmann scalar times $M^4$")
right.set_title("around a black hole")
right.legend(loc="lower left")

# %%
# What is asserted: the closed forms above, Bianchi's first identity :math:`R_{abcd} + R_{acdb} + R_{adbc} = 0`, and
# that empty space is flat in the sense of Ricci: :math:`R_{ab} R^{ab}` is rounding beside the Kretschmann scalar.

torch.testing.assert_close(of_sphere, torch.full_like(of_sphere, 2), rtol=1e-12, atol=0)
v = around[:, 1]
torch.testing.assert_close(of_torus, 2 * v.cos() / (TUBE * (RING + TUBE * v.cos())), rtol=1e-12, atol=1e-12)
for found in (kretschmann, of_painleve):
    torch.testing.assert_close(found, 48 * MASS**2 / radii**6, rtol=1e-9, atol=0)
mixed_ricci = inverse @ ricci
assert (torch.einsum("nab, nba -> n", mixed_ricci, mixed_ricci).abs() < 1e-18 * kretschmann).all()
bianchi = curvature + torch.einsum("nacdb -> nabcd", curvature) + torch.einsum("nadbc -> nabcd", curvature)
assert bianchi.abs().max() < 1e-12 * curvature.abs().max()
