"""Ops that only put elements elsewhere: their derivatives are relabellings and move no data."""

from collections.abc import Sequence
from math import prod

import torch

from hofunc.algebra.labels import Axes, Axis, Label, Segment, fresh_axes, full
from hofunc.algebra.operators import DELTA
from hofunc.algebra.term import Factor, Term
from hofunc.rules.axes import dims_of, replaced
from hofunc.rules.kinds import Site
from hofunc.rules.registry import define_linear, define_relabelling

aten = torch.ops.aten

Terms = dict[int, list[Term]]
Shape = Sequence[int]


# Copies and casts.


def _same(x: Axes, *_: object, **__: object) -> Axes:
    return x


for _op in (
    aten.alias.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten._to_copy.default,
    aten.to.dtype,
    aten.positive.default,
    aten._conj.default,
    aten.resolve_conj.default,
    aten.resolve_neg.default,
):
    define_relabelling(_op, _same)


# Permutations of axes.


def _swapped(x: Axes, first: int, second: int) -> Axes:
    order = list(range(len(x)))
    if order:
        order[first], order[second] = order[second], order[first]
    return tuple(x[dim] for dim in order)


def _moved(x: Axes, order: Shape) -> Axes:
    return tuple(x[dim] for dim in order)


define_relabelling(aten.t.default, lambda x: x[::-1])
define_relabelling(aten.numpy_T.default, lambda x: x[::-1])
define_relabelling(aten.transpose.int, _swapped)
define_relabelling(aten.permute.default, _moved)


# Axes of size one, and broadcasts.


def _squeezed(x: Axes, dims: int | Shape | None = None) -> Axes:
    dropped = dims_of(dims, len(x)) if dims is not None else range(len(x))
    return tuple(axis for dim, axis in enumerate(x) if dim not in dropped or axis[0].extent != 1)


def _unsqueezed(x: Axes, dim: int) -> Axes:
    dim %= len(x) + 1
    return (*x[:dim], (full(Label(1)),), *x[dim:])


def _expanded(x: Axes, size: Shape, implicit: bool = False) -> Axes:
    added = len(size) - len(x)
    stretched = [
        axis if wanted in (-1, axis[0].extent) else (full(Label(wanted)),)
        for axis, wanted in zip(x, size[added:], strict=True)
    ]
    return (*fresh_axes(size[:added]), *stretched)


define_relabelling(aten.squeeze.default, _squeezed)
define_relabelling(aten.squeeze.dim, _squeezed)
define_relabelling(aten.squeeze.dims, _squeezed)
define_relabelling(aten.unsqueeze.default, _unsqueezed)
define_relabelling(aten.expand.default, _expanded)


# Reshapes: merging keeps every label, splitting gives new ones, and what does neither is a Kronecker delta.


def common_refinement(old: Shape, new: Shape) -> tuple[Axes, Axes] | None:
    """Label two shapes of one size so that raveled indices agree; None if their boundaries do not nest.

    An axis of size 1 lends its label to the first axis of the other shape, so that a batch of one that is merged
    into another axis and split off again is still a batch.
    """
    axes: tuple[list[Axis], list[Axis]] = ([], [])
    left = [[size for size in shape if size != 1] for shape in (old, new)]
    parts: list[Axis] = [(), ()]
    while left[0]:
        sizes = left[0][-1], left[1][-1]
        if max(sizes) % min(sizes):
            return None
        segment = full(Label(min(sizes)))
        for side in (0, 1):
            parts[side] = (segment, *parts[side])
            left[side][-1] //= segment.extent
            if left[side][-1] == 1:
                left[side].pop()
                axes[side].insert(0, parts[side])
                parts[side] = ()
    for shape, own, other in ((old, *axes), (new, *axes[::-1])):
        for dim, size in enumerate(shape):
            if size == 1:
                unit = full(Label(1))
                own.insert(dim, (unit,))
                if other:
                    other[0] = (unit, *other[0])
    return tuple(axes[0]), tuple(axes[1])


def _groups(old: Shape, new: Shape) -> list[tuple[Shape, Shape]]:
    """Cut two shapes of one size into the smallest runs of axes that hold the same number of elements."""
    groups, i, j = [], 0, 0
    for start_i, start_j in iter(lambda: (i, j), (len(old), len(new))):
        i, j = min(i + 1, len(old)), min(j + 1, len(new))
        while prod(old[start_i:i]) != prod(new[start_j:j]):
            if prod(old[start_i:i]) < prod(new[start_j:j]):
                i += 1
            else:
                j += 1
        groups.append((old[start_i:i], new[start_j:j]))
    return groups


def _reshape(site: Site, *_: object, **__: object) -> Terms:
    (old,), new = site.shapes, site.node.shape
    if prod(new) == 0:
        return {}
    slot, out, factors = [], [], []
    for before, after in _groups(old, new):
        refined = common_refinement(before, after)
        if refined is None:
            refined = fresh_axes(before), fresh_axes(after)
            factors.append(Factor(DELTA, tuple(sum(axes, ()) for axes in refined)))
        slot.extend(refined[0])
        out.extend(refined[1])
    return {0: [Term(1, tuple(factors), tuple(out), (tuple(slot),))]}


for _op in (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
):
    define_linear(_op)(_reshape)


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
def _split_with_sizes(site: Site, x: Axes, sizes: Shape, dim: int = 0) -> Terms:
    output = site.node.output or 0
    return _sliced(x, dim % len(x), sum(sizes[:output]), sizes[output])


@define_linear(aten.split.Tensor)
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
