"""Folding large graphs: every node is in one box, what is repeated is found, and what costs most stays by itself."""

from itertools import chain

import pytest

from hofunc.draw.folding import Fold, folds_of
from hofunc.outline import Item


def item(number: int, name: str, *operands: int, share: float = 0.0, kind: str = "linear") -> Item:
    return Item(number, name, operands, "3", kind, "", "", "", 0, 0, share)


def layers(count: int) -> list[Item]:
    """Return the graph of an input, as many weights as layers, and layers of three ops."""
    items = [item(0, "args[0]", kind="input, differentiated by")]
    items += [item(1 + n, f"captured {n}", kind="input") for n in range(count)]
    value = 0
    for n in range(count):
        start = len(items)
        items += [item(start, "mm", value, 1 + n, kind="multilinear"), item(start + 1, "sin", start)]
        items.append(item(start + 2, "add", start + 1, start))
        value = start + 2
    return items


def places(folds: list[Fold]) -> list[int]:
    return sorted(chain(*(fold.places for fold in folds)))


def test_a_small_graph_is_as_it_is() -> None:
    items = layers(10)
    assert folds_of(items, [40]) == [Fold((place,)) for place in range(41)]


def test_layers_are_drawn_once() -> None:
    items = [*layers(50), item(201, "sum", 200)]
    folds = folds_of(items, [201])
    assert places(folds) == [*range(202)]
    again = [fold for fold in folds if fold.times > 1]
    assert {(len(fold.places), fold.times) for fold in again} == {(49, 49)}, "the first layer is of another input"
    assert {items[fold.places[0]].name for fold in again} == {"mm", "sin", "add"}
    weights = [fold for fold in folds if items[fold.places[0]].name.startswith("captured")]
    assert [len(fold.places) for fold in weights] == [1, 49]
    assert weights[1].region == again[0].region
    assert len(folds) == 1 + 2 + 3 + 3 + 1


def test_two_kinds_of_layers() -> None:
    items = [item(0, "x", kind="input, differentiated by")]
    for names in (["a", "b"] * 40, ["c", "d", "e"] * 40):
        items += [item(len(items) + n, name, len(items) + n - 1) for n, name in enumerate(names)]
    folds = folds_of(items, [len(items) - 1])
    assert places(folds) == [*range(len(items))]
    assert [(items[fold.places[0]].name, fold.times) for fold in folds if fold.times > 1] == [
        *[("b", 39), ("a", 39)],  # the first is of the input, and has none before it
        *[("c", 40), ("d", 40), ("e", 40)],
    ]


@pytest.mark.parametrize("count", [101, 400, 3000])
def test_what_is_not_repeated_is_put_together(count: int) -> None:
    items = [item(0, "x", kind="input, differentiated by")]
    items += [item(n, f"op{n * n % 97}{n}", n - 1, share=0.1 * (n in {7, 50})) for n in range(1, count)]
    folds = folds_of(items, [count - 1])
    assert places(folds) == [*range(count)]
    assert len(folds) <= 100
    alone = {fold.places for fold in folds if not fold.is_merged}
    assert alone >= {(0,), (7,), (50,), (count - 1,)}, "the input, what costs most and the output"
