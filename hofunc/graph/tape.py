"""The tape: records a function, while it runs, as a graph of aten ops with their real values.

The tape is a dispatch mode below autograd and torch.func, so the values that it keeps carry autograd history, nested
transforms inside the function arrive as the plain ops they are made of, and branches are simply taken.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hofunc.graph.node import CONSTANT, INPUT, NEGATIVE_ZERO, Graph, Node, Ref
from hofunc.graph.purity import check_branch, check_context, check_writes, effects

_DETACH = torch.ops.aten.detach.default
_SEQUENCES = (list, tuple)
_new: Any = tuple.__new__  # a NamedTuple from a tuple, at a third of the cost of calling it; this is the hot path


class Tape(TorchDispatchMode):
    """Records every op that depends on a tracked tensor.

    Tracked are the inputs and all that is computed from them; any other tensor that such an op takes is a constant.

    Attributes:
        nodes: What was recorded, in order.
        values: The value of every node. Holding them also keeps their ids from being used again.
        untracked: What ops that depend on no input returned, with the op.
        detached: Ids of the values that ``detach`` returned.
        batched: Nodes of the inputs that stand for a batch of values.
        task: Identifies the backward pass during which the recording began, if any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.values: list[torch.Tensor] = []
        self.untracked: list[tuple[Any, Any]] = []
        self.detached: set[int] = set()
        self.batched: set[int] = set()
        self._inputs: list[int] = []
        self._tracked: dict[int, int] = {}
        self._constants: dict[int, int] = {}
        self.task = torch._C._current_graph_task_id()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the wrapper that True asks for costs an import of dynamo, and time at every op

    def add_input(self, value: torch.Tensor, *, active: bool, batched: bool = False) -> None:
        """Track a tensor.

        Args:
            value: The tensor, an object that nothing outside refers to.
            active: Whether the function is differentiated by it.
            batched: Whether it stands for a batch of values, so that a branch on it has no single answer.
        """
        index = self._give(value, INPUT, active)
        self._tracked[id(value)] = index
        self._inputs.append(index)
        if batched:
            self.batched.add(index)

    def index_of(self, value: torch.Tensor) -> int:
        """Return the node of a tensor, which becomes a constant if it is not a node yet."""
        index = self._tracked.get(id(value))
        if index is None:
            index = self._constants.get(id(value))
        if index is None:
            index = self._constants[id(value)] = self._give(value, CONSTANT, False)
        return index

    def graph(self, outputs: Sequence[torch.Tensor]) -> Graph:
        """Return what was recorded, as the graph of the given outputs."""
        indices = tuple([self.index_of(output) for output in outputs])
        return Graph(tuple(self.nodes), tuple(self._inputs), indices)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        tracked = self._is_tracked(args) or bool(kwargs and self._is_tracked(kwargs.values()))
        if effects(func).writes:
            check_writes(self, func, args, kwargs, tracked)
        if not tracked:
            out = func(*args, **kwargs)
            self.untracked.append((func, out))
            return out
        records = torch.is_grad_enabled()
        if not records or func is _DETACH:
            check_context(self, func, args)
        out = func(*args, **kwargs)
        operands: list[int] = []
        template = self._encode(args, operands)
        keywords = tuple(zip(kwargs, self._encode(kwargs.values(), operands), strict=True)) if kwargs else ()
        if type(out) is torch.Tensor and records and not self.batched:
            self._add(out, func, template, keywords, None, tuple(operands))
        else:
            check_branch(self, func, operands, out)
            several = isinstance(out, list | tuple)
            for place, item in enumerate(out if several else [out]):
                if isinstance(item, torch.Tensor):
                    self._add(item, func, template, keywords, place if several else None, tuple(operands))
                    if not records:
                        self._detach(item)
        return out

    def _is_tracked(self, args: Iterable) -> bool:
        tracked = self._tracked
        for arg in args:
            if id(arg) in tracked or (type(arg) in _SEQUENCES and self._is_tracked(arg)):
                return True
        return False

    def _encode(self, args: Iterable, operands: list[int]) -> tuple:
        """Put Refs in place of tensors and tuples in place of lists; the indices of the tensors go to operands."""
        result = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                index = self._tracked.get(id(arg))
                if index is None:
                    index = self.index_of(arg)
                operands.append(index)
                arg = _new(Ref, (index,))
            elif type(arg) in _SEQUENCES:
                arg = self._encode(arg, operands)
            elif arg == 0 and type(arg) is float and str(arg) == "-0.0":
                arg = NEGATIVE_ZERO
            result.append(arg)
        return tuple(result)

    def _add(
        self, value: torch.Tensor, op: Any, args: tuple, kwargs: tuple, output: int | None, operands: tuple[int, ...]
    ) -> None:
        if id(value) in self._tracked:
            return  # an op that returned its argument
        nodes = self.nodes
        index = len(nodes)
        active = True in [nodes[operand].active for operand in operands]
        nodes.append(_new(Node, (index, op, args, kwargs, output, operands, value.shape, value.dtype, None, active)))
        self.values.append(value)
        self._tracked[id(value)] = index
        if op is _DETACH:
            self.detached.add(id(value))

    def _detach(self, value: torch.Tensor) -> None:
        """Record that a value was computed where gradients are off, by a node of its own."""
        index = self._tracked.pop(id(value))
        self._add(value, _DETACH, (Ref(index),), (), None, (index,))

    def _give(self, value: torch.Tensor, kind: str, active: bool) -> int:
        index = len(self.nodes)
        self.nodes.append(Node(index, kind, (), (), None, (), value.shape, value.dtype, value.device, active))
        self.values.append(value)
        return index
