"""The graph under construction: its nodes, their values, and which tensor is the value of which node."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from hofunc.errors import UntracedError
from hofunc.graph.draws import is_random
from hofunc.graph.identity import PLAIN, Place, check_class, check_elements, place_of, plain
from hofunc.graph.layout import in_memory_order, layout_of, memory_order, restrided, within
from hofunc.graph.node import CONSTANT, INPUT, Graph, Node, Ref, exact
from hofunc.graph.spots import Spots
from hofunc.graph.trail import NOTHING, Trail
from hofunc.internals import base_of, below_autograd, is_autograd_view

_AS_STRIDED = torch.ops.aten.as_strided.default
_DETACH = torch.ops.aten.detach.default
_SEQUENCES = (list, tuple)
_NUMBERS = (float, complex)
Made = tuple[Any, tuple, dict, Any]  # a call of an op that was made: its arguments, and what it returned
_new: Any = tuple.__new__  # a NamedTuple from a tuple, at a third of the cost of calling it; this is the hot path


@contextmanager
def with_history() -> Iterator[None]:
    """Give what is computed within, from below autograd, the autograd history of what it is computed from."""
    with below_autograd(), torch.enable_grad():
        yield


class Ledger:
    """Nodes as they are recorded.

    Tracked are the inputs and all that is computed from them; any other tensor that a recorded op takes is a constant.

    Attributes:
        nodes: What was recorded, in order.
        values: The value of every node. Holding them also keeps their ids from being used again.
        tracked: The node of every tracked tensor, by its id.
        inputs: Nodes of the tensors that were given.
        untracked: What the ops that depend on no input returned, each with its op.
        batched: Nodes that stand for a batch of values: inputs, and random numbers of which every row has its own.
        draws_again: Whether the graph is computed again, so that what draws random numbers belongs to it.
        draws_by_row: Whether it then draws others for every row.
        constants: The node of every constant, by the id of its tensor.
        aliases: Tensors that are known though no op returned them, or that stand in the graph as plain ones.
        detached: Nodes of aliases that autograd does not relate to what they share a storage with.
        spots: Where values lie, if the graph is computed again: what reads their memory is then no constant.
        trail: What was recorded of the function before, as long as what is recorded is the same.
    """

    def __init__(self, trail: Trail = NOTHING) -> None:
        self.trail = trail
        self.nodes: list[Node] = []
        self.values: list[torch.Tensor] = []
        self.tracked: dict[int, int] = {}
        self.untracked: list[tuple[Any, Any]] = []
        self.batched: set[int] = set()
        self.draws_again = False
        self.draws_by_row = False
        self.detached: set[int] = set()
        self.spots: Spots | None = None
        self.inputs: list[int] = []
        self.constants: dict[int, int] = {}
        self._places: dict[Place, int] = {}
        self._placed: list[torch.Tensor] = []  # the values whose places are known, kept so that no id is used again
        self.aliases: list[torch.Tensor] = []
        self._cuts: dict[int, tuple[torch.Tensor, int]] = {}  # what was detached, of which node, if it has none yet
        self._edges: dict[tuple[Any, int], int] = {}  # the node of a value by where its history starts
        self._followed = 0  # for how many values that is known

    def add_inputs(self, values: Sequence[torch.Tensor]) -> None:
        """Track what the function is differentiated by, before anything else."""
        if not self.trail.are_known:
            for value in values:
                self.add_input(value, active=True)
            return
        self.nodes += self.trail.graph.nodes[: len(values)]
        self.values += values
        self.inputs += range(len(values))
        self.tracked.update(zip(map(id, values), self.inputs, strict=True))

    def add_input(self, value: torch.Tensor, *, active: bool, batched: bool = False) -> None:
        """Track a tensor.

        Args:
            value: The tensor, an object that nothing outside refers to.
            active: Whether the function is differentiated by it.
            batched: Whether it stands for a batch of values, so that a branch on it has no single answer.
        """
        if value.is_nested:
            check_elements(value)
        index = self._give(value, INPUT, active)
        self.tracked[id(value)] = index
        self.inputs.append(index)
        if batched:
            self.batched.add(index)

    def add(
        self,
        value: torch.Tensor,
        op: Any,
        args: tuple,
        operands: tuple[int, ...],
        kwargs: tuple = (),
        output: int | None = None,
    ) -> int:
        """Append a node that computes a value, and track the value."""
        nodes = self.nodes
        index = len(nodes)
        active = True in [nodes[operand].active for operand in operands]
        try:
            shape = value.shape
        except RuntimeError:  # a nested tensor has none
            check_elements(value)
            raise
        self._append(_new(Node, (index, op, args, kwargs, output, operands, shape, value.dtype, None, active)), value)
        self.tracked[id(value)] = index
        return index

    def _append(self, node: Node, value: torch.Tensor) -> None:
        """Append a node with its value: the node of the trail, while it is equal to that.

        Of tensors of other classes sizes may be symbols, and to compare these would fix them.
        """
        if self.trail is not NOTHING:
            place, expected = len(self.nodes), self.trail.graph.nodes
            if type(value) in PLAIN and place < len(expected) and expected[place] == node:
                node = expected[place]
            else:
                self.trail = NOTHING
        self.nodes.append(node)
        self.values.append(value)

    def index_of(self, value: torch.Tensor) -> int:
        """Return the node of a tensor, which becomes a constant if it is not a node yet.

        Raises:
            UntracedError: It is nested, sparse, or of a class that computes ops out of sight.
        """
        index = self.node_of(value)
        return self.constant_of(value) if index is None else index

    def constant_of(self, value: torch.Tensor) -> int:
        """Return the node of a tensor that is known to be a constant.

        Raises:
            UntracedError: It is nested, sparse, or of a class that computes ops out of sight.
        """
        index = self.constants.get(id(value))
        if index is None:
            if type(value) not in PLAIN or value.layout is not torch.strided or value.is_nested:
                check_elements(value)
            given = value if type(value) in PLAIN else self._plain(value)
            index = self.constants[id(value)] = self._give(given, CONSTANT, False)
        return index

    def _plain(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor as one of no subclass, and keep what it was."""
        if type(value) in PLAIN:
            return value
        self.aliases.append(value)
        with with_history():
            return plain(value)

    def node_of(self, value: torch.Tensor) -> int | None:
        """Return the node of a tensor, None if it has none; that of what it is an alias of, if no op made the alias."""
        index = self.tracked.get(id(value))
        if index is not None:
            return index
        if id(value) in self._cuts:
            return self._cut(value)
        if is_autograd_view(value) and self._is_known(base_of(value)):
            index = self._aliased(value)
        elif self.spots is not None and id(value) not in self.constants:
            index = self._read_of(self.spots, value)
        return None if index is None else self._know(value, index)

    def _know(self, value: torch.Tensor, index: int) -> int:
        """Note that a tensor which no op returned is the value of a node, and return the node."""
        self.aliases.append(value)
        self.tracked[id(value)] = index
        return index

    def _is_known(self, root: torch.Tensor | None) -> bool:
        """Tell whether what a view is one of has a node, which is made now if it was detached."""
        if id(root) in self._cuts:
            self._cut(root)
        return id(root) in self.tracked

    def nodes_of(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Return the nodes of those of some tensors that have one.

        Raises:
            UntracedError: A tensor is of a class that computes ops out of sight.
        """
        found = []
        for tensor in tensors:
            if type(tensor) not in PLAIN:
                check_class(tensor)
            if (node := self.node_of(tensor)) is not None:
                found.append(node)
        return found

    def _aliased(self, value: torch.Tensor) -> int:
        """Return the node of the tensor that lies where an alias lies."""
        for number in range(len(self._placed), len(self.values)):
            self._placed.append(self.values[number])
            self._places[place_of(self.values[number])] = number
        place = place_of(value)
        index = self._places.get(place)
        if index is not None:
            return index
        index = self._places.get(place._replace(is_cut=False))
        if index is None:
            _refuse_view(value)
        return self.add(self._plain(value), _DETACH, (Ref(index),), (index,))

    def _read_of(self, spots: Spots, value: torch.Tensor) -> int | None:
        """Return the node of a tensor that reads memory of the function as autograd does not know; None for others."""
        spots.enter(self.nodes, self.values)
        if not spots.has(value):
            return None
        index = spots.find(value)
        if index is None:
            _refuse_view(value)
        result = self.add(self._plain(value), _DETACH, (Ref(index),), (index,))
        self.detached.add(result)
        return result

    def settle(self, written: Callable[[torch.Tensor], int | None]) -> list[int]:
        """Make nodes of all that was detached.

        Args:
            written: Returns the node of a tensor that was written in place; None for others.

        Returns:
            The nodes that were made.
        """
        before = len(self.nodes)
        for tensor, _ in list(self._cuts.values()):
            self._cut(tensor, written)
        return [*range(before, len(self.nodes))]

    def _cut(self, value: Any, written: Callable[[torch.Tensor], int | None] = lambda _: None) -> int:
        """Return the node of what was detached.

        For a backward pass autograd saves a result as a detached copy, of which the pass is given another one. This is
        no view, and has the history of the result, as nothing else that was detached, and so it is the result.

        Raises:
            UntracedError: It is the result of an op that was not seen.
        """
        _, index = self._cuts.pop(id(value))
        if is_autograd_view(value) or value.grad_fn is None:
            index = self.add(value, _DETACH, (Ref(index),), (index,))
            self.detached.add(index)
            return index
        saved = self._saved(value)
        saved = written(value) if saved is None else saved
        if saved is None:
            raise UntracedError(
                "hofunc: f calls torch.autograd.grad through what it computed out of sight",
                got=f"a result that {value.grad_fn.name()} saved",
                expected="a backward pass through ops of torch",
                remedy="Take torch.func.grad or hofunc.hod inside f.",
            )
        return self._know(value, saved)

    def _saved(self, value: torch.Tensor) -> int | None:
        """Return the node of the result that autograd saved, None if it was written in place."""
        for number in range(self._followed, len(self.values)):
            known = self.values[number]
            if not is_autograd_view(known):  # NOTE: to ask a view for its history may dispatch ops, from under a lock
                self._edges[known.grad_fn, known.output_nr] = number
        self._followed = len(self.values)
        return self._edges.get((value.grad_fn, value.output_nr))

    def enter(self, calls: Iterable[Made]) -> None:
        """Append the nodes of op calls, each with its arguments and what it returned, in order.

        A call that takes no tracked tensor only leaves what it returned among the untracked.
        """
        tracked, waiting = self.tracked, iter(calls)
        while (call := self._along(waiting)) is not None:
            op, args, kwargs, out = call
            if op is _DETACH and self._enter_detached(args[0], out):
                continue
            operands: list[int] = []
            if (
                not self._takes_tracked(args)
                and not (kwargs and self._takes_tracked(kwargs.values()))
                and not self._takes_alias((*args, *kwargs.values()) if kwargs else args)
                and not (self.draws_again and is_random(op, args, kwargs or {}))
            ):
                self.untracked.append((op, out))
                continue
            if op is _AS_STRIDED and self._enter_restrided(args[0], out):
                continue
            template = self.encode(args, operands)
            keywords = tuple(zip(kwargs, self.encode(kwargs.values(), operands), strict=True)) if kwargs else ()
            if type(out) is torch.Tensor and id(out) not in tracked:
                self.add(out, op, template, tuple(operands), keywords)
                continue
            several = isinstance(out, list | tuple)
            for place, value in enumerate(out if several else (out,)):
                if isinstance(value, torch.Tensor) and id(value) not in tracked:  # an op may return its argument
                    check_class(value)
                    self.add(value, op, template, tuple(operands), keywords, place if several else None)

    def _along(self, calls: Iterator[Made]) -> Made | None:  # noqa: C901, PLR0911 - for speed
        """Append the nodes of calls that do what is expected; returns the first that does not, None if all did."""
        steps, tracked, nodes, values = self.trail.steps, self.tracked, self.nodes, self.values
        for call in calls:
            step = steps.get(len(nodes))
            if step is None:
                return call
            op, args, kwargs, out = call
            expected, arity, known, constants, others, keywords, node, shape, dtype, several = step
            if op is not expected or kwargs != keywords or len(args) != arity:
                return call
            for place, number in known:
                if tracked.get(id(args[place])) != number:
                    return call
            for place, other, kind in others:
                if type(args[place]) is not kind or args[place] != other:
                    return call
            for place, number in constants:
                if not isinstance(args[place], torch.Tensor) or self.index_of(args[place]) != number:
                    return call
            if constants and (len(nodes) != node.number or self.trail is NOTHING):  # one was another than expected
                return call
            if several is not None and self._enter_several(out, several):
                continue
            if (
                several is not None
                or type(out) is not torch.Tensor
                or id(out) in tracked  # an op may return its argument
                or out.shape != shape
                or out.dtype is not dtype
            ):
                return call
            nodes.append(node)
            values.append(out)
            tracked[id(out)] = node.number
        return None

    def _enter_several(self, out: Any, nodes: Sequence[Node]) -> bool:
        """Append the nodes of what an op returned, if these are new tensors, one for each of them; tell whether."""
        if not _are_outputs(out, nodes, self.tracked):
            return False
        self.tracked.update(zip(map(id, out), range(nodes[0].number, nodes[0].number + len(nodes)), strict=True))
        self.nodes += nodes
        self.values += out
        return True

    def _enter_detached(self, tensor: torch.Tensor, out: torch.Tensor) -> bool:
        """Note what was detached, if it is tracked; most of it, which autograd saves, never meets another op."""
        index = self._cuts[id(tensor)][1] if id(tensor) in self._cuts else self.node_of(tensor)
        if index is None:
            return self.recover(out)
        if id(out) not in self.tracked:  # as an input is that stands for another tensor
            self._cuts[id(out)] = out, index
        return True

    def recover(self, value: torch.Tensor) -> bool:
        """Take a tensor for the node whose history it has, if autograd gives back what it saved of that."""
        if id(value) in self.tracked or id(value) in self._cuts or is_autograd_view(value) or value.grad_fn is None:
            return False
        saved = self._saved(value)
        if saved is None:
            return False
        self._know(value, saved)
        return True

    def _enter_restrided(self, tensor: torch.Tensor, out: torch.Tensor) -> bool:
        """Append nodes that read a tensor by strides from the memory of another, if it lies in that."""
        memory = layout_of(tensor)
        layout = within(layout_of(out), memory)
        if layout is None or id(out) in self.tracked:
            return False
        index, order = self.index_of(tensor), memory_order(memory.stride)
        with with_history():
            vector = in_memory_order(tensor, order)
        contents = self.add(vector, in_memory_order, (Ref(index), order), (index,))
        self.add(out, restrided, (Ref(contents), layout), (contents,))
        return True

    def _takes_tracked(self, args: Iterable) -> bool:
        tracked, cuts = self.tracked, self._cuts
        for arg in args:  # twice as fast as any() over a generator
            if id(arg) in tracked or id(arg) in cuts or (type(arg) in _SEQUENCES and self._takes_tracked(arg)):
                return True
        return False

    def _takes_alias(self, args: Iterable) -> bool:
        """Tell whether an argument, none of which is tracked, is an alias of what is."""
        for arg in args:
            if isinstance(arg, torch.Tensor):
                if type(arg) not in PLAIN:
                    check_class(arg)
                if is_autograd_view(arg) and self.node_of(arg) is not None:
                    return True
            elif type(arg) in _SEQUENCES and self._takes_alias(arg):
                return True
        return False

    def encode(self, args: Iterable, operands: list[int]) -> tuple:
        """Put Refs in place of tensors and tuples in place of lists; the indices of the tensors go to operands."""
        result: list[Any] = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                index = self.tracked.get(id(arg))
                if index is None:
                    index = self.index_of(arg)
                operands.append(index)
                result.append(_new(Ref, (index,)))
            elif type(arg) in _SEQUENCES:
                result.append(self.encode(arg, operands))
            elif type(arg) in _NUMBERS:
                result.append(exact(arg))
            else:
                result.append(arg)
        return tuple(result)

    def graph(self, outputs: Sequence[torch.Tensor]) -> Graph:
        """Return what was recorded, as the graph of the given outputs."""
        indices = tuple([self.index_of(output) for output in outputs])
        expected = self.trail.graph
        if self.trail is not NOTHING and len(self.nodes) == len(expected.nodes) and indices == expected.outputs:
            return self.trail.met_again()
        return Graph(tuple(self.nodes), tuple(self.inputs), indices)

    def _give(self, value: torch.Tensor, kind: str, active: bool) -> int:
        index, expected = len(self.nodes), self.trail.graph.nodes
        if index < len(expected) and type(value) in PLAIN and _is_given(value, expected[index], kind, active):
            self.nodes.append(expected[index])
            self.values.append(value)
            return index
        fields = (index, kind, (), (), None, (), value.shape, value.dtype, value.device, active)
        self._append(_new(Node, fields), value)
        return index


def _are_outputs(out: Any, nodes: Sequence[Node], tracked: Mapping[int, int]) -> bool:
    """Tell whether what an op returned are new tensors, one for each of some nodes."""
    return (
        isinstance(out, list | tuple)
        and len({*map(id, out)}) == len(out) == len(nodes)
        and all(
            type(value) is torch.Tensor
            and id(value) not in tracked
            and value.shape == node.shape
            and value.dtype is node.dtype
            for value, node in zip(out, nodes, strict=True)
        )
    )


def _is_given(value: torch.Tensor, node: Node, kind: str, active: bool) -> bool:
    """Tell whether a node is that of a tensor which is given."""
    return (
        node.op is kind
        and node.active is active
        and node.dtype is value.dtype
        and node.shape == value.shape
        and node.device == value.device
    )


def _refuse_view(value: torch.Tensor) -> NoReturn:
    raise UntracedError(
        "hofunc: f views a tensor out of sight",
        got=f"a view of shape {tuple(value.shape)} that no op of torch returned",
        expected="views by torch's ops",
        remedy="Write the view as an op, or clone the tensor first.",
    )
