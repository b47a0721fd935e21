"""Orthogonal polynomials of a fixed degree, from the recurrence that runs through the degrees."""

from collections.abc import Callable

import torch
from torch import Tensor

from hofunc.rules.registry import define_elementwise

aten = torch.ops.aten

Straight = tuple[float, float]  # a constant and a multiple of x


def _define_polynomials(
    name: str, first: Straight, step: Callable[[int], tuple[Straight, float]], domain: tuple[float, float]
) -> None:
    """Enter the polynomials P(0) = 1, P(1) and P(k + 1) = s P(k) - c P(k - 1), given P(1) and s and c by k."""

    def derivative(x: Tensor, y: Tensor, r: int, degree: float) -> Tensor:
        # the derivatives of two neighbours, of all orders up to r
        below = [torch.ones_like(x), *(torch.zeros_like(x) for _ in range(r))]
        last = _times(first, below, x)
        for k in range(1, int(degree)):
            straight, factor = step(k)
            next_one = [a - factor * b for a, b in zip(_times(straight, last, x), below, strict=True)]
            below, last = last, next_one
        return last[r]

    op = getattr(aten, f"special_{name}").n_scalar
    define_elementwise(op, derivative, degree=lambda n: max(0, int(n)), domain=domain)


def _times(straight: Straight, p: list[Tensor], x: Tensor) -> list[Tensor]:
    """Multiply a function, given by its derivatives, by a straight line."""
    constant, slope = straight
    line = slope * x + constant
    return [line * p[k] + (k * slope * p[k - 1] if k else 0) for k in range(len(p))]


for _kind, _shift in (("t", 0), ("u", 0), ("v", -1), ("w", 1)):
    _slope = 1 if _kind == "t" else 2
    _define_polynomials(f"chebyshev_polynomial_{_kind}", (_shift, _slope), lambda k: ((0, 2), 1), domain=(-0.9, 0.9))
    _define_polynomials(
        f"shifted_chebyshev_polynomial_{_kind}",
        (_shift - _slope, 2 * _slope),
        lambda k: ((-2, 4), 1),
        domain=(0.1, 0.9),
    )
_define_polynomials("hermite_polynomial_h", (0, 2), lambda k: ((0, 2), 2 * k), domain=(-2, 2))
_define_polynomials("hermite_polynomial_he", (0, 1), lambda k: ((0, 1), k), domain=(-2, 2))
_define_polynomials(
    "laguerre_polynomial_l",
    (1, -1),
    lambda k: (((2 * k + 1) / (k + 1), -1 / (k + 1)), k / (k + 1)),
    domain=(0.1, 3),
)
_define_polynomials(
    "legendre_polynomial_p", (0, 1), lambda k: ((0, (2 * k + 1) / (k + 1)), k / (k + 1)), domain=(-0.9, 0.9)
)
