"""Ablations: the reverse strategy without one of its optimisations or both, to measure what each of them is worth.

Without batch unification every block becomes one dense tensor as soon as its terms are added up, so that no diagonal
outlives a node. Without Schwarz's theorem there is a block for every order of its variables, each the sum over all set
partitions of its slots. Steps that come out the same are still merged, as in any program.

Source: thesis of THOAD, sections 6 and 7, for the optimisations; section 8.3 for what is measured.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations, product

from hofunc.algebra.labels import fresh_axes, shape_of
from hofunc.algebra.partitions import Key, ordered_partitions
from hofunc.algebra.term import Factor, Term, with_slots
from hofunc.plan.accumulate import dense
from hofunc.plan.blocks import Blocks, Local
from hofunc.plan.builder import Builder
from hofunc.plan.reverse import Leads, reverse, substituted
from hofunc.views import each


def _as_dense(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    """Add terms up to one of a dense tensor, in which no two axes share a label."""
    if not terms:
        return []
    out = fresh_axes(shape_of(terms[0].out))
    slots = tuple(fresh_axes(shape_of(slot)) for slot in terms[0].slots)
    tensor = builder.read(dense(builder, terms), (*out, *sum(slots, ())))
    return [Term(1, (Factor(tensor.tensor, each(tensor.labels)),), out, slots)]


def _in_order(
    builder: Builder, index: int, key: Key, terms: Sequence[Term], local: Local, highest: int, leads: Leads
) -> Iterator[tuple[Key, list[Term]]]:
    """Replace a node in a block of ordered slots by what it is computed from, for every block of ordered slots.

    The slots of the block are those of the target's set partitions, in the order of their least elements.
    """
    for groups in product(sorted(local), repeat=key.count(index)):
        supply = iter(groups)
        parts = [next(supply) if variable == index else (variable,) for variable in key]
        if sum(map(len, parts)) > highest:
            continue
        deals = [deal for deal in _deals(parts, [variable == index for variable in key]) if leads(deal[0])]
        composed = substituted(builder, index, key, terms, [local[group] for group in groups]) if deals else []
        for target, order in deals:
            yield target, [with_slots(term, order) for term in composed]


def _deals(parts: Sequence[Key], replaced: Sequence[bool]) -> Iterator[tuple[Key, tuple[int, ...]]]:
    """Yield the blocks that a composition is part of: variables of the slots, and for each its slot in the composition.

    The composition has the slots that stayed first, and then those of the parts that replaced others.
    """
    places = sorted(range(len(parts)), key=lambda place: replaced[place])
    starts = {place: sum(len(parts[other]) for other in places[:rank]) for rank, place in enumerate(places)}
    for blocks in ordered_partitions([len(part) for part in parts]):
        for orders in product(*map(_distinct, parts)):
            slots = {
                slot: (parts[place][number], starts[place] + number)
                for place, (block, order) in enumerate(zip(blocks, orders, strict=True))
                for slot, number in zip(block, order, strict=True)
            }
            target, taken = zip(*(slots[slot] for slot in range(len(slots))), strict=True)
            yield target, taken


def _distinct(part: Key) -> list[tuple[int, ...]]:
    """Return the orders of a part's slots that differ in their variables."""
    found = {tuple(part[number] for number in order): order for order in permutations(range(len(part)))}
    return list(found.values())


ABLATIONS: dict[str, Callable[..., Blocks]] = {
    "reverse-without-batch": partial(reverse, add=_as_dense, bundles=False),
    "reverse-without-schwarz": partial(reverse, eliminate=_in_order, bundles=False),
    "reverse-without-either": partial(reverse, add=_as_dense, eliminate=_in_order, bundles=False),
}
