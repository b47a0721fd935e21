"""Powers, exponentials, and circular and hyperbolic functions, at every order in closed form.

A derivative is a function ``(x, y, r, *params)`` of the input, the value, the order and the op's other arguments. It
is made of differentiable ops, since a result of hofunc can be differentiated again.
"""

import cmath
import math
from collections.abc import Callable

import torch
from torch import Tensor

from hofunc.internals import OpOverload
from hofunc.rules.kinds import Autonomous
from hofunc.rules.ops.calculus import (
    Polynomial,
    differentiated,
    evaluated,
    falling,
    plus,
    recurrence,
    scaled,
    times,
)
from hofunc.rules.registry import POSITIVE, REAL, UNIT, define, define_elementwise

aten = torch.ops.aten

Derivative = Callable[[Tensor, Tensor, int], Tensor]


# Powers.


def power(x: Tensor, y: Tensor, r: int, exponent: float) -> Tensor:
    """Differentiate x ** exponent."""
    return falling(exponent, r) * x ** (exponent - r)


def highest_power(exponent: float) -> int | None:
    """Return the degree of x ** exponent if it is a polynomial."""
    return int(exponent) if exponent >= 0 and exponent == int(exponent) else None


define_elementwise(aten.pow.Tensor_Scalar, power, degree=highest_power, domain=POSITIVE)
define_elementwise(aten.square.default, lambda x, y, r: 2 * x if r == 1 else torch.full_like(x, 2), degree=2)
define_elementwise(aten.sqrt.default, lambda x, y, r: falling(0.5, r) * y ** (1 - 2 * r), domain=POSITIVE)
define_elementwise(aten.rsqrt.default, lambda x, y, r: falling(-0.5, r) * y ** (1 + 2 * r), domain=POSITIVE)
define_elementwise(aten.reciprocal.default, lambda x, y, r: falling(-1.0, r) * y ** (1 + r), domain=POSITIVE)


# Exponentials and logarithms.


def log(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate the natural logarithm."""
    return falling(-1.0, r - 1) * x**-r


def power_of_number(x: Tensor, y: Tensor, r: int, base: float) -> Tensor:
    """Differentiate base ** x; that of base zero counts as zero, as in torch."""
    if x.is_complex() and base != 0:
        return cmath.log(base) ** r * y
    return math.log(base) ** r * y if base > 0 else y * (0 if base == 0 else math.nan)


define_elementwise(aten.exp.default, lambda x, y, r: y)
define_elementwise(aten.exp2.default, lambda x, y, r: math.log(2) ** r * y)
define_elementwise(aten.expm1.default, lambda x, y, r: x.exp())
define_elementwise(aten.pow.Scalar, power_of_number)
define_elementwise(aten.log.default, log, domain=POSITIVE)
define_elementwise(aten.log2.default, lambda x, y, r: log(x, y, r) / math.log(2), domain=POSITIVE)
define_elementwise(aten.log10.default, lambda x, y, r: log(x, y, r) / math.log(10), domain=POSITIVE)
define_elementwise(aten.log1p.default, lambda x, y, r: log(1 + x, y, r), domain=UNIT)


# Functions that are each other's derivatives.


def quarter(y: Tensor, first: Callable[[], Tensor], r: int) -> Tensor:
    """Return the r-th derivative of a function whose second one is -y, given how to compute the first."""
    derivative = first() if r % 2 else y
    return derivative if r % 4 < 2 else -derivative


define_elementwise(aten.sin.default, lambda x, y, r: quarter(y, x.cos, r))
define_elementwise(aten.cos.default, lambda x, y, r: quarter(y, lambda: -x.sin(), r))
define_elementwise(aten.sinh.default, lambda x, y, r: x.cosh() if r % 2 else y)
define_elementwise(aten.cosh.default, lambda x, y, r: x.sinh() if r % 2 else y)


# Functions whose derivative is a polynomial of their value: y' = q(y), so that all others are q(y) Q(y).


def _define_autonomous(
    op: OpOverload, q: Polynomial, first: Derivative, domain: tuple[float, float] = REAL
) -> Derivative:
    """Enter the solution of y' = q(y); see `autonomous`."""
    derivative, multiple = autonomous(q, first)
    define(op, Autonomous(derivative, lambda: None, domain, multiple, evaluated))
    return derivative


def autonomous(q: Polynomial, first: Derivative) -> tuple[Derivative, Callable[[int], Polynomial]]:
    """Differentiate the solution of y' = q(y); ``first(x, y, 1)`` computes q(y) in the way that loses no digits.

    Returns:
        The derivative, and by order the polynomial of y by which the first one is to be multiplied.
    """
    multiple = recurrence((1,), lambda p, r: plus(times(differentiated(p), q), times(p, differentiated(q))))

    def derivative(x: Tensor, y: Tensor, r: int) -> Tensor:
        return first(x, y, 1) if r == 1 else first(x, y, 1) * evaluated(multiple(r), y)

    return derivative, multiple


# 1 - y has no digits left where y is near one
sigmoid = _define_autonomous(aten.sigmoid.default, (0, 1, -1), lambda x, y, r: y * (-x).sigmoid())
tanh = _define_autonomous(aten.tanh.default, (1, 0, -1), lambda x, y, r: torch.addcmul(y.new_ones(()), y, y, value=-1))
_define_autonomous(aten.tan.default, (1, 0, 1), lambda x, y, r: 1 + y * y, UNIT)


# Functions whose derivative is a power of a quadratic polynomial of x.


def integral(q: Polynomial, over_root: Callable[[Tensor], Tensor], exponent: float, sign: int = 1) -> Derivative:
    """Differentiate the integral of q(x) ** exponent, for a quadratic polynomial q.

    The r-th derivative is P(x) q(x) ** (exponent - r + 1), where P has degree r - 1. With u = 1 / sqrt(q) that is
    u ** (r - 1 - 2 exponent) times a homogeneous polynomial of x u and u, which cannot overflow as P can.

    Args:
        q: The polynomial.
        over_root: Computes u in the way that loses no digits, and on the side of its branch cut where the integral is.
        exponent: The power of it.
        sign: Factor on the integral.
    """

    def step(p: Polynomial, r: int) -> Polynomial:
        return plus(times(differentiated(p), q), scaled(times(p, differentiated(q)), exponent - r + 1))

    polynomial = recurrence((sign,), step)

    def derivative(x: Tensor, y: Tensor, r: int) -> Tensor:
        u = over_root(x)
        s = x * u
        terms = [c * s**k * u ** (r - 1 - k) for k, c in enumerate(polynomial(r)) if c]
        return sum(terms[1:], terms[0]) * u ** (r - 1 - 2 * exponent)

    return derivative


def _within_one(x: Tensor) -> Tensor:
    return ((1 - x) * (1 + x)).rsqrt()


def _beyond_one(x: Tensor) -> Tensor:
    return (x - 1).rsqrt() * (x + 1).rsqrt() if x.is_complex() else ((x - 1) * (x + 1)).rsqrt()


def _everywhere(x: Tensor) -> Tensor:
    return (1 + x * x).rsqrt()


define_elementwise(aten.asin.default, integral((1, 0, -1), _within_one, -0.5), domain=UNIT)
define_elementwise(aten.acos.default, integral((1, 0, -1), _within_one, -0.5, sign=-1), domain=UNIT)
define_elementwise(aten.atan.default, integral((1, 0, 1), _everywhere, -1))
define_elementwise(aten.asinh.default, integral((1, 0, 1), _everywhere, -0.5))
define_elementwise(aten.acosh.default, integral((-1, 0, 1), _beyond_one, -0.5), domain=(1.3, 3.0))
define_elementwise(aten.atanh.default, integral((1, 0, -1), _within_one, -1), domain=UNIT)
