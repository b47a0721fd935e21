"""Slots of contractions: which are alike, how they are dealt out, and which labels stay open."""

from collections import Counter
from math import comb

import pytest

from hofunc.algebra.partitions import set_partitions
from hofunc.plan.slots import Operand, Slots, canonical, deals

X, Y, V = 0, 1, 2  # nodes: two inputs and an operand


def slots(text: str, kept: str = "b") -> Slots:
    """Return slots of x with an axis of rows, given by the names of the other axis."""
    return Slots(tuple([((X, ("b", int(name) if name.isdigit() else name)),) for name in text]), (), tuple(kept))


def test_a_label_is_open_while_another_slot_bears_it() -> None:
    assert slots("iijj").part((0,)).open == ("b", "i")
    assert slots("iijj").part((0, 1)).open == ("b",)
    assert slots("iijj").part((0, 2)).open == ("b", "i", "j")
    assert slots("iijj", kept="bj").part((2, 3)).open == ("b", "j")


def test_an_operand_enters_with_the_last_of_its_labels() -> None:
    whole = Slots(slots("ij").slots, (Operand((V, ("i", "j")), (0, 1)),), ("b",))
    assert whole.part((0,)).operands == ()
    assert whole.part((0,)).open == ("b", "i")
    assert whole.part((0, 1)).operands == whole.operands
    assert whole.joining([(0,), (1,)]) == [(V, ("i", "j"))]
    assert whole.joining([(0, 1)]) == []


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("iijj", "jjii", True),
        ("iijj", "ijij", True),
        ("iijj", "iiii", False),
        ("001", "100", True),
        ("001", "011", False),
    ],
)
def test_slots_that_differ_by_names_and_order_are_one(one: str, other: str, alike: bool) -> None:
    assert (canonical(slots(one))[0] == canonical(slots(other))[0]) == alike


def test_open_labels_keep_their_places() -> None:
    given = slots("ji", kept="bij")
    known, places = canonical(given)
    assert sorted(places) == [0, 1, 2]
    assert len(known.open) == len(given.open)


def test_fixed_labels_keep_their_names() -> None:
    known, places = canonical(slots("ji", kept="bij"), ("i",))
    assert "i" in known.open
    assert known.open[places[2]] != "i"
    assert known == canonical(slots("ik", kept="bik"), ("i",))[0]
    assert known != canonical(slots("ij", kept="bij"), ("k",))[0]


def test_a_biharmonic_needs_four_coefficients_below_the_top() -> None:
    """{i}, {ij}, {ii}, {iij}, as in the literature on collapsed Taylor mode."""
    whole = slots("iijj")
    choices = [(0,), (2,), (0, 1), (0, 2), (1, 3), (2, 3), (0, 1, 2), (0, 2, 3)]
    assert len({canonical(whole.part(places))[0] for places in choices}) == 4


@pytest.mark.parametrize("text", ["i", "ii", "ij", "iijj", "0001", "iij", "ijkl"])
@pytest.mark.parametrize("counts", [(1,), (2,), (3,), (1, 1), (2, 1)])
def test_every_way_to_deal_is_counted_once(text: str, counts: tuple[int, ...]) -> None:
    whole, groups = slots(text), sum(counts)
    parts = sum(len(parts) == groups for parts in set_partitions(len(text)))
    ways = parts
    left = groups
    for count in counts:
        ways, left = ways * comb(left, count), left - count
    found = deals(whole, counts)
    assert sum(deal.times for deal in found) == ways
    assert all(
        Counter(place for group in deal.groups for place in group) == Counter(range(len(text))) for deal in found
    )


def test_like_ways_are_dealt_once() -> None:
    assert len(deals(slots("iijj"), (2,))) == 3  # {i}{ijj}, {ii}{jj}, {ij}{ij}
    assert [deal.times for deal in deals(slots("000"), (2,))] == [3]
    assert len(deals(slots("012"), (2,))) == 3


def test_slots_with_like_operands_are_alike() -> None:
    like = Slots(slots("ijk").slots, tuple(Operand((V, (name,)), (n,)) for n, name in enumerate("ijk")), ("b",))
    assert [deal.times for deal in deals(like, (2,))] == [3]
    others = like._replace(operands=tuple(Operand((V + n, (name,)), (n,)) for n, name in enumerate("ijk")))
    assert [deal.times for deal in deals(others, (2,))] == [1, 1, 1]


def test_exchanges_are_few_however_many_slots_are_alike() -> None:
    assert len(deals(slots("0" * 8), (2,))) == 4  # 1 + 7, 2 + 6, 3 + 5, 4 + 4
    assert sum(deal.times for deal in deals(slots("0" * 8), (2,))) == 127


def test_a_part_is_worked_out_once() -> None:
    whole = slots("ijj")
    assert whole.part((0, 1)) is whole.part((0, 1))
    assert whole.part((0, 1)).slots == whole.slots[:2]
    assert hash(whole) == hash(slots("ijj"))
    assert whole == slots("ijj")


def test_operands_join_where_no_group_has_all_of_their_home() -> None:
    whole = Slots(slots("ij").slots, (Operand((V, ("i", "j")), (0, 1)), Operand((V, ("i",)), (0,))), ("b",))
    assert whole.joining([(0,), (1,)]) == [(V, ("i", "j"))]
    assert whole.joining([(0, 1)]) == []
