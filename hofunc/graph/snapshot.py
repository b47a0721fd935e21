"""What a value is, to be told again from what it is later: an object by its identity, a container by what is in it.

A tuple, list or dict that holds the very same things in the same order is the same to whoever looks into it, whoever
made it and when. An object is not, since its attributes may change: it is the same only if it is the very one.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.graph.reads import identical

MISSING = object()  # what a name stands for that stands for nothing
_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device, torch.layout)
_CONTAINERS = frozenset({tuple, list, dict, set, frozenset, OrderedDict})
_DEEPEST = 16  # containers in containers; what is deeper is told by its identity


class Parts(NamedTuple):
    """What is in a container, or what a weak reference to a tensor leads to.

    Attributes:
        kind: Its class.
        items: What is in it, in order; of a dict the keys, then the values.
    """

    kind: type
    items: tuple[Any, ...]


class Leftover(NamedTuple):
    """A tensor that a call of a function left behind, of which a later call uses nothing but that it is another one.

    Attributes:
        form: Its class, shape and the like.
        number: Which it is: the same wherever it is held.
    """

    form: tuple[Any, ...]
    number: int


def snapshot(value: Any) -> Any:
    """Return what a value is: itself, or `Parts` if it is a container and nothing beside."""
    return _snapshot(value, set(), _DEEPEST)


def _snapshot(value: Any, met: set[int], depth: int) -> Any:
    if depth == 0 or id(value) in met or not is_container(value):
        return value
    met.add(id(value))
    return Parts(type(value), tuple([_snapshot(item, met, depth - 1) for item in items_of(value)]))


def is_container(value: Any) -> bool:
    """Tell whether a value is told by what is in it."""
    kind = type(value)
    if kind is weakref.ref:
        return isinstance(value(), Tensor)
    return kind in _CONTAINERS or (issubclass(kind, tuple) and not hasattr(value, "__dict__"))


def items_of(container: Any) -> tuple[Any, ...]:
    """Return what is in a container."""
    if isinstance(container, weakref.ref):
        return (container(),)
    return (*container, *container.values()) if isinstance(container, dict) else tuple(container)


def leaves(held: Any) -> Iterator[Any]:
    """Yield what a snapshot has in it that is no container, or is told by its identity."""
    if isinstance(held, Parts):
        for item in held.items:
            yield from leaves(item)
    else:
        yield held


def mapped(held: Any, function: Callable[[Any], Any]) -> Any:
    """Return a snapshot with other leaves."""
    if isinstance(held, Parts):
        return Parts(held.kind, tuple([mapped(item, function) for item in held.items]))
    return function(held)


def is_plain(value: Any) -> bool:
    """Tell whether a value cannot change, and is the same as any that is equal."""
    return isinstance(value, _PLAIN)


def _is_used_up(value: Any) -> bool:
    """Tell whether a value is an iterator, of which nobody can tell what it returns next without taking that."""
    return type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator)


class Renaming:
    """Which tensors stand for those that a call left behind: one for each, and none that means something else.

    Args:
        known: The ids of the tensors that mean something.
    """

    def __init__(self, known: frozenset[int] = frozenset()):
        self._known = known
        self._new: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def same(self, now: Any, held: Any) -> bool:
        """Tell whether a value is what a snapshot says, or has what calls leave behind in the place of such tensors."""
        if isinstance(held, Parts):
            if type(now) is not held.kind:
                return False
            items = items_of(now)
            return len(items) == len(held.items) and all(map(self.same, items, held.items))
        if isinstance(held, Leftover):
            return self._stands_for(now, held)
        if now is held:
            return not _is_used_up(held)
        return is_plain(held) and identical(now, held)

    def _stands_for(self, now: Any, held: Leftover) -> bool:
        new, old = id(now), held.number
        if not isinstance(now, Tensor) or (new in self._known and new != old) or left_behind(now).form != held.form:
            return False
        return self._new.setdefault(old, new) == new and self._old.setdefault(new, old) == old


def left_behind(tensor: Tensor) -> Leftover:
    """Return what a function sees of a tensor of which it asks for no numbers, nor if autograd follows it."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return Leftover((type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.layout, strides), id(tensor))
