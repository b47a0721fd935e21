"""Rows of a table that indices name, one by one and in bags."""

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.rules.registry import define_composite

aten = torch.ops.aten

SUM, MEAN, MAX = 0, 1, 2


def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    _check(scale_grad_by_freq)
    rows = weight.index_select(0, indices.reshape(-1)).reshape(*indices.shape, weight.shape[1])
    if padding_idx < 0:
        return rows
    return torch.where((indices == padding_idx).unsqueeze(-1), rows.detach(), rows)


def _check(scale_grad_by_freq: bool) -> None:
    if scale_grad_by_freq:
        raise UnsupportedOpError(
            "hofunc: embedding",
            got="scale_grad_by_freq=True",
            expected="derivatives as they are",
            remedy="Leave it out, and divide the derivatives by how often each row comes if that is wanted.",
        )


define_composite(aten.embedding.default, _embedding)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor]:
    if include_last_offset:
        offsets = offsets[:-1]
    if mode == MAX:
        return (_largest(weight, indices, offsets, padding_idx),)
    _check(scale_grad_by_freq)
    rows = _embedding(weight, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    counted = indices != padding_idx
    rows = torch.where(counted.unsqueeze(-1), rows, 0)
    bags = torch.searchsorted(offsets, torch.arange(len(indices), device=offsets.device), right=True) - 1
    totals = torch.zeros(len(offsets), weight.shape[1], dtype=weight.dtype, device=weight.device)
    totals = totals.index_add(0, bags, rows)
    if mode == SUM:
        return (totals,)
    counts = torch.zeros(len(offsets), dtype=weight.dtype, device=weight.device)
    counts = counts.index_add(0, bags, counted.to(weight.dtype)).clamp(min=1)
    return (totals / counts.unsqueeze(-1),)


def _largest(weight: Tensor, indices: Tensor, offsets: Tensor, padding_idx: int) -> Tensor:
    """Return the largest element of each column of the rows of a bag; zero for a bag of none."""
    chosen = aten._embedding_bag(weight.detach(), indices, offsets, False, MAX, False, None, False, padding_idx)
    largest = weight.gather(0, chosen[3].clamp(min=0))
    return torch.where((chosen[2] > 0).unsqueeze(-1), largest, 0)


define_composite(aten._embedding_bag.default, _embedding_bag)
define_composite(aten._embedding_bag_forward_only.default, _embedding_bag)
