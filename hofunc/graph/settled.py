"""What a function relies on beside its arguments, told from calls of it: what it looks at and finds as it leaves it.

A function may change what it looks at. A cache is made by its first call and found by the second; a counter is never
found as it was. What was recorded holds for a later call only if that begins as the recorded one did. So a function is
called until a call leaves what it looks at as it found it, and that call is the one which counts. Some of what a call
changes does not matter to the next:

- what is only kept for others, see `hofunc.graph.uses`;
- attributes that it binds before it looks at them, see `hofunc.graph.scratch`;
- tensors that the call before made and left behind, in places where it only sees that they are other ones.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from operator import not_
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, NoReturn

import torch
from torch import Tensor

from hofunc.errors import UntracedError
from hofunc.graph.holding import Change, Holding, of_missing, quick_test
from hofunc.graph.identity import PLAIN, innermost, storage_key
from hofunc.graph.objects import Witness
from hofunc.graph.scratch import Attribute, Scratch
from hofunc.graph.snapshot import Leftover, Renaming, is_plain, left_behind
from hofunc.graph.uses import NO_USES, uses_of
from hofunc.internals import form_check

MOST_CALLS = 4
_WITHOUT_STATE = (FunctionType, BuiltinFunctionType)  # beside what is found


class Reliance:
    """What holds for as long as what was recorded does.

    Args:
        holdings: What was held.
        captured: The tensors that were captured.
    """

    def __init__(self, holdings: Sequence[Holding], captured: Iterable[Tensor]):
        is_left = [any(isinstance(leaf, Leftover) for leaf in holding.leaves()) for holding in holdings]
        self._left = [*compress(holdings, is_left)]
        self._suspects = quick_test([*compress(holdings, map(not_, is_left))])
        held, of_ops = [*_tensors(holdings)], _ids(captured)
        self._known = _ids(held) | of_ops
        self._forms = _Forms(tensor for tensor in held if id(tensor) not in of_ops)

    def change(self) -> Change | None:
        """Return what has changed; None if nothing has."""
        suspects = self._suspects()
        if not suspects and not self._left:
            return self._forms.change()
        renaming = Renaming(self._known)
        changes = (change for holding in (*suspects, *self._left) for _, change in holding.changes(renaming))
        return next(changes, None) or self._forms.change()


class _Forms:
    """The forms of tensors that no op took: a function may have asked how long one is, and nothing else of it.

    Args:
        tensors: The tensors; of those that are sparse, or of a subclass, nothing is known.
    """

    def __init__(self, tensors: Iterable[Tensor]):
        plain = {id(each): each for each in tensors if type(each) in PLAIN and each.layout is torch.strided}
        self._tensors = tuple(plain.values())
        self._forms = [left_behind(tensor).form for tensor in self._tensors]
        self._are_same = form_check(self._tensors) if plain else lambda *_: True

    def change(self) -> Change | None:
        """Return what has changed; None if nothing has."""
        if self._are_same(*self._tensors):
            return None
        for tensor, form in zip(self._tensors, self._forms, strict=True):
            if (now := left_behind(tensor).form) != form:
                return "a tensor that it looks at", _told(now), _told(form)
        return None


def _told(form: tuple[Any, ...]) -> str:
    _, shape, dtype, device, _, strides = form
    return f"shape {tuple(shape)}, dtype {dtype}, device {device}, strides {strides}"


class Settling:
    """Watches calls of a function, until one of them leaves what it looks at as it found it.

    Args:
        roots: The objects from which it reaches all that it reads.
    """

    def __init__(self, roots: Iterable[Any]):
        self._roots = tuple(roots)
        self._calls = 0
        self._codes: frozenset[CodeType] = frozenset()
        self._before: Sequence[Holding] = ()
        self._watched: dict[Attribute, Any] = {}
        self._asked_for: set[tuple[type, str]] = set()

    def watch(self) -> Scratch:
        """Return what watches the attributes that the function may bind, or ask for in vain, as a context manager."""
        return Scratch([(owner, label) for (_, label), owner in self._watched.items()], self._asked_for)

    def settled(self, witness: Witness, scratch: Scratch, used: Sequence[Tensor]) -> list[Holding] | None:
        """Return what the function relies on; None if it is to be called again.

        Args:
            witness: What watched the call.
            scratch: What watched the attributes.
            used: The tensors of others of which the call saw more than that they are other ones.

        Raises:
            UntracedError: It was called often enough.
        """
        bound_first = frozenset[Attribute]() if witness.looks_past_names() else scratch.found()
        found, objects = witness.holdings(self._roots, bound_first)
        codes = frozenset(witness.watched())
        before, was_met = self._before, self._has_met(found, codes)
        self._before, self._codes, self._calls = found, codes, self._calls + 1
        storages, known = frozenset(map(storage_key, used)), _ids((*_tensors(before), *used))
        changes = [each for each in _changes(before, storages, Renaming(known)) if each[0] not in bound_first]
        if was_met and not changes:
            return [holding.mapped(_left_behind(storages, known)) for holding in (*found, *_missing(scratch, objects))]
        if self._calls == MOST_CALLS:
            _refuse([change for _, change in changes])
        self._watch_for(codes, {label for (_, label), _ in changes}, found, objects)
        return None

    def _watch_for(
        self, codes: Iterable[CodeType], changed: set[str], found: Sequence[Holding], objects: Iterable[Any]
    ) -> None:
        """Take note of the attributes that the next call may bind, or ask for in vain."""
        _, _, bound, asked_for, *_ = map(frozenset[str]().union, NO_USES, *map(uses_of, codes))
        for holding in found:
            if not isinstance(holding.place, type):
                self._watched.update((key, holding.place) for key in holding.keys if key[1] in bound | changed)
        of_kinds = {kind: asked_for.difference(*map(vars, kind.__mro__)) for kind in set(map(type, objects))}
        for owner in objects:
            missing = of_kinds[type(owner)].difference(getattr(owner, "__dict__", ()))
            self._asked_for.update((type(owner), label) for label in missing)

    def _has_met(self, found: Sequence[Holding], codes: frozenset[CodeType]) -> bool:
        """Tell whether the call before has looked at all that this one did, or there is nothing to be looked at."""
        if not found and all(isinstance(root, _WITHOUT_STATE) or is_plain(root) for root in self._roots):
            return True
        keys = {key for holding in self._before for key in holding.keys}
        return codes <= self._codes and all(keys.issuperset(holding.keys) for holding in found)


def _changes(
    before: Sequence[Holding], storages: frozenset[int], renaming: Renaming
) -> Iterator[tuple[Attribute, Change]]:
    """Yield the places of what has changed, each with what that is."""
    for holding in before:
        for label, change in holding.mapped(_left_behind(storages)).changes(renaming):
            yield (id(holding.place), label), change


def _left_behind(storages: frozenset[int], known: frozenset[int] = frozenset()) -> Callable[[Any], Any]:
    """Return what puts a `Leftover` in the place of a tensor that is neither known nor in memory that was used."""

    def placed(leaf: Any) -> Any:
        is_left = isinstance(leaf, Tensor) and id(leaf) not in known and storage_key(innermost(leaf)) not in storages
        return left_behind(leaf) if is_left else leaf

    return placed


def _missing(scratch: Scratch, objects: Iterable[Any]) -> Iterator[Holding]:
    """Yield that objects do not have what they were asked for in vain."""
    there = {id(owner): owner for owner in objects}
    asked = {(id(owner), label): owner for owner, label in scratch.missed() if id(owner) in there}
    for kind, label in scratch.unseen():
        asked |= {(id(owner), label): owner for owner in there.values() if type(owner) is kind}
    for (_, label), owner in asked.items():
        yield from of_missing(owner, label)


def _tensors(holdings: Iterable[Holding]) -> Iterator[Tensor]:
    for holding in holdings:
        yield from (leaf for leaf in holding.leaves() if isinstance(leaf, Tensor))


def _ids(tensors: Iterable[Tensor]) -> frozenset[int]:
    return frozenset(map(id, tensors))


def _refuse(changes: Sequence[Change]) -> NoReturn:
    what, now, before = (*changes, ("what it looks at", "things that were not there", "those that were"))[0]
    raise UntracedError(
        f"hofunc: a plan of a function that looks at what its calls change: {what}",
        got=f"{now}, after {MOST_CALLS} calls",
        expected=f"{before}, as the last of them found it",
        remedy="Let f take it as an argument and return it, or call the transform itself, which records every call.",
    )
