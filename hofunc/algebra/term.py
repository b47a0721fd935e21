"""Terms: one labelled product, the unit of which every derivative is a short sum.

A term stands for the tensor

    T[out, slot 1, ..., slot r] = coefficient * sum over hidden labels of the product of its factors

at the indices that its axes can reach, and zero elsewhere. A label that no factor bears is a broadcast (all ones);
one that several axes bear is a Kronecker delta; one that no axis bears is hidden, that is summed.
Terms hold no tensor data: the source of a factor only names a tensor.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hofunc.algebra.labels import Axes, Bindings, Label, Segment, labels_of, rebind_all

_new: Any = tuple.__new__  # a NamedTuple from a tuple, at a third of the cost of calling it; planning is full of these


class Factor(NamedTuple):
    """A named tensor; ``axes`` says which labels each of its dimensions runs over."""

    source: Any
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


def rebound(term: Term, bindings: Bindings) -> Term:
    """Replace bound labels throughout a term."""
    return _with_axes(term, lambda axes: rebind_all(axes, bindings)) if bindings else term


def renamed(term: Term, names: dict[Label, Label]) -> Term:
    """Exchange labels for others of the same size, all at once."""

    def exchange(axes: Axes) -> Axes:
        return tuple(
            [
                tuple([_new(Segment, (names.get(label, label), start, extent)) for label, start, extent in axis])  # type: ignore[arg-type]
                for axis in axes
            ]
        )

    return _with_axes(term, exchange)


def _with_axes(term: Term, change: Callable[[Axes], Axes]) -> Term:
    factors = tuple([Factor(factor.source, change(factor.axes)) for factor in term.factors])
    return Term(term.coefficient, factors, change(term.out), tuple([change(slot) for slot in term.slots]))


def relabelled(term: Term, names: Mapping[Label, Label] = MappingProxyType({})) -> Term:
    """Return the term with the labels that are named, and fresh ones in place of all others.

    A term used for two slots needs this, or both slots would become one diagonal.
    """
    labels = dict.fromkeys(labels_of(term.out, *term.slots, *(factor.axes for factor in term.factors)))
    return renamed(term, {label: names.get(label) or Label(label.size) for label in labels})


def with_slots(term: Term, order: Iterable[int]) -> Term:
    """Return the term with its slots reordered: new slot t is old slot order[t]."""
    return Term(term.coefficient, term.factors, term.out, tuple([term.slots[old] for old in order]))


def pattern(term: Term) -> Hashable:
    """Return a key that two terms share exactly if their axes are equal up to the names of the labels."""
    labels = visible(term)
    number: dict[Label | None, int] = dict(zip(labels, range(len(labels)), strict=True))
    number[None] = -1
    axes = (term.out, *term.slots)
    places = tuple([tuple([tuple([(number[s.label], s.start, s.extent) for s in x]) for x in group]) for group in axes])
    return tuple([label.size for label in labels]), places


def identity(axes: Axes) -> Term:
    """Return the derivative of a tensor by itself: every label of the output is shared with the slot."""
    return Term(1, (), axes, (axes,))


def span(segment: Segment) -> range:
    """Return the indices of its range that a segment reaches."""
    return range(segment.start, segment.stop)
