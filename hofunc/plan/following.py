"""What follows a few nodes alone, row by row, and so may be differentiated by these first, told from labels.

See `hofunc.plan.preaccumulated` for what is made of it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

from hofunc.algebra.labels import fresh_axes, labels_of
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Graph
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.reverse import operands_of
from hofunc.plan.states import added

MORE = 3  # times as many elements as a node has that nonlinear ones are to have that follow it


class Region(NamedTuple):
    """Nodes that vary with a few others, and with nothing else.

    Attributes:
        starts: These others.
        rows: How many of their first axes are rows, of which each varies with the same row only.
        nodes: Those that follow them, in order.
        ends: Those of them that others take.
        is_flat: Whether the ends have no first derivative by the starts.
    """

    starts: tuple[int, ...]
    rows: int
    nodes: tuple[int, ...]
    ends: tuple[int, ...]
    is_flat: bool = False


def regions(graph: Graph, local: Mapping[int, Local]) -> list[Region]:
    """Return the regions of a graph whose nodes are worth to be differentiated by the nodes that they start from."""
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
    steps = [*_of_steps(graph, local)]
    within = {node for region in steps for node in region.nodes}
    made = [
        Region((start,), len(graph.nodes[start].shape), tuple(nodes), _ends(nodes, takers, start))
        for start, nodes in inside.items()
        if within.isdisjoint(nodes) and _is_worth_it(graph, local, start, nodes)
    ]
    return [*steps, *[region for region in made if region.ends]]


def _ends(nodes: Iterable[int], takers: Mapping[int, set[int | None]], start: int) -> tuple[int, ...]:
    return tuple([node for node in nodes if takers[node] - {start}])


def _of_steps(graph: Graph, local: Mapping[int, Local]) -> Iterator[Region]:
    """Yield what all steps of a recurrence are, of which each is a row, see `hofunc.plan.recurrences`.

    What they make of the states and of all else that changes is taken by nothing but the node from which its first
    derivative is taken away. It has as many directions as a step takes elements, which are no more than the inputs'.
    """
    directions = sum(prod(graph.nodes[number].shape) for number in graph.inputs if graph.nodes[number].active)
    for end in [node for node in sorted(local) if graph.nodes[node].op is added]:
        gives, *starts = [operand for operand in graph.nodes[end].operands if graph.nodes[operand].active]
        nodes, left = {end}, [gives]
        while left:
            node = left.pop()
            if node in local and node not in nodes and node not in starts:
                nodes.add(node)
                left.extend(operands_of(local[node]))
        taken = {operand for node in nodes for operand in operands_of(local[node])}
        width = sum(prod(graph.nodes[start].shape[1:]) for start in starts)
        if taken - nodes == {*starts} and width <= directions:
            yield Region(tuple(starts), 1, tuple(sorted(nodes)), (end,), is_flat=True)


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


def counted(graph: Graph, local: Mapping[int, Local], highest: int) -> Mapping[int, Local]:
    """Return local derivatives as `eliminated` leaves them, of which those by starts can be counted alone."""
    found = leaving(graph, local)
    instead = {**local}
    for region, kept in found:
        for node in region.nodes:
            del instead[node]
        for node in kept:
            out = fresh_axes(graph.nodes[node].shape)
            term = Term(1, (Factor(None, out),), out, ())  # each element varies with one of the start, which it tells
            (start,) = region.starts
            instead[node] = {(start,) * k: [term._replace(slots=((),) * k)] for k in range(1, highest + 1)}
    return dict(sorted(instead.items())) if found else local


def leaving(graph: Graph, local: Mapping[int, Local]) -> list[tuple[Region, list[int]]]:
    """Return the regions whose nodes are replaced by derivatives of some of them, the ends and outputs, with these."""
    outputs = {*graph.outputs}
    return [
        (region, [*dict.fromkeys([*region.ends, *(node for node in region.nodes if node in outputs)])])
        for region in regions(graph, local)
        if not region.is_flat
    ]
