"""Ops recorded in parts, as the ops that they consist of: those that draw noise, and those on lists of tensors.

What draws noise and multiplies by it hides the one from the rule of the other.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hofunc.internals import (
    POLAR,
    SQUARE_ROOT,
    DispatchKey,
    OpOverload,
    hides_conjugation,
    schema_of,
    shown_conjugation,
)

aten = torch.ops.aten

_LOWER, _UPPER = 1 / 8, 1 / 3


def dropout(x: torch.Tensor, p: float, train: bool | None = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result and the mask of dropout, as CUDA computes it."""
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.rand_like(x) >= p
    return x * mask * (0 if p == 1 else 1 / (1 - p)), mask


def rrelu(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = _LOWER,
    upper: float = _UPPER,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Return x times slopes, which are written to noise: one where x is positive, else drawn; their mean if not."""
    if not training:
        return aten.leaky_relu.default(x, (lower + upper) / 2)
    empty = torch.empty_like(noise)
    _, slopes = aten.rrelu_with_noise_functional.default(x.detach(), empty, lower, upper, True, generator)
    noise.copy_(slopes)
    return x * slopes


def rrelu_(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Write the same to x."""
    return x.copy_(rrelu(x, *args, **kwargs))


def _one_by_one(op: OpOverload) -> Callable[..., Any]:
    """Return what computes an op on lists of tensors by ops on one after the other, as torch does where none is fused.

    So it is differentiated by the rules of these, and can be mapped, which torch does not do with lists.
    """
    return partial(op._op_dk, DispatchKey.CompositeExplicitAutograd)


_IN_PARTS: dict[OpOverload, Callable[..., Any]] = {
    aten.native_dropout.default: dropout,
    aten.rrelu_with_noise.default: rrelu,
    aten.rrelu_with_noise_.default: rrelu_,
}


def in_parts(op: OpOverload) -> Callable[..., Any] | None:
    """Return what computes an op by those that it consists of; None for one that is recorded as it is."""
    return _one_by_one(op) if schema_of(op).name.startswith("aten::_foreach_") else _IN_PARTS.get(op)


# Those that conjugate lazily inside, which in a dispatch mode torch forgets: its pseudo-inverse, square root and polar
# decomposition of complex numbers are wrong there.
CONJUGATING = frozenset(
    map(id, (aten.linalg_pinv.atol_rtol_tensor, aten.linalg_lstsq.default, *POLAR, *SQUARE_ROOT)),
)


def executed(op: Any, args: tuple, kwargs: dict) -> Any:
    """Execute an op inside a dispatch mode as torch does outside of all."""
    if id(op) in CONJUGATING and hides_conjugation():
        with shown_conjugation():
            return op(*args, **kwargs)
    return op(*args, **kwargs)
