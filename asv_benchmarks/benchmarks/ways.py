"""A way to what is measured, and what it may do once and for all before it is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from .captured import captured, compiled
from .nests import Call

Prepared = tuple[Callable[..., Any], *tuple[Tensor, ...]]  # what is called, and with what
BY_HAND = "by hand"  # what is written for one function: it is shown, and no peer
KINDS = ("eager", "captured", "compiled", BY_HAND)


@dataclass(frozen=True)
class Peer:
    """A way to what is measured.

    Attributes:
        name: As it is shown.
        kind: "eager", "captured" or "compiled": what it does once and for all before it is called; or BY_HAND.
        prepare: Returns the function that is timed; it may take long.
    """

    name: str
    kind: str
    prepare: Callable[[], Call]


def of_every_kind(ways: Mapping[str, Callable[[], Prepared]]) -> list[Peer]:
    """Return ways as they are, then captured, then compiled, in the same order."""
    return [
        Peer(name if kind == "eager" else f"{kind} {name}", kind, partial(make, way))
        for kind, make in (("eager", as_it_is), ("captured", once_captured), ("compiled", once_compiled))
        for name, way in ways.items()
    ]


def as_it_is(way: Callable[[], Prepared]) -> Call:
    """Return a call of a way."""
    function, *inputs = way()
    return lambda: function(*inputs)


def once_captured(way: Callable[[], Prepared]) -> Call:
    """Return a call of a way that was captured."""
    function, *inputs = way()
    graph = captured(function, *inputs)
    return lambda: graph(*inputs)


def once_compiled(way: Callable[[], Prepared]) -> Call:
    """Return a call of a way that was captured and compiled."""
    function, *inputs = way()
    graph = compiled(function, *inputs)
    return lambda: graph(*inputs)
