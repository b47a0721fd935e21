"""Shifts: what is read at one place of an input is computed as if it were read at the first.

Of a sequence, each step reads another place. What follows from one place alone has the axes of what follows from any
other, but for where they start. So it is worked out once, for a start at zero, and only where it meets what follows
from other places does it matter where it starts.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hofunc.algebra.labels import Axes, Segment, labels_of
from hofunc.algebra.term import Factor, Term
from hofunc.plan.builder import Builder
from hofunc.plan.recipes import axes_of, interned, is_applied


class Shift(NamedTuple):
    """Where terms of one slot start.

    Attributes:
        number: Which segment of the slot it is that is part of a range.
        extent: That of the range.
        start: Where the first of the terms starts along it.
    """

    number: int
    extent: int
    start: int


def shift_of(builder: Builder, terms: Sequence[Term]) -> Shift | None:
    """Return where terms start that have one slot, of which one segment is part of a range; None if at the beginning.

    None likewise if they have other such segments, or operators, which would have to be moved with them.
    """
    found: list[Shift] = []
    for term in terms:
        slot = term.slots[0]
        known = builder.recipes.get((shift_of, id(slot)))
        if known is None:
            parts = [
                (number, each.extent, each.start) for number, each in enumerate(_segments(slot)) if not each.is_full
            ]
            known = slot, Shift(*parts[0]) if len(parts) == 1 else None
            builder.recipes[shift_of, id(slot)] = known
        if known[1] is None or known[1][:2] != (found or [known[1]])[0][:2]:
            return None
        found.append(known[1])
    least = min(found, key=lambda shift: shift.start, default=None)
    return least if least is not None and least.start and not any(map(is_applied, terms)) else None


def shift_through(shift: Shift, read: Axes, terms: Sequence[Term]) -> Shift | None:
    """Return the shift of an input for one of a node, given the derivative of the node by the input.

    There is one if the node has the same of every place of the input, as of a layer that is applied to a sequence.

    Args:
        shift: Where the node is read.
        read: The axes of the node as they are read, of which some may be taken apart.
        terms: The derivative.
    """
    if len(terms) != 1 or is_applied(terms[0]):
        return None
    (term,) = terms
    segments, reached = _segments(term.out), _segments(term.slots[0])
    if [*map(len, read)] != [*map(len, term.out)] or segments[shift.number].extent != shift.extent:
        return None
    label = segments[shift.number].label
    if label is None or label in labels_of(*[factor.axes for factor in term.factors]):
        return None
    places = [place for place, segment in enumerate(reached) if segment.label is label]
    if len(places) != 1 or sum(segment.label is label for segment in segments) != 1:
        return None
    there = reached[places[0]]
    return shift._replace(number=places[0]) if there.is_full and there.extent == shift.extent else None


def shifted(builder: Builder, terms: Sequence[Term], shift: Shift, *, back: bool = False) -> list[Term] | None:
    """Return terms that start later by a shift, or earlier; None if one would leave the range, or has another one.

    Of the latter kind are those whose range was taken apart, as by a reshape, which it cannot be from everywhere.
    """
    by = -shift.start if back else shift.start
    found: list[Term] = []
    for term in terms:
        key = shifted, axes_of(term), shift, by
        known = builder.recipes.get(key)
        if known is None:
            moved = _shifted(term, shift, by)
            known = builder.recipes[key] = (term, moved and interned(builder, moved))
        template = known[1]
        if template is None:
            return None
        factors = tuple([Factor(own.source, one.axes) for own, one in zip(term.factors, template.factors, strict=True)])
        found.append(Term(term.coefficient, factors, template.out, template.slots))
    return found


def _shifted(term: Term, shift: Shift, by: int) -> Term | None:
    segments = _segments(term.slots[0])
    segment = segments[shift.number]
    if segment.extent != shift.extent or segment.start + by < 0 or segment.stop + by > segment.extent:
        return None
    segments[shift.number] = segment._replace(start=segment.start + by)
    rest = iter(segments)
    return term._replace(slots=(tuple([tuple([next(rest) for _ in axis]) for axis in term.slots[0]]),))


def _segments(slot: Axes) -> list[Segment]:
    return [segment for axis in slot for segment in axis]
