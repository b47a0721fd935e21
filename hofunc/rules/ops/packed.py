"""Sequences of several lengths that are packed for a recurrent layer: steps one after the other, without padding."""

from typing import Any

import torch
from torch import Tensor

from hofunc.rules.registry import define_composite

aten = torch.ops.aten


def _packed(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, None]:
    """Return the steps that sequences have, of x (time, sequences, ...), or the other way round."""
    steps = x.transpose(0, 1) if batch_first else x
    times = torch.arange(len(steps), device=x.device)
    return steps[times[:, None] < lengths.to(x.device)], None


def _padded(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: Any, total_length: int
) -> tuple[Tensor, None]:
    """Return sequences with padding where they are over, of steps that so many of them have."""
    sizes = batch_sizes.to(data.device)
    missing = max(0, total_length - len(sizes))
    sizes = torch.cat([sizes, sizes.new_zeros(missing)])
    has_step = torch.arange(int(batch_sizes.max()), device=data.device) < sizes[:, None]
    steps = data.new_full((*has_step.shape, *data.shape[1:]), padding_value).index_put([has_step], data)
    return steps.transpose(0, 1) if batch_first else steps, None


define_composite(aten._pack_padded_sequence.default, _packed)
define_composite(aten._pad_packed_sequence.default, _padded)
