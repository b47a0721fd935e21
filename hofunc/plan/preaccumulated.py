"""Preaccumulation: what follows one node alone, each element by itself, is differentiated by that node first.

Filters of messages are made of one distance for each edge, by a dozen of nodes of many features. By the positions of
the atoms, each of these nodes has a derivative in three directions for every feature; by the distance it has one, and
all that they add to a second derivative is one number for each edge. So what they have by the node that they start from
is found first, and put in place of their local derivatives: polynomials by the inputs go through that node.

Source: preaccumulation of local derivatives, Griewank and Walther, Evaluating Derivatives (2008), chapter 10. The waist
(`hofunc.plan.waist`) is a node that everything goes through, and what follows may vary with several of its elements.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from hofunc.algebra.labels import labels_of
from hofunc.algebra.operators import Delta, Map
from hofunc.graph.node import Graph
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.forward import Polynomials
from hofunc.plan.keys import Keys
from hofunc.plan.packing import Variable, opened
from hofunc.plan.program import Builder
from hofunc.plan.recipes import interned
from hofunc.plan.reverse import operands_of

MORE = 3  # times as many elements as a node has that nonlinear ones are to have that follow it


class Region(NamedTuple):
    """Nodes of which each element varies with one element of one node, and with nothing else.

    Attributes:
        start: That node.
        nodes: Those that follow it, in order.
        ends: Those of them that others take.
    """

    start: int
    nodes: tuple[int, ...]
    ends: tuple[int, ...]


def regions(graph: Graph, local: Mapping[int, Local]) -> list[Region]:
    """Return the regions of a graph whose nodes are worth to be differentiated by the node that they start from."""
    starts: dict[int, int] = {}
    tied: dict[int, Tied] = {}
    mixing: set[int] = set()  # nodes of which elements vary with several elements of the inputs
    inside: dict[int, list[int]] = defaultdict(list)
    for node in sorted(local):
        operands = operands_of(local[node])
        for operand in operands - tied.keys():
            tied[operand] = frozenset(range(len(graph.nodes[operand].shape)))
        if len(operands) > 1 or not mixing.isdisjoint(operands) or _tied(local[node], {}) is None:
            mixing.add(node)
        found = {starts.get(operand, operand) for operand in operands}
        axes = _tied(local[node], tied) if len(found) == 1 and found <= mixing else None
        if axes is not None:
            (starts[node],), tied[node] = found, axes
            inside[starts[node]].append(node)
    takers: dict[int, set[int | None]] = defaultdict(set)
    for node in local:
        for operand in operands_of(local[node]):
            takers[operand].add(starts.get(node))
    made = [
        Region(start, tuple(nodes), tuple([node for node in nodes if takers[node] - {start}]))
        for start, nodes in inside.items()
        if _is_worth_it(graph, local, start, nodes)
    ]
    return [region for region in made if region.ends]


Tied = frozenset[int]  # the axes of a node along which its elements vary with different elements of the start


def _tied(local: Local, tied: Mapping[int, Tied]) -> Tied | None:
    """Return the axes of a node that are tied to those of its operands, all of these if it is not told which.

    None if an element of the node varies with several elements along such axes, or if that is not known.
    """
    found: set[int] = set()
    for (operand, *others), terms in local.items():
        for term in terms if not others else []:
            (slot,) = term.slots
            own = tied.get(operand, range(len(slot)))
            labels = {label for label in labels_of(tuple([slot[axis] for axis in own])) if label.size != 1}
            if any(isinstance(factor.source, Delta | Map) for factor in term.factors):
                return None
            if not labels <= {*labels_of(term.out)}:
                return None
            found |= {place for place, axis in enumerate(term.out) if not labels.isdisjoint(labels_of((axis,)))}
    return frozenset(found)


def _is_worth_it(graph: Graph, local: Mapping[int, Local], start: int, nodes: Sequence[int]) -> bool:
    def size(node: int) -> int:
        return prod(map(int, graph.nodes[node].shape))

    return sum(size(node) for node in nodes if is_nonlinear(local[node])) >= MORE * size(start)


class Start(NamedTuple):
    """A node by which those that follow it are differentiated first.

    Attributes:
        node: The node.
        nodes: Those that follow it.
        local: The local derivatives of these.
        polynomials: Theirs by the node.
    """

    node: int
    nodes: tuple[int, ...]
    local: Mapping[int, Local]
    polynomials: Polynomials


def preaccumulated(
    builder: Builder, local: dict[int, Local], found: Sequence[Region]
) -> tuple[dict[int, Local], list[Start]]:
    """Return local derivatives in which nodes of regions have that by their start in place of those by their operands.

    What they are, of nodes that nothing else takes, is left out; of orders from two on too, which the starts tell.
    """
    instead, starts = {**local}, []
    for start, nodes, ends in found:
        own = {node: local[node] for node in nodes}
        variable = Variable.of(builder.lowered.graph.nodes[start].shape)
        polynomials = Polynomials(builder, own, {start: variable}, Keys((1, 2), (start,)))
        for node in nodes:
            del instead[node]
        for node in ends:
            terms = polynomials.coefficient(node, (start,))
            by_start = [opened(builder, polynomials.variables, term, [(start,)]) for term in terms]
            instead[node] = {(start,): [interned(builder, term) for term in by_start]}
        starts.append(Start(start, nodes, own, polynomials))
    return instead, starts
