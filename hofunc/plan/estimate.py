"""How many compositions a strategy makes, counted from which nodes take which, without any term.

What a plan takes to make, and to run where no tensor is large, is nearly in proportion to them, so that the strategy
that needs least is planned first, and one that cannot be the better one need not be planned to be left out.
"""

from collections.abc import Mapping, Sequence
from math import comb

from hofunc.algebra.partitions import choices
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.reverse import elimination_order
from hofunc.rules.lower import Lowered

MOST = 200_000  # at which counting ends


def compositions(lowered: Lowered, local: Mapping[int, Local], orders: Sequence[int], strategy: str) -> int:
    """Estimate how many compositions of derivatives a strategy makes.

    Args:
        lowered: The graph.
        local: The local derivatives of its nodes.
        orders: The orders wanted.
        strategy: One of STRATEGIES.
    """
    if strategy == "reverse":
        return _of_reverse(lowered, local, max(orders))
    graph = lowered.graph
    inputs = [number for number in graph.inputs if graph.nodes[number].active]
    depends = {number: 1 << place for place, number in enumerate(inputs)}
    order, total = max(orders), 0
    for node in sorted(local):
        depends[node] = 0
        for operand in (operand for key in local[node] for operand in key):
            depends[node] |= depends.get(operand, 0)
        variables, nonlinear = depends[node].bit_count(), is_nonlinear(local[node])
        highest = order if strategy == "forward" or nonlinear else order - 1
        each = sum(len(terms) for terms in local[node].values())
        total += each * sum(comb(variables + k - 1, k) for k in range(1, highest + 1)) + (strategy == "mixed")
    return total


def _of_reverse(lowered: Lowered, local: Mapping[int, Local], order: int) -> int:
    """Count by eliminating nodes from the keys of blocks."""
    having: dict[int, set[tuple[int, ...]]] = {}
    for output in lowered.graph.outputs:
        having.setdefault(output, set()).add((output,))
    total = 0
    for node in elimination_order(local):
        keys, inner = sorted(local[node]), [len(key) for key in sorted(local[node])]
        for block in having.pop(node, ()):
            rest = tuple(other for other in block if other != node)
            for other in {*rest}:
                having[other].discard(block)
            for chosen in choices(inner, len(block) - len(rest), order - len(rest)):
                target = tuple(sorted((*rest, *(operand for place in chosen for operand in keys[place]))))
                total += 1
                for other in target:
                    having.setdefault(other, set()).add(target)
        if total > MOST:
            break
    return total
