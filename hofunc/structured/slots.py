"""Slots filled with vectors, or tied to each other: contraction, diagonal and trace of labelled terms.

Each costs a product of the core with vectors for every term. Where slots share a label that is elementwise.
"""

from collections.abc import Mapping, Sequence

import torch

from hofunc.algebra.compose import tied
from hofunc.algebra.labels import Axis
from hofunc.algebra.operators import is_reading
from hofunc.algebra.term import Factor, Term, visible
from hofunc.scatter import Entries, entries_of, size_of, solid
from hofunc.structured.product import multiplied
from hofunc.structured.sums import summed
from hofunc.views import Labelled, each, run_now

Terms = tuple[Term, ...]


def contracted(terms: Terms, vectors: Mapping[int, torch.Tensor], one: torch.Tensor) -> Terms:
    """Return terms with vectors put into some slots, which are left out then."""
    return summed([_filled(term, vectors, one) for term in terms], one)


def _filled(term: Term, vectors: Mapping[int, torch.Tensor], one: torch.Tensor) -> Term:
    taken = tuple([Factor(vector, term.slots[slot]) for slot, vector in vectors.items()])
    product = _without_slots(term, vectors)._replace(factors=(*term.factors, *taken))
    return multiplied(product, one, visible(term))


def _without_slots(term: Term, slots: Sequence[int] | Mapping[int, torch.Tensor]) -> Term:
    return term._replace(slots=tuple([axes for slot, axes in enumerate(term.slots) if slot not in slots]))


def on_diagonal(terms: Terms, one: torch.Tensor) -> Terms:
    """Return terms with one slot, of all whose slots have equal indices."""
    found = [_tied(term, [(0, slot) for slot in range(1, len(term.slots))], one) for term in terms]
    left = [
        multiplied(_without_slots(term, range(1, len(term.slots))), one, visible(term))
        for term in found
        if term is not None
    ]
    return summed(left, one)


def traced(terms: Terms, pairs: Sequence[tuple[int, int]], one: torch.Tensor) -> Terms:
    """Return terms without pairs of slots, summed over where the two of each pair have equal indices."""
    found = [_tied(term, pairs, one) for term in terms]
    taken = [slot for pair in pairs for slot in pair]
    left = [multiplied(_without_slots(term, taken), one, visible(term)) for term in found if term is not None]
    return summed(left, one)


def _tied(term: Term, pairs: Sequence[tuple[int, int]], one: torch.Tensor) -> Term | None:
    """Return a term where the indices of slots of pairs are equal; None if it is zero there.

    One that is read through indices is tied entry by entry, unless it has more of these than places for them.
    """
    if is_reading(term) and size_of(_entries_of(term, one).labels(visible(term))) > size_of(visible(term)):
        term = without_indices(term, one)
    axes: list[tuple[Axis, Axis]] = []
    for left, right in pairs:
        axes += zip(term.slots[left], term.slots[right], strict=True)
    tie = tied(term, axes)
    return None if tie is None else tie[0]


def _entries_of(term: Term, one: torch.Tensor) -> Entries:
    return entries_of(term, Labelled(one, ()))


def without_indices(term: Term, one: torch.Tensor) -> Term:
    """Return a term that is read through no indices: what it has is added to its places."""
    if not is_reading(term):
        return term
    shown = visible(term)
    total = solid(run_now, one, [_entries_of(term, one)], [*shown])
    return term._replace(coefficient=1, factors=(Factor(total.tensor, each(total.labels)),))
