"""Modified Bessel functions of the first kind, and scaled ones, at every order.

All follow from I0: I1 is its derivative, and differentiating its equation x y'' + y' - x y = 0 gives each order from
the three before it, where x is not near zero.
"""

import math
from itertools import accumulate

import torch
from torch import Tensor

from hofunc.rules.ops.calculus import evaluated, falling, near_and_far
from hofunc.rules.registry import define_elementwise

aten = torch.ops.aten


def i0(x: Tensor, r: int) -> Tensor:
    """Differentiate I0: by the kernels that there are for the lowest orders, of which none cancel."""
    if r == 0:
        return x.i0()
    if r == 1:
        return torch.special.i1(x)
    if r == 2:
        return x.i0() - _per_place(torch.special.i1(x), x)
    return near_and_far(x, r, _coefficient, lambda x: _continued(x, x.i0(), torch.special.i1(x), r))


def _per_place(odd: Tensor, x: Tensor) -> Tensor:
    """Return I1 / x, given I1 or that times exp(-x), which tends to a half at zero."""
    is_zero = x == 0
    return torch.where(is_zero, 0.5, odd / torch.where(is_zero, 1.0, x))


def _coefficient(n: int) -> float:
    return 0 if n % 2 else 1 / (4 ** (n // 2) * math.factorial(n // 2) ** 2)


def _continued(x: Tensor, value: Tensor, slope: Tensor, r: int) -> Tensor:
    """Return the r-th derivative of I0, or a multiple of it, from the lowest two."""
    derivatives = [value, slope]
    for k in range(r - 1):
        rest = x * derivatives[k] - (k + 1) * derivatives[k + 1]
        derivatives.append((rest + k * derivatives[k - 1] if k else rest) / x)
    return derivatives[r]


def i0e(x: Tensor, r: int) -> Tensor:
    """Differentiate exp(-x) I0(x) for x that are not negative, by the product rule.

    Further out that is a small difference of large numbers, and so the asymptotic series is taken.
    """
    start, count = _FAR if r > LOW else _FAR_LOW
    near = x < start
    inside, outside = torch.where(near, x, 0), torch.where(near, start, x)
    series = tuple(c * falling(-k - 0.5, r) / start**k for k, c in enumerate(_ASYMPTOTIC[:count]))
    far = evaluated(series, start / outside) * outside**-r / (2 * math.pi * outside).sqrt()
    return torch.where(near, _low(inside, r) if r <= LOW else _product(inside, r), far)


def _low(x: Tensor, r: int) -> Tensor:
    """Differentiate exp(-x) I0(x) once or twice, where x is not large, by kernels."""
    even, odd = torch.special.i0e(x), torch.special.i1e(x)
    return odd - even if r == 1 else 2 * (even - odd) - _per_place(odd, x)


def _product(x: Tensor, r: int) -> Tensor:
    return sum((math.comb(r, k) * (-1) ** (r - k) * _scaled(x, k) for k in range(r + 1)), torch.zeros_like(x))


def _scaled(x: Tensor, k: int) -> Tensor:
    """Return exp(-x) times the k-th derivative of I0."""
    near = x < k + 2
    inside, outside = torch.where(near, x, 0), torch.where(near, k + 2, x)
    further = _continued(outside, torch.special.i0e(outside), torch.special.i1e(outside), k)
    return torch.where(near, (-inside).exp() * i0(inside, k), further)


LOW = 2  # orders of which each loses less than two digits to the product rule up to where its series starts
# Where the series below is taken from, and how many of its terms, which get smaller down to about exp(-2 x).
_FAR, _FAR_LOW = (20.0, 40), (30.0, 20)
_ASYMPTOTIC = list(accumulate(range(1, 40), lambda c, k: c * (2 * k - 1) ** 2 / (8 * k), initial=1.0))


def _even(x: Tensor, right: Tensor, r: int) -> Tensor:
    """Return the r-th derivative of an even function, given that on the right."""
    return right * x.sign() if r % 2 else right


def _i0e(x: Tensor, y: Tensor, r: int) -> Tensor:
    return _even(x, i0e(x.abs(), r), r)


def _i1e(x: Tensor, y: Tensor, r: int) -> Tensor:
    return _even(x, i0e(x.abs(), r + 1) + i0e(x.abs(), r), r + 1)


for _op in (aten.i0.default, aten.special_modified_bessel_i0.default):
    define_elementwise(_op, lambda x, y, r: i0(x, r))
for _op in (aten.special_i1.default, aten.special_modified_bessel_i1.default):
    define_elementwise(_op, lambda x, y, r: i0(x, r + 1))
define_elementwise(aten.special_i0e.default, _i0e)
define_elementwise(aten.special_i1e.default, _i1e)
