"""Calculus in one variable: polynomials, products and compositions, of which closed-form derivatives are made."""

from collections.abc import Callable, Sequence
from functools import cache, reduce
from itertools import zip_longest
from math import comb, perm
from operator import add
from typing import Any

import torch
from torch import Tensor

Polynomial = tuple[float, ...]  # coefficients, of the constant first


def plus(p: Polynomial, q: Polynomial) -> Polynomial:
    """Add two polynomials."""
    return tuple(a + b for a, b in zip_longest(p, q, fillvalue=0))


def times(p: Polynomial, q: Polynomial) -> Polynomial:
    """Multiply two polynomials."""
    result: list[float] = [0] * max(0, len(p) + len(q) - 1)
    for i, a in enumerate(p):
        for j, b in enumerate(q):
            result[i + j] += a * b
    return tuple(result)


def scaled(p: Polynomial, factor: float) -> Polynomial:
    """Multiply a polynomial by a number."""
    return tuple(factor * a for a in p)


def differentiated(p: Polynomial, order: int = 1) -> Polynomial:
    """Differentiate a polynomial."""
    return tuple(perm(power, order) * a for power, a in enumerate(p))[order:]


def falling(x: float, count: int) -> float:
    """Return the falling factorial x (x - 1) ... of count factors."""
    return reduce(lambda product, k: product * (x - k), range(count), 1.0)


def evaluated(p: Sequence[float], x: Tensor) -> Tensor | float:
    """Evaluate a polynomial by Horner's rule, an even or odd one in the square of x."""
    if not any(p[1:]):
        return float(p[0]) if p else 0.0
    if not any(p[1::2]):
        return evaluated(p[::2], x * x)
    if not any(p[::2]):
        return evaluated(p[1:], x) * x
    constant, slope = float(p[-2]), float(p[-1])
    # one step for both, and a tensor for the constant, since numbers are made tensors at every call and take as long
    result = torch.add(x.new_full((), constant), x, alpha=slope) if constant else slope * x
    for coefficient in reversed(p[:-2]):
        result = result * x
        result = result + float(coefficient) if coefficient else result
    return result


def recurrence(first: Polynomial, step: Callable[[Polynomial, int], Polynomial]) -> Callable[[int], Polynomial]:
    """Return a function from r to the r-th of some polynomials, of which ``step(P, r)`` turns the r-th into the next.

    The first one has the number 1.
    """

    @cache
    def polynomial(r: int) -> Polynomial:
        return first if r == 1 else step(polynomial(r - 1), r - 1)

    return polynomial


def chained(outer: Callable[[int], Tensor | float], inner: Callable[[int], Tensor | float], r: int) -> Tensor | float:
    """Differentiate a composition r times by the rule of Faa di Bruno.

    Args:
        outer: Returns the derivative of the outer function of an order from 1 on, at the value of the inner one.
        inner: Returns the derivative of the inner function of an order from 1 on.
        r: The order, at least 1.
    """
    slopes = [inner(order) for order in range(1, r + 1)]
    bell: dict[int, Any] = dict(
        enumerate(slopes, 1)
    )  # the partial Bell polynomials of n slopes in k blocks, by n, from k = 1 on
    total = outer(1) * bell[r]
    for k in range(2, r + 1):
        bell = {
            n: reduce(add, (comb(n - 1, i - 1) * slopes[i - 1] * bell[n - i] for i in range(1, n - k + 2)))
            for n in range(k, r + 1)
        }
        total = total + outer(k) * bell[r]
    return total


def near_and_far(x: Tensor, r: int, coefficient: Callable[[int], float], far: Callable[[Tensor], Tensor]) -> Tensor:
    """Differentiate a function r times: by its Taylor series near zero, where other formulas divide by zero.

    Args:
        x: Where.
        r: The order.
        coefficient: Returns the n-th coefficient of the Taylor series, which converges at least as that of exp.
        far: Returns the derivative of that order at points that are at least r and 1 away from zero.
    """
    bound = max(1, r)
    near = x.abs() < bound
    series = [coefficient(n + r) * perm(n + r, r) for n in range(6 * bound + 14)]
    inside, outside = torch.where(near, x, 0), torch.where(near, bound, x)
    return torch.where(near, torch.as_tensor(evaluated(series, inside)), far(outside))
