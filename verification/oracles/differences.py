"""Finite differences, extrapolated to step zero."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from verification.oracles.measure import contracted
from verification.oracles.nested import nested_autograd

Function = Callable[..., Any]

EPSILON = torch.finfo(torch.float64).eps


class Estimate(NamedTuple):
    """A value that is known to some digits.

    Attributes:
        value: The value.
        error: How far off it may be, about the same for all elements.
    """

    value: Tensor
    error: float


def richardson(g: Callable[[float], Estimate], step: float, levels: int) -> Estimate:
    """Differentiate a function of a number at zero by central differences, extrapolated to step zero.

    Args:
        g: The function, and how exact each value of it is.
        step: The largest step; each level halves it.
        levels: How many steps are combined, at least two.

    Returns:
        The derivative. Its error is the larger of how much the last level changed it, and of what is left of the
        errors of g after the division by the smallest step.
    """
    table: list[list[Tensor]] = []
    noise = 0.0
    for level in range(levels):
        h = step / 2**level
        after, before = g(h), g(-h)
        row = [(after.value - before.value) / (2 * h)]
        for power in range(1, level + 1):
            row.append(row[-1] + (row[-1] - table[-1][power - 1]) / (4**power - 1))
        table.append(row)
        noise = (after.error + before.error) / h
    value = table[-1][-1]
    changed = (value - table[-1][-2]).abs().max().item() if value.numel() else 0.0
    return Estimate(value, max(changed, noise))


class _Held(TorchFunctionMode):
    """Has what is detached within it be what that was before: the calls are the same each time, in one order."""

    def __init__(self, kept: list[Tensor]):
        super().__init__()
        self._kept = kept
        self._count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (Tensor.detach, torch.detach):
            return func(*args, **(kwargs or {}))
        if self._count == len(self._kept):
            self._kept.append(func(*args).clone())
        self._count += 1
        return self._kept[self._count - 1].clone()


def held(f: Function, inputs: Sequence[Tensor]) -> Function:
    """Return f with what it detaches held at what that is for the inputs, as derivatives of any order there take it."""
    kept: list[Tensor] = []

    def g(*args: Tensor) -> Any:
        with _Held(kept):
            return f(*args)

    g(*inputs)
    return g


def central_differences(f: Function, x: Tensor, *, step: float = 0.02, levels: int = 5) -> Tensor:
    """Differentiate a function of one tensor by central differences, extrapolated to step zero (Richardson).

    It is exact to about 1e-9 relative in float64 for a function that is smooth within the largest step of x. Given a
    derivative of order k as f it judges order k + 1, independently of any formula for that order.

    Cannot judge: points within the largest step of a kink; functions that vary on a shorter scale than the step. What f
    detaches is a constant, as to a derivative.

    Args:
        f: Function of a tensor of shape (*in) to one of shape (*out).
        x: Point, float64.
        step: The largest step; each level halves it.
        levels: How many steps are combined.

    Returns:
        Tensor of shape (*out, *in).
    """
    f = held(f, [x])
    columns = [
        richardson(lambda t, along=direction: _exact(f(x + t * along)), step, levels).value  # type: ignore[misc]
        for direction in torch.eye(x.numel(), dtype=x.dtype, device=x.device).reshape(-1, *x.shape)
    ]
    return torch.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


def along(
    f: Function,
    inputs: Sequence[Tensor],
    directions: Sequence[Sequence[Tensor]],
    *,
    of_first: bool = True,
    step: float = 0.03,
    levels: int = 3,
) -> Estimate:
    """Differentiate f once along each direction, by nested central differences of its values or first derivatives.

    Cannot judge: points within the largest step of a kink; what vanishes along the directions, which random ones do
    not let pass; with ``of_first`` what torch's first derivatives have wrong. The error grows by a factor of about a
    hundred with every difference, of which ``of_first`` takes one less. What f detaches is a constant.

    Args:
        f: Function of tensors to a tensor or to several, in float64.
        inputs: The point.
        directions: For each differentiation one tensor for every input, of its shape.
        of_first: Whether the first one is done by ``torch.autograd.grad``, element by element.
        step: The largest step; each level halves it.
        levels: How many steps are combined.

    Returns:
        The derivative of order ``len(directions)``, contracted with all directions, and its error. All outputs are
        flattened into one vector.
    """
    *others, last = directions
    f = held(f, inputs)

    def derivative(point: Sequence[Tensor], left: Sequence[Sequence[Tensor]]) -> Estimate:
        if not left:
            return _exact(_slope(f, point, last) if of_first else _vector(f(*point)))

        def line(t: float) -> Estimate:
            return derivative([x + t * v for x, v in zip(point, left[0], strict=True)], left[1:])

        return richardson(line, step, levels)

    return derivative(inputs, others if of_first else directions)


def _exact(value: Tensor) -> Estimate:
    """Return a value that is exact to rounding."""
    return Estimate(value, EPSILON * value.abs().max().item() if value.numel() else 0.0)


def _slope(f: Function, point: Sequence[Tensor], direction: Sequence[Tensor]) -> Tensor:
    """Differentiate f once along a direction."""
    derivative = nested_autograd(f, 1, tuple(range(len(point))))(*point)
    return contracted(derivative, [direction], tuple(range(len(point))))


def _vector(outputs: Any) -> Tensor:
    return torch.cat([leaf.detach().reshape(-1) for leaf in tree_flatten(outputs)[0]])
