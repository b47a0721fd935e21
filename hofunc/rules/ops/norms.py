"""Moments and norms, from their formulas.

torch's own formula for the second derivative of layer_norm is itself not differentiable to the right value
(https://github.com/pytorch/pytorch/issues/186256); written out, every order is right.
"""

from collections.abc import Sequence
from math import isinf, prod
from typing import Any

import torch
from torch import Tensor

from hofunc.rules.axes import dims_of
from hofunc.rules.registry import define_composite

aten = torch.ops.aten

Dims = int | Sequence[int] | None


def moments(x: Tensor, dims: Dims, correction: float | None) -> tuple[Tensor, Tensor]:
    """Return the variance and the mean over some axes, which stay with size 1."""
    dropped = dims_of(dims, x.dim())
    count = prod(x.shape[dim] for dim in dropped)
    mean = x.sum(dropped, keepdim=True) * (1 / max(1, count))
    centred = x - mean
    freedom = max(0, count - (1 if correction is None else correction))
    return (centred * centred).sum(dropped, keepdim=True) * (1 / freedom if freedom else float("nan")), mean


def _without(x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    return x if keepdim else x.squeeze(dims_of(dims, x.dim()))


def _var(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _without(moments(x, dim, correction)[0], dim, keepdim)


def _var_mean(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> list[Tensor]:
    return [_without(moment, dim, keepdim) for moment in moments(x, dim, correction)]


def _std(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return root(_var(x, dim, correction=correction, keepdim=keepdim))


def _std_mean(x: Tensor, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> list[Tensor]:
    variance, mean = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return [root(variance), mean]


def vector_norm(x: Tensor, order: float = 2, dim: Dims = None, keepdim: bool = False, **_: Any) -> Tensor:
    """Return the p-norm over some axes; where it is zero its derivatives are, as in torch."""
    dims = dims_of(dim, x.dim())
    if order == 1 or (order != 0 and prod(x.shape[dim] for dim in dims) == 1):  # any norm of a number is its modulus
        return x.abs().sum(dims, keepdim=keepdim)
    if order == 2:
        return root((x * x).sum(dims, keepdim=keepdim))
    if isinf(order):
        return (x.abs().amax if order > 0 else x.abs().amin)(dims, keepdim=keepdim)
    if order == 0:
        return (x.detach() != 0).to(x.dtype).sum(dims, keepdim=keepdim)
    magnitude = x.abs()
    if order < 0:  # zero where any element is, without a slope, as in torch
        vanishes = magnitude.detach().amin(dims, keepdim=True) == 0
        norm = torch.where(vanishes, 1, magnitude).pow(order).sum(dims, keepdim=True).pow(1 / order)
        return _without(torch.where(vanishes, 0, norm), dim, keepdim)
    if 0 < order < 1:  # no slope at zero, as in torch
        powers = torch.where(magnitude > 0, torch.where(magnitude > 0, magnitude, 1).pow(order), 0)
    else:
        powers = magnitude.pow(order)
    return root(powers.sum(dims, keepdim=keepdim), order)


def root(x: Tensor, degree: float = 2) -> Tensor:
    """Return the root of a sum of powers, with derivatives zero where it is zero."""
    positive = torch.where(x > 0, x, 1)
    value = positive.sqrt() if degree == 2 else positive.pow(1 / degree)
    return torch.where(x > 0, value, 0)


define_composite(aten.var.correction, _var)
define_composite(aten.var_mean.correction, _var_mean)
define_composite(aten.std.correction, _std)
define_composite(aten.std_mean.correction, _std_mean)
define_composite(aten.linalg_vector_norm.default, vector_norm)
define_composite(aten.norm.Scalar, vector_norm)
define_composite(
    aten.norm.ScalarOpt_dim, lambda x, p, dim, keepdim=False: vector_norm(x, 2 if p is None else p, dim, keepdim)
)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    variance, mean = moments(x, range(-len(shape), 0), correction=0)
    scale = (variance + eps).rsqrt()
    y = (x - mean) * scale
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, scale


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
    scale = (variance + eps).rsqrt()
    y = ((grouped - mean) * scale).reshape(samples, channels, size)
    y = y if weight is None else y * weight[:, None]
    y = y if bias is None else y + bias[:, None]
    return y.reshape(x.shape), mean.squeeze(-1), scale.squeeze(-1)


define_composite(aten.native_group_norm.default, _group_norm)
