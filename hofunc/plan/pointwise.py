"""Elementwise ops on meta tensors, by broadcasting: torch has kernels for that in Python, which take far longer.

What dtype an op returns is asked of torch once, for two elements.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from hofunc.internals import OpOverload, schema_of


def pointwise(op: OpOverload, args: Sequence[Any]) -> torch.Tensor | None:
    """Return what an elementwise op returns for contiguous meta tensors, None for what is no such op."""
    if torch.Tag.pointwise not in op.tags or not all(isinstance(arg, _PLAIN) for arg in args):
        return None
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if not all(tensor.is_contiguous() for tensor in tensors):
        return None
    dtype = _dtype(op, tuple([_looks(arg) for arg in args]))
    shape = _broadcast([tensor.shape for tensor in tensors])
    return None if dtype is None or shape is None else torch.empty(shape, dtype=dtype, device="meta")


_PLAIN = (torch.Tensor, bool, int, float, str, type(None))


def _looks(arg: Any) -> Any:
    """Return of a tensor its dtype and whether it has axes, of a number its type."""
    return (arg.dtype, arg.dim() > 0) if isinstance(arg, torch.Tensor) else type(arg) if arg is not None else None


@lru_cache(maxsize=4096)
def _dtype(op: OpOverload, looks: tuple[Any, ...]) -> torch.dtype | None:
    """Return the dtype of what an op returns; None if that is not one new tensor of an element for each of its own."""
    if schema_of(op).is_mutable or str in looks:
        return None
    args = [
        torch.empty((2,) * look[1], dtype=look[0], device="meta") if isinstance(look, tuple) else look and look(1)
        for look in looks
    ]
    try:
        result = op(*args)
    except (RuntimeError, TypeError, ValueError):
        return None
    expected = (2,) if any(isinstance(look, tuple) and look[1] for look in looks) else ()
    is_one = isinstance(result, torch.Tensor) and tuple(result.shape) == expected
    return result.dtype if is_one and not any(result is arg for arg in args) else None


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int] | None:
    """Return the shape of what is as large as all of these, None if they do not fit each other."""
    found = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for dim, size in enumerate(shape, len(found) - len(shape)):
            if size != 1:
                if found[dim] not in (1, size):
                    return None
                found[dim] = size
    return found
