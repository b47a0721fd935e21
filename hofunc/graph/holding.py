"""What a Python object held when a function read it, and whether it still holds that.

Things are compared by identity, which takes nanoseconds: a tensor in the place of another is another thing, also where
both hold the same numbers. Only numbers, texts and the like are also the same if they are equal.
"""

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from types import CellType
from typing import Any, NamedTuple

import torch

from hofunc.graph.reads import identical

MISSING = object()  # what a name stands for that stands for nothing
_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device, torch.layout)

Name = Callable[[Any], str]


class Holding(NamedTuple):
    """What something that may change held when a function read it.

    Attributes:
        name: What it is called.
        labels: What each of the things that it held is called.
        values: The things.
        read: Returns those that it holds now.
        test: Writes an expression that is true while it holds the very same things, quick to evaluate. It is given a
            function that names objects.
    """

    name: str
    labels: tuple[str, ...]
    values: tuple
    read: Callable[[], tuple]
    test: Callable[[Name], str]

    def change(self) -> tuple[str, str, str] | None:
        """Return what has changed, what it is now and what it was; None if it is as it was."""
        now = self.read()
        if len(now) != len(self.values):
            return self.name, f"{len(now)} things", f"{len(self.values)}"
        for label, value, held in zip(self.labels, now, self.values, strict=True):
            if value is not held and not (is_plain(held) and identical(value, held)):
                return f"{label} of {self.name}", _brief(value, "another"), _brief(held, "the")
        return None


def of_names(name: str, space: Any, labels: Sequence[str]) -> Holding:
    """Hold what names stand for in a mapping of them, attributes or globals."""

    def read() -> tuple:
        return tuple([space.get(label, MISSING) for label in labels])

    def test(name: Name) -> str:
        found = [(label, value) for label, value in zip(labels, values, strict=True) if value is not MISSING]
        missing = [label for label, value in zip(labels, values, strict=True) if value is MISSING]
        within = name(space)
        present = [f"{within}[{label!r}] is {name(value)}" for label, value in found]
        return " and ".join([*present, *(f"{label!r} not in {within}" for label in missing)])

    values = read()
    return Holding(name, tuple(labels), values, read, test)


def of_container(name: str, container: dict | Collection[Any]) -> Holding:
    """Hold what is in a list, a dict, a set or the like."""

    def read() -> tuple:
        return (*container, *container.values()) if isinstance(container, dict) else tuple(container)

    def test(name: Name) -> str:
        return f"not {name(container)}" if not values else _by_ids(read, values)(name)

    values = read()
    labels = [f"[{key!r}]" for key in container] if isinstance(container, dict) else ["an item"] * len(values)
    return Holding(name, tuple(labels * (len(values) // max(len(labels), 1))), values, read, test)


def of_cell(name: str, label: str, cell: CellType) -> Holding:
    """Hold what is in a cell of a closure."""

    def read() -> tuple:
        return (held_by(cell),)

    values = read()
    return Holding(name, (label,), values, read, _by_ids(read, values))


def held_by(cell: CellType) -> Any:
    """Return what is in a cell of a closure; MISSING if it is empty, as where the name is bound later."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def of_slot(name: str, owner: Any, slot: str) -> Holding:
    """Hold what is in a slot of an object."""

    def read() -> tuple:
        return (getattr(owner, slot, MISSING),)

    values = read()
    return Holding(name, (slot,), values, read, _by_ids(read, values))


def of_memory(name: str, array: Any) -> Holding:
    """Hold the numbers in an array of numpy, or of another library whose memory can be read."""

    def read() -> tuple:
        return (memoryview(array).tobytes(),)

    values = read()
    return Holding(name, ("the contents",), values, read, lambda name: f"{name(read)}() == {name(values)}")


def of_storage(name: str, tensor: torch.Tensor) -> Holding:
    """Hold the storage of a tensor, of which something else is an alias for as long as it is that."""

    def read() -> tuple:
        return (tensor.untyped_storage(),)

    values = read()
    return Holding(name, ("the data",), values, read, _by_ids(read, values))


def _by_ids(read: Callable[[], tuple], values: tuple) -> Callable[[Name], str]:
    ids = tuple(map(id, values))
    return lambda name: f"tuple(map(id, {name(read)}())) == {name(ids)}"


def quick_test(holdings: Sequence[Holding]) -> Callable[[], bool]:
    """Return a function that tells quickly whether all hold the very things that they held.

    It is made from source, as programs are, so that to compare a thing costs no more than to look it up.
    """
    names: dict[str, Any] = {}

    def name(value: Any) -> str:
        names[f"c{len(names)}"] = value
        return f"c{len(names) - 1}"

    lines = [f"if not ({holding.test(name)}): return False" for holding in holdings]
    source = "def unchanged():\n    " + "\n    ".join([*lines, "return True"])
    exec(compile(source, f"{__file__}:test", "exec"), names)  # noqa: S102 - the source is built here
    return names["unchanged"]


def is_plain(value: Any) -> bool:
    """Tell whether a value cannot change, and is the same as any that is equal."""
    return isinstance(value, _PLAIN)


def _brief(value: Any, article: str) -> str:
    if value is MISSING:
        return "nothing"
    if isinstance(value, bytes):
        return f"{article} numbers"
    return repr(value) if is_plain(value) else f"{article} {type(value).__name__}"
