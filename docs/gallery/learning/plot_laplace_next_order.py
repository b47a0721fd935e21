r"""
Laplace's approximation to the next order
=========================================

The evidence of a Bayesian model is an integral that is often approximated by Laplace's method, from the Hessian of the
log posterior at its mode. The next term of the same expansion takes its third and fourth derivatives, summed with the
inverse Hessian: two numbers, for which the fourth derivative need not be there. They take the error from one over the
number of data to one over its square.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor
from torch.nn.functional import logsigmoid

import hofunc

torch.set_default_dtype(torch.float64)

# %%
# The expansion
# -------------
# Let :math:`U` have its minimum at :math:`\hat\theta`, and let :math:`\Sigma` be the inverse of its Hessian there.
# Then, with repeated indices summed,
#
# .. math::
#     \log \int e^{-U(\theta)}\,d\theta = -U(\hat\theta) + \frac{1}{2}\log\det(2\pi\Sigma) + c + \dots
#
# .. math::
#     c = - \frac{1}{8} U_{ijkl}\Sigma_{ij}\Sigma_{kl}
#     + \frac{1}{8} U_{ijk}U_{lmn}\Sigma_{ij}\Sigma_{kl}\Sigma_{mn}
#     + \frac{1}{12} U_{ijk}U_{lmn}\Sigma_{il}\Sigma_{jm}\Sigma_{kn}
#
# (Shun and McCullagh, Laplace approximation of high dimensional integrals, *J. R. Stat. Soc. B* 57, 1995). If
# :math:`U` is a sum over :math:`N` data, :math:`c` is of the order of :math:`1/N`, and what is left out of
# :math:`1/N^2`.
#
# :func:`hofunc.einsum` takes the sums as patterns. The first group names the axes of the output, of which :math:`U`
# has none; there follows one group for each differentiation, and one for each operand. In the pattern ``quartic`` all
# four slots are summed, so that no tensor with four axes is made.

PATTERNS = {"quartic": ", i, j, k, l, i j, k l -> ", "third": ", i, j, k -> i j k"}


def mode_of(potential: hofunc.Jitted, start: Tensor, *data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the minimum, the value there and the Hessian, by Newton's method on what `derivatives` returns."""
    theta = start
    for _ in range(50):
        value, gradient, hessian = potential(theta, *data)
        if gradient.abs().max() < 1e-11 * (1 + value.abs()):
            break
        theta = theta - torch.linalg.solve(hessian, gradient)
    return theta, value, hessian


def laplace(value: Tensor, hessian: Tensor) -> float:
    """Return Laplace's approximation of the logarithm of the integral."""
    return float(-value + len(hessian) / 2 * math.log(2 * math.pi) - torch.logdet(hessian) / 2)


def next_order(contractions: hofunc.Jitted, theta: Tensor, hessian: Tensor, *data: Tensor) -> float:
    """Return the terms of the next order, of which that of the fourth derivative comes summed."""
    cov = torch.linalg.inv(hessian)
    found = contractions(theta, *data, operands={"quartic": (cov, cov)})
    third = found["third"]
    pairs = torch.einsum("ijk,ij->k", third, cov)
    inner = pairs @ cov @ pairs
    crossed = torch.einsum("ijk,lmn,il,jm,kn->", third, third, cov, cov, cov)
    return float(-found["quartic"] / 8 + inner / 8 + crossed / 12)


# %%
# A closed form: the Dirichlet integral
# -------------------------------------
# By the logits of :math:`K` categories, the last of which is zero, the posterior of counts :math:`\alpha` has
# :math:`U(\theta) = -\sum_i \alpha_i \log\mathrm{softmax}(\theta, 0)_i`, and its integral is the multivariate Beta
# function :math:`\prod_i\Gamma(\alpha_i)/\Gamma(\sum_i\alpha_i)`. Laplace's method gives Stirling's formula for each
# Gamma function, and so the next order has to be
# :math:`\frac{1}{12}\left(\sum_i 1/\alpha_i - 1/\sum_i\alpha_i\right)`.


def dirichlet(logits: Tensor, counts: Tensor) -> Tensor:
    """Return the potential of counts (K,) at logits (K - 1,)."""
    return -counts @ torch.log_softmax(torch.cat([logits, logits.new_zeros(1)]), 0)


curvature = hofunc.jit(hofunc.derivatives(dirichlet, order=2))
corrections = hofunc.jit(hofunc.einsum(dirichlet, PATTERNS))
counts = torch.linspace(2, 9, 20)
logits, value, hessian = mode_of(curvature, (counts[:-1] / counts[-1]).log(), counts)
correction = next_order(corrections, logits, hessian, counts)
stirling = float((1 / counts).sum() - 1 / counts.sum()) / 12
exact = float(torch.lgamma(counts).sum() - torch.lgamma(counts.sum()))
print(f"20 categories: log integral {exact:.5f}")
print(f"  Laplace {laplace(value, hessian):.5f}, with the next order {laplace(value, hessian) + correction:.5f}")
print(f"  next order {correction:.12f}, by Stirling's series {stirling:.12f}")

# %%
# Real data: logistic regression
# ------------------------------
# Breast tumours are benign or malignant; mean radius and mean texture, standardised, and a constant predict which.
# With a standard normal prior for the three parameters, the evidence of the first :math:`N` patients can be had from
# a product rule of Gauss and Hermite, which is placed at the mode and refined until it no longer changes.

features, labels = load_breast_cancer(return_X_y=True)
features = torch.tensor(features[:, :2])
features = torch.cat([torch.ones(len(features), 1), (features - features.mean(0)) / features.std(0)], 1)
signs = torch.tensor(2.0 * labels - 1)
rows = torch.randperm(len(signs), generator=torch.Generator().manual_seed(1))
features, signs = features[rows], signs[rows]


def logistic(theta: Tensor, features: Tensor, signs: Tensor) -> Tensor:
    """Return minus the logarithm of likelihood times prior, for parameters (..., 3)."""
    likelihood = logsigmoid(signs * (theta @ features.T)).sum(-1)
    return theta.square().sum(-1) / 2 + 1.5 * math.log(2 * math.pi) - likelihood


def quadrature(theta: Tensor, value: Tensor, hessian: Tensor, *data: Tensor, nodes: int) -> float:
    """Return the logarithm of the integral by a product rule for the Gaussian at the mode, widened by a fifth."""
    points, weights = map(torch.tensor, np.polynomial.hermite_e.hermegauss(nodes))
    grid = torch.cartesian_prod(points, points, points)
    weight = torch.cartesian_prod(*[weights.log() + points.square() / 2] * 3).sum(-1)
    root = 1.2 * torch.linalg.inv(torch.linalg.cholesky(hessian))
    heights = torch.cat([logistic(part @ root + theta, *data) for part in grid.split(2000)])
    return float(torch.logsumexp(weight + value - heights, 0) - value + torch.logdet(root))


curvature = hofunc.jit(hofunc.derivatives(logistic, order=2))
corrections = hofunc.jit(hofunc.einsum(logistic, PATTERNS))
sizes = [8, 16, 32, 64, 128, 256]
errors: list[tuple[float, float]] = []
theta = torch.zeros(3)
for size in sizes:
    data = (features[:size], signs[:size])
    theta, value, hessian = mode_of(curvature, theta, *data)
    evidence, check = (quadrature(theta, value, hessian, *data, nodes=nodes) for nodes in (40, 34))
    assert abs(evidence - check) < 2e-8  # the rule has converged, far below the errors that it measures
    plain = laplace(value, hessian)
    refined = plain + next_order(corrections, theta, hessian, *data)
    errors.append((abs(plain - evidence), abs(refined - evidence)))
    print(f"N = {size:3}: log evidence {evidence:10.5f}, Laplace {plain:10.5f}, next order {refined:10.5f}")

# %%
# The errors of both. Of the Dirichlet integral all counts grow together; patients are added, so that the integral
# does not only become narrower, and the lines are less straight.

scales = [1, 2, 4, 8, 16, 32]
known: list[tuple[float, float]] = []
curvature = hofunc.jit(hofunc.derivatives(dirichlet, order=2))
corrections = hofunc.jit(hofunc.einsum(dirichlet, PATTERNS))
for scale in scales:
    scaled = scale * counts
    logits, value, hessian = mode_of(curvature, (scaled[:-1] / scaled[-1]).log(), scaled)
    plain = laplace(value, hessian)
    refined = plain + next_order(corrections, logits, hessian, scaled)
    target = float(torch.lgamma(scaled).sum() - torch.lgamma(scaled.sum()))
    known.append((abs(plain - target), abs(refined - target)))

figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
titles = ("Dirichlet integral, 20 categories", "Logistic regression, breast cancer")
cases = ((scales, known, "factor of all counts"), (sizes, errors, "patients $N$"))
for axes, title, (horizontal, vertical, label) in zip(panels, titles, cases, strict=True):
    first, second = zip(*vertical, strict=True)
    axes.loglog(horizontal, first, "o-", color="#b2182b", label="Laplace: order 2")
    axes.loglog(horizontal, second, "s-", color="#2166ac", label="next order: orders 3 and 4")
    axes.set(title=title, xlabel=label, ylabel="error of the log integral")
    axes.set_xticks(horizontal, horizontal, minor=False)
    axes.minorticks_off()
    axes.set_ylim(bottom=min(second) / 8)
    axes.legend(loc="lower left")

# %%
# What has to hold
# ----------------
# The next order is Stirling's :math:`\frac{1}{12}\left(\sum_i 1/\alpha_i - 1/\sum_i\alpha_i\right)` to rounding. In
# one dimension, :math:`\Gamma(n+1) = n^{n+1}\int e^{-n(u - \log u)}\,du`, it is :math:`1/(12 n)`. When all counts
# double, the errors fall by factors that tend to 2 and, as the term after the next of Stirling's series is of third
# order, 8.

assert math.isclose(correction, stirling, rel_tol=1e-10)


def gamma(u: Tensor, n: Tensor) -> Tensor:
    """Return the potential of the Gamma function."""
    return n * (u - u.log()).sum()


n = torch.tensor(7.0)
_, _, hessian = hofunc.derivatives(gamma, order=2)(torch.ones(1), n)
series = next_order(hofunc.jit(hofunc.einsum(gamma, PATTERNS)), torch.ones(1), hessian, n)
assert math.isclose(series, 1 / 84, rel_tol=1e-13)
(plain_before, refined_before), (plain_after, refined_after) = known[-2:]
assert abs(plain_before / plain_after - 2) < 1e-3
assert abs(refined_before / refined_after - 8) < 1e-2
assert all(refined < plain / 4 for plain, refined in errors)
assert errors[-1][1] < errors[-1][0] / 30
