"""Preaccumulation: what follows a few nodes alone, row by row, is differentiated by those nodes first.

Filters of messages are made of one distance for each edge, by a dozen of nodes of many features. By the positions of
the atoms, each of these nodes has a derivative in three directions for every feature; by the distance it has one, and
all that they add to a second derivative is one number for each edge. So what they have by the node that they start from
is found first, and put in place of their local derivatives: polynomials by the inputs go through that node.

So it is with the steps of a recurrence: by all its inputs, each gate has a derivative in hundreds of directions, and by
what its own step takes in some dozens.

Source: preaccumulation of local derivatives, Griewank and Walther, Evaluating Derivatives (2008), chapter 10. The waist
(`hofunc.plan.waist`) is a node that everything goes through, and what follows may vary with several of its elements.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from math import prod
from typing import NamedTuple

from hofunc.algebra.labels import labels_of
from hofunc.algebra.operators import Delta, Map, selection_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.graph.node import Graph
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.builder import Builder
from hofunc.plan.contract import contracted
from hofunc.plan.forward import Polynomials
from hofunc.plan.keys import Keys
from hofunc.plan.packing import RowsMixError, Variable, opened
from hofunc.plan.recipes import interned
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


class Start(NamedTuple):
    """Nodes by which those that follow them are differentiated first.

    Attributes:
        region: Both.
        local: The local derivatives of those that follow.
        polynomials: Theirs by the nodes that they start from.
    """

    region: Region
    local: Mapping[int, Local]
    polynomials: Polynomials

    @property
    def keys(self) -> Iterator[Key]:
        """The keys of second derivatives."""
        return combinations_with_replacement(sorted(self.region.starts), 2)


class Preaccumulated(NamedTuple):
    """Local derivatives where some are preaccumulated.

    Attributes:
        local: Those by which polynomials are propagated.
        whole: Those by which adjoints are.
        starts: The nodes by which those that follow are differentiated first.
    """

    local: dict[int, Local]
    whole: dict[int, Local]
    starts: list[Start]


def preaccumulated(builder: Builder, local: dict[int, Local], found: Sequence[Region]) -> Preaccumulated:
    """Return local derivatives in which nodes of regions have that by their start in place of those by their operands.

    What they are, of nodes that nothing else takes, is left out; of orders from two on too, which the starts tell. Of
    what has no first derivative by its start nothing is left for polynomials, and no adjoint of the start either.
    """
    shapes = [node.shape for node in builder.lowered.graph.nodes]
    instead, whole, made = {**local}, {**local}, []
    for region in found:
        own, starts = {node: local[node] for node in region.nodes}, region.starts
        variables = {start: Variable(tuple(shapes[start]), frozenset(range(region.rows))) for start in starts}
        polynomials = Polynomials(builder, own, variables, Keys((1, 2), starts))
        for node in region.nodes:
            del instead[node]
            if region.is_flat:
                whole[node] = {key: terms for key, terms in local[node].items() if key[0] not in starts or key[1:]}
        for node in region.ends:
            instead[node] = {} if region.is_flat else _by_starts(polynomials, node)
        made.append(Start(region, own, polynomials))
    return Preaccumulated(instead, whole, made)


def eliminated(builder: Builder, local: dict[int, Local], highest: int) -> dict[int, Local]:
    """Return local derivatives in which nodes of regions have those by their start in place of those by their operands.

    They have them of all orders up to one, so that a strategy which replaces node by node goes from where messages are
    summed to the distances at once, and what it holds for each choice of several edges has no axis of features.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node.
        highest: The order.
    """
    graph, outputs = builder.lowered.graph, {*builder.lowered.graph.outputs}
    found = [region for region in regions(graph, local) if not region.is_flat]
    staying = outputs.union(*[region.starts for region in found])
    instead = {**local}
    for region in found:
        own = {node: local[node] for node in region.nodes}
        (start,) = region.starts
        variables = {start: Variable(tuple(graph.nodes[start].shape), frozenset(range(region.rows)))}
        polynomials = Polynomials(builder, own, variables, Keys(tuple(range(1, highest + 1)), region.starts))
        kept = dict.fromkeys([*region.ends, *(node for node in region.nodes if node in outputs)])
        try:
            by_start = {node: _by_starts(polynomials, node, highest) for node in kept}
        except RowsMixError:  # some vary with several elements, as where a matrix is multiplied with its transpose
            builder.node = None
            continue
        for node in region.nodes:
            del instead[node]
        instead |= by_start
        for node in kept:
            _sum_up(builder, instead, node, staying)
    return dict(sorted(instead.items())) if found else local


def _sum_up(builder: Builder, local: dict[int, Local], node: int, staying: Collection[int]) -> None:
    """Put a sum of elements of a node in its place, as long as it is all that takes the node, which may go.

    Outputs stay, and so does what a region starts from: those of the region are differentiated by it.
    """
    graph = builder.lowered.graph
    takers = [taker for taker, each in local.items() if node in operands_of(each)]
    while len(takers) == 1 and node not in staying and _is_sum(graph, local[takers[0]], takers[0], node):
        (outers,) = local[takers[0]].values()
        found: dict[Key, list[Term]] = {}
        for key, inners in local.pop(node).items():
            terms = [contracted(builder, outer, [inner]) for outer in outers for inner in inners]
            found[key] = [interned(builder, term) for term in terms if term is not None]
        (node,) = takers
        local[node] = {key: terms for key, terms in found.items() if terms}
        takers = [taker for taker, each in local.items() if node in operands_of(each)]


def _is_sum(graph: Graph, local: Local, node: int, operand: int) -> bool:
    """Tell whether elements of a node are sums of those of its only operand, of which each is in one of them."""
    sizes = [prod(map(int, graph.nodes[number].shape)) for number in (node, operand)]
    terms = [term for each in local.values() for term in each]
    factors = [factor for term in terms for factor in term.factors]
    is_read = all(selection_of(factor) is not None for factor in factors)
    return {*local} == {(operand,)} and len(terms) == 1 and is_read and sizes[0] <= sizes[1]


def _by_starts(polynomials: Polynomials, node: int, highest: int = 1) -> Local:
    """Return the derivatives of a node by what it starts from, of all orders up to one."""
    builder = polynomials.builder
    found: dict[Key, list[Term]] = {}
    for order in range(1, highest + 1):
        for key in combinations_with_replacement(sorted(polynomials.variables), order):
            terms = polynomials.coefficient(node, key)
            by_start = [opened(builder, polynomials.variables, term, [key]) for term in terms]
            if by_start or order == 1:
                found[key] = [interned(builder, term) for term in by_start]
    return found
