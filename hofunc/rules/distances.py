"""Distances between rows, from the norm of their differences."""

import torch
from torch import Tensor

from hofunc.rules.norms import vector_norm
from hofunc.rules.registry import define_composite

aten = torch.ops.aten


def _cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None = None) -> Tensor:
    return vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1)


def _pdist(x: Tensor, p: float = 2) -> Tensor:
    first, second = torch.triu_indices(len(x), len(x), 1, device=x.device)
    return vector_norm(x.index_select(0, first) - x.index_select(0, second), p, -1)


define_composite(aten._cdist_forward.default, _cdist)
define_composite(aten._euclidean_dist.default, lambda x, y: _cdist(x, y, 2))
define_composite(aten._pdist_forward.default, _pdist)
