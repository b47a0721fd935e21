"""Nesting blocks by the structures of what a function returns and takes."""

from collections import OrderedDict, defaultdict
from itertools import product
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from hofunc.run import nest
from hofunc.run.nest import nest_of, nested


class Pair(NamedTuple):
    one: Any
    other: Any


TREES = [
    0,
    [0, 0],
    (0,),
    {"b": 0, "a": 0},
    {1: 0, "a": 0},
    Pair(0, 0),
    OrderedDict(b=0, a=0),
    defaultdict(int, a=0),
    {"a": [0], "b": {}},
    ((), 0),
    [None, 0],
]


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_leaves_are_nested_as_torch_does(tree: Any) -> None:
    leaves, spec = tree_flatten(tree)
    numbers = [*range(len(leaves))]
    got, expected = nest_of(spec)(numbers), tree_unflatten(numbers, spec)
    assert got == expected
    assert type(got) is type(expected)
    assert not isinstance(got, dict) or [*got.items()] == [*expected.items()]


@pytest.mark.parametrize("outer", [0, (0, [0]), {"y": 0}], ids=str)
@pytest.mark.parametrize("inner", [0, [0, 0], {"b": 0, "a": (0, 0)}, ()], ids=str)
def test_the_first_structure_is_outermost(outer: Any, inner: Any) -> None:
    specs = [tree_flatten(tree)[1] for tree in (outer, inner, inner)]
    blocks = [*product(*(range(spec.num_leaves) for spec in specs))]

    def expected(chosen: tuple[int, ...], specs: list[TreeSpec]) -> Any:
        if not specs:
            return chosen
        return tree_unflatten([expected((*chosen, n), specs[1:]) for n in range(specs[0].num_leaves)], specs[0])

    assert nested(blocks, specs) == expected((), specs)


def test_a_plain_structure_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    unflatten = Mock(side_effect=tree_unflatten)
    monkeypatch.setattr(nest, "tree_unflatten", unflatten)
    spec = tree_flatten({f"p{number}": 0 for number in range(5)})[1]
    nested([*range(25)], [spec, spec])
    assert unflatten.call_count <= 2  # once for each slot
