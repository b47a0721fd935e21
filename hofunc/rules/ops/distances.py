"""Distances between rows, from the norm of their differences."""

import math

import torch
from torch import Tensor

from hofunc.rules.registry import define_composite

aten = torch.ops.aten


def _across(x: Tensor, y: Tensor) -> Tensor:
    """Return the differences of all rows of x from all of y."""
    return x.unsqueeze(-2) - y.unsqueeze(-3)


def _pairs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of the rows of every pair."""
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return first, second


def _among(x: Tensor) -> Tensor:
    """Return the differences of the rows of every pair."""
    first, second = _pairs(x)
    return x.index_select(0, first) - x.index_select(0, second)


def _cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return torch.linalg.vector_norm(_across(x, y), p, -1)


def _pdist(x: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(_among(x), p, -1)


def _slope(difference: Tensor, distance: Tensor, p: float) -> Tensor:
    """Return the derivative of a distance (...) by the difference (..., d); zero, as torch has it, where that is."""
    distance = distance.unsqueeze(-1)
    inverse = torch.where(distance == 0, 0, 1 / torch.where(distance == 0, 1, distance))
    if p == 0:
        return torch.zeros_like(difference)
    if p == 2:
        return difference * inverse
    if p == math.inf:
        return difference.sign() * (difference.abs() == distance)
    return difference.sign() * (difference.abs() * inverse) ** (p - 1)


def _cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Tensor:
    return (grad.unsqueeze(-1) * _slope(_across(x, y), distance, p)).sum(-2)


def _pdist_backward(grad: Tensor, x: Tensor, p: float, distance: Tensor) -> Tensor:
    first, second = _pairs(x)
    part = grad.unsqueeze(-1) * _slope(_among(x), distance, p)
    return torch.zeros_like(x).index_add(0, first, part).index_add(0, second, -part)


define_composite(aten._cdist_forward.default, _cdist)
define_composite(aten._cdist_backward.default, _cdist_backward)
define_composite(aten._pdist_backward.default, _pdist_backward)
define_composite(aten._euclidean_dist.default, lambda x, y: _cdist(x, y, 2))
define_composite(aten._pdist_forward.default, _pdist)
