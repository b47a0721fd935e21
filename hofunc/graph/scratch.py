"""Attributes that a function binds before it looks at them: what they hold between its calls is nothing to it.

An attribute that code binds may be found so in two ways: bound first, so that what it held before is never seen; or
looked at first, as a cache or a state is. Only what happens in the order in which it does can tell them apart. So
while a function is recorded, a data descriptor stands in the classes of some objects for some of their attributes,
through which the interpreter goes for all that reads or binds them, by name or by text.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from hofunc.graph.snapshot import MISSING

_COPYING = "__reduce_ex__"  # by which an object is copied or pickled, with all of its attributes

Attribute = tuple[int, str]  # the id of an object, and the name of one of its attributes


class Scratch:
    """Watches attributes of objects, as a context manager.

    Args:
        watched: Pairs of an object and the name of an attribute of it.
        others: Pairs of a class and the name of an attribute that its objects may not have.
    """

    def __init__(self, watched: Collection[tuple[Any, str]] = (), others: Collection[tuple[type, str]] = ()):
        self._watched = [*watched]  # which keeps the objects, so that no id is used again
        doors = {(type(owner), name) for owner, label in self._watched for name in (label, _COPYING)}
        self._doors = {(kind, name): _Door(kind, name) for kind, name in doors.union(others)}
        self._opened = ExitStack()

    def __enter__(self) -> "Scratch":
        with ExitStack() as opened:
            for door in self._doors.values():
                opened.callback(door.close)
                door.open()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def found(self) -> frozenset[Attribute]:
        """Return those of the attributes that were bound before anything looked at them."""
        return frozenset((id(owner), label) for owner, label in self._watched if self._is_bound_first(owner, label))

    def missed(self) -> Iterator[tuple[Any, str]]:
        """Yield the attributes that were asked for where there were none, each with its object."""
        for (_, label), door in self._doors.items():
            yield from ((owner, label) for owner in door.missed.values())

    def unseen(self) -> Iterator[tuple[type, str]]:
        """Yield the classes that let nobody in, each with an attribute of which it is not known who asked for it."""
        yield from (key for key, door in self._doors.items() if door.is_shut)

    def _is_bound_first(self, owner: Any, label: str) -> bool:
        is_copied = self._doors[type(owner), _COPYING].has_seen(owner)
        return not is_copied and id(owner) in self._doors[type(owner), label].bound_first


class _Door:
    """Stands for an attribute in a class, and sees what happens to it first in each object."""

    def __init__(self, kind: type, label: str):
        self._kind, self._label = kind, label
        self._before: Any = MISSING
        self._seen: set[int] = set()
        self.bound_first: set[int] = set()
        self.missed: dict[int, Any] = {}
        self.is_shut = False

    def has_seen(self, owner: Any) -> bool:
        """Tell whether anything looked at the attribute of an object, or at that of its class."""
        return not self._seen.isdisjoint((id(owner), id(None)))

    def open(self) -> None:
        """Take its place; a class that lets nobody in, or has one already, has no attributes that are seen here."""
        self._before = vars(self._kind).get(self._label, MISSING)
        if not isinstance(self._before, _Door):
            self.is_shut = True
            with suppress(TypeError, AttributeError):
                setattr(self._kind, self._label, self)
                self.is_shut = False

    def close(self) -> None:
        """Leave the class as it was, unless that was given something else under the name meanwhile."""
        if vars(self._kind).get(self._label) is not self:
            self.bound_first.clear()  # what happened since was not seen
        elif self._before is MISSING:
            delattr(self._kind, self._label)
        else:
            setattr(self._kind, self._label, self._before)

    def __get__(self, owner: Any, kind: type) -> Any:
        """Return what the attribute is without this."""
        self._seen.add(id(owner))
        inherited = self._inherited(kind)
        is_data = hasattr(type(inherited), "__set__")
        if owner is not None and not is_data and self._label in (space := _space_of(owner)):
            return space[self._label]
        if inherited is MISSING:
            self.missed[id(owner)] = owner
            raise AttributeError(f"{kind.__name__!r} object has no attribute {self._label!r}", name=self._label)
        return inherited.__get__(owner, kind) if hasattr(type(inherited), "__get__") else inherited

    def __set__(self, owner: Any, value: Any) -> None:
        """Bind the attribute as without this."""
        if id(owner) not in self._seen:
            self._seen.add(id(owner))
            self.bound_first.add(id(owner))
        inherited = self._inherited(type(owner))
        if hasattr(type(inherited), "__set__"):
            inherited.__set__(owner, value)
        else:
            _space_of(owner)[self._label] = value

    def __delete__(self, owner: Any) -> None:
        """Unbind the attribute, which is an error if there is none."""
        self._seen.add(id(owner))
        inherited = self._inherited(type(owner))
        if hasattr(type(inherited), "__delete__"):
            inherited.__delete__(owner)
        elif self._label in (space := _space_of(owner)):
            del space[self._label]
        else:
            raise AttributeError(f"{type(owner).__name__!r} object has no attribute {self._label!r}")

    def _inherited(self, kind: type) -> Any:
        """Return what a class has under the name, doors left out."""
        return next((held for held in self._of_bases(kind) if held is not MISSING), MISSING)

    def _of_bases(self, kind: type) -> Iterator[Any]:
        for base in kind.__mro__:
            held = vars(base).get(self._label, MISSING)
            yield held._before if isinstance(held, _Door) else held


def _space_of(owner: Any) -> dict[str, Any]:
    space: dict[str, Any] = object.__getattribute__(owner, "__dict__")
    return space
