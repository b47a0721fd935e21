"""The derivatives of one node by the nodes it is computed from, whatever positions those stand at."""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term, with_slots
from hofunc.graph.node import Graph, Node
from hofunc.rules.kinds import Positions, Rule, site_of


def local_derivatives(graph: Graph, node: Node, rule: Rule, order: int) -> dict[Key, list[Term]]:
    """Return the terms of every derivative of a node up to an order, by the sorted tuple of its variables.

    NOTE [repeated operands]: a node that takes one variable at several positions (`x * x`) is differentiated at each
    position, and the derivative by the variable is the sum over all ways to give a position to every slot.
    """
    site = site_of(graph, node)
    order_of = sorted({*node.operands}).index
    ranks = tuple(map(order_of, node.operands))
    result: dict[Key, list[Term]] = {}
    for size in range(1, order + 1):
        for positions in rule.positions(site, size):
            if not all(graph.nodes[node.operands[position]].active for position in positions):
                continue
            terms = rule.terms(site, positions)
            for slots in _assignments(ranks, positions):
                key = tuple(node.operands[positions[slot]] for slot in slots)
                result.setdefault(key, []).extend(with_slots(term, slots) for term in terms)
    return result


@lru_cache(maxsize=4096)
def _assignments(operands: tuple[int, ...], positions: Positions) -> list[Positions]:
    """List the distinct orders of the slots at these positions that put the slots' variables in ascending order.

    The variables are known by their ranks among the operands.
    """

    def extend(chosen: Positions, left: Counter[int]) -> Iterator[Positions]:
        if not left:
            yield chosen
            return
        lowest = min(operands[position] for position in left)
        for position in sorted(left):
            if operands[position] == lowest:
                taken = sum(positions[slot] == position for slot in chosen)
                yield from extend((*chosen, positions.index(position) + taken), left - Counter([position]))

    return list(extend((), Counter(positions)))
