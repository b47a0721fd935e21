"""Writing, adding and reducing into places that a tensor of indices names, one for each element."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from hofunc.algebra.labels import Axes, Label, fresh_axes, full
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Term
from hofunc.graph.node import Graph, Node
from hofunc.rules.axes import replaced
from hofunc.rules.kinds import Linear, Rule, Site
from hofunc.rules.ops.maps import gathered, gathered_back, is_expanded, picked, picked_alike, put_back, put_back_alike
from hofunc.rules.registry import by_map, define_composite, define_fusion, define_linear

aten = torch.ops.aten


# Adding: the transpose of a gather.


@define_linear(aten.scatter_add.default)
def _scatter_add(site: Site, x: Axes, dim: int, index: Axes, source: Axes) -> dict[int, list[Term]]:
    if prod(site.shapes[1]) == 0:
        return {0: [Term(1, (), x, (x,))]}
    if not x:
        return {0: [Term(1, (), x, (x,))], 2: [Term(1, (), x, (tuple((full(Label(1)),) for _ in source),))]}
    dim, shape = dim % len(x), site.shapes[1] or (1,)  # an index without axes is one of a vector
    # Along every axis the index may be shorter than both tensors: it meets a part of each.
    separate = [(full(Label(size)),) for size in shape]
    slot, out = (
        tuple((axis[0]._replace(extent=size),) for axis, size in zip(separate, site.shapes[place], strict=False))
        for place in (2, 0)
    )
    target = (full(Label(x[dim][0].extent)),)
    others = tuple(axis for place, axis in enumerate(separate) if place != dim)
    extent = x[dim][0].extent
    add = Map(gathered_back, gathered, (site.ref(1), dim, extent), adds=True)
    if len(shape) == 1:  # which other ops read as well, maybe
        add = Map(put_back, picked, (site.ref(1), extent), adds=True)
    return {
        0: [Term(1, (), x, (x,))],
        2: [by_map(add, replaced(out, dim, target), slot, (target,), (separate[dim],), others)],
    }


@define_fusion(aten.scatter_add.default)
def _scatter_add_alike(graph: Graph, node: Node) -> Rule | None:
    """Recognise the adding of all columns at the same indices."""
    index = graph.nodes[node.args[2].node].shape
    is_one = is_expanded(graph, node, node.args[1]) and 0 not in index
    return Linear(lambda site: site.bind(partial(_added_alike, site), map(fresh_axes, site.shapes))) if is_one else None


def _added_alike(site: Site, x: Axes, dim: int, index: Axes, source: Axes) -> dict[int, list[Term]]:
    dim %= len(x)
    separate, extent = fresh_axes(site.shapes[1]), x[dim][0].extent
    slot, out = (
        tuple((axis[0]._replace(extent=size),) for axis, size in zip(separate, site.shapes[place], strict=True))
        for place in (2, 0)
    )
    target = (full(Label(extent)),)
    add = Map(put_back_alike, picked_alike, (site.ref(1), dim, extent), adds=True)
    return {
        0: [Term(1, (), x, (x,))],
        2: [by_map(add, replaced(out, dim, target), slot, (target,), (separate[dim],))],
    }


# Writing, and reducing what is written.


def _for_vectors(function: Callable) -> Callable:
    """Make a function of a tensor, an axis, indices and a source take scalars too, and write nothing for no index."""

    def general(x: Tensor, dim: int, index: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if index.numel() == 0:
            return x.clone()
        if x.dim() == 0:
            return function(x.reshape(1), 0, index.reshape(1), source.reshape(1), *args, **kwargs).reshape(())
        if index.dim() == 0:
            index, source = index.reshape(1), source.reshape(1)
        return function(x, dim % x.dim(), index, source, *args, **kwargs)

    return general


def _written(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Tell which elements of x an index names."""
    return torch.zeros_like(x, dtype=torch.bool).scatter(dim, index, True)


def _fitted(tensor: Tensor, shape: torch.Size, dim: int, value: float) -> Tensor:
    """Make all axes but one as long as in another shape, by a number at their ends."""
    missing = [0 if place == dim else shape[place] - size for place, size in enumerate(tensor.shape)]
    return torch.nn.functional.pad(tensor, [n for size in missing[::-1] for n in (0, size)], value=value)


def _part(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Take as much of a tensor as a shape holds."""
    for dim, size in enumerate(shape):
        tensor = tensor.narrow(dim, 0, size)
    return tensor


@_for_vectors
def _scatter(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    # Where an index comes twice the last value stays: each element is given the value that it ends up with.
    order = torch.arange(index.shape[dim], device=x.device)
    order = order.reshape([-1 if place == dim else 1 for place in range(x.dim())]).expand(index.shape)
    owner = torch.full_like(x, -1, dtype=torch.long).scatter(dim, index, order)
    chosen = _fitted(source, x.shape, dim, 0).gather(dim, owner.clamp(min=0))
    return torch.where(owner >= 0, chosen, x)


@_for_vectors
def _reduced(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    source = _part(source, index.shape)
    if reduce in ("amax", "amin"):
        return _extreme(x, dim, index, source, reduce, include_self)
    base = x if include_self else torch.where(_written(x, dim, index), 1 if reduce == "prod" else 0, x)
    if reduce == "prod":
        return base * _products(x, dim, index, source)
    total = base.scatter_add(dim, index, source)
    if reduce == "sum":
        return total
    count = torch.full_like(x, int(include_self)).scatter_add(dim, index, torch.ones_like(source))
    return total / count.clamp(min=1)


def _extreme(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool) -> Tensor:
    """Return the largest or smallest of all that is written to a place; equal ones share it evenly, as in torch."""
    y = x.detach().scatter_reduce(dim, index, source.detach(), reduce, include_self=include_self)
    own = x.detach() == y
    own = own if include_self else own & ~_written(x, dim, index)
    theirs = source.detach() == y.gather(dim, index)
    count = own.to(x.dtype).scatter_add(dim, index, theirs.to(x.dtype)).clamp(min=1)
    shares = torch.where(theirs, source / count.gather(dim, index), 0)
    return torch.where(own, x / count, 0).scatter_add(dim, index, shares)


def _products(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Return the product of all that is written to a place, not by division, since it may be zero."""
    places = torch.arange(x.shape[dim], device=x.device)[:, None]
    hits = index.movedim(dim, -1).unsqueeze(-2) == places
    products = torch.where(hits, source.movedim(dim, -1).unsqueeze(-2), 1).prod(-1).movedim(-1, dim)
    return _fitted(products, x.shape, dim, 1)


_NAMES = {"add": "sum", "multiply": "prod"}


def _filled(x: Tensor, index: Tensor, value: float) -> Tensor:
    return torch.full(index.shape, value, dtype=x.dtype, device=x.device)


define_composite(aten.scatter.src, _scatter)
define_composite(aten.scatter.value, lambda x, dim, index, value: _scatter(x, dim, index, _filled(x, index, value)))
define_composite(aten.scatter_reduce.two, _reduced)
define_composite(
    aten.scatter.reduce, lambda x, dim, index, source, *, reduce: _reduced(x, dim, index, source, _NAMES[reduce])
)
define_composite(
    aten.scatter.value_reduce,
    lambda x, dim, index, value, *, reduce: _reduced(x, dim, index, _filled(x, index, value), _NAMES[reduce]),
)


def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    shape = [-1 if place == dim % max(1, x.dim()) else 1 for place in range(x.dim())]
    spread = index.reshape(shape).expand(source.shape)
    return _reduced(x, dim, spread, source, reduce, include_self=include_self)


define_composite(aten.index_reduce.default, _index_reduce)


# Into places that a mask or a vector of indices names.


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    if source.numel() == 0:
        return x.clone()
    places = (mask.reshape(-1).cumsum(0) - 1).clamp(min=0)
    # more elements than the source has are named only where nothing is written
    chosen = source.reshape(-1).index_select(0, places.clamp(max=source.numel() - 1))
    return torch.where(mask, chosen.reshape(x.shape), x)


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat, index, source = x.reshape(-1), index.reshape(-1), source.reshape(-1)
    index = torch.where(index < 0, index + flat.numel(), index)
    put = flat.index_add(0, index, source) if accumulate else _scatter(flat, 0, index, source)
    return put.reshape(x.shape)


define_composite(aten.masked_scatter.default, _masked_scatter)
define_composite(aten.put.default, _put)
