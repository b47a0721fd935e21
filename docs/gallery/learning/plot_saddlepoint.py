r"""
Cumulants and a saddlepoint density
===================================

The derivatives of a cumulant generating function at zero are cumulants, and elsewhere those of a tilted
distribution. Two of them give the saddlepoint density, whose relative error stays small far into the tails; two more
give its next order. The density of a sum of waiting times, and a bootstrap without resampling, come of it.
"""

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

import hofunc

torch.set_default_dtype(torch.float64)

# %%
# The approximation
# -----------------
# Let :math:`K(s) = \log \mathrm{E}\,e^{sX}`. The saddlepoint of a value :math:`x` is where :math:`K'(s) = x`, and
# there
#
# .. math::
#     f(x) \approx \frac{e^{K(s) - sx}}{\sqrt{2\pi K''(s)}}
#     \left(1 + \frac{1}{8}\lambda_4 - \frac{5}{24}\lambda_3^2\right), \qquad
#     \lambda_r = \frac{K^{(r)}(s)}{K''(s)^{r/2}}
#
# (Daniels, Saddlepoint approximations in statistics, *Ann. Math. Stat.* 25, 1954). To draw a density no equation has
# to be solved: choose values of :math:`s`, and the derivatives there say at which :math:`x` they are the
# saddlepoints. All are done at once: with ``layout="compact"`` a derivative of a function of many points, each on its
# own, keeps one number for each of them.


def derivatives(generating: Callable[[Tensor], Tensor], s: Tensor, order: int) -> list[Tensor]:
    """Return K and its derivatives at points (n,), each (n,)."""
    value, *found = hofunc.derivatives(generating, order, layout="compact")(s)
    return [value, *(each.dense(keep_batch=True) for each in found)]


def saddlepoint(generating: Callable[[Tensor], Tensor], s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values (n,) whose saddlepoints are s, and the density there, of the first and of the next order."""
    value, x, variance, third, fourth = derivatives(generating, s, 4)
    density = (value - s * x).exp() / (2 * math.pi * variance).sqrt()
    return x, density, density * (1 + fourth / variance**2 / 8 - 5 / 24 * third**2 / variance**3)


# %%
# A sum of waiting times
# ----------------------
# Four exponential waiting times, with different rates :math:`r_i`, are waited for one after the other. The sum has
# :math:`K(s) = -\sum_i\log(1 - s / r_i)`, and its density has a closed form to compare with:
# :math:`f(x) = \sum_i r_i e^{-r_i x}\prod_{j\ne i} r_j / (r_j - r_i)`.

rates = torch.tensor([1.0, 1.6, 2.5, 4.0])


def waiting(s: Tensor) -> Tensor:
    """Return the cumulant generating function at points (n,)."""
    return -torch.log1p(-s[:, None] / rates).sum(-1)


def density_of_waiting(x: Tensor) -> Tensor:
    """Return the density in closed form."""
    apart = rates - rates[:, None] + torch.diag(rates)
    return torch.exp(-x[:, None] * rates) @ (rates * (rates / apart).prod(-1))


s = rates.min() - torch.logspace(-2.7, 4, 400)
x, plain, refined = saddlepoint(waiting, s)
exact = density_of_waiting(x)

# %%
# A bootstrap without resampling
# ------------------------------
# A resample of :math:`n` rows has a mean whose distribution is known by its generating function,
# :math:`K(s) = n \log\frac{1}{n}\sum_i e^{s y_i / n}`, and so by its saddlepoint density (Davison and Hinkley,
# Saddlepoint approximations in resampling methods, *Biometrika* 75, 1988). The data are the progression of diabetes
# in 15 patients; 400 000 resamples are for comparison.

SIZE = 15
progression = torch.tensor(load_diabetes().target[:SIZE])


def resampled(s: Tensor) -> Tensor:
    """Return the cumulant generating function of the mean of a resample, at points (n,)."""
    return SIZE * (torch.logsumexp(s[:, None] * progression / SIZE, -1) - math.log(SIZE))


_, centre, spread, skew, tails = derivatives(resampled, torch.zeros(1), 4)
means, _, bootstrap = saddlepoint(resampled, torch.linspace(-12, 5, 341) / spread.sqrt())
draws = np.random.default_rng(0).integers(SIZE, size=(400_000, SIZE))
resamples = progression.numpy()[draws].mean(1)


def gaussian(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return a normal density."""
    return torch.exp(-((x - mean) ** 2) / (2 * variance)) / (2 * math.pi * variance).sqrt()


def stirling(shape: float) -> float:
    """Return the Gamma function over Stirling's formula for it."""
    return math.gamma(shape) / (math.sqrt(2 * math.pi) * shape ** (shape - 0.5) * math.exp(-shape))


_, mean, variance = derivatives(waiting, torch.zeros(1), 2)
figure, (first, second, third) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
shown = (x > 0.05) & (x < 16)
first.semilogy(x[shown], exact[shown], "k-", linewidth=1, label="exact")
first.semilogy(x[shown], plain[shown], "--", color="#b2182b", label="saddlepoint")
first.semilogy(x[shown], gaussian(x, mean, variance)[shown], ":", color="#999999", label="normal")
first.set(title="Sum of four waiting times", xlabel="$x$", ylabel="density", ylim=(1e-7, 1))
first.legend()
second.loglog(x, (plain / exact - 1).abs(), color="#b2182b", label="saddlepoint: orders 1 and 2")
second.loglog(x, (refined / exact - 1).abs(), color="#2166ac", label="next: orders 3 and 4")
for shape, label in ((4, "Stirling's formula at 4, at 1"), (1, None)):
    second.axhline(stirling(shape) - 1, color="black", linewidth=0.8, linestyle=":", label=label)
second.set(title="Relative error of the density", xlabel="$x$", ylim=(1e-5, 10))
second.set(ylabel="|approximation / exact - 1|")
second.legend()
counts, edges = np.histogram(resamples, 60)
third.stairs(counts / len(resamples) / np.diff(edges), edges, color="#cccccc", fill=True, label="400 000 resamples")
third.semilogy(means, bootstrap, color="#2166ac", label="next order")
third.semilogy(means, gaussian(means, centre, spread), "k:", linewidth=1, label="normal")
third.set(title="Bootstrap of a mean", xlabel="mean progression of 15 patients", ylabel="density")
third.set(xlim=(80, 230), ylim=(1e-8, 0.3))
third.legend()

# %%
# What has to hold
# ----------------
# The cumulants of the waiting times are :math:`(k - 1)! \sum_i r_i^{-k}`, here to the eighth. Of a Gamma distribution
# of shape :math:`\alpha` the saddlepoint density is exact but for a constant, which is Stirling's formula in place of
# the Gamma function, and the next order is :math:`1 - 1/(12\alpha)` (Daniels, 1954). A sum of four waiting times
# begins like a Gamma distribution of shape 4 and ends like one of shape 1: these constants are the plateaus of the
# relative error. The third and fourth cumulants of a resample's mean are those of the data over :math:`n^2` and
# :math:`n^3`.

cumulants = torch.cat(derivatives(waiting, torch.zeros(1), 8)[1:])
closed = torch.stack([math.factorial(k - 1) * (rates**-k).sum() for k in range(1, 9)])
torch.testing.assert_close(cumulants, closed, rtol=1e-12, atol=0)

alpha = 3.7
x_gamma, plain_gamma, refined_gamma = saddlepoint(lambda s: -alpha * torch.log1p(-s), torch.linspace(-20, 0.9, 50))
density = ((alpha - 1) * x_gamma.log() - x_gamma).exp() / math.gamma(alpha)
torch.testing.assert_close(plain_gamma / density, torch.full((50,), stirling(alpha)), rtol=1e-12, atol=0)
torch.testing.assert_close(refined_gamma / plain_gamma, torch.full((50,), 1 - 1 / (12 * alpha)), rtol=1e-12, atol=0)
assert math.isclose((plain / exact)[-1], stirling(4), rel_tol=1e-4)
assert math.isclose((plain / exact)[0], stirling(1), rel_tol=1e-4)

moments = [((progression - progression.mean()) ** power).mean() for power in (2, 3, 4)]
torch.testing.assert_close(skew[0], moments[1] / SIZE**2, rtol=1e-11, atol=0)
torch.testing.assert_close(tails[0], (moments[2] - 3 * moments[0] ** 2) / SIZE**3, rtol=1e-11, atol=0)
above = means > centre + 2.5 * spread.sqrt()
predicted, seen = float(torch.trapezoid(bootstrap[above], means[above])), np.mean(resamples > float(means[above][0]))
print(f"a mean above {float(means[above][0]):.1f}: {predicted:.5f} by the saddlepoint density, {seen:.5f} by resamples")
assert abs(predicted - seen) < 4 * math.sqrt(seen / len(resamples))
