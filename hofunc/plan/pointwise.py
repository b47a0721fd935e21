"""Elementwise ops on meta tensors, by broadcasting: torch has kernels for that in Python, which take far longer.

What dtype an op returns is asked of torch once, for two elements, which have values: one of these kernels imports
torch's compiler, which takes longer than any planning.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from hofunc.internals import OpOverload, schema_of

aten = torch.ops.aten

_NONE: Mapping[str, Any] = MappingProxyType({})


def pointwise(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any] = _NONE) -> torch.Tensor | None:
    """Return what an elementwise op returns for meta tensors, None for what is no such op."""
    if op in _BACK_THROUGH_SOFTMAX:
        return torch.empty(args[0].shape, dtype=args[3], device="meta")  # whose kernel in Python is one of these too
    are_plain = all(isinstance(arg, _PLAIN) for arg in args) and all(
        isinstance(x, int | float) for x in kwargs.values()
    )
    if torch.Tag.pointwise not in op.tags or not are_plain:
        return None
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    dtype = _dtype(op, tuple([_looks(arg) for arg in args]), tuple(kwargs))
    shape = _broadcast([tensor.shape for tensor in tensors])
    if dtype is None or shape is None:
        return None
    if all(tensor.is_contiguous() for tensor in tensors) and any([*tensor.shape] == shape for tensor in tensors):
        return torch.empty(shape, dtype=dtype, device="meta")
    if 0 in shape:
        return None
    stride = laid_out_as(shape, [(tuple(tensor.shape), tensor.stride()) for tensor in tensors])
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def check_shapes(op: OpOverload, args: Sequence[Any]) -> None:
    """Check that the shapes of what an elementwise op takes fit each other.

    Raises:
        RuntimeError: They do not. torch says so too, but for meta tensors it imports its compiler first.
    """
    shapes = [tuple(arg.shape) for arg in args if isinstance(arg, torch.Tensor)]
    if torch.Tag.pointwise in op.tags and _broadcast(shapes) is None:
        raise RuntimeError(f"{op} of shapes that do not fit: {shapes}")


_BACK_THROUGH_SOFTMAX = (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)


class _Operand(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def along(self, dim: int, shape: Sequence[int]) -> int:
        """Return the stride along an axis of the result, zero where it is broadcast."""
        own = dim - len(shape) + len(self.shape)
        return 0 if own < 0 or self.shape[own] != shape[dim] else self.stride[own]


def laid_out_as(shape: Sequence[int], looks: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[int, ...]:
    """Return the strides of a result as torch chooses them, but for axes of size one, of which nothing depends on them.

    The axes lie in memory as those of the operands do, the first that tells first.

    Args:
        shape: The shape of the result, which has elements.
        looks: Shape and strides of every operand.
    """
    operands = [_Operand(*each) for each in looks]
    order = [*reversed(range(len(shape)))]
    for start in range(1, len(order)):
        place = start
        for before in reversed(range(start)):
            sign = _compared(order[before], order[place], shape, operands)
            if sign < 0:
                break
            if sign > 0:
                order[before], order[place] = order[place], order[before]
                place = before
    stride, step = [0] * len(shape), 1
    for dim in order:
        stride[dim], step = step, step * shape[dim]
    return tuple(stride)


def _compared(one: int, other: int, shape: Sequence[int], operands: Sequence[_Operand]) -> int:
    """Return -1 if the first of two axes lies inside of the other, 1 if outside, 0 if no operand tells."""
    for operand in operands:
        steps = operand.along(one, shape), operand.along(other, shape)
        if 0 in steps:
            continue
        if steps[0] != steps[1]:
            return -1 if steps[0] < steps[1] else 1
        if shape[one] > shape[other]:
            return 1
    return 0


_PLAIN = (torch.Tensor, bool, int, float, str, type(None))


def _looks(arg: Any) -> Any:
    """Return of a tensor its dtype and whether it has axes, of a number its type."""
    return (arg.dtype, arg.dim() > 0) if isinstance(arg, torch.Tensor) else type(arg) if arg is not None else None


@lru_cache(maxsize=4096)
def _dtype(op: OpOverload, looks: tuple[Any, ...], options: tuple[str, ...]) -> torch.dtype | None:
    """Return the dtype of what an op returns; None if that is not one new tensor of an element for each of its own."""
    if schema_of(op).is_mutable or str in looks or torch.Tag.nondeterministic_seeded in op.tags:
        return None
    args = [
        torch.ones((2,) * look[1], dtype=look[0], device="cpu") if isinstance(look, tuple) else look and look(1)
        for look in looks
    ]
    try:
        result = op(*args, **dict.fromkeys(options, 1))
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
