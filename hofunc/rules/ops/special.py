"""Error, gamma and cardinal sine functions, and the logit, at every order in closed form."""

import math

import torch
from torch import Tensor

from hofunc.graph.node import Call, Ref
from hofunc.rules.ops.calculus import differentiated, evaluated, falling, near_and_far, plus, recurrence, scaled, times
from hofunc.rules.ops.elementwise import define_factored, log
from hofunc.rules.registry import POSITIVE, UNIT, define_composite, define_elementwise

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
    the quotients q(n) = y(n) / y(n - 1) are taken in turn from high orders down, as -2 n / (2 x - q(n + 1)), from one
    on that is what they tend to, x - s with s the root of x^2 + 2 n, times 1 - 1 / (2 s^2).
    """
    right = x > 1.5
    below, last = y, 2 * x * y - 2 / math.sqrt(math.pi)
    for k in range(1, r):
        below, last = last, 2 * x * last + 2 * k * below
    safe = torch.where(right, x, 1.5)
    first = r + 48
    square = safe * safe + 2 * first + 2
    quotient = -2 * (first + 1) / (safe + square.sqrt()) * (1 - 0.5 / square)
    product = torch.where(right, y, 1)
    for n in range(first, 0, -1):
        quotient = -2 * n / (2 * safe - quotient)
        product = product * quotient if n <= r else product
    return torch.where(right, product, last)


define_elementwise(aten.erfinv.default, erfinv, domain=UNIT)
define_elementwise(aten.special_ndtri.default, ndtri, domain=(0.1, 0.9))
define_elementwise(aten.special_erfcx.default, erfcx)


def _log_ndtr(x: Tensor) -> Tensor:
    left = x < -1
    low, high = (torch.where(at, x, -1.0) * math.sqrt(0.5) for at in (left, ~left))
    return torch.where(left, (torch.special.erfcx(-low) / 2).log() - low * low, torch.log1p(-torch.erfc(high) / 2))


define_composite(aten.special_log_ndtr.default, _log_ndtr)


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
