"""Oracles: other ways to get a derivative, each with what it cannot judge.

None of them uses hofunc, and where two disagree a third has to decide: torch's own formulas are not always right.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

Function = Callable[..., Any]
Argnums = int | tuple[int, ...]


def nested_reverse(f: Function, order: int, argnums: Argnums = 0) -> Function:
    """Nest ``torch.func.jacrev``.

    Cannot judge: norms and other ops whose backward formula is itself differentiated wrongly; order 3 and more at
    points where a lower derivative is infinite; ops without a batching rule are slow and warn.
    """
    for _ in range(order):
        f = torch.func.jacrev(f, argnums=argnums)
    return f


def nested_forward(f: Function, order: int, argnums: Argnums = 0) -> Function:
    """Nest ``torch.func.jacfwd``.

    Cannot judge: ops without a forward-mode formula. It shares formulas with `nested_reverse` in part.
    """
    for _ in range(order):
        f = torch.func.jacfwd(f, argnums=argnums)
    return f


def central_differences(f: Function, x: torch.Tensor, *, step: float = 0.02, levels: int = 5) -> torch.Tensor:
    """Differentiate a function of one tensor by central differences, extrapolated to step zero (Richardson).

    It is exact to about 1e-9 relative in float64 for a function that is smooth within the largest step of x. Given a
    derivative of order k as f it judges order k + 1, independently of any formula for that order.

    Cannot judge: points within the largest step of a kink; functions that vary on a shorter scale than the step.

    Args:
        f: Function of a tensor of shape (*in) to one of shape (*out).
        x: Point, float64.
        step: The largest step; each level halves it.
        levels: How many steps are combined.

    Returns:
        Tensor of shape (*out, *in).
    """
    columns: list[torch.Tensor] = []
    for direction in torch.eye(x.numel(), dtype=x.dtype, device=x.device).reshape(-1, *x.shape):
        table: list[list[torch.Tensor]] = []
        for level in range(levels):
            h = step / 2**level
            row = [(f(x + h * direction) - f(x - h * direction)) / (2 * h)]
            for power in range(1, level + 1):
                row.append(row[-1] + (row[-1] - table[-1][power - 1]) / (4**power - 1))
            table.append(row)
        columns.append(table[-1][-1])
    return torch.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


def relative_error(got: Any, expected: Any) -> float:
    """Return the largest difference between two pytrees of tensors, relative to the largest entry of each tensor.

    A tensor that should vanish is compared with one.
    """
    errors: list[float] = []

    def compare(a: torch.Tensor, b: torch.Tensor) -> None:
        if a.shape != b.shape or a.dtype != b.dtype:
            raise AssertionError(f"got {tuple(a.shape)} {a.dtype}, expected {tuple(b.shape)} {b.dtype}")
        if b.numel():
            a, b = a.detach(), b.detach()
            scale = b.abs().max().item()
            error = (a - b).abs().max().item() / (scale if scale > 1e-12 else 1.0)
            errors.append(math.inf if math.isnan(error) else error)

    tree_map(compare, got, expected)
    return max(errors, default=0.0)
