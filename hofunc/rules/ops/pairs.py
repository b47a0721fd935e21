"""Functions of two numbers, applied to the broadcast of two tensors."""

import math

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.rules.kinds import promoted
from hofunc.rules.ops.calculus import differentiated, evaluated, falling, falling_polynomial
from hofunc.rules.registry import POSITIVE, define_composite, define_elementwise_pair, define_piecewise_linear

aten = torch.ops.aten


def power(x: Tensor, z: Tensor, r: int, s: int) -> Tensor:
    """Differentiate x ** z: by x that leaves a falling factorial of z, a polynomial, and by z logarithms of x.

    Where x is zero and what is left of z is not negative, the logarithm counts as zero, as in torch.
    """
    at_zero = (x == 0) & (z >= r)
    logarithm = torch.where(at_zero, 0, torch.where(at_zero, 1, x).log()) if s else x
    total = torch.zeros_like(x * z)
    for j in range(min(r, s) + 1):
        factor = torch.zeros_like(z) + evaluated(differentiated(falling_polynomial(r), j), z)
        term = math.comb(s, j) * factor * x ** torch.where((factor == 0) & (x == 0), 0, z - r)
        total = total + (term * logarithm ** (s - j) if s > j else term)
    return total


def atan2(y: Tensor, x: Tensor, r: int, s: int) -> Tensor:
    """Differentiate the angle of x + i y: the imaginary part of the derivatives of log(x + i y).

    At the origin, where there is none, they are zero, as is the first one of torch.
    """
    n = r + s
    angle, radius = n * torch.atan2(y, x), torch.hypot(x, y)
    part = (-angle.sin(), angle.cos(), angle.sin(), -angle.cos())[r % 4]
    return torch.where(radius > 0, falling(-1.0, n - 1) * part / torch.where(radius > 0, radius, 1) ** n, 0)


define_elementwise_pair(aten.pow.Tensor_Tensor, power, domain=POSITIVE)
define_elementwise_pair(aten.atan2.default, atan2, domain=POSITIVE)
define_composite(aten.hypot.default, lambda x, y: (x * x + y * y).sqrt())


# By the second argument only, as in torch: the derivatives by the first have no closed form.


def _refused(name: str) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"hofunc: {name} by its first argument",
        got="a derivative that torch does not have either",
        expected="one by the second argument only",
        remedy="Detach the first argument if it is to be a constant.",
    )


def igamma(a: Tensor, x: Tensor, r: int, s: int) -> Tensor:
    """Differentiate the lower regularised incomplete gamma function by x: x^(a - 1) exp(-x) / gamma(a) and its own."""
    if r:
        raise _refused("an incomplete gamma function")
    density = (-x - a.lgamma()).exp()
    # where a power of x is multiplied by zero it is left out, since it may be infinite
    parts = [(math.comb(s - 1, k) * (-1) ** (s - 1 - k), _falling(a - 1, k), a - 1 - k) for k in range(s)]
    return sum((c * f * x ** torch.where(f == 0, 0, power) * density for c, f, power in parts), torch.zeros_like(x * a))


def zeta(exponent: Tensor, x: Tensor, r: int, s: int) -> Tensor:
    """Differentiate the Hurwitz zeta function by its second argument."""
    if r:
        raise _refused("the zeta function")
    return _falling(-exponent, s) * torch.special.zeta(exponent + s, x)


def _falling(x: Tensor, count: int) -> Tensor:
    return torch.zeros_like(x) + evaluated(falling_polynomial(count), x)


define_elementwise_pair(aten.igamma.default, igamma, domain=POSITIVE)
define_elementwise_pair(aten.igammac.default, lambda a, x, r, s: -igamma(a, x, r, s), domain=POSITIVE)
define_elementwise_pair(aten.special_zeta.default, zeta, domain=POSITIVE)


# Products with a logarithm: zero where x is, even if the logarithm is not finite.


def _logarithm(x: Tensor, z: Tensor) -> Tensor:
    return torch.where((x == 0) & (z <= 0), 1, z).log()


define_composite(aten.xlogy.Tensor, lambda x, z: x * promoted(_logarithm, x, z))
define_composite(aten.special_xlog1py.default, lambda x, z: x * promoted(_logarithm, x, 1 + z))


# Ones of straight pieces.

define_composite(aten.fmax.default, lambda x, z: torch.where((x >= z) | z.isnan(), x, z))
define_composite(aten.fmin.default, lambda x, z: torch.where((x <= z) | z.isnan(), x, z))
define_composite(
    aten.copysign.Tensor, lambda x, z: x * (x.detach().sign() * torch.copysign(torch.ones_like(x), z.detach()))
)
define_composite(aten.copysign.Scalar, lambda x, z: x * (x.detach().sign() * math.copysign(1, z)))
define_composite(aten.nextafter.default, lambda x, y: x + (torch.nextafter(x.detach(), y.detach()) - x.detach()))
define_composite(aten.frexp.Tensor, lambda x: (x * torch.exp2(-x.detach().frexp().exponent.to(x.dtype)), None))
define_composite(aten.fmod.Tensor, lambda x, z: x - z * torch.div(x.detach(), z.detach(), rounding_mode="trunc"))
define_composite(aten.remainder.Tensor, lambda x, z: x - z * torch.div(x.detach(), z.detach(), rounding_mode="floor"))
define_composite(aten.remainder.Scalar_Tensor, lambda x, z: x - z * torch.div(x, z.detach(), rounding_mode="floor"))
define_piecewise_linear(aten.fmod.Scalar, lambda x, y, z: torch.ones_like(x))
define_piecewise_linear(aten.remainder.Scalar, lambda x, y, z: torch.ones_like(x))
