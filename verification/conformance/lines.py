"""Derivatives along lines: one number that stands for a whole derivative tensor, found in three ways.

A derivative of order k, taken along k random directions of the input and weighted at the output by random numbers, is
a polynomial of these numbers. Two derivatives that are equal agree whatever they are; two that differ in any entry
agree for almost none. So one number is enough to compare, and a sample of any size is quick to judge.

Nothing here uses hofunc, nor `vmap`, of which some of torch's batching rules are wrong.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verification.conformance.sample import Sample

ORDERS = (1, 2, 3)

Line = Callable[[Tensor], Tensor]  # a function of one coordinate along each direction

_STEPS = (0.04, 0.2, 0.008, 0.0016)
_NODES = 9
_ENOUGH = 1e-8


@dataclass(frozen=True, slots=True)
class Directions:
    """Random directions and weights.

    Attributes:
        slots: For each input, one direction for each order, of shape (*input, 3).
        weights: For each output, a tensor of its shape.
    """

    slots: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]

    def line(self, sample: Sample) -> Line:
        """Return a sample's function of three coordinates, one along each direction, weighted to one number."""

        def line(t: Tensor) -> Tensor:
            moved = [x + (slot @ t).to(x.dtype) for x, slot in zip(sample.inputs, self.slots, strict=True)]
            weighted = [(weight * y).sum() for weight, y in zip(self.weights, sample.f(*moved), strict=True)]
            return torch.stack([part.double() for part in weighted]).sum()

        return line


def directions_of(sample: Sample) -> Directions:
    """Draw directions for a sample, the same for all samples of the same shapes."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    slots = tuple(normal(*x.shape, len(ORDERS)) for x in sample.inputs)
    return Directions(slots, tuple(normal(*y.shape).to(y.dtype) for y in sample.outputs))


def origin() -> Tensor:
    """Return the coordinates of the sample itself."""
    return torch.zeros(len(ORDERS), dtype=torch.float64)


def reverse(line: Line, order: int) -> float:
    """Nest reverse mode: the derivative along the first directions, one for each order.

    Cannot judge: ops whose backward formula is itself differentiated wrongly.
    """
    for slot in range(order):
        line = _reversed(line, slot)
    return line(origin()).item()


def _reversed(line: Line, slot: int) -> Line:
    return lambda t: torch.func.grad(line)(t)[slot]


def forward(line: Line, order: int) -> float:
    """Nest forward mode, likewise.

    Cannot judge: ops without a formula for forward mode; it shares the others with `reverse` in part.
    """
    for slot in range(order):
        line = _forwarded(line, slot)
    return line(origin()).item()


def _forwarded(line: Line, slot: int) -> Line:
    unit = torch.eye(len(ORDERS), dtype=torch.float64)[slot]
    return lambda t: torch.func.jvp(line, (t,), (unit,))[1]


def plain(line: Line, order: int) -> float:
    """Nest torch.autograd, which takes functions that torch.func does not: those with custom Functions of the old form.

    Cannot judge: as `reverse`.
    """
    t = origin().requires_grad_()
    value = line(t)
    for slot in range(order):
        value = _gradient(value, t)[slot]
    return value.item()


def _gradient(value: Tensor, t: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(t)
    return torch.autograd.grad(value, t, create_graph=True, materialize_grads=True)[0]


def plain_slope(line: Line) -> Line:
    """Return the derivative along the first direction, by torch.autograd."""

    def slope(t: Tensor) -> Tensor:
        t = t.detach().requires_grad_()
        return _gradient(line(t), t)[0].detach()

    return slope


def differences(line: Line, order: int, slope: Line | None = None) -> tuple[float, float]:
    """Differentiate the value, or from order 2 on torch's first derivative, numerically.

    A polynomial is laid through points on one side of the sample, and another through points on the other. What both
    say is the derivative, and how far they are apart is the error: it is large at kinks, where there is no derivative,
    and where the function varies within the step. Of several steps that with the least error is taken. A jump at the
    sample itself, as of a sign at zero, is not seen, since torch takes the derivative for zero there too.

    Cannot judge: kinks; where torch's first derivative is wrong, or by convention not that of the function.

    Args:
        line: The function.
        order: The order.
        slope: Torch's first derivative along the first direction, unless it is to be that of torch.func.

    Returns:
        The derivative and its error.
    """
    if order == 1:
        return _least_wrong(lambda s: line(_at(s, (0,))).item(), 1)
    slope = slope or _reversed(line, 0)
    if order == 2:
        return _least_wrong(lambda s: slope(_at(s, (1,))).item(), 1)
    plus, error_plus = _least_wrong(lambda s: slope(_at(s, (1, 2))).item(), 2)
    minus, error_minus = _least_wrong(lambda s: slope(_at(s, (1, 2), -1)).item(), 2)
    return (plus - minus) / 4, (error_plus + error_minus) / 4


def _at(s: float, slots: Sequence[int], sign: int = 1) -> Tensor:
    """Return the point a distance s along a direction, or along the sum or the difference of two."""
    t = origin()
    for place, slot in enumerate(slots):
        t[slot] = s * (sign if place else 1)
    return t


def _least_wrong(function: Callable[[float], float], order: int) -> tuple[float, float]:
    best = (0.0, math.inf)
    for step in _STEPS:
        (right, rounding), (left, _) = _one_sided(function, order, step), _one_sided(function, order, -step)
        best = min(best, ((right + left) / 2, abs(right - left) + rounding), key=lambda result: result[1])
        if best[1] <= max(_ENOUGH * abs(best[0]), 10 * rounding):
            break
    return best


def _one_sided(function: Callable[[float], float], order: int, step: float) -> tuple[float, float]:
    """Differentiate the polynomial through Chebyshev points between 0 and step, at 0.

    Returns:
        The derivative, and what rounding may have done to it.
    """
    points = (1 + _CHEBYSHEV.cos()) / 2 * step
    values = torch.tensor([function(point) for point in points.tolist()], dtype=torch.float64)
    weights = _AT_THE_END[order] / step**order
    rounding = torch.finfo(torch.float64).eps * values.abs().max() * weights.abs().sum()
    return ((values - values[0]) @ weights).item(), rounding.item()


def _weights(order: int) -> Tensor:
    """Return what to multiply values at Chebyshev points of [0, 1] by, for a derivative at 0."""
    degrees = torch.arange(_NODES, dtype=torch.float64)
    polynomials = (_CHEBYSHEV[:, None] * degrees).cos()  # T_j at the points of [-1, 1]
    signs = 1 - 2 * ((degrees + order) % 2)
    slopes = {1: degrees**2, 2: degrees**2 * (degrees**2 - 1) / 3}[order]  # of T_j, at -1 up to the sign
    return 2**order * (polynomials * (signs * slopes)).sum(1) * (2 / _NODES)


_CHEBYSHEV = (torch.arange(_NODES, dtype=torch.float64) + 0.5) * (torch.pi / _NODES)
_AT_THE_END = {order: _weights(order) for order in (1, 2)}
