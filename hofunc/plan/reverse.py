"""The reverse strategy: eliminate the nodes of the graph one by one, from the outputs to the inputs.

A block is one derivative of one output by one multiset of nodes that are still live. Eliminating a node replaces it,
in every block that has it, by the nodes it is computed from. Source: thesis of THOAD, Algorithms 2 and 3; taking one
node at a time needs neither balanced layers nor identity nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

from hofunc.algebra.compose import compose
from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.partitions import Key, arrangements, choices
from hofunc.algebra.term import Term, identity, with_slots
from hofunc.plan.accumulate import accumulated
from hofunc.plan.blocks import Blocks, Local
from hofunc.plan.contract import contract
from hofunc.plan.program import Builder

Adding = Callable[[Builder, Sequence[Term]], list[Term]]
Elimination = Callable[[Builder, int, Key, Sequence[Term], Local, int], Iterator[tuple[Key, list[Term]]]]


def eliminated(
    builder: Builder, index: int, key: Key, terms: Sequence[Term], local: Local, highest: int
) -> Iterator[tuple[Key, list[Term]]]:
    """Replace a node in a block by what it is computed from: one composition for each choice of inner derivatives.

    By Schwarz's theorem the slots of the node are alike, and so are choices that differ in their order: each is
    composed once, and the block gets it once for every distinct way of dealing out its slots.
    """
    count = key.count(index)
    rest = tuple(variable for variable in key if variable != index)
    inner_keys = sorted(local)
    for chosen in choices([len(inner) for inner in inner_keys], count, highest - len(rest)):
        groups = [inner_keys[place] for place in chosen]
        composed = substituted(builder, index, key, terms, [local[group] for group in groups])
        target, orders = arrangements(rest, groups)
        yield target, [with_slots(term, order) for order in orders for term in composed]


def substituted(
    builder: Builder, index: int, key: Key, terms: Sequence[Term], inners: Sequence[Sequence[Term]]
) -> list[Term]:
    """Put inner derivatives into the slots of a block that a node has, one for each; the other slots come first."""
    composed = []
    for outer, *chosen in product(terms, *inners):
        supply = iter(chosen)
        term = compose(outer, [next(supply) if variable == index else None for variable in key])
        if term is not None:
            composed.append(contract(builder, term))
    return composed


def reverse(
    builder: Builder,
    local: dict[int, Local],
    orders: Sequence[int],
    *,
    add: Adding = accumulated,
    eliminate: Elimination = eliminated,
) -> Blocks:
    """Return the derivatives of every output by the active inputs, of the given orders.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node.
        orders: The orders wanted.
        add: Adds up the terms of a block.
        eliminate: Replaces a node in a block by what it is computed from.

    Returns:
        Contracted terms by output node and sorted tuple of input nodes; a block that vanishes is left out.
    """
    nodes, highest = builder.lowered.graph.nodes, max(orders)
    degrees = _degrees(builder, local, highest)
    blocks: Blocks = {}
    for output in dict.fromkeys(builder.lowered.graph.outputs):
        if nodes[output].active:
            blocks[output, (output,)] = [identity(fresh_axes(nodes[output].shape))]
    for index in sorted(local, reverse=True):
        for output, key in [block for block in blocks if index in block[1]]:
            terms = add(builder, blocks.pop((output, key)))
            for target, composed in eliminate(builder, index, key, terms, local[index], highest):
                if sum(degrees[variable] for variable in target) >= min(orders):
                    blocks.setdefault((output, target), []).extend(composed)
    result = {block: add(builder, terms) for block, terms in blocks.items() if len(block[1]) in orders}
    return {block: terms for block, terms in result.items() if terms}


def _degrees(builder: Builder, local: dict[int, Local], highest: int) -> list[int]:
    """Bound, for every node, the order up to which it has derivatives by the inputs, counting no further than highest.

    A block that cannot reach the lowest order that is wanted is dead: all of order one below the last nonlinear node.
    """
    degrees = [1] * len(builder.lowered.graph.nodes)
    for index in sorted(local):
        reached = (sum(degrees[variable] for variable in key) for key in local[index])
        degrees[index] = min(highest, max(reached, default=0))
    return degrees
