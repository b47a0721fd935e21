"""Parts of axes: taking them, laying tensors into them, and overwriting them.

A part of an axis is a segment, so none of these ops moves data in a derivative; only steps other than one do.
"""

from collections.abc import Sequence

import torch

from hofunc.algebra.labels import Axes, Axis, Label, Segment, full
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Ref
from hofunc.rules.axes import replaced
from hofunc.rules.kinds import Site
from hofunc.rules.ops.reshape import expanded
from hofunc.rules.registry import by_map, define_linear

aten = torch.ops.aten

Terms = dict[int, list[Term]]
Shape = Sequence[int]


# Parts of an axis.


def part(segment_start: int, length: int, extent: int) -> tuple[Axis, Axis]:
    """Return an axis of the given length, and the axis of which it is the part from start on."""
    label = Label(length)
    return (full(label),), (Segment(label, segment_start, extent),)


def _sliced(x: Axes, dim: int, start: int, length: int) -> Terms:
    small, large = part(start, length, x[dim][0].extent)
    return {0: [Term(1, (), replaced(x, dim, small), (replaced(x, dim, large),))]}


@define_linear(aten.select.int)
def _select(site: Site, x: Axes, dim: int, index: int) -> Terms:
    dim, size = dim % len(x), x[dim][0].extent
    chosen = (Segment(None, index % size, size),)
    return {0: [Term(1, (), replaced(x, dim), (replaced(x, dim, chosen),))]}


@define_linear(aten.split_with_sizes.default)
@define_linear(aten.unsafe_split_with_sizes.default)
def _split_with_sizes(site: Site, x: Axes, sizes: Shape, dim: int = 0) -> Terms:
    output = site.node.output or 0
    return _sliced(x, dim % len(x), sum(sizes[:output]), sizes[output])


@define_linear(aten.split.Tensor)
@define_linear(aten.unsafe_split.Tensor)
def _split(site: Site, x: Axes, size: int, dim: int = 0) -> Terms:
    return _sliced(x, dim % len(x), size * (site.node.output or 0), site.node.shape[dim % len(x)])


@define_linear(aten.unbind.int)
def _unbind(site: Site, x: Axes, dim: int = 0) -> Terms:
    return _select(site, x, dim, site.node.output or 0)


@define_linear(aten.diagonal.default)
def _diagonal(site: Site, x: Axes, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Terms:
    dim1, dim2 = dim1 % len(x), dim2 % len(x)
    label = Label(site.node.shape[-1])
    slot = list(x)
    slot[dim1] = (Segment(label, max(-offset, 0), x[dim1][0].extent),)
    slot[dim2] = (Segment(label, max(offset, 0), x[dim2][0].extent),)
    kept = tuple(axis for dim, axis in enumerate(x) if dim not in (dim1, dim2))
    return {0: [Term(1, (), (*kept, (full(label),)), (tuple(slot),))]}


@define_linear(aten.slice.Tensor)
def _slice(site: Site, x: Axes, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Terms:
    dim %= len(x)
    first, stop = _ends(x[dim][0].extent, start, end)
    if step == 1:
        return _sliced(x, dim, first, stop - first)
    out = (full(Label(site.node.shape[dim])),)
    stepped = Map(every, every_transposed, (first, stop, step, x[dim][0].extent), selects=True)
    return {0: [by_map(stepped, replaced(x, dim, out), x, (out,), (x[dim],))]}


def _ends(extent: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Return where a slice of an axis starts and stops, counted from the front; no later than it stops."""
    first, stop, _ = slice(start, end).indices(extent)
    return first, max(first, stop)


def every(tensor: torch.Tensor, start: int, stop: int, step: int, extent: int) -> torch.Tensor:
    """Take every step-th element of a part of the last axis."""
    return tensor[..., start:stop:step]


def every_transposed(tensor: torch.Tensor, start: int, stop: int, step: int, extent: int) -> torch.Tensor:
    """Put the elements of the last axis at every step-th place of a part of a longer one, with zeros elsewhere."""
    return torch.slice_scatter(tensor.new_zeros(*tensor.shape[:-1], extent), tensor, -1, start, stop, step)


# Into part of an axis.


@define_linear(aten.cat.default)
def _cat(site: Site, tensors: Sequence[Axes], dim: int = 0) -> Terms:
    terms, start, shape = {}, 0, site.node.shape
    for position, x in enumerate(tensors):
        if len(x) != len(shape):
            continue  # the legacy empty tensor of shape (0,)
        size = x[dim][0].extent
        small, large = part(start, size, shape[dim])
        terms[position] = [Term(1, (), replaced(x, dim % len(x), large), (replaced(x, dim % len(x), small),))]
        start += size
    return terms


@define_linear(aten.stack.default)
def _stack(site: Site, tensors: Sequence[Axes], dim: int = 0) -> Terms:
    count, dim = len(tensors), dim % len(site.node.shape)
    return {
        position: [Term(1, (), (*x[:dim], (Segment(None, position, count),), *x[dim:]), (x,))]
        for position, x in enumerate(tensors)
    }


@define_linear(aten.constant_pad_nd.default)
def _constant_pad(site: Site, x: Axes, pad: Shape, value: float = 0) -> Terms:
    slot, out = list(x), list(x)
    for dim in range(len(pad) // 2):
        before, place = pad[2 * dim], len(x) - 1 - dim
        old, new = site.shapes[0][place], site.node.shape[place]
        label = Label(max(0, min(old, new - before) - max(0, -before)))
        slot[place] = (Segment(label, max(0, -before), old),)
        out[place] = (Segment(label, max(0, before), new),)
    return {0: [Term(1, (), tuple(out), (tuple(slot),))]}


@define_linear(aten.diag_embed.default)
def _diag_embed(site: Site, x: Axes, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Terms:
    rank = len(site.node.shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    ((label, _, _),), size = x[-1], site.node.shape[dim1]
    out = list(x[:-1])
    for dim, start in sorted([(dim1, max(-offset, 0)), (dim2, max(offset, 0))]):
        out.insert(dim, (Segment(label, start, size),))
    return {0: [Term(1, (), tuple(out), (x,))]}


# Writing into part of a tensor: what is kept of the base, in pieces without overlap, and what is written.


def _kept_around(x: Axes, dim: int, start: int, stop: int) -> list[Term]:
    """Return the terms of a tensor of which the indices from start to stop along dim are overwritten."""
    extent = x[dim][0].extent
    pieces = [part(first, last - first, extent)[1] for first, last in ((0, start), (stop, extent)) if last > first]
    return [Term(1, (), replaced(x, dim, piece), (replaced(x, dim, piece),)) for piece in pieces]


@define_linear(aten.slice_scatter.default)
def _slice_scatter(
    site: Site, x: Axes, source: Axes, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Terms:
    dim %= len(x)
    extent = x[dim][0].extent
    first, stop = _ends(extent, start, end)
    if step == 1:
        small, large = part(first, stop - first, extent)
        written = Term(1, (), replaced(source, dim, large), (replaced(source, dim, small),))
        return {0: _kept_around(x, dim, first, stop), 1: [written]}
    keeps = Factor(Call(_outside_steps, (Ref(site.node.number), dim, first, stop, step)), (x[dim],))
    stepped = Map(every_transposed, every, (first, stop, step, extent), adds=True)
    out = (full(Label(extent)),)
    return {
        0: [Term(1, (keeps,), x, (x,))],
        1: [by_map(stepped, replaced(source, dim, out), source, (out,), (source[dim],))],
    }


def _outside_steps(like: torch.Tensor, dim: int, start: int, stop: int, step: int) -> torch.Tensor:
    """Return ones, and zeros at every step-th index from start to stop."""
    index = torch.arange(like.shape[dim], device=like.device)
    return ((index < start) | (index >= stop) | ((index - start) % step != 0)).to(like.dtype)


@define_linear(aten.select_scatter.default)
def _select_scatter(site: Site, x: Axes, source: Axes, dim: int, index: int) -> Terms:
    dim, extent = dim % len(x), x[dim][0].extent
    index %= extent
    chosen = (Segment(None, index, extent),)
    written = Term(1, (), (*source[:dim], chosen, *source[dim:]), (source,))
    return {0: _kept_around(x, dim, index, index + 1), 1: [written]}


@define_linear(aten.diagonal_scatter.default)
def _diagonal_scatter(site: Site, x: Axes, source: Axes, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Terms:
    dim1, dim2 = dim1 % len(x), dim2 % len(x)
    label = source[-1][0].label
    out = list(source[:-1])
    for dim, start in sorted([(dim1, max(-offset, 0)), (dim2, max(offset, 0))]):
        out.insert(dim, (Segment(label, start, x[dim][0].extent),))
    keeps = Factor(Call(_off_diagonal, (Ref(site.node.number), offset, dim1, dim2)), (x[dim1], x[dim2]))
    return {0: [Term(1, (keeps,), x, (x,))], 1: [Term(1, (), tuple(out), (source,))]}


def _off_diagonal(like: torch.Tensor, offset: int, dim1: int, dim2: int) -> torch.Tensor:
    """Return a matrix of ones, and zeros on a diagonal."""
    rows = torch.arange(like.shape[dim1], device=like.device)
    columns = torch.arange(like.shape[dim2], device=like.device)
    return (rows[:, None] + offset != columns).to(like.dtype)


@define_linear(aten.select_backward.default)
def _select_backward(site: Site, grad: Axes, sizes: Shape, dim: int, index: int) -> Terms:
    dim, extent = dim % len(sizes), sizes[dim]
    return {0: [Term(1, (), (*grad[:dim], (Segment(None, index % extent, extent),), *grad[dim:]), (grad,))]}


@define_linear(aten.slice_backward.default)
def _slice_backward(site: Site, grad: Axes, sizes: Shape, dim: int, start: int, end: int, step: int) -> Terms:
    dim %= len(sizes)
    first, stop = _ends(sizes[dim], start, end)
    if step == 1:
        small, large = part(first, grad[dim][0].extent, sizes[dim])
        return {0: [Term(1, (), replaced(grad, dim, large), (replaced(grad, dim, small),))]}
    out = (full(Label(sizes[dim])),)
    stepped = Map(every_transposed, every, (first, stop, step, sizes[dim]), adds=True)
    return {0: [by_map(stepped, replaced(grad, dim, out), grad, (out,), (grad[dim],))]}


@define_linear(aten.diagonal_backward.default)
def _diagonal_backward(site: Site, grad: Axes, sizes: Shape, offset: int, dim1: int, dim2: int) -> Terms:
    dim1, dim2 = dim1 % len(sizes), dim2 % len(sizes)
    out = list(grad[:-1])
    for dim, start in sorted([(dim1, max(-offset, 0)), (dim2, max(offset, 0))]):
        out.insert(dim, (Segment(grad[-1][0].label, start, sizes[dim]),))
    return {0: [Term(1, (), tuple(out), (grad,))]}


@define_linear(aten.copy.default)
def _copy(site: Site, x: Axes, source: Axes, non_blocking: bool = False) -> Terms:
    return {1: [Term(1, (), expanded(source, site.node.shape), (source,))]}


@define_linear(aten.fill.Tensor)
def _fill(site: Site, x: Axes, value: Axes) -> Terms:
    return {1: [Term(1, (), x, (value,))]}
