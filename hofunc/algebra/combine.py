"""Sums of terms: which terms of a block can be added into one, and how."""

from collections.abc import Iterable

from hofunc.algebra.labels import Bindings, Label, Segment
from hofunc.algebra.term import Term, pattern, renamed, span, visible


def grouped(terms: Iterable[Term]) -> list[list[Term]]:
    """Group terms whose axes are equal up to names, each group relabelled to the names of its first term."""
    groups: dict = {}
    for term in terms:
        group = groups.setdefault(pattern(term), [])
        if group:
            term = renamed(term, dict(zip(visible(term), visible(group[0]), strict=True)))
        group.append(term)
    return list(groups.values())


def embedding(special: Term, general: Term) -> Bindings | None:
    """Say where in a general pattern a special one lies, or None if it does not lie in it.

    Returns:
        For every visible label of the general term the segment of it that the special term reaches: a diagonal
        where two labels go to one, a part where the segment is shorter, a single index where it has no label.
    """
    found: Bindings = {}
    for wide_axes, narrow_axes in zip((general.out, *general.slots), (special.out, *special.slots), strict=True):
        for wide_axis, narrow_axis in zip(wide_axes, narrow_axes, strict=True):
            if len(wide_axis) != len(narrow_axis):
                return None
            for wide, narrow in zip(wide_axis, narrow_axis, strict=True):
                if wide.extent != narrow.extent or not _contains(wide, narrow):
                    return None
                if wide.label is None:
                    continue
                place = _place(wide.label, wide, narrow)
                if found.setdefault(wide.label, place) != place:
                    return None
    return found


def _contains(wide: Segment, narrow: Segment) -> bool:
    if wide.label is None:
        return narrow.label is None and wide.start == narrow.start
    return span(wide).start <= span(narrow).start and span(narrow).stop <= span(wide).stop


def _place(label: Label, wide: Segment, narrow: Segment) -> tuple[Segment]:
    return (Segment(narrow.label, narrow.start - wide.start, label.size),)
