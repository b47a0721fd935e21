"""Graphs that are made anew of a lowered one, node by node, with nodes of programs and of calls between them."""

from collections.abc import Mapping, Sequence
from math import prod
from operator import getitem
from types import MappingProxyType
from typing import cast

import torch

from hofunc.graph.node import CONSTANT, Call, Graph, Node, Ref, refs, renumbered
from hofunc.plan.program import AsStep, Program, Register, Table
from hofunc.plan.strategies import computing_dtype
from hofunc.plan.tracing import Trace
from hofunc.rules.kinds import Rule
from hofunc.rules.lower import Lowered, Origin
from hofunc.rules.registry import RULES

aten = torch.ops.aten


class Rebuilt:
    """A graph as far as it is made.

    Args:
        lowered: The graph in place of which it is.

    Attributes:
        nodes: Its nodes.
        origins: Where their values come from.
        rules: The rules of those that are active.
        numbers: By node of the graph in place of which it is, the node that stands for it.
        dtype: The dtype to compute in.
    """

    def __init__(self, lowered: Lowered):
        self._given = lowered
        self.nodes: list[Node] = []
        self.origins: list[Origin] = []
        self.rules: dict[int, Rule] = {}
        self.numbers: dict[int, int] = {}
        self.dtype = computing_dtype(lowered)
        self._flats: dict[int, int] = {}

    def finished(self) -> Lowered:
        """Return the graph."""
        numbers, given = self.numbers, self._given
        named = {
            name: tuple([numbers[each] for each in getattr(given.graph, name)]) for name in ("inputs", "outputs", "aux")
        }
        return given._replace(
            graph=Graph(tuple(self.nodes), **named),
            origins=tuple(self.origins),
            rules=self.rules,
            numbers={recorded: numbers[number] for recorded, number in given.numbers.items()},
            values=MappingProxyType({}),
            turned=frozenset([numbers[number] for number in given.turned if number in numbers]),
        )

    def copy(self, node: Node, origin: Origin, numbers: Mapping[int, int], *, is_constant: bool) -> int:
        """Append a node as it was, of operands by their numbers; of one that is constant, its value only."""
        operands = tuple([numbers[operand] for operand in node.operands])
        number = len(self.nodes)
        active = node.active and not is_constant
        self.nodes.append(node.moved(number, operands, active=active))
        self.origins.append(origin)
        if active and node.number in self._given.rules:
            self.rules[number] = self._given.rules[node.number]
        return number

    def reshaped(self, number: int, shape: tuple[int, ...]) -> int:
        """Append a node of another shape."""
        rule = cast(Rule, RULES[aten.reshape.default]) if self.nodes[number].active else None
        return self.append(Call(aten.reshape.default, (Ref(number), shape)), shape, rule=rule)

    def append(
        self,
        call: Call,
        shape: Sequence[int],
        dtype: torch.dtype | None = None,
        *,
        output: int | None = None,
        rule: Rule | None = None,
    ) -> int:
        """Append a node that is computed by a call, of the dtype of steps if no other is given.

        Derivatives go through it if it has a rule.
        """
        number, operands = len(self.nodes), tuple([ref.node for ref in (*refs(call.args), *refs(call.kwargs))])
        looks = operands, tuple(shape), dtype or self.dtype
        self.nodes.append(Node(number, call.op, call.args, call.kwargs, output, *looks, None, rule is not None))
        self.origins.append(None)
        if rule is not None:
            self.rules[number] = rule
        return number

    def constant(self, tensor: torch.Tensor) -> int:
        """Append a node that is a tensor."""
        number, shape = len(self.nodes), tuple(tensor.shape)
        self.nodes.append(Node(number, CONSTANT, (), (), None, (), shape, tensor.dtype, tensor.device, False))
        self.origins.append(tensor)
        return number

    def flat(self, number: int) -> int:
        """Return a node as a vector."""
        if number not in self._flats:
            self._flats[number] = self.reshaped(number, (prod(self.nodes[number].shape),))
        return self._flats[number]

    def stack(self, numbers: Sequence[int]) -> int:
        """Append nodes as one tensor."""
        first = self.nodes[numbers[0]]
        shape = len(numbers), *first.shape
        rule = cast(Rule, RULES[aten.stack.default]) if any(self.nodes[each].active for each in numbers) else None
        return self.append(Call(aten.stack.default, (tuple(map(Ref, numbers)), 0)), shape, first.dtype, rule=rule)

    def spliced(self, inner: Lowered, given: Sequence[int]) -> int:
        """Append the nodes of a lowered function of nodes; returns that of its result."""
        numbers = dict(zip(inner.graph.inputs, given, strict=True))
        for node, origin in zip(inner.graph.nodes, inner.origins, strict=True):
            if node.number in numbers:
                continue
            operands = tuple([numbers[operand] for operand in node.operands])
            active = node.active and any(self.nodes[operand].active for operand in operands)
            numbers[node.number] = number = len(self.nodes)
            self.nodes.append(node.moved(number, operands, active=active))
            self.origins.append(origin if isinstance(origin, torch.Tensor) else None)
            if active:
                self.rules[number] = inner.rules[node.number]
        (output,) = inner.graph.outputs
        return numbers[output]

    def inlined(self, program: Program, trace: Trace, given: Sequence[int]) -> list[int]:
        """Append the steps of a program; returns the nodes of its results."""
        numbers: dict[int, int] = {}
        several: dict[int, Call] = {}  # what computes several tensors at once
        for register, (origin, *_) in program.given.items():
            held = origin.made() if isinstance(origin, Table) else origin
            numbers[register] = given[held] if isinstance(held, int) else self.constant(held)
        for step in program.steps:
            function, output = step.function, None
            if function is getitem and step.args[0].index in several:
                call, output = several[step.args[0].index], step.args[1]
            elif isinstance(function, Call):
                taken = [numbers[arg.index] for arg in step.args]
                call = Call(function.op, *renumbered((function.args, function.kwargs), taken))
            else:
                args = [Ref(numbers[arg.index]) if type(arg) is Register else arg for arg in step.args]
                call = Call(AsStep(function), tuple(args))
            held = trace.values[step.target]
            if type(held) is tuple:
                several[step.target] = call
            else:
                numbers[step.target] = self.append(call, held.kind.shape, held.kind.dtype, output=output)
        return [numbers[register] for register in program.outputs]
