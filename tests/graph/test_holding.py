"""Whether something still holds what it did, told quickly: the very things in it, at whatever depth."""

from collections import OrderedDict
from collections.abc import Callable
from types import CellType
from typing import Any

import pytest

from hofunc.graph.holding import of_cell, of_names, of_slot, quick_test

THINGS = [object() for _ in range(4)]


def nested() -> dict[str, Any]:
    """Return containers in containers, new ones at every call, that hold the same things."""
    return {"a": [THINGS[0], (THINGS[1], {"b": THINGS[2]})], "c": (), "d": [[[]]], "e": OrderedDict(f={1, 2})}


def put(value: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> bool:
    """Tell whether a change is noticed in what is held; whoever holds it is given the containers anew before."""
    space = {"held": value}
    changed = quick_test([of_names("a test", space, ["held"])])
    assert not changed()
    space["held"] = nested()
    assert not changed(), "other containers with the same things in them are no change"
    change(space["held"])
    return bool(changed())


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held["a"].append(THINGS[3]),
        lambda held: held["a"].pop(),
        lambda held: held["a"].__setitem__(0, THINGS[3]),
        lambda held: held["a"][1][1].update(b=THINGS[3]),
        lambda held: held["a"][1][1].update(g=THINGS[2]),
        lambda held: held["a"].__setitem__(1, [*held["a"][1]]),
        lambda held: held.update(c=(THINGS[0],)),
        lambda held: held["d"][0][0].append(THINGS[0]),
        lambda held: held["e"]["f"].add(3),
        lambda held: held.update(e={**held["e"]}),
        lambda held: held.update(h=held.pop("a")),
    ],
)
def test_a_change_in_a_container_in_a_container(change: Callable[[dict[str, Any]], object]) -> None:
    assert put(nested(), change)


def test_a_container_of_many_containers() -> None:
    space: dict[str, Any] = {"held": [[thing] for thing in range(1000)]}
    changed = quick_test([of_names("a test", space, ["held"])])
    assert not changed()
    space["held"][999].append(0)
    assert changed()


class Slotted:
    """An object with a slot."""

    __slots__ = ("held",)
    held: Any


@pytest.mark.parametrize(
    "change", [lambda owner: setattr(owner, "held", THINGS[1]), lambda owner: delattr(owner, "held")]
)
def test_what_is_in_a_slot(change: Callable[[Slotted], object]) -> None:
    owner = Slotted()
    nothing = quick_test([of_slot("a test", owner, "held")])
    assert not nothing()
    owner.held = THINGS[0]
    something = quick_test([of_slot("a test", owner, "held")])
    assert nothing()
    assert not something()
    change(owner)
    assert something()


def test_what_is_in_a_cell() -> None:
    cell = CellType()
    nothing = quick_test([of_cell("a test", "held", cell)])
    assert not nothing()
    cell.cell_contents = THINGS[0]
    something = quick_test([of_cell("a test", "held", cell)])
    assert nothing()
    assert not something()
    cell.cell_contents = THINGS[1]
    assert something()
    del cell.cell_contents
    assert something()
