"""Linear maps along an axis: applied forward or transposed to one axis of a tensor, never built as a matrix."""

from collections.abc import Sequence
from functools import partial

import torch

from hofunc.algebra.labels import Axes, Label, fresh_axes, full
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
from hofunc.graph.gathers import add_at, read_at
from hofunc.graph.node import Graph, Node
from hofunc.rules.axes import dims_of, replaced
from hofunc.rules.kinds import Linear, Rule, Site
from hofunc.rules.registry import by_map, define_fusion, define_linear

aten = torch.ops.aten

Terms = dict[int, list[Term]]


def along(x: Axes, dim: int, size: int, linear_map: Map) -> Term:
    """Return the term of a map along one axis, which gets a new size."""
    dim %= len(x)
    out = (full(Label(size)),)
    return by_map(linear_map, replaced(x, dim, out), x, (out,), (x[dim],))


# Running sums.


def running_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum what lies up to each place of the last axis."""
    return tensor.cumsum(-1)


def running_sum_transposed(tensor: torch.Tensor) -> torch.Tensor:
    """Sum what lies from each place of the last axis on."""
    return tensor.flip(-1).cumsum(-1).flip(-1)


@define_linear(aten.cumsum.default)
def _cumsum(site: Site, x: Axes, dim: int, **_: object) -> Terms:
    if not x:
        return {0: [Term(1, (), x, (x,))]}
    return {0: [along(x, dim, x[dim][0].extent, Map(running_sum, running_sum_transposed, (), covers=True))]}


# Rearrangements.


def flipped(tensor: torch.Tensor) -> torch.Tensor:
    """Reverse the last axis; its own transpose."""
    return tensor.flip(-1)


def rolled(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    """Shift the last axis around."""
    return tensor.roll(shift, -1)


def rolled_back(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    """Shift the last axis around, the other way."""
    return tensor.roll(-shift, -1)


def _rearranged(x: Axes, maps: dict[int, Map]) -> Terms:
    """Return the term of one map along each of several axes, of unchanged size."""
    out, factors = list(x), []
    for dim, linear_map in maps.items():
        out[dim] = (full(Label(x[dim][0].extent)),)
        factors.append(Factor(linear_map, (out[dim], x[dim])))
    return {0: [Term(1, tuple(factors), tuple(out), (x,))]}


@define_linear(aten.flip.default)
def _flip(site: Site, x: Axes, dims: Sequence[int]) -> Terms:
    flip = Map(flipped, flipped, (), selects=True)
    return _rearranged(x, dict.fromkeys(dims_of(dims, len(x)) if dims else (), flip))


@define_linear(aten.roll.default)
def _roll(site: Site, x: Axes, shifts: Sequence[int], dims: Sequence[int] = ()) -> Terms:
    if not dims:
        out = fresh_axes(site.node.shape)
        ends = (sum(out, ()),), (sum(x, ()),)
        return {0: [by_map(Map(rolled, rolled_back, (shifts[0],), selects=True), out, x, *ends)]}
    totals: dict[int, int] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        totals[dim % len(x)] = totals.get(dim % len(x), 0) + shift
    return _rearranged(x, {dim: Map(rolled, rolled_back, (shift,), selects=True) for dim, shift in totals.items()})


# Selections by a tensor of indices.


def picked(tensor: torch.Tensor, index: torch.Tensor, extent: int) -> torch.Tensor:
    """Take the elements of the last axis that indices name, negative ones from its end, as one axis."""
    return read_at(tensor, from_front(index, extent))


def put_back(tensor: torch.Tensor, index: torch.Tensor, extent: int) -> torch.Tensor:
    """Add the elements of the last axis into a new one at the indices they were taken from."""
    return add_at(tensor, from_front(index, extent), extent)


def from_front(index: torch.Tensor, extent: int) -> torch.Tensor:
    """Return indices as one axis, those that count from the end of an extent likewise from its front."""
    return torch.where(index < 0, index + extent, index).reshape(-1)


@define_linear(aten.index_select.default)
def _index_select(site: Site, x: Axes, dim: int, index: Axes) -> Terms:
    if not x:
        return {0: [Term(1, (), x, (x,))]}
    extent = x[dim][0].extent
    pick = Map(picked, put_back, (site.ref(1), extent), selects=True)
    return {0: [along(x, dim, site.node.shape[dim], pick)]}


def gathered(tensor: torch.Tensor, index: torch.Tensor, dim: int, extent: int) -> torch.Tensor:
    """Take elements of the last axis, along each of the separate axes at indices of its own."""
    index = _last(index, dim)
    return torch.gather(tensor, -1, index.expand(*tensor.shape[: -index.dim()], *index.shape))


def gathered_back(tensor: torch.Tensor, index: torch.Tensor, dim: int, extent: int) -> torch.Tensor:
    """Add elements into a new last axis at the indices they were taken from."""
    zeros = tensor.new_zeros(*tensor.shape[:-1], extent)
    return torch.scatter_add(zeros, -1, _last(index, dim).expand_as(tensor), tensor)


def _last(index: torch.Tensor, dim: int) -> torch.Tensor:
    return index.movedim(dim, -1) if index.dim() else index.reshape(1)


def is_expanded(graph: Graph, node: Node, dim: int) -> bool:
    """Tell whether the index of a gather or a scatter is one along an axis, expanded over all others."""
    index = graph.nodes[node.args[2].node]
    if index.op not in _EXPANDING or not index.shape:
        return False
    before = graph.nodes[index.args[0].node].shape
    shape, dim = (1,) * (len(index.shape) - len(before)) + tuple(before), dim % len(index.shape)
    return all(size == (index.shape[dim] if place == dim else 1) for place, size in enumerate(shape))


_EXPANDING = (aten.expand.default, aten.repeat.default)


def picked_alike(tensor: torch.Tensor, index: torch.Tensor, dim: int, extent: int) -> torch.Tensor:
    """Take the elements of the last axis that indices name, which are the same along all axes but one."""
    return picked(tensor, _along_one(index, dim), extent)


def put_back_alike(tensor: torch.Tensor, index: torch.Tensor, dim: int, extent: int) -> torch.Tensor:
    """Add the elements of the last axis into a new one at the indices that they were taken from."""
    return put_back(tensor, _along_one(index, dim), extent)


def _along_one(index: torch.Tensor, dim: int) -> torch.Tensor:
    return index.movedim(dim, -1)[(0,) * (index.dim() - 1)]


@define_fusion(aten.gather.default)
def _gather_alike(graph: Graph, node: Node) -> Rule | None:
    """Recognise the reading of all columns at the same indices."""
    is_one = is_expanded(graph, node, node.args[1]) and 0 not in node.shape
    return (
        Linear(lambda site: site.bind(partial(_gathered_alike, site), map(fresh_axes, site.shapes))) if is_one else None
    )


def _gathered_alike(site: Site, x: Axes, dim: int, index: Axes, sparse_grad: bool = False) -> Terms:
    dim %= len(x)
    extent = x[dim][0].extent
    separate = fresh_axes(site.node.shape)
    slot = tuple((axis[0]._replace(extent=size),) for axis, size in zip(separate, site.shapes[0], strict=True))
    taken = (full(Label(extent)),)
    pick = Map(picked_alike, put_back_alike, (site.ref(1), dim, extent), selects=True)
    return {0: [by_map(pick, separate, replaced(slot, dim, taken), (separate[dim],), (taken,))]}


@define_linear(aten.gather.default)
def _gather(site: Site, x: Axes, dim: int, index: Axes, sparse_grad: bool = False) -> Terms:
    if not x:
        return {0: [Term(1, (), fresh_axes(site.node.shape), (x,))]}
    dim %= len(x)
    extent = x[dim][0].extent
    # Along the other axes the index may be shorter than the tensor: those are parts of the tensor's axes.
    shape = site.node.shape or (1,)  # an index without axes is one of a vector
    separate = [(full(Label(size)),) for size in shape]
    slot = tuple((axis[0]._replace(extent=size),) for axis, size in zip(separate, site.shapes[0], strict=True))
    taken, out = (full(Label(extent)),), (full(Label(shape[dim])),)
    others = tuple(axis for place, axis in enumerate(separate) if place != dim)
    gather = Map(gathered, gathered_back, (site.ref(1), dim, extent), selects=True)
    if len(shape) == 1:  # which other ops read as well, maybe
        gather = Map(picked, put_back, (site.ref(1), extent), selects=True)
    result = replaced(tuple(separate), dim, out) if site.node.shape else ()
    return {0: [by_map(gather, result, replaced(slot, dim, taken), (out,), (taken,), others)]}


# Their transposes: adding into places.


@define_linear(aten.index_add.default)
def _index_add(site: Site, x: Axes, dim: int, index: Axes, source: Axes, *, alpha: float = 1) -> Terms:
    if not x:
        return {0: [Term(1, (), x, (x,))], 2: [Term(alpha, (), x, (source,))]}
    put = Map(put_back, picked, (site.ref(1), x[dim][0].extent), adds=True)
    return {0: [Term(1, (), x, (x,))], 2: [along(source, dim, x[dim][0].extent, put)._replace(coefficient=alpha)]}
