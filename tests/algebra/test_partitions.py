"""Counts for the rule of Faa di Bruno, by hand and by going through all permutations."""

from itertools import combinations_with_replacement, permutations, product
from math import comb, factorial

import pytest

from hofunc.algebra.partitions import (
    Key,
    arrangements,
    choices,
    number_of_arrangements,
    ordered_partitions,
    set_partitions,
)

BELL = (1, 1, 2, 5, 15, 52, 203, 877)


@pytest.mark.parametrize(("count", "bell"), list(enumerate(BELL)))
def test_the_set_partitions_are_as_many_as_bell_numbers(count: int, bell: int) -> None:
    found = set_partitions(count)
    assert len({frozenset(map(frozenset, blocks)) for blocks in found}) == len(found) == bell
    assert all(sorted(sum(blocks, ())) == list(range(count)) for blocks in found)


def test_those_with_a_given_number_of_blocks_are_as_many_as_stirling_numbers() -> None:
    def stirling(count: int, blocks: int) -> int:
        terms = ((-1) ** (blocks - j) * comb(blocks, j) * j**count for j in range(blocks + 1))
        return sum(terms) // factorial(blocks)

    for count in range(1, 7):
        sizes = [len(blocks) for blocks in set_partitions(count)]
        assert [sizes.count(blocks) for blocks in range(1, count + 1)] == [
            stirling(count, blocks) for blocks in range(1, count + 1)
        ]


@pytest.mark.parametrize("sizes", [(), (1,), (1, 1, 2), (1, 2, 2, 3), (2, 3)])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("total", [0, 2, 4, 5])
def test_choices_are_all_that_fit(sizes: tuple[int, ...], count: int, total: int) -> None:
    every = combinations_with_replacement(range(len(sizes)), count)
    assert list(choices(sizes, count, total)) == [c for c in every if sum(sizes[place] for place in c) <= total]


@pytest.mark.parametrize("count", range(6))
def test_partitions_of_all_sizes_are_all_set_partitions(count: int) -> None:
    sizes = [chosen for length in range(count + 1) for chosen in product(range(1, count + 1), repeat=length)]
    found = [blocks for chosen in sizes if sum(chosen) == count for blocks in ordered_partitions(chosen)]
    assert sorted(found) == sorted(tuple(sorted(blocks)) for blocks in set_partitions(count))


# Arrangements: one variable 0, or two, 0 and 1.

X: Key = (0,)
X2: Key = (0, 0)
X3: Key = (0, 0, 0)
XY: Key = (0, 1)
Y: Key = (1,)


@pytest.mark.parametrize(
    ("rest", "groups", "count"),
    [
        ((), [], 1),
        ((), [X], 1),
        ((), [X3], 1),
        ((), [X, X], 1),  # f''(g', g'): the two are alike
        ((), [X, X2], 3),  # f''(g', g''): which slot goes to g'
        ((), [X2, X2], 3),  # pairs of pairs
        ((), [X, X3], 4),
        ((), [X, X, X2], 6),
        ((), [X, X, X, X], 1),
        ((), [X3, X3], 10),
        ((), [X2, X2, X2], 15),
        (X, [X], 2),  # a slot that the block has already is shuffled with the new one
        (X, [X2], 3),
        (X2, [X], 3),
        (X2, [X2], 6),
        (X, [X, X], 3),
        (X, [X, X2], 12),
        ((), [X, Y], 1),  # distinct variables stand at places of their own
        ((), [XY], 1),
        ((), [XY, XY], 2),
        ((), [XY, X], 2),
        (Y, [XY], 2),
        (Y, [X, Y], 2),
        (XY, [XY], 4),
        (XY, [X, Y], 4),
        ((2,), [X, X], 1),
    ],
)
def test_arrangements_counted_by_hand(rest: Key, groups: list[Key], count: int) -> None:
    assert len(arrangements(rest, groups)[1]) == number_of_arrangements(rest, groups) == count


def test_many_arrangements_are_counted_and_the_few_of_many_slots_are_listed() -> None:
    """Where all slots are alike there is one way to deal them out, of as many as there are permutations."""
    assert arrangements((), [X] * 40)[1] == [tuple(range(40))]
    assert number_of_arrangements(X, [X] * 39) == 40
    assert number_of_arrangements((), [X2] * 20) == 319830986772877770815625


def test_the_terms_of_faa_di_bruno_sum_to_bell_numbers() -> None:
    """Over all multisets of block sizes, the ways to deal out k slots are the set partitions of k."""
    for order in range(1, 6):
        keys = [(0,) * size for size in range(1, order + 1)]
        total = 0
        for count in range(1, order + 1):
            for chosen in choices(tuple(len(key) for key in keys), count, order):
                if sum(len(keys[place]) for place in chosen) == order:
                    total += len(arrangements((), [keys[place] for place in chosen])[1])
        assert total == BELL[order]


@pytest.mark.parametrize(
    ("rest", "groups"),
    [
        ((), [X, X2]),
        (X, [X, X]),
        (X2, [X2]),
        (XY, [XY]),
        ((1, 1), [XY, X]),
        ((), [XY, XY]),
        ((3,), [(5, 3), (5,)]),
        ((7, 2), [(2,), (2,), (7,)]),
    ],
)
def test_arrangements_are_all_permutations_up_to_symmetry(rest: Key, groups: list[Key]) -> None:
    rest, groups = tuple(sorted(rest)), [tuple(sorted(key)) for key in groups]
    variables = [*rest, *(variable for key in groups for variable in key)]
    parts = [(number, key) for number, key in enumerate([rest, *groups]) for _ in key]
    target, orders = arrangements(rest, groups)

    def dealt(order: tuple[int, ...]) -> tuple:
        """Say which target slots each part gets; parts after the first are known by their keys only."""
        slots: dict[tuple[int, Key], list[int]] = {}
        for place, slot in enumerate(order):
            slots.setdefault(parts[slot], []).append(place)
        others = sorted((key, tuple(places)) for (number, key), places in slots.items() if number)
        return tuple(slots.get((0, rest), ())), tuple(others)

    assert target == tuple(sorted(variables))
    fitting = [order for order in permutations(range(len(variables))) if [variables[s] for s in order] == list(target)]
    assert set(orders) <= set(fitting)
    assert len({dealt(order) for order in orders}) == len(orders)
    assert {dealt(order) for order in orders} == {dealt(order) for order in fitting}


def test_the_numbers_of_variables_do_not_matter_but_their_order_does() -> None:
    assert arrangements((4,), [(2, 9)])[1] == arrangements((1,), [(0, 2)])[1]
    assert arrangements((4,), [(2, 9)])[0] == (2, 4, 9)
