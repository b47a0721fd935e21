"""Error, gamma and cardinal sine functions, and the logit, at every order in closed form."""

import math
from functools import reduce
from itertools import accumulate
from operator import add, mul, sub

import torch
from torch import Tensor

from hofunc.graph.node import Call, Ref
from hofunc.rules.ops.calculus import differentiated, evaluated, falling, near_and_far, plus, recurrence, scaled, times
from hofunc.rules.ops.elementwise import define_factored, log
from hofunc.rules.registry import POSITIVE, UNIT, define_elementwise

aten = torch.ops.aten


# The error function: its derivatives are Gaussians times Hermite polynomials.

_hermite = recurrence((1,), lambda p, r: plus(scaled(times(p, (0, 1)), -2), differentiated(p)))
_inverse = recurrence((1,), lambda p, r: plus(scaled(times(p, (0, 1)), 2 * r), differentiated(p)))
_quantile = recurrence((1,), lambda p, r: plus(scaled(times(p, (0, 1)), r), differentiated(p)))


def _within_gaussian(x: Tensor) -> Tensor:
    return x.clamp(-30, 30)  # beyond which it is zero in every dtype, whatever its polynomial


def _gaussian(x: Tensor) -> Tensor:
    return (-x * x).exp()


def _derivatives_of_gaussian(x: Ref, r: int) -> list[Ref | Call]:
    """Return the factors of the r-th derivative of exp(-x^2)."""
    within = Call(_within_gaussian, (x,))
    found: list[Ref | Call] = [Call(_gaussian, (within,))]
    return [*found, Call(evaluated, (_hermite(r + 1), within))] if r else found


define_factored(aten.erf.default, lambda x, y, r: (2 / math.sqrt(math.pi), _derivatives_of_gaussian(x, r - 1)))
define_factored(aten.erfc.default, lambda x, y, r: (-2 / math.sqrt(math.pi), _derivatives_of_gaussian(x, r - 1)))


def erfinv(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate the inverse error function, of which y' = sqrt(pi)/2 exp(y^2)."""
    return evaluated(_inverse(r), y) * (math.sqrt(math.pi) / 2 * (y * y).exp()) ** r


def ndtri(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate the inverse of the normal distribution function, of which y' = sqrt(2 pi) exp(y^2 / 2)."""
    return evaluated(_quantile(r), y) * (math.sqrt(2 * math.pi) * (y * y / 2).exp()) ** r


def erfcx(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate exp(x^2) erfc(x).

    Each order follows from the two before it, which loses digits to the right, where all orders tend to zero. There
    they are products of quotients.
    """
    start, count = _quotients_from(r)
    right = x > start
    below, last = y, 2 * x * y - 2 / math.sqrt(math.pi)
    for k in range(1, r):
        below, last = last, 2 * x * last + 2 * k * below
    product = reduce(mul, _quotients(torch.where(right, x, start), r, count), y)
    return torch.where(right, product, last)


def _quotients_from(r: int) -> tuple[float, int]:
    """Return from where on to take quotients for an order, and how many to begin before it for all digits."""
    return (2.8, 24) if r <= 2 else (1.5, 48)  # the lower orders lose one digit or two up to there


def _quotients(x: Tensor, r: int, count: int) -> list[Tensor]:
    """Return the quotients y(n) / y(n - 1) of the first orders of exp(x^2) erfc(x), at numbers that are not small.

    They are taken in turn from high orders down, as -2 n / (2 x - q(n + 1)), from one on that is what they tend to,
    x - s with s the root of x^2 + 2 n, times 1 - 1 / (2 s^2).
    """
    first, twice = r + count, 2 * x
    square = x * x + 2 * first + 2
    quotient = -2 * (first + 1) / (x + square.sqrt()) * (1 - 0.5 / square)
    found = []
    for n in range(first, 0, -1):
        quotient = -2 * n / (twice - quotient)
        if n <= r:
            found.append(quotient)
    return found[::-1]


define_elementwise(aten.erfinv.default, erfinv, domain=UNIT)
define_elementwise(aten.special_ndtri.default, ndtri, domain=(0.1, 0.9))
define_elementwise(aten.special_erfcx.default, erfcx)


def log_ndtr(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate the logarithm of the normal distribution function.

    Of its slope h is h' = -h (x + h), which gives all orders; and it is log(erfcx(z)) - z^2, but for a number, with
    z = -x / sqrt(2). On the left x + h has no digits: there all follow from the quotients of erfcx, as
    cumulants do from moments.
    """
    slope = _slope_of_log_ndtr(x)
    if r == 1:
        return slope
    start, count = _quotients_from(r)
    left = x < -start * math.sqrt(2)
    inside = torch.where(left, 0.0, x).clamp(max=64.0)  # beyond which the slope is zero in every dtype
    slopes = [slope]
    for n in range(r - 1):
        squares = [math.comb(n, k) * slopes[k] * slopes[n - k] for k in range(n + 1)]
        lower = [n * slopes[n - 1]] if n else []
        slopes.append(-reduce(add, [inside * slopes[n], *lower, *squares]))
    moments = [*accumulate(_quotients(torch.where(left, x * -math.sqrt(0.5), start), r, count), mul)]
    cumulants: list[Tensor] = []
    for n, moment in enumerate(moments):
        products = [math.comb(n, k) * cumulant * moments[n - 1 - k] for k, cumulant in enumerate(cumulants)]
        cumulants.append(reduce(sub, products, moment))
    further = (-math.sqrt(0.5)) ** r * cumulants[-1]
    return torch.where(left, further - 1 if r == 2 else further, slopes[-1])


def _slope_of_log_ndtr(x: Tensor) -> Tensor:
    """Return the density over the distribution function, by what keeps its digits if it is differentiated."""
    z, far, left = x * -math.sqrt(0.5), x < -6 * math.sqrt(2), x < -1
    (quotient,) = _quotients(torch.where(far, z, 6.0), 1, 8)
    near = torch.special.erfcx(torch.where(left & ~far, z, math.sqrt(0.5))).reciprocal()
    inside = z.clamp(-45.0, math.sqrt(0.5))  # beyond which the density is zero in every dtype
    right = (-inside * inside).exp() / torch.erfc(inside)
    return torch.where(far, -x - quotient * math.sqrt(0.5), math.sqrt(2 / math.pi) * torch.where(left, near, right))


define_elementwise(aten.special_log_ndtr.default, log_ndtr)


# The gamma function.


def polygamma(n: int, x: Tensor) -> Tensor:
    """Return the n-th derivative of digamma, by the zeta function: torch.polygamma is off by 1e-10 at n = 1."""
    return x.digamma() if n == 0 else (-1.0) ** (n + 1) * math.factorial(n) * torch.special.zeta(n + 1, x)


define_elementwise(aten.lgamma.default, lambda x, y, r: polygamma(r - 1, x), domain=POSITIVE)
define_elementwise(aten.digamma.default, lambda x, y, r: polygamma(r, x), domain=POSITIVE)
define_elementwise(aten.polygamma.default, lambda x, y, r, n: polygamma(n + r, x), domain=POSITIVE)
define_elementwise(
    aten.special_zeta.self_scalar, lambda x, y, r, s: falling(-s, r) * torch.special.zeta(s + r, x), domain=POSITIVE
)


# The cardinal sine.


def cardinal(z: Tensor, r: int) -> Tensor:
    """Differentiate sin(z) / z: its Taylor series near zero, where the quotient loses all digits.

    Further out, z s(z) = sin(z) differentiated k times gives each order from the one before.
    """

    def far(z: Tensor) -> Tensor:
        sine, cosine = z.sin(), z.cos()
        turns = sine, cosine, -sine, -cosine
        quotient = sine / z
        for k in range(1, r + 1):
            quotient = (turns[k % 4] - k * quotient) / z
        return quotient

    return near_and_far(z, r, lambda n: 0 if n % 2 else (-1) ** (n // 2) / math.factorial(n + 1), far)


define_elementwise(aten.sinc.default, lambda x, y, r: math.pi**r * cardinal(math.pi * x, r))
define_elementwise(aten.special_spherical_bessel_j0.default, lambda x, y, r: cardinal(x, r))


# The entropy and the logit.


def entr(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate -x log(x), which is infinite below zero and has an infinite slope there."""
    derivative = -x.log() - 1 if r == 1 else -log(x, y, r - 1)
    return torch.where(x < 0, torch.nan, derivative)


define_elementwise(aten.special_entr.default, entr, domain=POSITIVE)


def logit(x: Tensor, y: Tensor, r: int, eps: float | None = None) -> Tensor:
    """Differentiate log(x) - log(1 - x), which is constant where eps clamps x."""
    if eps is not None:
        inside = (x >= eps) & (x <= 1 - eps)
        return torch.where(inside, logit(torch.where(inside, x, 0.5), y, r), 0)
    return log(x, y, r) - (-1) ** r * log(1 - x, y, r)


define_elementwise(aten.logit.default, logit, domain=(0.1, 0.9))
