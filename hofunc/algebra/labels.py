"""Labels, segments and axes: how an index of a tensor is made up of named index ranges.

A label is one index range. An axis is a product of labels, in row-major order, so that a reshape which merges the
axes (b, i) into one keeps both labels. Two axes that bear the same label always have the same index there: a label
seen twice is a Kronecker delta, and that is how diagonal (batch) structure is kept without storing any zeros.

A segment lays a label into part of a longer range, which is what slicing, selecting, padding and concatenating do:
index = start + label. Outside the segment everything is zero.
"""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple


class Label:
    """An index range of a fixed size; two labels are the same only if they are the same object."""

    __slots__ = ("size",)

    def __init__(self, size: int):
        self.size = size

    def __repr__(self) -> str:
        return f"Label({self.size})@{id(self) & 0xFFFF:04x}"


class Segment(NamedTuple):
    """Index ``start + label`` of a range of ``extent``; without a label, the single index ``start``."""

    label: Label | None
    start: int
    extent: int

    @property
    def is_full(self) -> bool:
        """Whether the label covers the whole range."""
        return self.label is not None and self.label.size == self.extent

    @property
    def stop(self) -> int:
        """The index after the last one that it reaches."""
        return self.start + (self.label.size if self.label is not None else 1)


Axis = tuple[Segment, ...]
Axes = tuple[Axis, ...]
Bindings = dict[Label, Axis]


def full(label: Label) -> Segment:
    """Return the segment that is the label itself."""
    return tuple.__new__(Segment, (label, 0, label.size))  # there are many, which so take a third of the time


def fresh_axes(shape: Iterable[int]) -> Axes:
    """Return one axis with a new label for every size in shape."""
    return tuple((full(Label(size)),) for size in shape)


def extent(axis: Axis) -> int:
    """Return the number of indices of an axis; 1 for the empty axis."""
    return prod(segment.extent for segment in axis)


def shape_of(axes: Axes) -> tuple[int, ...]:
    """Return the shape of a tensor with these axes."""
    return tuple(extent(axis) for axis in axes)


def labels_of(*groups: Axes) -> list[Label]:
    """Return every label of the axes, in order of appearance, repeated labels repeatedly."""
    return [s.label for axes in groups for axis in axes for s in axis if s.label is not None]


def whole(axes: Axes) -> list[Label] | None:
    """Return the labels of axes of which each is one, of more than one index, and of no other axis; None of others."""
    labels: list[Label] = []
    for axis in axes:
        if len(axis) != 1:
            return None
        ((label, _, extent),) = axis
        if label is None or extent == 1 or label.size != extent or label in labels:
            return None
        labels.append(label)
    return labels


def rebind(axis: Axis, bindings: Bindings) -> Axis:
    """Replace every bound label of an axis by what it is bound to, until none is left.

    A label bound to several segments (a split) must start at a whole inner one; `unify` only binds such labels.
    """
    for segment in axis:
        if segment.label in bindings:
            break
    else:
        return axis
    result: list[Segment] = []
    for segment in axis:
        if segment.label is None or segment.label not in bindings:
            result.append(segment)
            continue
        first, *rest = rebind(bindings[segment.label], bindings)
        if segment.is_full and segment.start == 0:
            result.append(first)
        else:
            inner = extent(tuple(rest))
            result.append(Segment(first.label, segment.start // inner + first.start, segment.extent // inner))
        result.extend(rest)
    return tuple(result)


def rebind_all(axes: Axes, bindings: Bindings) -> Axes:
    """Apply `rebind` to every axis."""
    return tuple([rebind(axis, bindings) for axis in axes])
