"""Moments, and normalisation by them, from their formulas.

torch's own formula for the second derivative of layer_norm is itself not differentiable to the right value
(https://github.com/pytorch/pytorch/issues/186256); written out, every order is right.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from hofunc.rules.axes import dims_of
from hofunc.rules.ops.lengths import Dims, direction
from hofunc.rules.registry import define_composite

aten = torch.ops.aten


def moments(x: Tensor, dims: Dims, correction: float | None) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean over some axes, which stay with size 1."""
    dropped = dims_of(dims, x.dim())
    rest = centred(x, dims)
    return (rest * rest).sum(dropped, keepdim=True) * _share(x, dims, correction), _mean(x, dims)


def centred(x: Tensor, dims: Dims) -> Tensor:
    """Return numbers less their mean over some axes, from which rounding keeps them farther the larger it is.

    So most of it is taken away first, as a constant.
    """
    near = x - _mean(x.detach(), dims)
    return near - _mean(near, dims)


def _mean(x: Tensor, dims: Dims) -> Tensor:
    return x.sum(dims_of(dims, x.dim()), keepdim=True) * (1 / max(1, _count(x, dims)))


def normalised(x: Tensor, dims: Dims, eps: float) -> Tensor:
    """Return what is left of numbers over some axes less their mean, over the root of the variance and eps."""
    dropped, count = dims_of(dims, x.dim()), max(1, _count(x, dims))
    return direction(centred(x, dims), dropped, count * eps) * count**0.5


def _count(x: Tensor, dims: Dims) -> int:
    return prod(x.shape[dim] for dim in dims_of(dims, x.dim()))


def _share(x: Tensor, dims: Dims, correction: float | None) -> float:
    """Return one over the degrees of freedom."""
    freedom = max(0, _count(x, dims) - (1 if correction is None else correction))
    return 1 / freedom if freedom else float("nan")


def _without(x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    return x if keepdim else x.squeeze(dims_of(dims, x.dim()))


def _var(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _without(moments(x, dim, correction)[0], dim, keepdim)


def _var_mean(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> list[Tensor]:
    return [_without(moment, dim, keepdim) for moment in moments(x, dim, correction)]


def _std(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    dropped = dims_of(dim, x.dim())
    return torch.linalg.vector_norm(centred(x, dim), 2, dropped, keepdim) * _share(x, dim, correction) ** 0.5


def _std_mean(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> list[Tensor]:
    return [_std(x, dim, correction=correction, keepdim=keepdim), x.mean(dims_of(dim, x.dim()), keepdim)]


def root(x: Tensor, degree: float = 2) -> Tensor:
    """Return the root of a sum of powers, with derivatives zero where it is zero."""
    positive = torch.where(x > 0, x, 1)
    value = positive.sqrt() if degree == 2 else positive.pow(1 / degree)
    return torch.where(x > 0, value, 0)


define_composite(aten.var.correction, _var)
define_composite(aten.var_mean.correction, _var_mean)
define_composite(aten.std.correction, _std)
define_composite(aten.std_mean.correction, _std_mean)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = range(-len(shape), 0)
    variance, mean = moments(x, dims, correction=0)
    y = normalised(x, dims, eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, (variance + eps).rsqrt()


define_composite(aten.native_layer_norm.default, _layer_norm)


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    samples: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = x.reshape(samples, groups, channels // groups * size)
    variance, mean = moments(grouped, -1, correction=0)
    y = normalised(grouped, -1, eps).reshape(samples, channels, size)
    y = y if weight is None else y * weight[:, None]
    y = y if bias is None else y + bias[:, None]
    return y.reshape(x.shape), mean.squeeze(-1), (variance + eps).rsqrt().squeeze(-1)


define_composite(aten.native_group_norm.default, _group_norm)
