"""Reductions of segments, which follow each other along an axis: each element goes to the place of its segment."""

from math import inf

import torch
from torch import Tensor

from hofunc.rules.registry import define_composite

aten = torch.ops.aten

_EMPTY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -inf, "min": inf}  # what a segment without elements is


def _segment_reduce(
    x: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    before, size, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    is_whole = offsets is None and not unsafe  # every element is of a segment
    limits = _limits(lengths) if offsets is None else offsets
    limits = limits.long().reshape(-1, limits.shape[-1])
    count = limits.shape[1] - 1
    place = torch.arange(size, device=x.device).expand(len(limits), size).contiguous()
    segment = torch.searchsorted(limits[:, 1:].contiguous(), place, right=True)
    if not is_whole:
        segment = torch.where(place < limits[:, :1], count, segment)
    rows = count if is_whole else count + 1  # the last of which is of what is in no segment
    index = (segment + rows * torch.arange(len(limits), device=x.device)[:, None]).reshape(-1)
    values = x.reshape(len(index), *rest)
    found = _of_places(values, index, rows * len(limits), reduce, _EMPTY[reduce] if initial is None else initial)
    found = found.reshape(len(limits), rows, *rest)[:, :count]
    if reduce == "mean":
        held = limits.diff().reshape(len(limits), count, *[1] * len(rest))
        found = torch.where(held > 0, found / held, torch.nan if initial is None else initial)
    return found.reshape(*before, count, *rest)


def _limits(lengths: Tensor | None) -> Tensor:
    """Return where segments of some lengths start, and the last one ends."""
    if lengths is None:
        raise TypeError("segment_reduce takes lengths or offsets")
    return torch.nn.functional.pad(lengths.cumsum(-1), (1, 0))


def _of_places(x: Tensor, index: Tensor, size: int, reduce: str, initial: float) -> Tensor:
    """Reduce rows that have the same place."""
    base = torch.full((size, *x.shape[1:]), initial, dtype=x.dtype, device=x.device)
    if reduce in ("sum", "mean"):
        return base.index_add(0, index, x)
    spread = index.reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
    if reduce == "prod":
        return base.scatter_reduce(0, spread, x, "prod")
    y = base.scatter_reduce(0, spread, x.detach(), "amax" if reduce == "max" else "amin")
    theirs = x.detach() == y.index_select(0, index)  # equal ones share it evenly, as in torch
    held = torch.zeros_like(base).index_add(0, index, theirs.to(x.dtype))
    shares = torch.where(theirs, x / held.index_select(0, index), 0)
    return torch.where(held > 0, 0, y).index_add(0, index, shares)


define_composite(aten.segment_reduce.default, _segment_reduce)
