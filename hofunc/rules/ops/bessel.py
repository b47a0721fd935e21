"""Modified Bessel functions of the first kind, and scaled ones, at every order.

All follow from I0: I1 is its derivative, and differentiating its equation x y'' + y' - x y = 0 gives each order from
the three before it, where x is not near zero.
"""

import math
from itertools import accumulate

import torch
from torch import Tensor

from hofunc.rules.ops.calculus import falling, near_and_far
from hofunc.rules.registry import define_elementwise

aten = torch.ops.aten


def i0(x: Tensor, r: int) -> Tensor:
    """Differentiate I0."""
    return near_and_far(x, r, _coefficient, lambda x: _continued(x, x.i0(), torch.special.i1(x), r))


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
    near = x < _FAR
    inside, outside = torch.where(near, x, 0), torch.where(near, _FAR, x)
    product = sum((math.comb(r, k) * (-1) ** (r - k) * _scaled(inside, k) for k in range(r + 1)), torch.zeros_like(x))
    powers = [c * falling(-k - 0.5, r) * outside ** (-k - r) for k, c in enumerate(_ASYMPTOTIC)]
    return torch.where(near, product, sum(reversed(powers)) / (2 * math.pi * outside).sqrt())


def _scaled(x: Tensor, k: int) -> Tensor:
    """Return exp(-x) times the k-th derivative of I0."""
    near = x < k + 2
    inside, outside = torch.where(near, x, 0), torch.where(near, k + 2, x)
    further = _continued(outside, torch.special.i0e(outside), torch.special.i1e(outside), k)
    return torch.where(near, (-inside).exp() * i0(inside, k), further)


_FAR = 20.0  # the terms below get smaller by then down to about exp(-2 x)
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
