"""Lowering: from the ops that were recorded to ops that have derivatives of their own.

Composite ops are expanded where they stand, by recording the short function that defines them on the values at hand.
What the recording already computed is kept: the result of a composite is still the recorded value, and of the inner
values the program computes only those that a derivative asks for.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._decomp import decomposition_table
from torch.utils._python_dispatch import _disable_current_modes

from hofunc.graph.node import CONSTANT, Call, Graph, Node, call_of, renumbered
from hofunc.graph.standin import outside_transforms
from hofunc.graph.tape import Tape
from hofunc.rules.kinds import Composite, Constant, Rule
from hofunc.rules.opaque import opaque_rule
from hofunc.rules.registry import RULES


class Lowered(NamedTuple):
    """A graph in which every active op has a rule with derivatives.

    Attributes:
        graph: The graph.
        origins: Where the value of each node comes from: the number of a recorded node, a tensor, or None if the
            program has to compute it.
        rules: The rule of every active node that is not given.
        numbers: For each recorded node that is needed, the node that has its value.
        dynamic: Whether shapes inside an expansion depend on values, so that a plan is good for one call only.
    """

    graph: Graph
    origins: tuple[int | torch.Tensor | None, ...]
    rules: dict[int, Rule]
    numbers: dict[int, int]
    dynamic: bool


def lower(graph: Graph, values: Sequence[torch.Tensor]) -> Lowered:
    """Expand every composite op of a recorded graph.

    Args:
        graph: The recorded graph.
        values: The value of each of its nodes.
    """
    return _Lowering(graph, values).result()


class _Lowering:
    def __init__(self, graph: Graph, values: Sequence[torch.Tensor]):
        self.graph = graph
        self.values = values
        self.nodes: list[Node] = []
        self.origins: list[int | torch.Tensor | None] = []
        self.rules: dict[int, Rule] = {}
        self.numbers: dict[int, int] = {}
        self.expansions: dict[tuple, tuple[int, ...]] = {}
        self.dynamic = False

    def result(self) -> Lowered:
        live = _live(self.graph)
        for node in self.graph.nodes:
            if node.index in live:
                self.numbers[node.index] = self._lower(node)
        ends = ([self.numbers[i] for i in indices] for indices in self.graph[1:])
        graph = Graph(tuple(self.nodes), *map(tuple, ends))
        return Lowered(graph, tuple(self.origins), self.rules, self.numbers, self.dynamic)

    def _lower(self, node: Node) -> int:
        if node.is_given:
            return self._append(node, (), node.active, node.index)
        operands = tuple(self.numbers[index] for index in node.operands)
        if not node.dtype.is_floating_point or not any(self.nodes[index].active for index in operands):
            return self._append(node, operands, False, node.index)
        rule = rule_of(node, self.values)
        if isinstance(rule, Constant):
            return self._append(node, operands, False, node.index)
        if isinstance(rule, Composite):
            return self._expand(node, operands, rule)
        index = self._append(node, operands, True, node.index)
        self.rules[index] = rule
        return index

    def _append(self, node: Node, operands: tuple[int, ...], active: bool, origin: int | torch.Tensor | None) -> int:
        index = len(self.nodes)
        numbers = dict(zip(node.operands, operands, strict=True))
        self.nodes.append(
            node._replace(
                index=index,
                args=renumbered(node.args, numbers),
                kwargs=renumbered(node.kwargs, numbers),
                operands=operands,
                active=active,
            )
        )
        self.origins.append(origin)
        return index

    def _expand(self, node: Node, operands: tuple[int, ...], rule: Composite) -> int:
        """Put the nodes of a composite in place of a node; returns the one that has its value."""
        key = (call_of(node), node.operands)
        if key not in self.expansions:
            activity = [self.nodes[index].active for index in operands]
            inner = expansion(rule.function, node, [self.values[index] for index in node.operands], activity)
            self.dynamic |= inner.dynamic or any(_has_dynamic_shape(part.op) for part in inner.graph.nodes)
            numbers = dict(zip(inner.graph.inputs, operands, strict=True))
            for part, origin in zip(inner.graph.nodes, inner.origins, strict=True):
                if part.index in numbers:
                    continue
                index = self._append(
                    part,
                    tuple(numbers[operand] for operand in part.operands),
                    part.active,
                    origin if isinstance(origin, torch.Tensor) else None,
                )
                if part.index in inner.rules:
                    self.rules[index] = inner.rules[part.index]
                numbers[part.index] = index
            self.expansions[key] = tuple(numbers[index] for index in inner.graph.outputs)
        place = node.output or 0
        if place >= len(self.expansions[key]):
            return self._append(node, operands, False, node.index)  # an output that the composite leaves out
        index = self.expansions[key][place]
        if self.origins[index] is None:
            self.origins[index] = node.index
        return index


def _live(graph: Graph) -> set[int]:
    """Return the nodes that the outputs need, and the inputs."""
    live = {*graph.inputs, *graph.outputs, *graph.aux}
    for node in reversed(graph.nodes):
        if node.index in live:
            live.update(node.operands)
    return live


def _has_dynamic_shape(op: Any) -> bool:
    return isinstance(op, torch._ops.OpOverload) and torch.Tag.dynamic_output_shape in op.tags


def expansion(function: Callable, node: Node, values: Sequence[torch.Tensor], activity: Sequence[bool]) -> Lowered:
    """Record and lower the function of a composite; the inputs of the graph are the operands of the node, in order."""
    tape = Tape()
    with isolated():
        stand_ins = [value.detach() for value in values]
        for value, active in zip(stand_ins, activity, strict=True):
            tape.ledger.add_input(value, active=active)
        with tape:
            result = Call(function, node.args, node.kwargs)(*stand_ins)
        outputs = [result] if isinstance(result, torch.Tensor) else list(result)
        graph = tape.graph([output if isinstance(output, torch.Tensor) else values[0] for output in outputs])
        lowered = lower(graph, tape.ledger.values)
    origins = tuple(
        tape.ledger.values[origin] if isinstance(origin, int) and graph.nodes[origin].op is CONSTANT else origin
        for origin in lowered.origins
    )
    return lowered._replace(origins=origins)


@contextmanager
def isolated() -> Iterator[None]:
    """Set running transforms and modes aside."""
    with _disable_current_modes(), outside_transforms(), torch.enable_grad():
        yield


def rule_of(node: Node, values: Sequence[torch.Tensor]) -> Rule | Composite | Constant:
    """Find the rule of a node: its own, torch's decomposition of the op, or the opaque fallback."""
    rule = RULES.get(node.op)
    if rule is not None:
        return rule
    if isinstance(node.op, torch._ops.OpOverload):
        for decomposition in (decomposition_table.get(node.op), _implicit_decomposition(node.op)):
            if decomposition is not None and _is_usable(decomposition, node, values):
                return Composite(decomposition)
    return opaque_rule(node.op)


def _implicit_decomposition(op: torch._ops.OpOverload) -> Callable | None:
    """Return torch's own definition of an op by other ops, if it has one."""
    has_one = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    return op.decompose if has_one else None


def _is_usable(function: Callable, node: Node, values: Sequence[torch.Tensor]) -> bool:
    """Tell whether a decomposition of torch consists of aten ops and computes the recorded value.

    Some draw random numbers or are meant for other devices, and some go by internal ops without derivatives.
    """
    tape = Tape()
    with isolated():
        operands = [values[index].detach() for index in node.operands]
        for operand in operands:
            tape.ledger.add_input(operand, active=True)
        with tape:
            result = Call(function, node.args, node.kwargs)(*operands)
    part = result if node.output is None else result[node.output]
    value = values[node.index].detach()
    tolerance = torch.finfo(value.dtype).eps ** 0.5
    return (
        all(getattr(inner.op, "namespace", "aten") == "aten" for inner in tape.graph(()).nodes)
        and isinstance(part, torch.Tensor)
        and part.shape == value.shape
        and torch.allclose(part, value, rtol=tolerance, atol=tolerance, equal_nan=True)
    )
