"""Closed forms of functions of one number, differentiated in forty digits."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import product
from math import comb, prod
from typing import Any

import mpmath
import torch
from torch import Tensor

DIGITS = 40


def _gelu_by_tanh(x: Any) -> Any:
    inner = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)
    return x * (1 + mpmath.tanh(inner)) / 2


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _softplus(x: Any) -> Any:
    return mpmath.log1p(mpmath.exp(x))


# By the name of torch's function.
FORTY_DIGITS: dict[str, Callable[[Any], Any]] = {
    "acos": mpmath.acos,
    "acosh": mpmath.acosh,
    "asin": mpmath.asin,
    "asinh": mpmath.asinh,
    "atan": mpmath.atan,
    "atanh": mpmath.atanh,
    "cos": mpmath.cos,
    "cosh": mpmath.cosh,
    "digamma": mpmath.digamma,
    "entr": lambda x: -x * mpmath.log(x),
    "erf": mpmath.erf,
    "erfc": mpmath.erfc,
    "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    "erfinv": mpmath.erfinv,
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "expm1": mpmath.expm1,
    "gelu": lambda x: x * mpmath.ncdf(x),
    "gelu by tanh": _gelu_by_tanh,
    "i0": partial(mpmath.besseli, 0),
    "i0e": lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x),
    "i1": partial(mpmath.besseli, 1),
    "i1e": lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x),
    "lgamma": mpmath.loggamma,
    "log": mpmath.log,
    "log10": mpmath.log10,
    "log1p": mpmath.log1p,
    "log2": lambda x: mpmath.log(x, 2),
    "logit": lambda x: mpmath.log(x / (1 - x)),
    "mish": lambda x: x * mpmath.tanh(_softplus(x)),
    "modified_bessel_i0": partial(mpmath.besseli, 0),
    "modified_bessel_i1": partial(mpmath.besseli, 1),
    "ndtri": lambda x: mpmath.sqrt(2) * mpmath.erfinv(2 * x - 1),
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "sin": mpmath.sin,
    "sinc": mpmath.sincpi,
    "sinh": mpmath.sinh,
    "softplus": _softplus,
    "spherical_bessel_j0": mpmath.sinc,
    "sqrt": mpmath.sqrt,
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
}


def derivatives_of_numbers(function: Callable[[Any], Any], points: Tensor, order: int) -> Tensor:
    """Differentiate a closed form at every element, in forty digits.

    Cannot judge: how a function is composed with others; points closer to a singularity than mpmath's steps, which
    are of the size of its precision.

    Args:
        function: One of `FORTY_DIGITS`, or another function of mpmath's numbers.
        points: Where, of any shape.
        order: Of the derivative, up to about six.

    Returns:
        The derivative, rounded to the dtype of the points, in their shape.
    """
    with mpmath.workdps(DIGITS):
        values = [float(mpmath.diff(function, mpmath.mpf(point), order)) for point in points.reshape(-1).tolist()]
    return torch.tensor(values, dtype=points.dtype, device=points.device).reshape(points.shape)


def derivatives_by_differences(f: Callable[[Any], Sequence[Any]], order: int) -> list[list[float]]:
    """Differentiate a function of one number to several at zero, by differences in hundreds of digits.

    The step is so small, and the digits are so many, that they are exact in double precision.

    Cannot judge: how the function is written in torch. It takes a value of it for every order.

    Args:
        f: The function, of mpmath's numbers.
        order: The highest order.

    Returns:
        The derivatives of all orders from zero on.
    """
    with mpmath.workdps(DIGITS * (order + 2)):
        step = mpmath.mpf(10) ** -(DIGITS - 10)
        values = [f(step * k) for k in range(order + 1)]

        def difference(r: int, place: int) -> float:
            total = mpmath.fsum((-1) ** (r - k) * comb(r, k) * values[k][place] for k in range(r + 1))
            return float(total / step**r)

        return [[difference(r, place) for place in range(len(values[0]))] for r in range(order + 1)]


def partial_derivatives(g: Callable[[Sequence[Any]], Sequence[Any]], x: Tensor, order: int) -> Tensor:
    """Differentiate a function of several of mpmath's numbers by all of them, as `derivatives_by_differences` does.

    Args:
        g: Function of a list of numbers to a list of them.
        x: Where, of shape (n,).
        order: Of the derivative.

    Returns:
        The derivative in double precision, of shape (outputs, n, ... order times).
    """
    size = len(x)
    with mpmath.workdps(DIGITS * (order + 2)):
        step = mpmath.mpf(10) ** -(DIGITS - 10)
        numbers = [mpmath.mpf(element) for element in x.tolist()]

        @cache
        def value(counts: tuple[int, ...]) -> Sequence[Any]:
            return g([number + step * count for number, count in zip(numbers, counts, strict=True)])

        @cache
        def at(orders: tuple[int, ...]) -> list[float]:
            terms = [
                (prod((-1) ** (r - k) * comb(r, k) for r, k in zip(orders, counts, strict=True)), value(counts))
                for counts in product(*(range(r + 1) for r in orders))
            ]
            outputs = range(len(terms[0][1]))
            return [float(mpmath.fsum(c * y[place] for c, y in terms) / step**order) for place in outputs]

        places = list(product(range(size), repeat=order))
        columns = [at(tuple(place.count(variable) for variable in range(size))) for place in places]
    return torch.tensor(columns, dtype=torch.float64).T.reshape(-1, *[size] * order)
