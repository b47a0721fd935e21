"""Graphs that go on through the steps of a program, so that these are differentiated as what a function does is."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.graph.node import CONSTANT, Graph
from hofunc.graph.record import record
from hofunc.graph.world import without_autocast
from hofunc.plan.gradients import given
from hofunc.plan.primal import Source, Whole
from hofunc.plan.program import Program
from hofunc.plan.wanted import Contraction, Contractions
from hofunc.run.executor import compiled


class Continued(NamedTuple):
    """A graph with the steps of a program after its nodes.

    Attributes:
        graph: The graph, of which the outputs are what the program returns.
        values: The values of its nodes.
        before: How many nodes there were before.
    """

    graph: Graph
    values: list[torch.Tensor]
    before: int

    @property
    def wanted(self) -> Contractions:
        """What the program returns, as contractions of no derivatives."""
        found = []
        for place, output in enumerate(self.graph.outputs):
            names = tuple([f"of {axis}" for axis, _ in enumerate(self.graph.nodes[output].shape)])
            found.append((Contraction((place, names), (), (), names),))
        return Contractions(tuple(found))

    def completed(self, program: Program, graph: Graph) -> Program:
        """Return a program that takes no values of the nodes that were added, but computes them.

        Args:
            program: The program.
            graph: What it is of: the graph, with nodes after its own that are given.
        """
        known = [given(node.number, node.shape, node) for node in graph.nodes[: self.before]]
        graph = graph._replace(nodes=(*known, *graph.nodes[self.before :]))
        sources: dict[int, Source] = {node.number: node.number for node in graph.nodes if node.is_given}
        sources |= {node.number: self.values[node.number] for node in self.graph.nodes if node.op is CONSTANT}
        whole = Whole(program, graph, {**sources, **{number: number for number in range(self.before)}})
        return whole.program(whole.outputs)


def continued(graph: Graph, program: Program, values: Any, learned: Collection[int]) -> Continued:
    """Return a graph that goes on through the steps of a program, in which what depends on some nodes is active.

    Args:
        graph: The graph.
        program: The program, which takes values of nodes.
        values: These.
        learned: The nodes on which what is active depends.
    """
    origins = [*dict.fromkeys(each.origin for each in program.given.values() if isinstance(each.origin, int))]
    run, taken = compiled(program), [values[number].detach() for number in origins]

    def called(tensors: Sequence[torch.Tensor], _: Any) -> list[torch.Tensor]:
        known: Any = dict(zip(origins, tensors, strict=True))
        return run(known)

    recording = without_autocast(record, called, taken)
    numbers = dict(zip(recording.graph.inputs, origins, strict=True))
    nodes, every = list(graph.nodes), [values[node.number] for node in graph.nodes]
    for node in recording.graph.nodes:
        if node.number not in numbers:
            numbers[node.number] = len(nodes)
            operands = tuple([numbers[operand] for operand in node.operands])
            nodes.append(node.moved(len(nodes), operands, active=node.active))
            every.append(recording.values[node.number])
    depending = {*learned}
    for node in nodes:
        is_active = node.number in depending or (node.active and not depending.isdisjoint(node.operands))
        depending |= {node.number} if is_active else set()
        nodes[node.number] = node._replace(active=is_active)
    outputs = tuple([numbers[output] for output in recording.graph.outputs])
    return Continued(Graph(tuple(nodes), graph.inputs, outputs), every, len(graph.nodes))
