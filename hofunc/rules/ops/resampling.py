"""Interpolation to another size: a matrix along each axis, or for the nearest element a selection."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hofunc.rules.ops.pooling import along_each, are_equal, only
from hofunc.rules.registry import define_composite

aten = torch.ops.aten

Numbers = Sequence[int]
Scale = float | None


def _define_interpolation(op: Any, rank: int) -> None:
    def resized(x: Tensor, sizes: Numbers, align_corners: bool, *scales: Scale) -> Tensor:
        scales = scales or (None,) * rank

        def along(tensor: Tensor, number: int) -> Tensor:
            return op(tensor, only(sizes, number), align_corners, *only(scales, number, None))

        return along_each(x, rank, along)

    define_composite(op, resized)


for _op, _rank in (
    (aten.upsample_linear1d.default, 1),
    (aten.upsample_bilinear2d.default, 2),
    (aten.upsample_bicubic2d.default, 2),
    (aten.upsample_trilinear3d.default, 3),
    (aten._upsample_bilinear2d_aa.default, 2),
    (aten._upsample_bicubic2d_aa.default, 2),
    (aten._upsample_lanczos2d_aa.default, 2),
):
    _define_interpolation(_op, _rank)


# The nearest element.


def _define_nearest(op: Any, rank: int) -> None:
    def resized(x: Tensor, sizes: Numbers, *scales: Scale) -> Tensor:
        scales = scales or (None,) * rank
        for number in range(rank):
            dim, count = number + 2, x.shape[number + 2]
            alone = [1] * rank
            alone[number] = count
            places = torch.arange(count, dtype=torch.float64, device=x.device).reshape(1, 1, *alone)
            nearest = op(places, only(sizes, number, 1), *only(scales, number, None)).reshape(-1).long()
            x = repeated(x, dim, nearest)
        return x

    define_composite(op, resized)


def repeated(x: Tensor, dim: int, places: Tensor) -> Tensor:
    """Select elements along an axis; one that stands for a block of equal length each is a broadcast."""
    count = x.shape[dim]
    block = len(places) // count if count else 0
    if block and are_equal(places, torch.arange(count * block, device=places.device) // block):
        return x.unsqueeze(dim + 1).expand(*x.shape[: dim + 1], block, *x.shape[dim + 1 :]).flatten(dim, dim + 1)
    return x.index_select(dim, places)


for _op, _rank in (
    (aten.upsample_nearest1d.default, 1),
    (aten.upsample_nearest2d.default, 2),
    (aten.upsample_nearest3d.default, 3),
    (aten._upsample_nearest_exact1d.default, 1),
    (aten._upsample_nearest_exact2d.default, 2),
    (aten._upsample_nearest_exact3d.default, 3),
):
    _define_nearest(_op, _rank)
