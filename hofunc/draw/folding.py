"""Folding: which nodes of a large graph share a box of its drawing, so that it can be read and nothing is left out.

Layers of a network and steps in time are the same ops again and again, with the same wiring. Where a stretch of the
graph is repeated, its nodes are drawn once. Where there are still too many, what costs little is put together with its
neighbours.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from hofunc.outline import Item

MOST = 100  # nodes of a drawing in which each has its own box
_LONGEST = 400  # of what is repeated


class Fold(NamedTuple):
    """Nodes that share a box.

    Attributes:
        places: Their places among the nodes.
        times: How often the stretch is repeated that it is of, 1 if it is of none.
        region: Which of these it is.
        is_merged: Whether they are different nodes, put together.
    """

    places: tuple[int, ...]
    times: int = 1
    region: int | None = None
    is_merged: bool = False


def folds_of(items: Sequence[Item], outputs: Sequence[int], most: int = MOST) -> list[Fold]:
    """Part nodes into those that share a box, each in one, in the order of the first of them.

    Args:
        items: The nodes.
        outputs: The numbers of those that are differentiated.
        most: How many boxes there may be.
    """
    if len(items) <= most:
        return [Fold((place,)) for place in range(len(items))]
    folds = _given_together(_repeated(items), items)
    return folds if len(folds) <= most else _merged(folds, items, {*outputs}, most)


class _Stretch(NamedTuple):
    """A stretch that is repeated: where it begins, how long it is, and how often it comes in a row."""

    start: int
    length: int
    times: int


def _repeated(items: Sequence[Item]) -> list[Fold]:
    """Put nodes together that have the same place in stretches that are repeated."""
    computed = [place for place, item in enumerate(items) if not is_given(item)]
    keys = _keys(items, computed)
    folds: list[Fold] = []
    taken = 0
    for region, (start, length, times) in enumerate(_stretches(keys)):
        folds += [Fold((place,)) for place in computed[taken:start]]
        for first in range(start, start + length):
            same = computed[first : start + length * times : length]
            folds.append(Fold(tuple(same), times, region))
        taken = start + length * times
    return folds + [Fold((place,)) for place in computed[taken:]]


def _given_together(folds: Sequence[Fold], items: Sequence[Item]) -> list[Fold]:
    """Add what is given, of which those of one shape are together that the same boxes take, as weights of layers."""
    takers: dict[int, dict[int, None]] = {}
    for box, fold in enumerate(folds):
        for place in fold.places:
            for operand in items[place].operands:
                takers.setdefault(operand, {})[box] = None
    groups: dict[Hashable, list[int]] = {}
    for place, item in enumerate(items):
        if is_given(item):
            key = item.number if is_varied(item) else (item.shape, *takers.get(item.number, ()))
            groups.setdefault(key, []).append(place)
    found = []
    for places in groups.values():
        regions = {folds[box].region for box in takers.get(items[places[0]].number, ())}
        region = next(iter(regions)) if len(regions) == 1 and len(places) > 1 else None
        found.append(Fold(tuple(places), region=region, is_merged=len(places) > 1))
    return sorted([*found, *folds], key=lambda fold: fold.places[0])


def _keys(items: Sequence[Item], computed: Sequence[int]) -> list[int]:
    """Return a number for every node that is computed, the same for those of the same op, shape and wiring."""
    given = {item.number: item for item in items if is_given(item)}
    numbers: dict[Hashable, int] = {}
    found = []
    for place in computed:
        item = items[place]
        wires = tuple(given[operand].shape if operand in given else item.number - operand for operand in item.operands)
        key = (item.name, item.shape, item.kind, wires)
        found.append(numbers.setdefault(key, len(numbers)))
    return found


def _stretches(keys: Sequence[int]) -> list[_Stretch]:
    """Return the stretches that are repeated, in order: always that next of which most is saved."""
    found, waiting = [], [(0, len(keys))]
    while waiting:
        start, stop = waiting.pop()
        best = _best(keys[start:stop])
        if best is not None:
            first = start + best.start
            found.append(best._replace(start=first))
            waiting += [(start, first), (first + best.length * best.times, stop)]
    return sorted(found)


def _best(keys: Sequence[int]) -> _Stretch | None:
    """Return the stretch whose repetitions are most of a sequence, the shortest of those; None if there is none."""
    best, most = None, 2  # what is saved has to be worth a frame
    for length in range(1, min(len(keys) // 2, _LONGEST) + 1):
        run = 0
        for place in range(len(keys) - length + 1):
            if place + length < len(keys) and keys[place] == keys[place + length]:
                run += 1
                continue
            times = run // length + 1
            if (times - 1) * length > most:
                best, most = _Stretch(place - run, length, times), (times - 1) * length
            run = 0
    return best


def _merged(folds: Sequence[Fold], items: Sequence[Item], outputs: set[int], most: int) -> list[Fold]:
    """Put what costs little together with its neighbours, so that so many are left at most, or little more."""

    def weight(place: int) -> tuple[bool, float]:
        members = [items[member] for member in folds[place].places]
        is_end = any(item.number in outputs or is_varied(item) for item in members)
        return is_end, sum(item.share for item in members)

    kept = {*sorted(range(len(folds)), key=weight, reverse=True)[: most // 3]}
    found: list[Fold] = []
    for place, fold in enumerate(folds):
        before = found[-1] if found and place and place not in kept and place - 1 not in kept else None
        if before is not None and before.region == fold.region:
            found[-1] = before._replace(places=before.places + fold.places, is_merged=True)
        else:
            found.append(fold)
    return found


def is_given(item: Item) -> bool:
    """Tell whether a node is an input, a captured tensor or a number."""
    return not item.operands


def is_varied(item: Item) -> bool:
    """Tell whether a node is an input that is differentiated by."""
    return item.kind.startswith("input,")
