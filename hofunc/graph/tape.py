"""The tape: records a function, while it runs, as a graph of aten ops with their real values.

The tape is a dispatch mode below autograd and torch.func, so the values that it keeps carry autograd history, nested
transforms inside the function arrive as the plain ops they are made of, and branches are simply taken.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hofunc.graph.node import CONSTANT, INPUT, NEGATIVE_ZERO, Graph, Node, Ref
from hofunc.graph.purity import check_branch, check_context, check_written
from hofunc.graph.storage import Storages, effects, storage_key

_DETACH = torch.ops.aten.detach.default
_SEQUENCES = (list, tuple)
_new: Any = tuple.__new__  # a NamedTuple from a tuple, at a third of the cost of calling it; this is the hot path


class Tape(TorchDispatchMode):
    """Records every op that depends on a tracked tensor.

    Tracked are the inputs and all that is computed from them; any other tensor that such an op takes is a constant.

    Attributes:
        nodes: What was recorded, in order.
        values: The value of every node. Holding them also keeps their ids from being used again.
        tracked: The node of every tracked tensor, by its id.
        detached: Ids of the values that ``detach`` returned.
        batched: Nodes of the inputs that stand for a batch of values.
        task: Identifies the backward pass during which the recording began, if any.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.values: list[torch.Tensor] = []
        self.tracked: dict[int, int] = {}
        self.detached: set[int] = set()
        self.batched: set[int] = set()
        self.task = torch._C._current_graph_task_id()
        self._inputs: list[int] = []
        self._constants: dict[int, int] = {}
        self._untracked: list[tuple[Any, Any]] = []
        self._storages = Storages(self)

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
        self.tracked[id(value)] = index
        self._inputs.append(index)
        if batched:
            self.batched.add(index)

    def index_of(self, value: torch.Tensor) -> int:
        """Return the node of a tensor, which becomes a constant if it is not a node yet."""
        if self._storages and self._storages.holds(value):
            self._storages.refresh(value)
        index = self.tracked.get(id(value))
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
            return self._write(func, args, kwargs, tracked)
        if not tracked:
            out = func(*args, **kwargs)
            self._untracked.append((func, out))
            return out
        records = torch.is_grad_enabled()
        if not records or func is _DETACH:
            check_context(self, func, args)
        out = func(*args, **kwargs)
        operands: list[int] = []
        template = self.encode(args, operands)
        keywords = tuple(zip(kwargs, self.encode(kwargs.values(), operands), strict=True)) if kwargs else ()
        if self.batched:
            check_branch(self, func, operands, out)
        if type(out) is torch.Tensor:
            self._record(out, records, func, template, tuple(operands), keywords)
        elif isinstance(out, list | tuple):
            for place, item in enumerate(out):
                if isinstance(item, torch.Tensor):
                    self._record(item, records, func, template, tuple(operands), keywords, place)
        return out

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

    def encode(self, args: Iterable, operands: list[int]) -> tuple:
        """Put Refs in place of tensors and tuples in place of lists; the indices of the tensors go to operands."""
        result = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                index = self.tracked.get(id(arg))
                if index is None or self._storages:
                    index = self.index_of(arg)
                operands.append(index)
                arg = _new(Ref, (index,))
            elif type(arg) in _SEQUENCES:
                arg = self.encode(arg, operands)
            elif arg == 0 and type(arg) is float and str(arg) == "-0.0":
                arg = NEGATIVE_ZERO
            result.append(arg)
        return tuple(result)

    def allocated(self) -> dict[int, torch.Tensor]:
        """Return the tensors whose storages were allocated by ops of the function itself, by storage."""
        made = [(op, t) for op, out in self._untracked for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        made += [(n.op, v) for n, v in zip(self.nodes, self.values, strict=True) if isinstance(n.op, OpOverload)]
        return {**{storage_key(t): t for op, t in made if not effects(op).aliases}, **self._storages.owners}

    def _is_tracked(self, args: Iterable) -> bool:
        tracked = self.tracked
        for arg in args:
            if id(arg) in tracked or (type(arg) in _SEQUENCES and self._is_tracked(arg)):
                return True
            if self._storages and isinstance(arg, torch.Tensor) and self._storages.holds(arg):
                return True
        return False

    def _record(
        self,
        value: torch.Tensor,
        records: bool,
        op: Any,
        args: tuple,
        operands: tuple[int, ...],
        kwargs: tuple,
        output: int | None = None,
    ) -> None:
        """Append the node of an op's result; where autograd is off, it is detached by another node."""
        if id(value) in self.tracked:
            return  # an op that returned its argument
        index = self.add(value, op, args, operands, kwargs, output)
        if op is _DETACH:
            self.detached.add(id(value))
        elif not records:
            self.add(value, _DETACH, (Ref(index),), (index,))
        if self._storages:
            self._storages.adopt(value)

    def _write(self, op: Any, args: tuple, kwargs: dict, tracked: bool) -> Any:
        """Execute an op that writes, and record it if it concerns a tensor that the graph knows."""
        written = check_written(self, op, args, kwargs)
        if not tracked and not {storage_key(tensor) for tensor in written} & set(map(storage_key, self.values)):
            out = op(*args, **kwargs)
            self._untracked.append((op, out))
            return out
        if not torch.is_grad_enabled():
            check_context(self, op, args)
        if torch.Tag.inplace_view in op.tags:
            return self._storages.reshape_in_place(op, args, kwargs)
        return self._storages.write(op, args, kwargs, written)

    def _give(self, value: torch.Tensor, kind: str, active: bool) -> int:
        index = len(self.nodes)
        self.nodes.append(Node(index, kind, (), (), None, (), value.shape, value.dtype, value.device, active))
        self.values.append(value)
        return index
