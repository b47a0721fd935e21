"""Complex numbers on the way from real inputs to real outputs, as pairs of real ones.

A function here computes what an op does, with a `Pair` in place of every complex tensor. It is made of real ops, and
those have derivatives.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError


class Pair(NamedTuple):
    """A complex tensor by its parts."""

    real: Tensor
    imag: Tensor


def as_pairs(z: Tensor) -> Tensor:
    """Return the real and imaginary parts of a complex tensor along a new last axis."""
    return torch.view_as_real(z.resolve_conj())


def as_complex(pairs: Tensor) -> Tensor:
    """Return the complex tensor whose parts stand along the last axis."""
    return torch.view_as_complex(pairs.contiguous())


# By op, what computes the same from Pairs, and what does so in one step, from a tensor of parts along its last axis.
IN_PARTS: dict[Any, Callable] = {}
AT_ONCE: dict[Any, Callable] = {}


def in_parts(op: Any, are_complex: Sequence[bool], gives_complex: bool) -> Callable | None:
    """Return what computes the same as an op from tensors in which complex numbers are pairs along the last axis.

    Args:
        op: The op.
        are_complex: Whether each of its tensors, in order of appearance, is complex.
        gives_complex: Whether its result is.

    Returns:
        Function of the op's arguments; None if there is none for the op.
    """
    function = IN_PARTS.get(op)
    if function is None:
        return None

    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        flags = iter(are_complex)
        args, values = _paired((args, tuple(kwargs.values())), flags)
        result = function(*args, **dict(zip(kwargs, values, strict=True)))
        first = result[0] if isinstance(result, list) else result
        if isinstance(first, Pair) is not gives_complex:
            raise UnsupportedOpError(
                f"hofunc: {op} of real and complex numbers",
                got=f"a {'complex' if gives_complex else 'real'} result",
                expected="one that is complex because an argument is",
                remedy="Convert the arguments to complex numbers, or the result to real ones, by an op of its own.",
            )
        return _joined(result)

    return on_tensors


def _paired(template: Any, flags: Any) -> Any:
    """Split the tensors of nested tuples that are pairs into Pairs."""
    if isinstance(template, Tensor):
        return Pair(template.select(-1, 0), template.select(-1, 1)) if next(flags) else template
    return tuple(_paired(item, flags) for item in template) if type(template) is tuple else template


def _joined(result: Any) -> Any:
    if isinstance(result, Pair):
        return torch.stack(result, -1)
    return [_joined(item) for item in result] if isinstance(result, list) else result


def parts(x: Any) -> tuple[Any, Any]:
    """Return the real and the imaginary part of a number or tensor."""
    if isinstance(x, Pair | complex):
        return x.real, x.imag
    return x, 0 if isinstance(x, int | float) else torch.zeros_like(x)
