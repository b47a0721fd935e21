"""Powers, exponentials, and circular and hyperbolic functions, at every order in closed form.

A derivative is a function ``(x, y, r, *params)`` of the input, the value, the order and the op's other arguments. It
is made of differentiable ops, since a result of hofunc can be differentiated again.
"""

import cmath
import math
from collections.abc import Callable

import torch
from torch import Tensor

from hofunc.graph.node import Call, Ref
from hofunc.internals import OpOverload
from hofunc.rules.kinds import Elementwise, Product, derivative_of
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

Derivative = Callable[..., Tensor]  # (x, y, r, *params)
Factors = Callable[..., Product]  # the same of what names x and y


def define_factored(
    op: OpOverload,
    factors: Factors,
    *,
    degree: Callable[..., int | None] = lambda *_, **__: None,
    domain: tuple[float, float] = REAL,
) -> Derivative:
    """Enter a function of one number whose derivatives are products; see `Elementwise`.

    Singular ones have none, as their derivatives are taken elsewhere where they are infinite.
    """
    derivative = derivative_of(factors)
    define(op, Elementwise(derivative, degree, domain, factors))
    return derivative


# Powers.


def power(x: Tensor, y: Tensor, r: int, exponent: float) -> Tensor:
    """Differentiate x ** exponent."""
    return falling(exponent, r) * x ** (exponent - r)


def _monomial(x: Ref, r: int, exponent: float) -> Product:
    """Return the factors of a derivative of a polynomial of one power, the last of which is a number."""
    left = exponent - r
    return falling(exponent, r), [] if left == 0 else [x] if left == 1 else [Call(torch.pow, (x, left))]


def highest_power(exponent: float) -> int | None:
    """Return the degree of x ** exponent if it is a polynomial."""
    return int(exponent) if exponent >= 0 and exponent == int(exponent) else None


def _factors_of_power(x: Ref, y: Ref, r: int, exponent: float) -> Product | None:
    return None if highest_power(exponent) is None else _monomial(x, r, exponent)


define(aten.pow.Tensor_Scalar, Elementwise(power, highest_power, POSITIVE, _factors_of_power))
define_factored(aten.square.default, lambda x, y, r: _monomial(x, r, 2), degree=lambda: 2)
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


define_factored(aten.exp.default, lambda x, y, r: (1, [y]))
define_factored(aten.exp2.default, lambda x, y, r: (math.log(2) ** r, [y]))
define_factored(aten.expm1.default, lambda x, y, r: (1, [Call(torch.exp, (x,))]))
define_elementwise(aten.pow.Scalar, power_of_number)
define_elementwise(aten.log.default, log, domain=POSITIVE)
define_elementwise(aten.log2.default, lambda x, y, r: log(x, y, r) / math.log(2), domain=POSITIVE)
define_elementwise(aten.log10.default, lambda x, y, r: log(x, y, r) / math.log(10), domain=POSITIVE)
define_elementwise(aten.log1p.default, lambda x, y, r: log(1 + x, y, r), domain=UNIT)


# Functions that are each other's derivatives.


def _define_quarters(op: OpOverload, first: Callable[[Tensor], Tensor], sign: int) -> None:
    """Enter a function whose first derivative is that of x times a sign, and whose second one is -y."""
    define_factored(
        op, lambda x, y, r: ((-1) ** (r // 2) * (sign if r % 2 else 1), [Call(first, (x,)) if r % 2 else y])
    )


_define_quarters(aten.sin.default, torch.cos, 1)
_define_quarters(aten.cos.default, torch.sin, -1)
define_factored(aten.sinh.default, lambda x, y, r: (1, [Call(torch.cosh, (x,)) if r % 2 else y]))
define_factored(aten.cosh.default, lambda x, y, r: (1, [Call(torch.sinh, (x,)) if r % 2 else y]))


# Functions whose derivative is a polynomial of their value: y' = q(y), so that all others are q(y) Q(y).


def multiples(q: Polynomial) -> Callable[[int], Polynomial]:
    """Return by order the polynomial of y by which q(y) is to be multiplied, where y' = q(y)."""
    return recurrence((1,), lambda p, r: plus(times(differentiated(p), q), times(p, differentiated(q))))


def autonomous(q: Polynomial, slope: Callable[[Tensor, Tensor], Tensor]) -> Factors:
    """Return the factors of the derivatives of the solution of y' = q(y).

    Args:
        q: The polynomial.
        slope: ``slope(x, y)`` computes q(y) in the way that loses no digits.
    """
    multiple = multiples(q)

    def factors(x: Ref, y: Ref, r: int) -> Product:
        first, polynomial = Call(slope, (x, y)), multiple(r)
        if not any(polynomial[1:]):
            return polynomial[0], [first]
        if not any(polynomial[:1] + polynomial[2:]):
            return polynomial[1], [first, y]
        return 1, [first, Call(evaluated, (polynomial, y))]

    return factors


def slope_of_sigmoid(x: Tensor, y: Tensor) -> Tensor:
    """Return y (1 - y), of which the difference has no digits left where y is near one."""
    return y * (-x).sigmoid()


def _slope_of_tanh(x: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(y.new_ones(()), y, y, value=-1)


def _slope_of_tan(x: Tensor, y: Tensor) -> Tensor:
    return 1 + y * y


sigmoid = define_factored(aten.sigmoid.default, autonomous((0, 1, -1), slope_of_sigmoid))
tanh = define_factored(aten.tanh.default, autonomous((1, 0, -1), _slope_of_tanh))
define_factored(aten.tan.default, autonomous((1, 0, 1), _slope_of_tan), domain=UNIT)


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
        terms = [float(c) * s**k * u ** (r - 1 - k) for k, c in enumerate(polynomial(r)) if c]
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
