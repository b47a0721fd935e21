"""Pytrees are taken apart and put together as by torch, plain ones and others."""

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import pytest
import torch

from hofunc import internals
from hofunc.trees import Kept, tree_flatten, tree_unflatten

Pair = namedtuple("Pair", "left right")
X = torch.zeros(2)

TREES: list[Any] = [
    X,
    None,
    "text",
    (),
    [],
    {},
    {"a": X, "b": X},
    {"b": X, "a": X},
    (X, [], {}),
    [(), X, [[]]],
    {"b": (X, None), "a": [1, {"x": 2.0}]},
    (X, (None, None)),
    ("text", X),
    Pair(1, X),
    {"a": Pair(1, 2)},
    OrderedDict(b=X, a=1),
    defaultdict(list, a=[X]),
    {1: X},
    {True: X},
    {1.0: X},
]


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_as_by_torch(tree: Any) -> None:
    expected, structure = internals.tree_flatten(tree)
    for _ in range(2):  # met for the first time, and again
        leaves, spec = tree_flatten(tree)
        assert [*map(id, leaves)] == [*map(id, expected)]
        assert spec == structure
        assert hash(spec) == hash(structure)
        again = tree_unflatten(iter(leaves), spec)
        assert repr(again) == repr(tree)
        assert type(again) is type(tree)


def test_a_structure_is_the_same_object_where_it_is_met_again() -> None:
    assert tree_flatten(({"a": X}, [X]))[1] is tree_flatten(({"a": 1}, [None]))[1]
    assert tree_flatten(({"a": X}, [X]))[1] is not tree_flatten(([X], {"a": X}))[1]


def test_too_few_leaves_are_refused_as_by_torch() -> None:
    with pytest.raises(ValueError, match="2 items"):
        tree_unflatten([X], tree_flatten((X, X))[1])


def test_structures_are_dropped_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hofunc.trees.MOST_STRUCTURES", 3)
    for count in range(12):
        tree = {"a": (X,) * count, "b": [X] * count}
        assert tree_flatten(tree)[1] == internals.tree_flatten(tree)[1]


def test_what_is_kept_is_found_by_equal_keys_and_bounded() -> None:
    kept: Kept[str] = Kept(2)
    spec = tree_flatten({"a": X})[1]
    kept.keep((1, spec), "one")
    assert kept.latest == "one"
    kept.keep((2, internals.tree_flatten({"a": X})[1]), "two")
    assert kept.of((1, internals.tree_flatten({"a": X})[1])) == "one"  # an equal structure is another object here
    assert kept.of((2, spec)) == kept.latest == "two"
    assert kept.of((3, spec)) is None
    kept.keep((3, spec), "three")
    assert kept.of((3, spec)) == "three"
    assert kept.of((1, spec)) is None
