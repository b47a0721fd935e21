r"""
A forecast beyond Fisher: DALI
==============================

What an experiment will measure is forecast from the derivatives of its model. First derivatives give the Fisher matrix,
and a Gaussian, which misleads where parameters are degenerate along a curve. DALI takes second and third derivatives,
and stays a density. Here it forecasts what supernovae say about the density of matter and dark energy.
"""

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.integrate import quad_vec
from torch import Tensor

import hofunc

torch.set_default_dtype(torch.float64)

# %%
# The model
# ---------
# In a flat universe with a density of matter :math:`\Omega` and an equation of state :math:`w` of dark energy, a
# supernova at redshift :math:`z` has the distance modulus
#
# .. math::
#     \mu(z) = 5\log_{10} D(z) + M, \qquad D(z) = (1 + z) \int_0^z \frac{dz'}{E(z')}, \qquad
#     E^2 = \Omega (1 + z)^3 + (1 - \Omega)(1 + z)^{3(1 + w)}.
#
# The magnitude :math:`M` is not known. The redshifts are in twelve bins, and :math:`N` supernovae have a scatter of
# 0.15 magnitudes each.

redshifts = torch.linspace(0.05, 1.2, 12)
NODES, WEIGHTS = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(16))
FIDUCIAL = torch.tensor([0.3, -1.0])


def modulus(theta: Tensor) -> Tensor:
    """Return distance moduli (..., 12), without the magnitude, for parameters (..., 2): the density and w."""
    omega, state = theta[..., 0, None, None], theta[..., 1, None, None]
    expansion = 1 + redshifts[:, None] * (1 + NODES) / 2
    rate = (omega * expansion**3 + (1 - omega) * expansion ** (3 * (1 + state))).sqrt()
    distance = (1 + redshifts) * redshifts / 2 * (WEIGHTS / rate).sum(-1)
    return 5 * distance.log10()


def precision(count: float) -> Tensor:
    """Return the inverse covariance of all bins for a number of supernovae, with any magnitude allowed."""
    whole = torch.eye(12) * (count / 12) / 0.15**2
    return whole - whole.sum(0)[:, None] * whole.sum(0) / whole.sum()


# %%
# The approximation
# -----------------
# With :math:`\Delta = \theta - \theta_0` and data as the model predicts them at :math:`\theta_0`, the posterior is
# :math:`\exp(-\frac{1}{2} |\mu(\theta) - \mu(\theta_0)|^2)`, in the metric of the inverse covariance. A Taylor series
# of its logarithm is no density if it is cut off after an odd order. DALI cuts off the series of the model instead
# (Sellentin, Quartin and Amendola, *Mon. Not. R. Astron. Soc.* 441, 2014),
#
# .. math::
#     \log P \approx -\frac{1}{2} \left|\mu_{,\alpha}\Delta_\alpha
#     + \frac{1}{2} \mu_{,\alpha\beta}\Delta_\alpha\Delta_\beta
#     + \frac{1}{6} \mu_{,\alpha\beta\gamma}\Delta_\alpha\Delta_\beta\Delta_\gamma\right|^2,
#
# so that it is largest at :math:`\theta_0`, whatever the order: the first term is Fisher's forecast, with the second
# it is the doublet of DALI, and with the third the triplet. One call of :func:`hofunc.derivatives` gives all three.


def logarithms(model: Callable[[Tensor], Tensor], at: Tensor, points: Tensor, metric: Tensor) -> dict[str, Tensor]:
    """Return the logarithms of the exact posterior and of the forecasts at points (p, 2), none of them normalised."""
    value, first, second, third = hofunc.derivatives(model, order=3)(at)
    moves = points - at
    fisher = torch.einsum("na,pa->pn", first, moves)
    doublet = fisher + torch.einsum("nab,pa,pb->pn", second, moves, moves) / 2
    triplet = doublet + torch.einsum("nabc,pa,pb,pc->pn", third, moves, moves, moves) / 6
    shifts = {"exact": model(points) - value, "Fisher": fisher, "doublet": doublet, "triplet": triplet}
    return {name: -torch.einsum("pn,nm,pm->p", shift, metric, shift) / 2 for name, shift in shifts.items()}


def divergence(exact: Tensor, other: Tensor) -> float:
    """Return how far a forecast is from the posterior, both on one grid: Kullback and Leibler's, in nats."""
    p, q = exact.log_softmax(0), other.log_softmax(0)
    return float((p.exp() * (p - q)).sum())


# %%
# Contours and divergences
# ------------------------
# The grid is in units of Fisher's forecast, so that it follows the posterior as the number of supernovae grows.

slopes = hofunc.jacobian(modulus)(FIDUCIAL)
axis = torch.linspace(-7, 7, 141)
whitened = torch.cartesian_prod(axis, axis)


def forecasts(count: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a grid of points where all is defined, and the logarithms there."""
    metric = precision(count)
    root = torch.linalg.inv(torch.linalg.cholesky(slopes.T @ metric @ slopes))
    points = FIDUCIAL + whitened @ root
    points = points[(points[:, 0] > 0.01) & (points[:, 0] < 0.99)]
    return points, logarithms(modulus, FIDUCIAL, points, metric)


counts = [10**power for power in (2.5, 3, 3.5, 4, 4.5, 5)]
kinds = ("Fisher", "doublet", "triplet")
distances: dict[str, list[float]] = {kind: [] for kind in kinds}
for count in counts:
    _, found = forecasts(count)
    for kind in kinds:
        distances[kind].append(divergence(found["exact"], found[kind]))

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
columns, rows = torch.linspace(0.01, 0.5, 161), torch.linspace(-2, -0.4, 161)
points = torch.cartesian_prod(columns, rows)
colors = {"exact": "black", "Fisher": "#b2182b", "doublet": "#f4a582", "triplet": "#2166ac"}
for kind, logarithm in logarithms(modulus, FIDUCIAL, points, precision(300)).items():
    density = logarithm.softmax(0)
    ordered = density.sort(descending=True)[0]
    level = float(ordered[(ordered.cumsum(0) > 0.95).nonzero()[0, 0]])
    style = {"linestyles": "--" if kind == "exact" else "-", "zorder": 3 if kind == "exact" else 2}
    left.contour(columns, rows, density.reshape(161, 161).T, [level], colors=colors[kind], **style)
    left.plot([], [], color=colors[kind], linestyle=style["linestyles"], label=kind)
left.plot(*FIDUCIAL, "k+")
left.set(
    xlabel=r"density of matter $\Omega$", ylabel="equation of state $w$", title="95 % of the posterior, 300 supernovae"
)
left.legend(loc="lower left")
for kind in kinds:
    right.loglog(counts, distances[kind], "o-", color=colors[kind], label=kind)
right.set(xlabel="supernovae $N$", ylabel="divergence from the posterior, nats", title="What each order leaves")
right.legend(loc="lower left")
for kind in kinds:
    print(f"{kind:8} divergence at 1000 supernovae {distances[kind][1]:.4f} nats")

# %%
# What has to hold
# ----------------
# What is left out is of relative size :math:`N^{-1/2}`, :math:`N^{-1}` and :math:`N^{-3/2}`, and the divergence is
# the square of that: ten times the supernovae divide it by 10, 100 and 1000. The derivatives have closed forms, of
# which scipy integrates the pieces. At :math:`w = -1`, with :math:`A = (1+z)^3 - 1`, :math:`B = 3 \ln(1 + z)` and
# :math:`I_k = \int \partial^k_\Omega E^{-1} dz`,
#
# .. math::
#     \partial^k_\Omega E^{-1} = \left(-\frac{1}{2}\right)\left(-\frac{3}{2}\right)\cdots\left(\frac{1}{2} - k\right)
#     A^k E^{-1 - 2k}, \qquad
#     \partial_\Omega^3 \ln D = \frac{I_3}{I_0} - 3\frac{I_1 I_2}{I_0^2} + 2\frac{I_1^3}{I_0^3},
#
# and :math:`\partial_\Omega\partial_w E^{-1} = \frac{3}{4} (1 - \Omega) A B E^{-5} + \frac{1}{2} B E^{-3}`. Of a
# model that is quadratic in its parameters the doublet is the posterior.

for kind, factor in zip(kinds, (10, 100, 1000), strict=True):
    assert abs(distances[kind][-3] / distances[kind][-1] / factor - 1) < 0.15, kind


def integrands(z: float) -> np.ndarray:
    """Return the derivatives of 1 / E by nothing, by the density once, twice and thrice, by w, and by both."""
    omega = float(FIDUCIAL[0])
    a, b, square = (1 + z) ** 3 - 1, 3 * math.log(1 + z), 1 + omega * ((1 + z) ** 3 - 1)
    pure = [factor * a**k * square ** (-k - 0.5) for k, factor in enumerate((1, -1 / 2, 3 / 4, -15 / 8))]
    both = (1 - omega) * 3 / 4 * a * b * square**-2.5 + b / 2 * square**-1.5
    return np.array([*pure, -(1 - omega) * b / 2 * square**-1.5, both])


_, first, second, third = hofunc.derivatives(modulus, order=3)(FIDUCIAL)
for row, redshift in enumerate(redshifts.tolist()):
    whole, *parts = quad_vec(integrands, 0, redshift, epsabs=0, epsrel=1e-13)[0]
    one, two, three, state, both = (part / whole for part in parts)
    closed = [one, two - one**2, three - 3 * one * two + 2 * one**3, state, both - one * state]
    entries = [first[row, 0], second[row, 0, 0], third[row, 0, 0, 0], first[row, 1], second[row, 0, 1]]
    torch.testing.assert_close(torch.stack(entries), 5 / math.log(10) * torch.tensor(closed), rtol=1e-11, atol=1e-12)


def quadratic(theta: Tensor) -> Tensor:
    """Return a model (..., 3) of second degree in two parameters."""
    x, y = theta.unbind(-1)
    return torch.stack([x + x * y, y - 2 * x**2, 3 * x + y**2], -1)


of_quadratic = logarithms(quadratic, torch.tensor([0.4, -0.7]), whitened, torch.eye(3))
torch.testing.assert_close(of_quadratic["doublet"], of_quadratic["exact"], rtol=1e-12, atol=1e-12)
