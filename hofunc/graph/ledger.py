"""The graph under construction: its nodes, their values, and which tensor is the value of which node."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch

from hofunc.graph.layout import in_memory_order, layout_of, memory_order, restrided, within
from hofunc.graph.node import CONSTANT, INPUT, NEGATIVE_ZERO, Graph, Node, Ref

# Gives what is computed within it, from below autograd, the autograd history of what it is computed from.
with_history = partial(torch._C._SetExcludeDispatchKeyGuard, torch._C.DispatchKey.AutogradFunctionality, False)

_AS_STRIDED = torch.ops.aten.as_strided.default
_SEQUENCES = (list, tuple)
_new: Any = tuple.__new__  # a NamedTuple from a tuple, at a third of the cost of calling it; this is the hot path


class Ledger:
    """Nodes as they are recorded.

    Tracked are the inputs and all that is computed from them; any other tensor that a recorded op takes is a constant.

    Attributes:
        nodes: What was recorded, in order.
        values: The value of every node. Holding them also keeps their ids from being used again.
        tracked: The node of every tracked tensor, by its id.
        untracked: What the ops that depend on no input returned, each with its op.
        batched: Nodes of the inputs that stand for a batch of values.
        detached: Nodes of aliases that autograd does not relate to what they share a storage with.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.values: list[torch.Tensor] = []
        self.tracked: dict[int, int] = {}
        self.untracked: list[tuple[Any, Any]] = []
        self.batched: set[int] = set()
        self.detached: set[int] = set()
        self._inputs: list[int] = []
        self._constants: dict[int, int] = {}

    def add_input(self, value: torch.Tensor, *, active: bool, batched: bool = False) -> None:
        """Track a tensor.

        Args:
            value: The tensor, an object that nothing outside refers to.
            active: Whether the function is differentiated by it.
            batched: Whether it stands for a batch of values, so that a branch on it has no single answer.
        """
        index = self._give(value, INPUT, active)
        self.tracked[id(value)] = index
        self._inputs.append(index)
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
        nodes.append(_new(Node, (index, op, args, kwargs, output, operands, value.shape, value.dtype, None, active)))
        self.values.append(value)
        self.tracked[id(value)] = index
        return index

    def index_of(self, value: torch.Tensor) -> int:
        """Return the node of a tensor, which becomes a constant if it is not a node yet."""
        index = self.tracked.get(id(value))
        if index is None:
            index = self._constants.get(id(value))
        if index is None:
            index = self._constants[id(value)] = self._give(value, CONSTANT, False)
        return index

    def enter(self, calls: Iterable[tuple[Any, tuple, dict, Any]]) -> None:
        """Append the nodes of op calls, each with its arguments and what it returned, in order.

        A call that takes no tracked tensor only leaves what it returned among the untracked.
        """
        tracked = self.tracked
        for op, args, kwargs, out in calls:
            operands: list[int] = []
            if not self._takes_tracked(args) and not (kwargs and self._takes_tracked(kwargs.values())):
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
                    self.add(value, op, template, tuple(operands), keywords, place if several else None)

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
        tracked = self.tracked
        for arg in args:  # noqa: SIM110 - twice as fast as any() over a generator
            if id(arg) in tracked or (type(arg) in _SEQUENCES and self._takes_tracked(arg)):
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
            elif arg == 0 and type(arg) is float and str(arg) == "-0.0":
                result.append(NEGATIVE_ZERO)
            else:
                result.append(arg)
        return tuple(result)

    def graph(self, outputs: Sequence[torch.Tensor]) -> Graph:
        """Return what was recorded, as the graph of the given outputs."""
        indices = tuple([self.index_of(output) for output in outputs])
        return Graph(tuple(self.nodes), tuple(self._inputs), indices)

    def _give(self, value: torch.Tensor, kind: str, active: bool) -> int:
        index = len(self.nodes)
        self.nodes.append(Node(index, kind, (), (), None, (), value.shape, value.dtype, value.device, active))
        self.values.append(value)
        return index
