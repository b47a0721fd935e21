"""Batch norm in all the ops that torch has for it, from its formula.

torch's own formula for the second derivative in training is itself not differentiable to the right value
(https://github.com/pytorch/pytorch/issues/186256). In evaluation it is a scaling by the running statistics; in training
these are only written to, which is no part of the derivative.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from hofunc.rules.ops.norms import moments, normalised
from hofunc.rules.registry import define_composite

aten = torch.ops.aten

Statistic = Tensor | None


def trained(
    x: Tensor, weight: Statistic, bias: Statistic, old_mean: Statistic, old_var: Statistic, momentum: float, eps: float
) -> list[Statistic]:
    """Return the result, the mean and the scale of every channel, and the new running statistics."""
    dims = (0, *range(2, x.dim()))
    variance, mean = (moment.reshape(-1) for moment in moments(x, dims, correction=0))
    scale = (variance + eps).rsqrt()
    count = prod(x.shape[dim] for dim in dims)
    now = (mean, variance * (count / max(1, count - 1)))
    pairs = zip((old_mean, old_var), now, strict=True)
    new = [None if old is None else old * (1 - momentum) + moment * momentum for old, moment in pairs]
    return [_in_channels(normalised(x, dims, eps), weight, bias), mean, scale, *new]


def evaluated(
    x: Tensor, weight: Statistic, bias: Statistic, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> list[Statistic]:
    """Return the result; the other outputs are empty."""
    centred = x - _per_channel(mean, x)
    return [_in_channels(centred * _per_channel((variance + eps).rsqrt(), x), weight, bias), *[None] * 4]


def _in_channels(y: Tensor, weight: Statistic, bias: Statistic) -> Tensor:
    """Scale and shift every channel."""
    y = y if weight is None else y * _per_channel(weight, y)
    return y if bias is None else y + _per_channel(bias, y)


def _per_channel(statistic: Tensor, x: Tensor) -> Tensor:
    return statistic.reshape(-1, *[1] * (x.dim() - 2))


def _batch_norm(*args: Any) -> list[Statistic]:
    *tensors, training, momentum, eps = args
    function: Callable[..., list[Statistic]] = trained if training else evaluated
    return function(*tensors, momentum, eps)


def _with_reserve(function: Callable[..., list[Statistic]]) -> Callable[..., list[Statistic]]:
    """Leave out the fourth output, which some ops keep for their backward pass."""

    def results(*args: Any) -> list[Statistic]:
        first, second, third, *rest = function(*args)
        return [first, second, third, None, *rest]

    return results


define_composite(aten.native_batch_norm.default, _batch_norm)
define_composite(aten._native_batch_norm_legit_functional.default, _batch_norm)
define_composite(
    aten._native_batch_norm_legit.no_stats,
    lambda x, weight, bias, *rest: _batch_norm(x, weight, bias, None, None, *rest),
)
define_composite(aten._native_batch_norm_legit_no_training.default, evaluated)
define_composite(aten.cudnn_batch_norm.default, _with_reserve(_batch_norm))
define_composite(aten._batch_norm_with_update_functional.default, _with_reserve(trained))
define_composite(aten._batch_norm_no_update.default, _with_reserve(evaluated))
