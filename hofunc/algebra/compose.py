"""Composition of terms: the chain rule for one term of the outer and one term of each inner derivative.

Composing identifies the axes of an outer slot with the output axes of the inner term put into it. That is all there
is to it: whatever diagonal structure survives, survives because two labels became one, and whatever is lost is lost
because a label became hidden. Source: thesis of THOAD, sections 5 and 6, with labels in place of annotations.
"""

from collections.abc import Sequence
from math import prod

from hofunc.algebra.labels import Axes, Axis, Bindings, Label, Segment, extent, full, labels_of, rebind, rebind_all
from hofunc.algebra.operators import DELTA
from hofunc.algebra.term import Factor, Term, rebound, relabelled, span


class _Unifier:
    """Finds what labels must be bound to so that pairs of axes have equal indices."""

    def __init__(self, axes: Axes):
        self.axes = axes
        self.bindings: Bindings = {}
        self.deltas: list[Factor] = []

    def unify(self, left: Axis, right: Axis) -> bool:
        """Make two axes equal; False if they share no index.

        Segments are matched from the right, splitting a label where the other axis has a boundary. Where the
        boundaries do not nest, or a label to be split also lies across them elsewhere, the axes stay as they are and
        a Kronecker delta factor ties them.
        """
        if extent(left) == 0:
            return False
        while left != right:
            left, right = self._drop_ones(rebind(left, self.bindings), rebind(right, self.bindings))
            if not left or not right:
                return True
            one, other = left[-1], right[-1]
            if one.extent == other.extent:
                if not self._match(one, other):
                    return False
                left, right = left[:-1], right[:-1]
            elif one.extent > other.extent and (parts := self._split(one, other.extent)):
                left = left[:-1] + parts
            elif one.extent < other.extent and (parts := self._split(other, one.extent)):
                right = right[:-1] + parts
            else:
                self.deltas.append(Factor(DELTA, (left, right)))
                return True
        return True

    @staticmethod
    def _drop_ones(left: Axis, right: Axis) -> tuple[Axis, Axis]:
        """Drop trailing segments of extent 1 that the other axis has nothing to match with."""
        while left and left[-1].extent == 1 and not (right and right[-1].extent == 1):
            left = left[:-1]
        while right and right[-1].extent == 1 and not (left and left[-1].extent == 1):
            right = right[:-1]
        return left, right

    def _split(self, segment: Segment, inner: int) -> Axis | None:
        """Split a segment into an outer part and an inner part of the given extent, if that can be done.

        What it reaches has to lie within one inner part, or to be made of whole ones.
        """
        outer, remainder = divmod(segment.extent, inner)
        if remainder:
            return None
        high, low = divmod(int(segment.start), int(inner))
        size = 1 if segment.label is None else segment.label.size
        if low + size <= inner:
            return Segment(None, high, outer), Segment(segment.label, low, inner)
        if segment.label is None or size % inner or not self._splits_evenly(segment.label, inner):
            return None
        parts = (full(Label(size // inner)), full(Label(inner)))
        self.bindings[segment.label] = parts
        return Segment(parts[0].label, high, outer), parts[1]

    def _splits_evenly(self, label: Label, inner: int) -> bool:
        """Tell whether a label starts at a whole inner part wherever it lies."""
        found = [s for axis in self.axes for s in rebind(axis, self.bindings) if s.label is label]
        return not any(segment.start % inner or segment.extent % inner for segment in found)

    def _match(self, one: Segment, other: Segment) -> bool:
        """Restrict two segments of equal extent to the indices that both reach; False if there are none."""
        if one.label is other.label:
            return one.start == other.start
        common = range(max(one.start, other.start), min(span(one).stop, span(other).stop))
        if not common:
            return False
        if one.label is not None and span(one) == common:
            self._bind(other, one.label, common)
        elif other.label is not None and span(other) == common:
            self._bind(one, other.label, common)
        else:
            label = Label(len(common)) if one.label is not None and other.label is not None else None
            self._bind(one, label, common)
            self._bind(other, label, common)
        return True

    def _bind(self, segment: Segment, label: Label | None, reach: range) -> None:
        if segment.label is not None:
            self.bindings[segment.label] = (Segment(label, reach.start - segment.start, segment.label.size),)


def compose(outer: Term, inners: Sequence[Term | None]) -> Term | None:
    """Put an inner term into every slot of the outer term that has one; None if the product vanishes.

    Args:
        outer: Term with one slot per entry of inners.
        inners: The inner term of each slot, or None for a slot that stays.

    Returns:
        The composed term, its slots being those that stayed and then those of the inner terms, in order. A label
        that nothing bears any more was summed over ones, so that its size becomes part of the coefficient.
    """
    filled = zip(inners, outer.slots, strict=True)
    fresh = [inner and relabelled(inner, _common_names(inner.out, slot)) for inner, slot in filled]
    present = [inner for inner in fresh if inner is not None]
    product = Term(
        outer.coefficient,
        outer.factors + tuple(factor for inner in present for factor in inner.factors),
        outer.out,
        tuple(slot for slot, inner in zip(outer.slots, fresh, strict=True) if inner is None)
        + tuple(slot for inner in present for slot in inner.slots),
    )
    for inner in present:
        product = product._replace(coefficient=product.coefficient * inner.coefficient)
    pairs = [
        pair
        for slot, inner in zip(outer.slots, fresh, strict=True)
        if inner is not None
        for pair in zip(slot, inner.out, strict=True)
    ]
    tie = tied(product, pairs)
    if tie is None:
        return None
    product, axes = tie
    lost = {*labels_of(axes)} - {*labels_of(_all_axes(product))}
    count = prod(int(label.size) for label in lost)  # of all rows, also where they are taken apart
    return product._replace(coefficient=product.coefficient * count) if lost else product


def tied(term: Term, pairs: Sequence[tuple[Axis, Axis]]) -> tuple[Term, Axes] | None:
    """Make the axes of pairs equal to each other, whether the term bears them yet or not.

    Args:
        term: The term, which may not have been contracted.
        pairs: Pairs of axes of one extent.

    Returns:
        The term, with Kronecker deltas where boundaries within axes do not nest, and what the axes of all pairs are
        now; None if those of a pair have no index in common.
    """
    joined = tuple([axis for pair in pairs for axis in pair])
    unifier = _Unifier((*_all_axes(term), *joined))
    if not all(unifier.unify(left, right) for left, right in pairs):
        return None
    term = rebound(term._replace(factors=term.factors + tuple(unifier.deltas)), unifier.bindings)
    return term, rebind_all(joined, unifier.bindings)


def matched(one: Axis, other: Axis, beside: Axes) -> Bindings | None:
    """Return what labels have to be bound to so that two axes of one extent are equal.

    Args:
        one: An axis.
        other: The other one.
        beside: The other axes that bear their labels.

    Returns:
        The bindings; None if no labels are equal to each other, be it that the axes have no index in common.
    """
    unifier = _Unifier((one, other, *beside))
    is_possible = unifier.unify(one, other)
    return unifier.bindings if is_possible and not unifier.deltas else None


def _common_names(axes: Axes, slot: Axes) -> dict[Label, Label]:
    """Return the names that labels of some axes can take from those of a slot, so that nothing is left to unify."""
    wholes = [(_whole(axis), _whole(other)) for axis, other in zip(axes, slot, strict=True)]
    return {one: other for one, other in wholes if one is not None and other is not None and one.size == other.size}


def _whole(axis: Axis) -> Label | None:
    """Return the label that an axis is, None if it is made of several or of a part of a range."""
    return axis[0].label if len(axis) == 1 and axis[0].is_full else None


def _all_axes(term: Term) -> Axes:
    return (
        *term.out,
        *(axis for slot in term.slots for axis in slot),
        *(axis for factor in term.factors for axis in factor.axes),
    )
