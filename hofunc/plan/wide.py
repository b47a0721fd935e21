"""Wide nodes: those with far more elements than the narrow nodes that they are made of.

Attention has a weight for each pair of tokens, made of queries and keys, and becomes one output for each token. By the
strategy mixed such a node takes, for each of its elements, the square of the number of directions, and so do those
that follow it element by element. So they may be replaced before directions are multiplied, see `hofunc.plan.replaced`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hofunc.graph.node import Graph
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.reverse import operands_of
from hofunc.plan.widths import ORDER_OF_WAYS, Directions

MORE = 2  # times as many elements as what it is made of a wide node has
LARGE = 20_000_000  # multiplications by directions, below which it takes about as long to plan other ways as it saves
TIMES = 2  # as many as by the narrow nodes that wide ones are made of, from which on it may pay


def wide(directions: Directions, order: int) -> frozenset[int]:
    """Return the nodes to replace, for derivatives up to order two; none if it cannot pay."""
    if order != ORDER_OF_WAYS or directions.most < LARGE:
        return frozenset()
    graph, local, sizes = directions.graph, directions.local, directions.sizes
    found = _linear_before(graph, local, sizes, _much_wider(graph, local, sizes))
    starts = {operand for node in found for operand in operands_of(local[node])} - found - directions.inputs.keys()
    narrow = sum(sizes[node] for node in starts) * directions.count**2
    return found if found and directions.on_both_sides(found) >= max(LARGE, TIMES * narrow) else frozenset()


def _much_wider(graph: Graph, local: Mapping[int, Local], sizes: Sequence[int]) -> set[int]:
    """Return the nodes that have far more elements than the narrow ones that they are made of."""
    made_of: dict[int, frozenset[int]] = {}
    for node in sorted(local):
        operands = operands_of(local[node])
        sources = frozenset[int]().union(*[made_of.get(operand, {operand}) for operand in operands])
        if sizes[node] > MORE * sum(sizes[source] for source in sources) and node not in graph.outputs:
            made_of[node] = sources
    return {*made_of}


def _linear_before(graph: Graph, local: Mapping[int, Local], sizes: Sequence[int], found: set[int]) -> frozenset[int]:
    """Add linear nodes of one operand that only wide ones take, or what takes wide ones, back to where it is narrow."""
    takers: dict[int, set[int]] = defaultdict(set)
    for node in local:
        for operand in operands_of(local[node]):
            takers[operand].add(node)
    before: set[int] = set()
    for node in sorted(local, reverse=True) if found else ():
        is_linear = not is_nonlinear(local[node]) and len(operands_of(local[node])) == 1
        if is_linear and node not in found and node not in graph.outputs:
            others = takers[node] - found - before
            if all(not found.isdisjoint(operands_of(local[taker])) for taker in others):
                before.add(node)
    least: dict[int, int] = {}  # elements of what linear nodes start from
    for node in sorted(before):
        (operand,) = operands_of(local[node])
        size = least.get(operand, sizes[operand])
        if size <= sizes[node]:
            least[node] = size
    return frozenset(found.union(least))
