"""Pooling: averages over windows, one matrix for each axis, and largest elements, which are selections."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from hofunc.graph.identity import has_elements
from hofunc.rules.registry import define_composite

aten = torch.ops.aten

Numbers = Sequence[int]


ASIDE = 2  # size of the other axes: of width 1, torch interpolates wrongly where it smooths


def along_each(x: Tensor, rank: int, along: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Apply a linear map that acts along each of the last axes on its own, by its matrices, which are constants.

    Args:
        x: The tensor.
        rank: How many axes it acts along.
        along: ``along(tensor, n)`` applies what it does along the n-th of them to a tensor of as many axes, after one
            for a batch and one for channels; those other than the n-th keep their size ASIDE.
    """
    for number in range(rank):
        dim = x.dim() - rank + number
        size = x.shape[dim]
        identity = torch.eye(size, dtype=x.dtype, device=x.device)
        shape = [size, 1, *(size if at == number else ASIDE for at in range(rank))]
        rows = identity.reshape([size, 1, *(size if at == number else 1 for at in range(rank))]).expand(shape)
        matrix = along(rows.contiguous(), number).movedim(2 + number, 1).flatten(2)[..., 0]
        if not are_equal(matrix, identity):
            x = x.movedim(dim, -1).matmul(matrix).movedim(-1, dim)
    return x


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Tell whether two constants are known to be equal; on the meta device nothing is known of them."""
    return one.shape == other.shape and has_elements(one) and torch.equal(one, other)


def only(numbers: Sequence[Any], place: int, other: Any = ASIDE) -> list[Any]:
    """Return a list in which all numbers but that at a place are replaced by another."""
    return [number if at == place else other for at, number in enumerate(numbers)]


# Averages.


def tiles(x: Tensor, sizes: Numbers) -> Tensor:
    """Sum windows of these sizes that lie side by side along the last axes: a relabelling."""
    for number, size in enumerate(sizes):
        dim = x.dim() - len(sizes) + number
        x = x.narrow(dim, 0, x.shape[dim] // size * size).unflatten(dim, (-1, size)).sum(dim + 1)
    return x


def _define_avg_pool(op: Any, rank: int) -> None:
    def pooled(
        x: Tensor,
        kernel: Numbers,
        stride: Numbers = (),
        padding: Numbers = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel, stride, padding = (_each(numbers, rank) for numbers in (kernel, stride or kernel, padding))
        divisor = prod(kernel) if divisor_override is None else divisor_override
        even = not any(size % width for size, width in zip(x.shape[-rank:], kernel, strict=True))
        if stride == kernel and not any(padding) and (even or not ceil_mode):
            return tiles(x, kernel) * (1 / divisor)

        def along(tensor: Tensor, number: int) -> Tensor:
            steps = [only(numbers, number, other) for numbers, other in ((kernel, 1), (stride, 1), (padding, 0))]
            return op(tensor, *steps, ceil_mode, count_include_pad, None if divisor_override is None else 1)

        y = along_each(x, rank, along)
        return y if divisor_override is None else y * (1 / divisor)

    define_composite(op, pooled)


def _each(numbers: Numbers, rank: int) -> list[int]:
    return list(numbers) if len(numbers) == rank else [*numbers] * rank


def _define_adaptive_avg_pool(op: Any, rank: int) -> None:
    def pooled(x: Tensor, sizes: Numbers) -> Tensor:
        widths = [
            size // count if count and size % count == 0 else 0
            for size, count in zip(x.shape[-rank:], sizes, strict=True)
        ]
        if all(widths):
            return tiles(x, widths) * (1 / prod(widths))
        return along_each(x, rank, lambda tensor, number: op(tensor, only(sizes, number)))

    define_composite(op, pooled)


for _op, _rank in ((aten.avg_pool2d.default, 2), (aten.avg_pool3d.default, 3)):
    _define_avg_pool(_op, _rank)
for _op, _rank in ((aten._adaptive_avg_pool2d.default, 2), (aten._adaptive_avg_pool3d.default, 3)):
    _define_adaptive_avg_pool(_op, _rank)


# Largest elements: those at the places that the op returns beside them, of ties the one that torch takes.


def _define_max_pool(op: Any, rank: int) -> None:
    def pooled(x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        places = op(x.detach(), *args, **kwargs)[1]
        return x.flatten(-rank).gather(-1, places.flatten(-rank)).reshape(places.shape), places

    define_composite(op, pooled)


for _op, _rank in (
    (aten.max_pool2d_with_indices.default, 2),
    (aten.max_pool3d_with_indices.default, 3),
    (aten.adaptive_max_pool2d.default, 2),
    (aten.adaptive_max_pool3d.default, 3),
    (aten.fractional_max_pool2d.default, 2),
    (aten.fractional_max_pool3d.default, 3),
):
    _define_max_pool(_op, _rank)
