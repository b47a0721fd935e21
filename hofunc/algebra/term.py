"""Terms: one labelled product, the unit of which every derivative is a short sum.

A term stands for the tensor

    T[out, slot 1, ..., slot r] = coefficient * sum over hidden labels of the product of its factors

at the indices that its axes can reach, and zero elsewhere. A label that no factor bears is a broadcast (all ones);
one that several axes bear is a Kronecker delta; one that no axis bears is hidden, that is summed.
Terms hold no tensor data: the source of a factor only names a tensor.
"""

from collections.abc import Hashable, Iterable
from typing import NamedTuple

from hofunc.algebra.labels import Axes, Label, Segment, labels_of, rebind_all


class Factor(NamedTuple):
    """A named tensor; ``axes`` says which labels each of its dimensions runs over."""

    source: Hashable
    axes: Axes


class Term(NamedTuple):
    """A labelled product; ``slots`` holds the axes of each differentiation in turn."""

    coefficient: float
    factors: tuple[Factor, ...]
    out: Axes
    slots: tuple[Axes, ...]


def visible(term: Term) -> dict[Label, None]:
    """Return the labels that the term's axes bear, in order of first appearance."""
    return dict.fromkeys(labels_of(term.out, *term.slots))


def rebound(term: Term, bindings: dict) -> Term:
    """Replace bound labels throughout a term."""
    if not bindings:
        return term
    return Term(
        term.coefficient,
        tuple(Factor(factor.source, rebind_all(factor.axes, bindings)) for factor in term.factors),
        rebind_all(term.out, bindings),
        tuple(rebind_all(slot, bindings) for slot in term.slots),
    )


def renamed(term: Term, names: dict[Label, Label]) -> Term:
    """Exchange labels for others of the same size, all at once."""

    def exchange(axes: Axes) -> Axes:
        return tuple(tuple(segment._replace(label=names.get(segment.label, segment.label)) for segment in axis) for axis in axes)

    return Term(
        term.coefficient,
        tuple(Factor(factor.source, exchange(factor.axes)) for factor in term.factors),
        exchange(term.out),
        tuple(exchange(slot) for slot in term.slots),
    )


def relabelled(term: Term) -> Term:
    """Return the term with fresh labels throughout.

    A term used for two slots needs this, or both slots would become one diagonal.
    """
    labels = dict.fromkeys(labels_of(term.out, *term.slots, *(factor.axes for factor in term.factors)))
    return renamed(term, {label: Label(label.size) for label in labels})


def with_slots(term: Term, order: Iterable[int]) -> Term:
    """Return the term with its slots reordered: new slot t is old slot order[t]."""
    return term._replace(slots=tuple(term.slots[old] for old in order))


def numbering(term: Term) -> dict[Label, int]:
    """Number the visible labels of a term by first appearance."""
    return {label: number for number, label in enumerate(visible(term))}


def pattern(term: Term) -> Hashable:
    """Return a key that two terms share exactly if their axes are equal up to the names of the labels."""
    number = numbering(term)

    def key(axes: Axes) -> Hashable:
        return tuple(
            tuple((number.get(label, -1), label.size if label else 1, start, size) for label, start, size in axis)
            for axis in axes
        )

    return key(term.out), tuple(key(slot) for slot in term.slots)


def identity(axes: Axes) -> Term:
    """Return the derivative of a tensor by itself: every label of the output is shared with the slot."""
    return Term(1, (), axes, (axes,))


def span(segment: Segment) -> range:
    """Return the indices of its range that a segment reaches."""
    size = segment.label.size if segment.label is not None else 1
    return range(segment.start, segment.start + size)
