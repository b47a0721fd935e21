"""Functions of two numbers, applied to the broadcast of two tensors."""

import math
from functools import partial

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.internals import TIES_ARE_SHARED
from hofunc.rules.ops.calculus import falling
from hofunc.rules.ops.elementwise import sigmoid
from hofunc.rules.quotient import divided
from hofunc.rules.registry import POSITIVE, define_composite, define_elementwise, define_elementwise_pair

aten = torch.ops.aten


def power(x: Tensor, z: Tensor, r: int, s: int) -> Tensor:
    """Differentiate x ** z: by x that leaves a falling factorial of z, a polynomial, and by z logarithms of x.

    Where x is zero and what is left of z is not negative, the logarithm counts as zero, as in torch.
    """
    at_zero = (x == 0) & ((z.real if z.is_complex() else z) >= r)
    logarithm = torch.where(at_zero, 0, torch.where(at_zero, 1, x).log()) if s else x
    total = torch.zeros_like(x * z)
    for j, factor in enumerate(falling_with_slopes(z, r, min(r, s))):
        left = torch.where(factor == 0, 0, z - r)
        rest = torch.where(left == 0, 1, x**left) if x.is_complex() else x**left  # complex zero to the zero is nan
        term = math.comb(s, j) * torch.where(rest == 0, 0, factor * rest)  # however large the factor
        total = total + (term * logarithm ** (s - j) if s > j else term)
    return total


def falling_with_slopes(z: Tensor, count: int, order: int) -> list[Tensor]:
    """Return the falling factorial of count factors and its derivatives up to an order.

    By its factors: written out as a polynomial it loses its digits near its zeros.
    """
    derivatives = [torch.ones_like(z), *(torch.zeros_like(z) for _ in range(order))]
    for k in range(count):
        below = [torch.zeros_like(z), *derivatives]
        derivatives = [(z - k) * part + j * below[j] if j else (z - k) * part for j, part in enumerate(derivatives)]
    return derivatives


def atan2(y: Tensor, x: Tensor, r: int, s: int) -> Tensor:
    """Differentiate the angle of x + i y: the imaginary part of the derivatives of log(x + i y).

    At the origin, where there is none, they are zero, as is the first one of torch.
    """
    length, cosine, sine = _polar(x, y)
    n = r + s
    real, imaginary = torch.ones_like(cosine), torch.zeros_like(sine)  # of (cosine - i sine) ** n
    for _ in range(n):
        real, imaginary = real * cosine + imaginary * sine, imaginary * cosine - real * sine
    part = (imaginary, real, -imaginary, -real)[r % 4]
    return torch.where(length == math.inf, 0, divided(falling(-1.0, n - 1) * part, length, n))


def hypot(x: Tensor, z: Tensor, r: int, s: int) -> Tensor:
    """Differentiate the length of (x, z), which grows along it, and by the squares of changes across.

    At the origin, where there are none, the derivatives are zero, as are those of a norm.
    """
    length, cosine, sine = _polar(x, z)
    n, total = r + s, torch.zeros_like(cosine)
    for across in range(0, n + 1, 2):
        weight = falling(0.5, across // 2) / math.factorial(across // 2) * math.factorial(across)
        weight *= falling(1 - across, n - across)
        for i in range(max(0, across - s), min(across, r) + 1):
            j = across - i
            direction = (-sine) ** i * cosine ** (r - i) * cosine**j * sine ** (s - j)
            total = total + weight * math.comb(r, i) * math.comb(s, j) * direction if weight else total
    return total if n == 1 else torch.where(length == math.inf, 0, divided(total, length, n - 1))


def _polar(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the length of (x, y), one at the origin, and the direction, zero there."""
    length = torch.hypot(x, y)
    length = torch.where(length > 0, length, 1)
    return length, x / length, y / length


def logaddexp(x: Tensor, z: Tensor, r: int, s: int, base: float = math.e) -> Tensor:
    """Differentiate log(exp(x) + exp(z)), to some base: it is z more than a function of x - z."""
    scale = math.log(base)
    difference = torch.where(x == z, 0, x - z) * scale
    y = (difference if r else -difference).sigmoid()
    if r + s == 1:
        return y
    return (-1) ** s * scale ** (r + s - 1) * sigmoid(difference, difference.sigmoid(), r + s - 1)


define_elementwise_pair(aten.pow.Tensor_Tensor, power, domain=POSITIVE)
define_elementwise_pair(aten.atan2.default, atan2, domain=POSITIVE)
define_elementwise_pair(aten.hypot.default, hypot, domain=POSITIVE)
define_elementwise_pair(aten.logaddexp.default, logaddexp)
define_elementwise_pair(aten.logaddexp2.default, partial(logaddexp, base=2))


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
    return falling_with_slopes(x, count, 0)[0]


define_elementwise_pair(aten.igamma.default, igamma, domain=POSITIVE)
define_elementwise_pair(aten.igammac.default, lambda a, x, r, s: -igamma(a, x, r, s), domain=POSITIVE)
define_elementwise_pair(aten.special_zeta.default, zeta, domain=POSITIVE)


# Products with a logarithm: zero where x is, even if the logarithm is not finite.


def xlogy(x: Tensor, z: Tensor, r: int, s: int) -> Tensor:
    """Differentiate x log(z), at most once by x."""
    if not s:
        return torch.where((x == 0) & (z <= 0), 1, z).log()
    if r:
        return falling(-1.0, s - 1) * divided(torch.ones_like(x), z, s)
    return torch.where(x == 0, 0, falling(-1.0, s - 1) * divided(x, z, s))


define_elementwise_pair(aten.xlogy.Tensor, xlogy, degree=1, domain=POSITIVE)
define_elementwise_pair(
    aten.special_xlog1py.default, lambda x, z, r, s: xlogy(x, 1 + z, r, s), degree=1, domain=POSITIVE
)


# Ones of straight pieces.


def fmax(x: Tensor, z: Tensor) -> Tensor:
    """Return the greater of two numbers, or the one that is one."""
    return _at_ties(x, z, torch.where((x >= z) | z.isnan(), x, z))


def fmin(x: Tensor, z: Tensor) -> Tensor:
    """Return the lesser of two numbers, or the one that is one."""
    return _at_ties(x, z, torch.where((x <= z) | z.isnan(), x, z))


def _at_ties(x: Tensor, z: Tensor, other: Tensor) -> Tensor:
    """Return the mean of two numbers where they are equal, and other ones elsewhere."""
    return torch.where(x == z, x / 2 + z / 2, other) if TIES_ARE_SHARED else other


def clamp(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """Return numbers within bounds; a high one holds against a low one that is above it."""
    if not TIES_ARE_SHARED:
        return _clamped(torch.where(x.isnan(), torch.nan, x), low, high)  # what is nan has no slope, as in torch
    if low is None:
        return x if high is None else torch.minimum(x, high)
    if high is None:
        return torch.maximum(x, low)
    between = torch.where(low > high, high, _clamped(x, low, high))
    for bound in (low, high):
        between = torch.where((x == bound) & (low < high), x / 2 + bound / 2, between)
    outside = (x < low) | (x > high)
    for number in (low, high):
        between = torch.where(number.isnan(), torch.where(outside, torch.nan, x + torch.nan), between)
    return torch.where(x.isnan(), x + torch.where(low > high, high, 0), between)


def _clamped(x: Tensor, low: Tensor | None, high: Tensor | None) -> Tensor:
    if low is not None:
        x = torch.where(x < low, low, x)
    return x if high is None else torch.where(x > high, high, x)


define_composite(aten.fmax.default, fmax)
define_composite(aten.fmin.default, fmin)
define_composite(aten.clamp.Tensor, clamp)
define_composite(aten.clamp_min.Tensor, clamp)
define_composite(aten.clamp_max.Tensor, lambda x, high: clamp(x, None, high))
define_composite(
    aten.copysign.Tensor, lambda x, z: x * (x.detach().sign() * torch.copysign(torch.ones_like(x), z.detach()))
)
define_composite(aten.copysign.Scalar, lambda x, z: x * (x.detach().sign() * math.copysign(1, z)))
define_composite(aten.nextafter.default, lambda x, y: x + (torch.nextafter(x.detach(), y.detach()) - x.detach()))
define_composite(aten.frexp.Tensor, lambda x: (x * torch.exp2(-x.detach().frexp().exponent.to(x.dtype)), None))
define_composite(aten.fmod.Tensor, lambda x, z: x - z * torch.div(x.detach(), z.detach(), rounding_mode="trunc"))
define_composite(aten.remainder.Tensor, lambda x, z: x - z * torch.div(x.detach(), z.detach(), rounding_mode="floor"))
define_composite(aten.remainder.Scalar_Tensor, lambda x, z: x - z * torch.div(x, z.detach(), rounding_mode="floor"))
define_elementwise(aten.fmod.Scalar, lambda x, y, r, z: torch.ones_like(x), degree=1)
define_elementwise(aten.remainder.Scalar, lambda x, y, r, z: torch.ones_like(x), degree=1)
