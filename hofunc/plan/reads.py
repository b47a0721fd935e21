"""Reads: what only reads a node, or only places it in a larger one, names axes anew: nothing is computed.

Each index that is read, or placed at, makes axes of its own, so that to compose them takes something new every time.
"""

from collections.abc import Mapping, Sequence
from math import prod

from hofunc.algebra.extents import has_rows
from hofunc.algebra.labels import Axes, Axis, Label, Segment, labels_of
from hofunc.algebra.term import Term
from hofunc.plan.builder import Builder
from hofunc.plan.program import Register
from hofunc.plan.recipes import interned


def read(builder: Builder, outer: Term, is_read: Sequence[bool], inner: Term) -> Term | None:
    """Return what it is to put a term without factors into slots of a contracted one, if that only names axes anew.

    Args:
        builder: Keeps the patterns of terms, and counts a step of planning.
        outer: The contracted term.
        is_read: Whether the inner term is put into each of its slots.
        inner: The derivative of a node that reads another.

    Returns:
        The term, whose last slots are those of the inner one; None if there is more to it, be it that it vanishes.
    """
    if inner.factors or any(type(factor.source) is not Register for factor in outer.factors):
        return None
    slots, new = [], []
    for slot, reads in zip(outer.slots, is_read, strict=True):
        if not reads:
            slots.append(slot)
            continue
        found = _named(inner, slot)
        if found is None:
            return None
        new.append(found)
    builder.spend()
    coefficient = outer.coefficient * prod([inner.coefficient] * len(new))  # a power would raise rather than overflow
    return interned(builder, Term(coefficient, outer.factors, outer.out, (*slots, *new)))


def placed(builder: Builder, outer: Term, inner: Term) -> Term | None:
    """Return what it is to put a contracted term into the slot of one without factors, if that only names axes anew.

    Args:
        builder: Keeps the patterns of terms, and counts a step of planning.
        outer: The derivative of a node that reads another, or has it as a part.
        inner: The contracted term.

    Returns:
        The term; None if there is more to it, be it that it vanishes.
    """
    if outer.factors or len(outer.slots) != 1 or any(type(factor.source) is not Register for factor in inner.factors):
        return None
    if builder.has_rows and has_rows((outer.out, outer.slots, inner.out)):  # of axes that meet one may have no rows
        return None
    out = _named(Term(1, (), outer.slots[0], (outer.out,)), inner.out)
    if out is None:
        return None
    builder.spend()
    return interned(builder, Term(outer.coefficient * inner.coefficient, inner.factors, out, inner.slots))


def _named(inner: Term, slot: Axes) -> Axes | None:
    """Return the slot of a term without factors where the axes of its output are those given."""
    names: dict[Label, Axis] = {}
    for own, axis in zip(inner.out, slot, strict=True):
        if not own and not axis:
            continue
        label = own[0].label if len(own) == 1 and own[0].is_full else None
        if label is None or label in names or not label.size:
            return None
        names[label] = axis
    (reached,) = inner.slots
    if {*labels_of(reached)} != names.keys():
        return None
    found = [_axis(axis, names) for axis in reached]
    whole = tuple([axis for axis in found if axis is not None])
    return whole if len(whole) == len(found) else None


def _axis(axis: Axis, names: Mapping[Label, Axis]) -> Axis | None:
    """Return an axis of which labels are named by others; None if they reach a part of what several name."""
    found: list[Segment] = []
    for segment in axis:
        name = None if segment.label is None else names.get(segment.label)
        if name is None:
            found.append(segment)
        elif segment.is_full:
            found += name
        elif len(name) == 1:
            (one,) = name
            found.append(Segment(one.label, segment.start + one.start, segment.extent))
        else:
            return None
    return tuple(found)
