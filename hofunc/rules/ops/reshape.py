"""Ops that only rearrange axes: their derivatives are relabellings and move no data."""

from collections.abc import Sequence
from math import prod

import torch

from hofunc.algebra.labels import Axes, Axis, Label, fresh_axes, full
from hofunc.algebra.operators import DELTA
from hofunc.algebra.term import Factor, Term
from hofunc.rules.axes import dims_of
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
    dropped = range(len(x)) if dims is None else dims_of(dims, len(x)) if dims != () else ()
    return tuple(axis for dim, axis in enumerate(x) if dim not in dropped or axis[0].extent != 1)


def _unsqueezed(x: Axes, dim: int) -> Axes:
    dim %= len(x) + 1
    return (*x[:dim], (full(Label(1)),), *x[dim:])


def expanded(x: Axes, size: Shape, implicit: bool = False) -> Axes:
    """Return the axes of a tensor broadcast to a size; -1 leaves an axis as it is."""
    added = len(size) - len(x)
    stretched = [
        axis if wanted in (-1, axis[0].extent) else (full(Label(wanted)),)
        for axis, wanted in zip(x, size[added:], strict=True)
    ]
    return (*fresh_axes(size[:added]), *stretched)


def _repeated(x: Axes, repeats: Shape) -> Axes:
    added = len(repeats) - len(x)
    new = [full(Label(count)) for count in repeats]
    return (*((segment,) for segment in new[:added]), *((s, *axis) for s, axis in zip(new[added:], x, strict=True)))


define_relabelling(aten.repeat.default, _repeated)
define_relabelling(aten.squeeze.default, _squeezed)
define_relabelling(aten.squeeze.dim, _squeezed)
define_relabelling(aten.squeeze.dims, _squeezed)
define_relabelling(aten.unsqueeze.default, _unsqueezed)
define_relabelling(aten.expand.default, expanded)


# Reshapes: merging keeps every label, splitting gives new ones, and what does neither is a Kronecker delta.


def common_refinement(old: Shape, new: Shape) -> tuple[Axes, Axes] | None:
    """Label two shapes of one size so that raveled indices agree; None if their boundaries do not nest.

    An axis of size 1 lends its label to the first axis of the other shape, so that a batch of one that is merged
    into another axis and split off again is still a batch.
    """
    if tuple(old) == tuple(new):
        return (same := fresh_axes(old)), same
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
    while i < len(old) or j < len(new):
        start_i, start_j = i, j
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
    slot: list[Axis] = []
    out: list[Axis] = []
    factors: list[Factor] = []
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
