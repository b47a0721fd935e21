"""Complex numbers on the way from real inputs to real outputs, as pairs of real ones.

A function here computes what an op does, with a `Pair` in place of every complex tensor. It is made of real ops, and
those have derivatives.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.graph.layout import in_memory_order, overwritten, read_strided, restrided, write_strided
from hofunc.rules.fourier import complex_to_complex, complex_to_real, real_to_complex

aten = torch.ops.aten


class Pair(NamedTuple):
    """A complex tensor by its parts."""

    real: Tensor
    imag: Tensor


# What computes the same as an op in one step, from a tensor that has the parts of complex numbers along its last axis.
AT_ONCE: dict[Any, Callable] = {
    aten._fft_r2c.default: real_to_complex,
    aten._fft_c2r.default: complex_to_real,
    aten._fft_c2c.default: complex_to_complex,
}

IN_PARTS: dict[Any, Callable] = {}


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


# Ops that are linear with real coefficients, applied to both parts.


def _define_linear(op: Any, but: int | None = None) -> None:
    """Enter an op that is linear in all its tensors, but for what stands at one place."""

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

    IN_PARTS[op] = function


def _part(template: Any, place: int) -> Any:
    """Replace every tensor by one of its parts."""
    if isinstance(template, Pair | Tensor):
        return parts(template)[place]
    if isinstance(template, torch.dtype) and template.is_complex:
        return template.to_real()
    return tuple(_part(item, place) for item in template) if type(template) is tuple else template


for _op in (
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten.repeat.default),
    *(aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.clone.default),
    *(aten.contiguous.default, aten.select.int, aten.slice.Tensor, aten.diagonal.default, aten.unbind.int),
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.cat.default, aten.stack.default, aten.flip.default),
    *(aten.roll.default, aten.tril.default, aten.triu.default, aten.diag_embed.default, aten.cumsum.default),
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.neg.default, aten.trace.default),
    *(aten.unfold.default, aten.copy.default, aten.slice_scatter.default, aten.select_scatter.default),
    *(in_memory_order, read_strided, restrided, write_strided, overwritten),
):
    _define_linear(_op)

for _op, _place in (
    (aten.where.self, 0),
    (aten.index.Tensor, 1),
    (aten.index_select.default, 2),
    (aten.gather.default, 2),
    (aten.index_put.default, 1),
    (aten.scatter.src, 2),
    (aten.scatter_add.default, 2),
):
    _define_linear(_op, but=_place)
