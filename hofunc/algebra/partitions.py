"""Counting for the rule of Faa di Bruno: which slots of a derivative go to which factor of a composition.

Variables are any hashable, ordered objects (hofunc uses node numbers). A key is the sorted tuple of the variables of
a block's slots; by Schwarz's theorem one block per key is enough.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product

Key = tuple[int, ...]


@lru_cache(maxsize=4096)
def choices(sizes: tuple[int, ...], count: int, total: int) -> list[tuple[int, ...]]:
    """List every non-decreasing choice of count positions of sizes whose sizes sum to at most total."""

    def extend(chosen: tuple[int, ...], start: int, left: int) -> Iterator[tuple[int, ...]]:
        if len(chosen) == count:
            yield chosen
            return
        for position in range(start, len(sizes)):
            if sizes[position] <= left:
                yield from extend((*chosen, position), position, left - sizes[position])

    return list(extend((), 0, total))


@lru_cache(maxsize=64)
def set_partitions(count: int) -> list[tuple[tuple[int, ...], ...]]:
    """List all ways to part range(count) into blocks."""
    if count == 0:
        return [()]
    last = count - 1
    result = []
    for blocks in set_partitions(last):
        result.append((*blocks, (last,)))
        result.extend((*blocks[:i], (*block, last), *blocks[i + 1 :]) for i, block in enumerate(blocks))
    return result


def ordered_partitions(sizes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield all ways to part range(sum(sizes)) into blocks of these sizes, ordered by the least element of each."""

    def extend(left: tuple[int, ...], sizes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
        if not sizes:
            yield ()
            return
        for others in combinations(left[1:], sizes[0] - 1):
            rest = tuple(slot for slot in left[1:] if slot not in others)
            yield from (((left[0], *others), *blocks) for blocks in extend(rest, sizes[1:]))

    return extend(tuple(range(sum(sizes))), sizes)


def arrangements(rest: Key, groups: Sequence[Key]) -> tuple[Key, list[tuple[int, ...]]]:
    """List the distinct ways to deal the slots of a composed block to its parts.

    A composition is computed once, with the slots of `rest` (which stay) first and those of each group after them.
    The block is the sum of that representative over every way to hand its slots to the labelled slots of the target
    that the symmetry of the parts does not make equal: slots of one variable within one part are interchangeable,
    and so are two groups with the same key. For one variable these are the set partitions of the rule of Faa di
    Bruno; slots that `rest` already has are shuffled with the new ones.

    Returns:
        The sorted key of the target, and for each way the slot of the representative that target slot t takes.
    """
    variables = [*rest]
    for key in groups:
        variables += key
    ranks = {variable: rank for rank, variable in enumerate(sorted({*variables}))}
    inner = tuple([tuple([ranks[variable] for variable in key]) for key in groups])
    return tuple(sorted(variables)), _arrangements(tuple([ranks[variable] for variable in rest]), inner)


@lru_cache(maxsize=4096)
def _arrangements(rest: Key, groups: tuple[Key, ...]) -> list[tuple[int, ...]]:
    part_of = [0] * len(rest) + [part for part, key in enumerate(groups, 1) for _ in key]
    variables = [*rest, *(v for key in groups for v in key)]
    target = sorted(variables)
    by_variable = {v: [slot for slot, other in enumerate(variables) if other == v] for v in dict.fromkeys(target)}
    seen: dict = {}
    for deal in product(*(_orderings(tuple(part_of[slot] for slot in slots)) for slots in by_variable.values())):
        parts = [part for ordering in deal for part in ordering]
        seen.setdefault(_signature(parts, groups), _take(parts, target, part_of, variables))
    return list(seen.values())


@lru_cache(maxsize=4096)
def _orderings(items: tuple[int, ...]) -> list[tuple[int, ...]]:
    """List the distinct orderings of a multiset."""
    if not items:
        return [()]
    return [
        (first, *others)
        for first in dict.fromkeys(items)
        for others in _orderings(items[: items.index(first)] + items[items.index(first) + 1 :])
    ]


def _signature(parts: Sequence[int], groups: Sequence[Key]) -> tuple:
    """Name a deal up to the exchange of groups that have the same key."""
    places = [tuple(slot for slot, part in enumerate(parts) if part == number) for number in range(len(groups) + 1)]
    return places[0], tuple(sorted(zip(groups, places[1:], strict=True)))


def _take(
    parts: Sequence[int], target: Sequence[int], part_of: Sequence[int], variables: Sequence[int]
) -> tuple[int, ...]:
    """Give each target slot, in turn, the first slot left of its variable in its part."""
    left = list(range(len(variables)))
    order = []
    for variable, part in zip(target, parts, strict=True):
        slot = next(s for s in left if variables[s] == variable and part_of[s] == part)
        left.remove(slot)
        order.append(slot)
    return tuple(order)
