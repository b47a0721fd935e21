"""Surveying a recording for its route: tensors are numbered as they come along, and writes tell how long each lasts."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import torch

from hofunc.graph.draws import is_random
from hofunc.graph.effects import effects
from hofunc.graph.identity import PLAIN, root_of, storage_key, tensors_in
from hofunc.graph.node import CONSTANT, Graph, exact
from hofunc.graph.numerals import real_layout_of
from hofunc.graph.overlaps import places_of
from hofunc.graph.route import (
    ATOMS,
    New,
    Other,
    Route,
    Seen,
    Several,
    Span,
    Step,
    form_of,
    held,
    reshapes,
    unheld,
)
from hofunc.internals import OpOverload, is_autograd_view


class Survey:
    """Takes note of a recording as it is made.

    Args:
        inputs: The inputs, as the function sees them.

    Attributes:
        made: How many calls were made.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]):
        self.made = 0
        self._calls: list[tuple[OpOverload, tuple, dict, Any]] = []
        self._have_grad: list[bool] = []
        self._inputs = inputs
        self._notes: list[tuple[torch.Tensor, int, int, bool]] = []
        self._before: dict[int, list[torch.Tensor]] = {}

    def reshape(self, tensor: torch.Tensor) -> None:
        """Note that the shape of a tensor is to be changed in place."""
        self._before.setdefault(id(tensor), []).append(tensor.detach())

    def note(self, tensor: torch.Tensor, number: int, *, is_value: bool) -> None:
        """Note that a tensor holds the value of a node, as that value or as an alias of it."""
        self._notes.append((tensor, number, self.made, is_value))

    def enter(self, op: OpOverload, args: tuple, kwargs: dict, out: Any) -> None:
        """Note a call that was made."""
        self._calls.append((op, args, kwargs, unheld(out) if effects(op).makes else out))
        self._have_grad.append(torch.is_grad_enabled())

    def route(
        self, graph: Graph, values: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], hidden: Set[int]
    ) -> Route | None:
        """Return the route, None if there is none along which another recording could be told to go.

        Args:
            graph: What was recorded.
            values: The value of each of its nodes.
            outputs: What was returned.
            hidden: The nodes of which autograd may know another history than the graph.
        """
        calls = [(op, args, kwargs, held(out)) for op, args, kwargs, out in self._calls]
        if self.made != len(calls) or not all(_is_told(*call[:3]) for call in calls):
            return None
        for number, value in enumerate(values):
            self.note(value, number, is_value=True)
        seen = _Numbering(self._inputs, self._before)
        try:
            steps = [
                Step(op, *seen.given(args, kwargs), seen.returned(op, out, at), has_grad=self._have_grad[at])
                for at, (op, args, kwargs, out) in enumerate(calls)
            ]
            returned = [seen.number(output, self.made) for output in outputs]
        except (_UntoldError, KeyError):
            return None
        writes = _Writes(calls, seen)
        if writes.are_outside():
            return None
        spans: list[list[Span]] = [[] for _ in values]
        for tensor, number, made, is_value in self._notes:
            if seen.knows(tensor) and (is_value or graph.nodes[number].op is not CONSTANT):
                spans[number].append(writes.span(seen.number(tensor, made), made, is_value=is_value))
        if any(node.op is CONSTANT and not spans[node.number] for node in graph.nodes):
            return None
        given = {number for number, born in enumerate(seen.born) if born < 0} - {*range(len(self._inputs))}
        followed = [number for number, tensor in enumerate(seen.tensors) if tensor.requires_grad]
        inputs = [*map(form_of, self._inputs)]
        return Route(graph, inputs, steps, returned, spans, writes.owners(), given, followed, hidden)


class _UntoldError(Exception):
    """Something takes part that cannot be compared."""


class _Numbering:
    """Numbers tensors as they come along, anew where their shapes were changed in place.

    Args:
        inputs: Those that are there first.
        before: By their ids, what tensors were before each change of their shapes.

    Attributes:
        tensors: The tensors.
        born: After which call each was there; -1 for what came from outside.
    """

    def __init__(self, inputs: Sequence[torch.Tensor], before: Mapping[int, Sequence[torch.Tensor]]):
        self.tensors: list[torch.Tensor] = []
        self.born: list[int] = []
        self._numbers: dict[int, list[int]] = {}
        self._before = before
        for tensor in inputs:
            self._enter(tensor, -1)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor came along."""
        return id(tensor) in self._numbers

    def number(self, tensor: torch.Tensor, made: int) -> int:
        """Return the number that a tensor had after so many calls."""
        numbers = self._numbers[id(tensor)]
        return next((number for number in reversed(numbers) if self.born[number] < made), numbers[0])

    def _enter(self, tensor: torch.Tensor, born: int) -> New:
        """Number a tensor, as it was until its shape was changed the next time."""
        numbers = self._numbers.setdefault(id(tensor), [])
        before = self._before.get(id(tensor), ())
        form = before[len(numbers)] if len(numbers) < len(before) else tensor
        numbers.append(len(self.tensors))
        self.tensors.append(form)
        self.born.append(born)
        return New(numbers[-1], form_of(form))

    def given(self, args: tuple, kwargs: dict) -> tuple[list[Any], dict[str, Any]]:
        """Return what stands for the arguments of a call."""
        return [self._of(arg, -1) for arg in args], {name: self._of(arg, -1) for name, arg in kwargs.items()}

    def returned(self, op: OpOverload, out: Any, at: int) -> Any:
        """Return what stands for what a call returned."""
        if reshapes(op):
            return self._enter(out, at)
        before = len(self.tensors)
        result = self._of(out, at)
        if effects(op).writes and len(self.tensors) > before:
            raise _UntoldError  # of new tensors it would show too late that they are other ones
        return result

    def _of(self, value: Any, born: int) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            if self.knows(value):
                return Seen(self._numbers[id(value)][-1])
            is_related = born < 0 and is_autograd_view(value) and self.knows(root_of(value))
            if kind not in PLAIN or value.layout is not torch.strided or value.is_nested or is_related:
                raise _UntoldError
            return self._enter(value, born)
        if kind in (list, tuple):
            return Several(kind, tuple([self._of(item, born) for item in value]))
        if kind in (float, complex):
            return Other(kind, exact(value))
        if kind not in ATOMS:
            raise _UntoldError
        return Other(kind, value)


def _is_told(op: Any, args: tuple, kwargs: dict) -> bool:
    """Tell whether a call of an op is told by what it takes."""
    is_plain = isinstance(op, OpOverload) and not is_random(op, args, kwargs)
    return is_plain and (torch.Tag.inplace_view not in op.tags or reshapes(op))


class _Writes:
    """The writes of a recording: when, and where in which memory.

    Args:
        calls: The calls.
        seen: The tensors that came along.
    """

    def __init__(self, calls: Sequence[tuple[OpOverload, tuple, dict, Any]], seen: _Numbering):
        self._seen, self._count = seen, len(calls)
        self._writes: dict[int, list[tuple[int, torch.dtype, int]]] = {}  # by storage
        for at, (op, args, kwargs, _) in enumerate(calls):
            for tensor in () if reshapes(op) else _written(op, args, kwargs):
                place = (at, tensor.dtype.to_real(), places_of(real_layout_of(tensor)))
                self._writes.setdefault(storage_key(tensor), []).append(place)

    def owners(self) -> list[int]:
        """Return one tensor in each memory that is written to."""
        first: dict[int, int] = {}
        for number, tensor in enumerate(self._seen.tensors):
            first.setdefault(storage_key(tensor), number)
        return [first[key] for key in self._writes]

    def are_outside(self) -> bool:
        """Tell whether memory that is written to is also that of something from outside."""
        pairs = zip(self._seen.tensors, self._seen.born, strict=True)
        return any(born < 0 and storage_key(tensor) in self._writes for tensor, born in pairs)

    def span(self, number: int, made: int, *, is_value: bool) -> Span:
        """Return for how long a tensor holds what it holds after so many calls."""
        tensor = self._seen.tensors[number]
        dtype, places = tensor.dtype.to_real(), places_of(real_layout_of(tensor))
        found = [
            at
            for at, written, where in self._writes.get(storage_key(tensor), ())
            if written is not dtype or where & places
        ]
        following = bisect_left(found, made)
        before = found[following - 1] if following else -1
        last = found[following] if following < len(found) else self._count
        return Span(number, 1 + max(before, self._seen.born[number]), last, is_value)


def _written(op: OpOverload, args: tuple, kwargs: dict) -> Iterator[torch.Tensor]:
    """Yield the tensors that a call writes to."""
    for name, place in zip(effects(op).writes, effects(op).places, strict=True):
        yield from tensors_in([args[place] if place < len(args) else kwargs.get(name)])
