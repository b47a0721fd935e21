"""Where two selections read from one axis that is summed: in which form the terms are composed."""

from collections.abc import Sequence
from itertools import product
from math import prod

from hofunc.algebra.labels import Label, labels_of
from hofunc.algebra.operators import selections_of, with_merged_selections
from hofunc.algebra.term import Term, visible
from hofunc.plan.accumulate import accumulated, by_reading, without_reading
from hofunc.plan.builder import Builder
from hofunc.plan.devices import rates_of
from hofunc.plan.joins import can_join, coalesced
from hofunc.plan.recipes import composed
from hofunc.plan.selections import entries
from hofunc.scatter import size_of

_MOVED = 12  # times as long as to write an entry it takes to make one of a product, to lay it out and to add it

Inners = Sequence[Sequence[Term | None]]


def outers_met(builder: Builder, outers: Sequence[Term], inners: Inners) -> Sequence[Term]:
    """Return the terms of a block in the form in which terms that may read what they read are put into their slots."""
    if not any(map(selections_of, outers)) or not meeting(outers, inners)[0]:
        return outers
    gone_by = {**builder.went_by}
    sparse = _sparse(builder, outers)
    if sparse is not None and _can_join(builder, sparse, inners):
        return sparse
    builder.went_by = gone_by  # what is dense is so whatever the indices
    return accumulated(builder, without_reading(builder, outers))


def inners_met(builder: Builder, outer: Term, inners: Inners) -> Inners:
    """Return coefficients in the form in which they are put into the slots of a term."""
    if not any(term is not None and selections_of(term) for terms in inners for term in terms):
        return inners
    meet = meeting([outer], inners)[1]
    if not any(meet):
        return inners
    gone_by = {**builder.went_by}
    given = [[term for term in terms if term is not None] for terms in inners]
    sparse = [_sparse(builder, some) if at else terms for some, terms, at in zip(given, inners, meet, strict=True)]
    found = [terms for terms in sparse if terms is not None]
    if len(found) == len(sparse) and _can_join(builder, [outer], found):
        return found
    builder.went_by = gone_by
    stays = _kept_apart(builder, given, meet)
    return [
        accumulated(builder, without_reading(builder, some)) if at and place != stays else terms
        for place, (some, terms, at) in enumerate(zip(given, inners, meet, strict=True))
    ]


def _kept_apart(builder: Builder, inners: Sequence[Sequence[Term]], meet: Sequence[bool]) -> int | None:
    """Return the place of the terms that may read through indices where others that meet them are dense, if any.

    What the latter have where an entry is read is then multiplied with that entry, for all entries: that moves more for
    each of them than a product of matrices takes, but there may be far fewer than these have.
    """
    places = [place for place, at in enumerate(meet) if at]
    if len(places) != 2:
        return None
    rates, sizes = rates_of(builder.device), {place: _size(inners[place]) for place in places}
    shared = max(size_of(_targets(term) & {*labels_of(term.out)}) for term in inners[places[0]])
    products = 2 * prod(sizes.values()) // max(1, shared)
    best, least = None, products / rates.flops
    for place in places:
        (other,) = [size for each, size in sizes.items() if each != place]
        read = sum(size_of(entries(term)) for term in inners[place] if selections_of(term))
        seconds = _MOVED * builder.dtype.itemsize * read * other / max(1, shared) / rates.bytes
        if seconds < least:
            best, least = place, seconds
    return best


def _size(terms: Sequence[Term]) -> int:
    """Return how many entries a dense tensor has of which terms are parts."""
    return max(size_of(visible(term)) for term in terms)


def _sparse(builder: Builder, terms: Sequence[Term]) -> Sequence[Term] | None:
    """Return the sum of terms with one entry for each place that some of them have, None if these are not known."""
    reading, others = by_reading(terms)
    found = [coalesced(builder, alike) or (alike[0] if len(alike) == 1 else None) for alike in reading]
    sparse = [term for term in found if term is not None]
    return [*others, *sparse] if len(sparse) == len(found) else None


def _can_join(builder: Builder, outers: Sequence[Term], inners: Inners) -> bool:
    terms = (composed(builder, outer, chosen) for outer, *chosen in product(outers, *inners))
    return all(can_join(builder, with_merged_selections(term)) for term in terms if term is not None)


def meeting(outers: Sequence[Term], inners: Sequence[Sequence[Term | None]]) -> tuple[bool, list[bool]]:
    """Tell what of some terms and of those to be put into their slots has to be without selections.

    Where two selections read from one axis that is summed, entries of one meet many of the other, which ones only their
    indices tell: those terms are to be dense there.

    Returns:
        Whether the outer terms are among them, and whether those of each slot are.
    """
    reading = [
        [[_is_read(inner, place) for inner in terms if inner is not None] for place in range(len(axes))]
        for terms, axes in zip(inners, outers[0].slots, strict=True)
    ]
    is_outer, are_inner = False, [False] * len(inners)
    for outer in outers:
        at: dict[Label, set[int]] = {}
        for number, axes in enumerate(outer.slots):
            for place, axis in enumerate(axes):
                for label in labels_of((axis,)) if any(reading[number][place]) else []:
                    at.setdefault(label, set()).add(number)
        own = _targets(outer)
        for label, numbers in at.items():
            if label in own or len(numbers) > 1:
                is_outer = is_outer or label in own
                are_inner = [found or number in numbers for number, found in enumerate(are_inner)]
    return is_outer, are_inner


def _is_read(term: Term, place: int) -> bool:
    """Tell whether an axis of the output of a term is what a selection of it reads from."""
    return not _targets(term).isdisjoint(labels_of((term.out[place],)))


def _targets(term: Term) -> set[Label]:
    return {*labels_of(tuple([selection.target for selection in selections_of(term)]))}
