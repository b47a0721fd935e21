"""The batch of a derivative: the labels that all slots of all terms share, each at one place of every group of axes."""

from collections.abc import Sequence
from typing import NamedTuple

from hofunc.algebra.labels import Axes, Label, extent, full, labels_of
from hofunc.algebra.term import Term


class _Place(NamedTuple):
    """Where a label lies in one group of axes: the axis, and how many of its indices one step of the label skips."""

    axis: int
    stride: int
    size: int


def _place(label: Label, axes: Axes) -> _Place | None:
    """Return the one place at which a label fills its part of an axis; None if there is none, or several."""
    found = []
    for number, axis in enumerate(axes):
        stride = 1
        for segment in reversed(axis):
            if segment.label is label:
                found.append(_Place(number, stride, label.size) if segment.is_full else None)
            stride *= segment.extent
    return found[0] if len(found) == 1 else None


def batch_places(term: Term) -> dict[tuple, Label]:
    """Return the labels that all slots of a term share, by where they lie in the output and in every slot.

    A label of a single slot is shared only if the output has it.
    """
    result = {}
    for label in dict.fromkeys(labels_of(*term.slots[:1])):
        in_slots = tuple(_place(label, slot) for slot in term.slots)
        in_out = _place(label, term.out)
        is_in_out = label in set(labels_of(term.out))
        if None not in in_slots and (in_out is not None or (len(term.slots) > 1 and not is_in_out)):
            result[in_out, in_slots] = label
    return result


def common_batch(terms: tuple[Term, ...]) -> list[tuple]:
    """Return the places of the labels that are a batch in every term."""
    tables = [batch_places(term) for term in terms]
    return [place for place in (tables[0] if tables else {}) if all(place in table for table in tables)]


def batch_of(term: Term, batch: Sequence[tuple]) -> list[Label]:
    """Return the labels that lie at some places in a term."""
    table = batch_places(term)
    return [table[place] for place in batch]


def batch_first(term: Term, batch: Sequence[tuple]) -> Term:
    """Return a term that has labels at some places once, in front of the output, and in no slot."""
    labels = batch_of(term, batch)

    def rest(axes: Axes) -> Axes:
        left = [tuple([segment for segment in axis if segment.label not in labels]) for axis in axes]
        # an axis that a batch fills goes, whatever of size one is beside it
        return tuple([new for old, new in zip(axes, left, strict=True) if new == old or extent(new) > 1])

    out = (*((full(label),) for label in labels), *rest(term.out))
    return term._replace(out=out, slots=tuple([rest(slot) for slot in term.slots]))
