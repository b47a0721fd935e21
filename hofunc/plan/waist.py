"""The waist of a function: a node that all of it goes through, and that is narrower than what comes before and after.

An energy of distances between points is computed of one number for each pair, which is made of six and becomes the
features of a message. By the numbers, the strategy mixed carries one derivative for each; by the inputs it carries all
of them through everything that follows. So the derivatives by the waist are computed by mixed, and become those by the
inputs as reverse eliminates nodes.

Source: preaccumulation at a vertex that separates inputs from outputs, Griewank and Walther, Evaluating Derivatives
(2008), chapter 10; here with derivatives of all orders.
"""

from collections.abc import Mapping
from math import inf, prod

from hofunc.algebra.operators import selection_of
from hofunc.graph.node import Graph
from hofunc.plan.blocks import Blocks, Local, is_nonlinear
from hofunc.plan.builder import Builder
from hofunc.plan.forward import Polynomials
from hofunc.plan.keys import Keys
from hofunc.plan.mixed import mixed
from hofunc.plan.packing import RowsMixError, Variable
from hofunc.plan.reverse import operands_of, reverse


def waist(graph: Graph, local: Mapping[int, Local]) -> int | None:
    """Return the narrowest node that all paths from inputs to outputs go through, and that is a waist; None if none is.

    Of several that are as narrow it is the last one.
    """
    found, parts = _separating(graph, local), _parts(graph, local)
    sizes = [prod(map(int, graph.nodes[node].shape)) for node in found]
    inputs = sum(prod(map(int, graph.nodes[n].shape)) for n in graph.inputs if graph.nodes[n].active)
    narrow = [
        (size, -node)
        for place, (node, size) in enumerate(zip(found, sizes, strict=True))
        if node not in parts and size < max(inputs, *sizes[: place + 1]) and size < max(sizes[place:])
    ]
    return -min(narrow)[1] if narrow else None


def _parts(graph: Graph, local: Mapping[int, Local]) -> set[int]:
    """Return the nodes of which every element is one of an input, whose derivatives are as narrow by that."""
    parts = {*graph.inputs}
    for node in sorted(local):
        terms = [term for each in local[node].values() for term in each]
        is_linear = len(operands_of(local[node])) == 1 and not is_nonlinear(local[node])
        is_read = all(selection_of(factor) is not None for term in terms for factor in term.factors)
        if is_linear and is_read and operands_of(local[node]) <= parts:
            parts.add(node)
    return parts


def _separating(graph: Graph, local: Mapping[int, Local]) -> list[int]:
    """Return the nodes that all paths from inputs to outputs go through, in order."""
    last: dict[int, float] = {}
    for node in sorted(local):
        last |= dict.fromkeys(operands_of(local[node]), node)
    last |= dict.fromkeys(graph.outputs, inf)
    reach = max((last.get(number, 0) for number in graph.inputs if graph.nodes[number].active), default=inf)
    found = []
    for node in sorted(local):
        if reach <= node:
            found.append(node)
        reach = max(reach, last.get(node, 0))
    return found


def through(builder: Builder, local: Mapping[int, Local], asked: Keys, node: int) -> Blocks:
    """Return the derivatives that are asked for, by way of those by a node that all paths go through.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node.
        asked: The keys of the blocks that are asked for.
        node: The node.
    """
    after = {number: each for number, each in local.items() if number > node}
    before = {number: each for number, each in local.items() if number <= node}
    keys = Keys(tuple(range(1, asked.highest + 1)), (node,))
    polynomials = Polynomials(builder, after, {node: Variable.of(builder.lowered.graph.nodes[node].shape)}, keys)
    while True:
        try:
            return reverse(builder, before, asked, start=mixed(polynomials))
        except RowsMixError as error:
            builder.node = None
            polynomials.without(error.variable, error.axes)
