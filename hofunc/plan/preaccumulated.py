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

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from math import prod
from typing import NamedTuple

from hofunc.algebra.operators import selection_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.graph.node import Graph
from hofunc.plan.blocks import Local
from hofunc.plan.builder import Builder
from hofunc.plan.contract import contracted
from hofunc.plan.following import Region, leaving
from hofunc.plan.forward import Polynomials
from hofunc.plan.keys import Keys
from hofunc.plan.packing import RowsMixError, Variable, opened
from hofunc.plan.recipes import interned
from hofunc.plan.reverse import operands_of


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
        if not region.is_flat:
            polynomials.fill(own, 1)
        for node in region.ends:
            instead[node] = {} if region.is_flat else _by_starts(polynomials, node)
        made.append(Start(region, own, polynomials))
    return Preaccumulated(instead, whole, made)


def eliminated(builder: Builder, local: dict[int, Local], highest: int) -> dict[int, Local]:
    """Return local derivatives in which nodes of regions have those by their start in place of those by their operands.

    They have them of all orders up to one, so that a strategy which replaces node by node goes from where messages are
    summed to the distances at once, and what it holds for each choice of several edges has no axis of features.
    Polynomials by the inputs are made of the distances alone likewise.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node.
        highest: The order.
    """
    graph = builder.lowered.graph
    found = leaving(graph, local)
    staying = {*graph.outputs}.union(*[region.starts for region, _ in found])
    instead = {**local}
    for region, kept in found:
        own = {node: local[node] for node in region.nodes}
        (start,) = region.starts
        variables = {start: Variable(tuple(graph.nodes[start].shape), frozenset(range(region.rows)))}
        polynomials = Polynomials(builder, own, variables, Keys(tuple(range(1, highest + 1)), region.starts))
        try:
            polynomials.fill(own, highest)
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
