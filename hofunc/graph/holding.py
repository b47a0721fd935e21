"""What a Python object held when a function read it, and whether it still holds that.

Things are compared by identity, which takes nanoseconds: a tensor in the place of another is another thing, also where
both hold the same numbers. Only numbers, texts and the like are also the same if they are equal, and containers if
what is in them is the same (`hofunc.graph.snapshot`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import count
from math import inf
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch

from hofunc.graph.snapshot import MISSING, Leftover, Parts, Renaming, is_plain, items_of, leaves, mapped, snapshot

Name = Callable[[Any], str]
Change = tuple[str, str, str]  # what has changed, what it is now and what it was


class Holding(NamedTuple):
    """What something that may change held when a function read it.

    Attributes:
        name: What it is called.
        labels: What each of the things that it held is called.
        values: Snapshots of the things.
        read: Returns those that it holds now.
        test: Writes an expression that is true while it holds the very same things, quick to evaluate. It is given a
            function that names objects.
        place: What has them: an object of which they are attributes, a mapping of names, a cell, a container.
    """

    name: str
    labels: tuple[str, ...]
    values: tuple
    read: Callable[[], tuple]
    test: Callable[[Name], str]
    place: Any

    @property
    def keys(self) -> Iterator[tuple[int, str]]:
        """What identifies the places of the things, while they are there."""
        return ((id(self.place), label) for label in self.labels)

    def changes(self, renaming: Renaming) -> Iterator[tuple[str, Change]]:
        """Yield the labels of what is something else now, each with what has changed."""
        for label, now, held in zip(self.labels, self.read(), self.values, strict=True):
            if not renaming.same(now, held):
                yield label, _told(f"{label} of {self.name}", now, held)

    def leaves(self) -> Iterator[Any]:
        """Yield the things that it held, and in the place of containers what was in them."""
        for value in self.values:
            yield from leaves(value)

    def mapped(self, function: Callable[[Any], Any]) -> "Holding":
        """Return one that held other leaves, but has the quick test of this one."""
        return self._replace(values=tuple([mapped(value, function) for value in self.values]))


def of_names(name: str, space: Any, labels: Sequence[str], place: Any = None) -> Holding:
    """Hold what names stand for in a mapping of them, attributes or globals."""

    def read() -> tuple:
        return tuple([space.get(label, MISSING) for label in labels])

    def test(name: Name) -> str:
        within = name(space)
        return " and ".join(
            f"{label!r} not in {within}" if held is MISSING else _test_of(f"{within}[{label!r}]", held, name)
            for label, held in zip(labels, values, strict=True)
        )

    values = tuple(map(snapshot, read()))
    return Holding(name, tuple(labels), values, read, test, space if place is None else place)


def of_missing(owner: Any, label: str) -> Iterator[Holding]:
    """Yield that an object has no such attribute, and none of its classes has; nothing if one has."""
    spaces = [(f"class {base.__name__}", vars(base), base) for base in type(owner).__mro__[:-1]]
    if hasattr(owner, "__dict__"):
        spaces.append((f"a {type(owner).__name__}", vars(owner), owner))
    if all(label not in space for _, space, _ in spaces):
        yield from (of_names(name, space, (label,), place) for name, space, place in spaces)


def of_container(name: str, container: Any) -> Holding:
    """Hold what is in a list, a dict, a set or the like that is reached by no name, or is more than a container."""
    return _of_one(name, "what is in it", container, lambda: items_of(container))


def of_cell(name: str, label: str, cell: CellType) -> Holding:
    """Hold what is in a cell of a closure."""
    return _of_one(name, label, cell, lambda: held_by(cell), lambda name: f"{name(cell)}.cell_contents")


def held_by(cell: CellType) -> Any:
    """Return what is in a cell of a closure; MISSING if it is empty, as where the name is bound later."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def of_code(name: str, function: FunctionType) -> Holding:
    """Hold the code of a function, which an editor may put a newer one in the place of."""
    name = f"the function {name}"
    return _of_one(name, "the code", function, lambda: function.__code__, lambda name: f"{name(function)}.__code__")


def of_kind(name: str, owner: Any) -> Holding:
    """Hold the class of an object, which may be given another one."""
    return _of_one(name, "the class", owner, lambda: type(owner), lambda name: f"type({name(owner)})")


def of_labels(name: str, owner: Any) -> Holding:
    """Hold which attributes an object has."""
    return _of_one(name, "the attributes", owner, lambda: tuple(vars(owner)))


def of_slot(name: str, owner: Any, slot: str) -> Holding:
    """Hold what is in a slot of an object."""
    return _of_one(name, slot, owner, lambda: getattr(owner, slot, MISSING), lambda name: f"{name(owner)}.{slot}")


def of_context(name: str, variable: ContextVar) -> Holding:
    """Hold the value of a context variable where one is set; its default never changes."""
    return _of_one(name, "the value", variable, lambda: variable.get(MISSING))


def of_memory(name: str, array: Any) -> Holding:
    """Hold the numbers in an array of numpy, or of another library whose memory can be read."""
    holding = _of_one(name, "the contents", array, lambda: memoryview(array).tobytes())
    return holding._replace(test=lambda name: f"{name(holding.read)}() == {name(holding.values)}")


def of_answer(name: str, label: str, place: Any, get: Callable[[], Any]) -> Holding:
    """Hold what a function answers that is asked for a setting, which may be another object each time."""
    holding = _of_one(name, label, place, get)
    return holding._replace(test=lambda name: f"{name(get)}() == {name(holding.values[0])}")


def of_storage(name: str, tensor: torch.Tensor) -> Holding:
    """Hold the storage of a tensor, of which something else is an alias for as long as it is that."""
    return _of_one(name, "the data", tensor, tensor.untyped_storage)


def _of_one(
    name: str, label: str, place: Any, get: Callable[[], Any], now: Callable[[Name], str] | None = None
) -> Holding:
    """Hold one thing that a function returns; what is written in place of a call of that may fail where it is gone."""
    held = snapshot(get())

    def test(name: Name) -> str:
        return _test_of(f"{name(get)}()" if now is None or held is MISSING else now(name), held, name)

    return Holding(name, (label,), (held,), lambda: (get(),), test, place)


def _test_of(now: str, held: Any, name: Name) -> str:
    """Write an expression that tells whether another is the very same thing, or holds the very same things."""
    if not isinstance(held, Parts):
        return f"{now} is {name(held)}"
    if _containers(held) <= _MANY:
        return " and ".join(_tests_of(now, held, name, map("t{}".format, count())))
    return f"{name(Renaming().same)}({now}, {name(held)})"


def _containers(held: Any) -> float:
    """Return how many containers a snapshot has in it, more than any number if what is in one is not told quickly."""
    if not isinstance(held, Parts):
        return 0
    return 1 + sum(map(_containers, held.items)) if issubclass(held.kind, _QUICK) else inf


def _tests_of(now: str, held: Parts, name: Name, temporary: Iterator[str]) -> Iterator[str]:
    """Write expressions, of containers in a container too, for each of which one is given the name of a variable."""
    own, is_flat = next(temporary), not any(isinstance(item, Parts) for item in held.items)
    parts = f"(*{own}, *{own}.values())" if issubclass(held.kind, dict) else f"(*{own},)"
    yield f"type({own} := {now}) is {name(held.kind)}"
    if not held.items:
        yield f"not {own}"
    elif is_flat:
        yield f"tuple(map(id, {parts})) == {name(tuple(map(id, held.items)))}"
    else:
        yield f"len({own} := {parts}) == {len(held.items)}"
        for place, item in enumerate(held.items):
            if isinstance(item, Parts):
                yield from _tests_of(f"{own}[{place}]", item, name, temporary)
            else:
                yield f"{own}[{place}] is {name(item)}"


_QUICK = (tuple, list, dict, set, frozenset)
_MANY = 100  # containers, from which on an expression would be long


def quick_test(holdings: Sequence[Holding]) -> Callable[[], Sequence[Holding]]:
    """Return a function that tells quickly which of some do not hold the very things that they held.

    It is made from source, as programs are, so that to compare a thing costs no more than to look it up.
    """
    names: dict[str, Any] = {}

    def name(value: Any) -> str:
        names[f"c{len(names)}"] = value
        return f"c{len(names) - 1}"

    lines = [f"if not ({holding.test(name)}): found.append({name(holding)})" for holding in holdings]
    source = "def changed():\n    " + "\n    ".join(["found = []", *lines, "return found"])
    exec(compile(source, f"{__file__}:test", "exec"), names)  # noqa: S102 - the source is built here
    changed: Callable[[], Sequence[Holding]] = names["changed"]

    def those_changed() -> Sequence[Holding]:
        try:
            return changed()
        except (KeyError, AttributeError, ValueError):  # a name, an attribute, or what was in a cell is gone
            return holdings

    return those_changed


def _told(what: str, now: Any, held: Any) -> Change:
    """Return what has changed, named as closely as may be, what it is now and what it was."""
    if not isinstance(held, Parts) or type(now) is not held.kind:
        return what, _brief(now, "another"), _brief(held, "the")
    items, is_dict = items_of(now), issubclass(held.kind, dict)
    per_thing = 1 + is_dict
    if len(items) != len(held.items):
        return what, f"{len(items) // per_thing} things", f"{len(held.items) // per_thing}"
    for place, (item, of_then) in enumerate(zip(items, held.items, strict=True)):
        if not Renaming().same(item, of_then):
            key = items[place % (len(items) // 2)] if is_dict else MISSING
            return _told(f"{f'[{key!r}]' if is_plain(key) else 'an item'} of {what}", item, of_then)
    return what, _brief(now, "another"), _brief(held, "the")


def _brief(value: Any, article: str) -> str:
    if value is MISSING:
        return "nothing"
    if isinstance(value, bytes):
        return f"{article} numbers"
    kind = value.kind if isinstance(value, Parts) else value.form[0] if isinstance(value, Leftover) else type(value)
    return repr(value) if is_plain(value) else f"{article} {kind.__name__}"
