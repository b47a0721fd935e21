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


# By op, what computes the same from Pairs, and what does so in one step, from a tensor of parts along its last axis.
IN_PARTS: dict[Any, Callable] = {}
AT_ONCE: dict[Any, Callable] = {}


def on_pairs(
    op: Any, function: Callable, are_complex: Sequence[bool], gives_complex: bool, output: int = 0
) -> Callable:
    """Return what computes the same as an op from tensors in which complex numbers are pairs along the last axis.

    Args:
        op: The op.
        function: What computes it from Pairs.
        are_complex: Whether each of its tensors, in order of appearance, is complex.
        gives_complex: Whether its result is, of several the one that is asked for.
        output: Which of several that is.

    Returns:
        Function of the op's arguments.
    """

    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        flags = iter(are_complex)
        args, values = _paired((args, tuple(kwargs.values())), flags)
        result = function(*args, **dict(zip(kwargs, values, strict=True)))
        asked = result[output] if isinstance(result, list) else result
        if isinstance(asked, Pair) is not gives_complex:
            raise UnsupportedOpError(
                f"hofunc: {op} of real and complex numbers",
                got=f"a {'complex' if gives_complex else 'real'} result",
                expected="one that is complex because an argument is",
                remedy="Convert the arguments to complex numbers, or the result to real ones, by an op of its own.",
            )
        return _joined(result)

    return on_tensors


def linear(op: Callable, but: int | None = None) -> Callable:
    """Return what computes an op that is linear in all its tensors, but for what stands at one place, from Pairs."""

    def function(*args: Any, **kwargs: Any) -> Any:
        results = [
            op(
                *(arg if at == but else _part(arg, place) for at, arg in enumerate(args)),
                **{name: _part(value, place) for name, value in kwargs.items()},
            )
            for place in (0, 1)
        ]
        if isinstance(results[0], list | tuple):
            return [Pair(*parts) for parts in zip(*results, strict=True)]
        return Pair(*results)

    return function


def _part(template: Any, place: int) -> Any:
    """Replace every tensor by one of its parts."""
    if isinstance(template, Pair | Tensor):
        return parts(template)[place]
    if isinstance(template, torch.dtype) and template.is_complex:
        return template.to_real()
    return tuple(_part(item, place) for item in template) if type(template) is tuple else template


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
