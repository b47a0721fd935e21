"""Counting for the rule of Faa di Bruno: which slots of a derivative go to which factor of a composition.

Variables are any hashable, ordered objects (hofunc uses node numbers). A key is the sorted tuple of the variables of
a block's slots; by Schwarz's theorem one block per key is enough.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, combinations
from math import comb, factorial, prod

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
    variables = (*rest, *chain(*groups))
    if len({*variables}) == len(variables):
        order = sorted(range(len(variables)), key=variables.__getitem__)
        return tuple([variables[slot] for slot in order]), [tuple(order)]
    return tuple(sorted(variables)), _arrangements(*_by_rank(rest, groups))


def _by_rank(rest: Key, groups: Sequence[Key]) -> tuple[Key, tuple[Key, ...]]:
    """Return keys with the ranks of variables in their place, by which nothing that is counted differs."""
    ranks = {variable: rank for rank, variable in enumerate(sorted({*rest, *chain(*groups)}))}
    inner = tuple([tuple([ranks[variable] for variable in key]) for key in groups])
    return tuple([ranks[variable] for variable in rest]), inner


def number_of_arrangements(rest: Key, groups: Sequence[Key]) -> int:
    """Count the ways that `arrangements` lists.

    The slots of each variable go to the parts in as many ways as there are orderings of a multiset; and groups with the
    same key, of which all slots differ, can be exchanged.

    Example:
        >>> number_of_arrangements((), [(0, 0)] * 6)  # 12 slots in pairs
        10395
    """
    return _number_of_arrangements(*_by_rank(rest, groups))


@lru_cache(maxsize=4096)
def _number_of_arrangements(rest: Key, groups: tuple[Key, ...]) -> int:
    totals, ways = Counter(chain(rest, *groups)), 1
    for part in map(Counter, (rest, *groups)):
        for variable, number in part.items():
            ways *= comb(totals[variable], number)
            totals[variable] -= number
    return ways // prod(map(factorial, Counter(groups).values()))


@lru_cache(maxsize=4096)
def _arrangements(rest: Key, groups: tuple[Key, ...]) -> list[tuple[int, ...]]:
    """List the ways, dealing slot by slot of the target: of groups that are empty and alike the first one is next."""
    parts = (rest, *groups)
    target = sorted(variable for key in parts for variable in key)
    left, twins = _slots_of(parts), _twins(parts)
    taken = [0] * len(parts)
    order: list[int] = []

    def deal() -> Iterator[tuple[int, ...]]:
        if len(order) == len(target):
            yield tuple(order)
            return
        variable = target[len(order)]
        for part, twin in enumerate(twins):
            slots = left[part].get(variable)
            if not slots or (twin is not None and not taken[part] and not taken[twin]):
                continue
            order.append(slots.pop())
            taken[part] += 1
            yield from deal()
            taken[part] -= 1
            slots.append(order.pop())

    return list(deal())


def _slots_of(parts: Sequence[Key]) -> list[dict[int, list[int]]]:
    """Number the slots of all parts in turn, and list those of each by variable, the first one last."""
    found: list[dict[int, list[int]]] = [{} for _ in parts]
    slots = [(part, variable) for part, key in enumerate(parts) for variable in key]
    for slot, (part, variable) in reversed([*enumerate(slots)]):
        found[part].setdefault(variable, []).append(slot)
    return found


def _twins(parts: Sequence[Key]) -> list[int | None]:
    """Return for each part the last one before it that has the same key; the first is like no other."""
    return [max((p for p in range(1, part) if parts[p] == parts[part]), default=None) for part in range(len(parts))]
