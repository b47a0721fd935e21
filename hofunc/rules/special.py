"""Error, gamma and cardinal sine functions, and the logit, at every order in closed form."""

import math

import torch
from torch import Tensor

from hofunc.rules.calculus import differentiated, evaluated, falling, plus, recurrence, scaled, times
from hofunc.rules.elementwise import log
from hofunc.rules.registry import POSITIVE, UNIT, define_elementwise

aten = torch.ops.aten


# The error function: its derivatives are Gaussians times Hermite polynomials.

_hermite = recurrence((1,), lambda p, r: plus(scaled(times(p, (0, 1)), -2), differentiated(p)))
_inverse = recurrence((1,), lambda p, r: plus(scaled(times(p, (0, 1)), 2 * r), differentiated(p)))


def gaussian(x: Tensor, r: int) -> Tensor:
    """Return the r-th derivative of exp(-x^2); beyond 30 it is zero in every dtype, whatever its polynomial."""
    x = x.clamp(-30, 30)
    return evaluated(_hermite(r + 1), x) * (-x * x).exp()


def erfinv(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate the inverse error function, of which y' = sqrt(pi)/2 exp(y^2)."""
    return evaluated(_inverse(r), y) * (math.sqrt(math.pi) / 2 * (y * y).exp()) ** r


define_elementwise(aten.erf.default, lambda x, y, r: 2 / math.sqrt(math.pi) * gaussian(x, r - 1))
define_elementwise(aten.erfc.default, lambda x, y, r: -2 / math.sqrt(math.pi) * gaussian(x, r - 1))
define_elementwise(aten.erfinv.default, erfinv, domain=UNIT)


# The gamma function.


def polygamma(n: int, x: Tensor) -> Tensor:
    """Return the n-th derivative of digamma, by the zeta function: torch.polygamma is off by 1e-10 at n = 1."""
    return x.digamma() if n == 0 else (-1) ** (n + 1) * math.factorial(n) * torch.special.zeta(n + 1, x)


define_elementwise(aten.lgamma.default, lambda x, y, r: polygamma(r - 1, x), domain=POSITIVE)
define_elementwise(aten.digamma.default, lambda x, y, r: polygamma(r, x), domain=POSITIVE)
define_elementwise(aten.polygamma.default, lambda x, y, r, n: polygamma(n + r, x), domain=POSITIVE)
define_elementwise(
    aten.special_zeta.self_scalar, lambda x, y, r, s: falling(-s, r) * torch.special.zeta(s + r, x), domain=POSITIVE
)


# The cardinal sine.


def sinc(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate sin(z) / z at z = pi x: its Taylor series near zero, where the quotient loses all digits.

    Further out, z s(z) = sin(z) differentiated k times gives each order from the one before.
    """
    z, bound = math.pi * x, r + 2
    near = z.abs() < bound
    series = [0.0] * (8 * bound + 24 - r)
    for power in range(r + r % 2, len(series) + r, 2):
        series[power - r] = (-1) ** (power // 2) / ((power + 1) * math.factorial(power - r))
    far = torch.where(near, 1, z)
    quotient = far.sin() / far
    for k in range(1, r + 1):
        quotient = ((far + k * math.pi / 2).sin() - k * quotient) / far
    return math.pi**r * torch.where(near, evaluated(series, torch.where(near, z, 0)), quotient)


define_elementwise(aten.sinc.default, sinc)


# The logit.


def logit(x: Tensor, y: Tensor, r: int, eps: float | None = None) -> Tensor:
    """Differentiate log(x) - log(1 - x), which is constant where eps clamps x."""
    if eps is not None:
        inside = (x >= eps) & (x <= 1 - eps)
        return torch.where(inside, logit(torch.where(inside, x, 0.5), y, r), 0)
    return log(x, y, r) - (-1) ** r * log(1 - x, y, r)


define_elementwise(aten.logit.default, logit, domain=(0.1, 0.9))
