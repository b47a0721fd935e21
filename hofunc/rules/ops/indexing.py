"""Indexing by tensors, in terms of selections along one axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Term
from hofunc.graph.node import Graph, Node
from hofunc.rules.axes import replaced
from hofunc.rules.kinds import Linear, Rule, Site
from hofunc.rules.ops.maps import picked, put_back
from hofunc.rules.registry import by_map, define_composite, define_fusion

aten = torch.ops.aten

Indices = Sequence[Tensor | None]


class _Indexed:
    """An indexing of a tensor of some shape, with all indexed axes brought to the front and merged into one.

    Attributes:
        front: The axes that are indexed.
        rest: The other axes.
        shape: Shape of the broadcast indices.
        flat: Their places in the merged axis, as a vector.
        start: Where in the result the axes of the indices stand.
    """

    def __init__(self, extents: Sequence[int], indices: Indices):
        expanded = _integers(indices)
        self.front = [dim for dim, index in enumerate(expanded) if index is not None]
        self.rest = [dim for dim in range(len(extents)) if dim not in self.front]
        tensors = torch.broadcast_tensors(*(index for index in expanded if index is not None))
        self.shape = list(tensors[0].shape)
        places = torch.zeros_like(tensors[0])
        for dim, index in zip(self.front, tensors, strict=True):
            places = places * extents[dim] + torch.where(index < 0, index + extents[dim], index)
        self.flat = places.reshape(-1)
        together = self.front == list(range(self.front[0], self.front[-1] + 1))
        self.start = self.front[0] if together else 0
        self.extents = extents

    def merged(self, x: Tensor) -> Tensor:
        """Bring the indexed axes of a tensor to the front, as one."""
        length = prod(self.extents[dim] for dim in self.front)
        return x.permute(self.front + self.rest).reshape(length, *(self.extents[dim] for dim in self.rest))

    def parted(self, x: Tensor) -> Tensor:
        """Undo `merged`."""
        order = self.front + self.rest
        x = x.reshape([self.extents[dim] for dim in order])
        return x.permute([order.index(dim) for dim in range(len(order))])

    def result(self, x: Tensor) -> Tensor:
        """Turn the selected rows into the result of the indexing."""
        x = x.reshape(self.shape + [self.extents[dim] for dim in self.rest])
        moved = list(range(len(self.shape), len(self.shape) + self.start))
        return x.permute(moved + [dim for dim in range(x.dim()) if dim not in moved])

    def rows(self, values: Tensor) -> Tensor:
        """Turn values that broadcast to the result of the indexing into rows."""
        shape = self.shape + [self.extents[dim] for dim in self.rest]
        after = shape[len(self.shape) : len(self.shape) + self.start]
        values = values.expand(after + self.shape + shape[len(self.shape) + self.start :])
        moved = list(range(self.start, self.start + len(self.shape)))
        values = values.permute(moved + [dim for dim in range(values.dim()) if dim not in moved])
        return values.reshape(len(self.flat), *(self.extents[dim] for dim in self.rest))


def _integers(indices: Indices) -> list[Tensor | None]:
    """Replace every mask by the indices at which it holds, one tensor per axis of the mask."""
    result: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            result.extend(index.nonzero(as_tuple=True))
        else:
            result.append(index)
    return result


def _index(x: Tensor, indices: Indices) -> Tensor:
    indexed = _Indexed(x.shape, indices)
    return indexed.result(indexed.merged(x).index_select(0, indexed.flat))


def _index_put(x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False, *_: Any) -> Tensor:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool and not accumulate:
        mask = indices[0].reshape(indices[0].shape + (1,) * (x.dim() - indices[0].dim()))
        if values.dim() <= x.dim() - indices[0].dim():
            return torch.where(mask, values, x)
    indexed = _Indexed(x.shape, indices)
    if len(indexed.flat) == 0:
        return x.clone()
    base, rows = indexed.merged(x), indexed.rows(values)
    if accumulate:
        return indexed.parted(base.index_add(0, indexed.flat, rows))
    # Where an index comes twice the last value stays: each row is given the value that it ends up with.
    owner = torch.full(base.shape[:1], -1, dtype=torch.long, device=x.device)
    owner = owner.index_put([indexed.flat], torch.arange(len(indexed.flat), device=x.device))
    chosen = rows.index_select(0, owner.clamp(min=0))
    written = (owner >= 0).reshape(-1, *[1] * (base.dim() - 1))
    return indexed.parted(torch.where(written, chosen, base))


@define_fusion(aten.index.Tensor)
@define_fusion(aten._unsafe_index.Tensor)
def _by_one_index(graph: Graph, node: Node) -> Rule | None:
    """Recognise the reading of one axis by integers, which is linear as it stands."""
    found = [(dim, index) for dim, index in enumerate(node.args[1]) if index is not None]
    if len(found) > 1:
        return None
    ((dim, index),) = found
    indices = graph.nodes[index.node]
    is_one = indices.shape and indices.dtype not in (torch.bool, torch.uint8)
    return Linear(_ReadAxis(dim)) if is_one else None


@dataclass(frozen=True, slots=True)
class _ReadAxis:
    """Returns the terms of a reading of one axis by integers, given its site."""

    dim: int

    def __call__(self, site: Site) -> dict[int, list[Term]]:
        x, read = (fresh_axes(shape) for shape in site.shapes)
        pick = Map(picked, put_back, (site.ref(1), site.shapes[0][self.dim]), selects=True)
        return {0: [by_map(pick, replaced(x, self.dim, *read), x, (sum(read, ()),), (x[self.dim],))]}


define_composite(aten.index.Tensor, _index)
define_composite(aten._unsafe_index.Tensor, _index)
define_composite(aten.index_put.default, _index_put)
define_composite(aten._unsafe_index_put.default, _index_put)


def _unsafe_masked_index(x: Tensor, mask: Tensor, indices: Indices, fill: float) -> Tensor:
    return torch.where(mask, _index(x, _clamped(indices, x.shape)), fill)


def _unsafe_masked_index_put(x: Tensor, mask: Tensor, indices: Indices, values: Tensor) -> Tensor:
    return _index_put(x, _clamped(indices, x.shape), torch.where(mask, values, 0), accumulate=True)


def _clamped(indices: Indices, shape: Sequence[int]) -> list[Tensor | None]:
    """Move indices into range, each of one axis."""
    return [None if index is None else index.clamp(0, size - 1) for index, size in zip(indices, shape, strict=False)]


define_composite(aten._unsafe_masked_index.default, _unsafe_masked_index)
define_composite(aten._unsafe_masked_index_put_accumulate.default, _unsafe_masked_index_put)
define_composite(aten.masked_select.default, lambda x, at: _index(*_broadcast(x, at)))


def _take(x: Tensor, index: Tensor) -> Tensor:
    places = torch.where(index < 0, index + x.numel(), index)
    return x.reshape(-1).index_select(0, places.reshape(-1)).reshape(index.shape)


define_composite(aten.take.default, _take)


def _broadcast(x: Tensor, at: Tensor) -> tuple[Tensor, list[Tensor]]:
    x, at = torch.broadcast_tensors(x, at)
    return x.reshape(-1), [at.reshape(-1)]
