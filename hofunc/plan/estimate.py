"""How many compositions a strategy makes, and how long they run, counted from which nodes take which, without any term.

What a plan takes to make, and to run where no tensor is large, is nearly in proportion to their number, so that the
strategy that needs least is planned first, and one that cannot be the better one need not be planned to be left out.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import comb, inf, prod
from typing import NamedTuple

from hofunc.algebra.extents import Rows
from hofunc.graph.node import Graph
from hofunc.plan.adjoints import subsets
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.reverse import Pending, elimination_order, substitutions
from hofunc.plan.slots import Slots, canonical
from hofunc.plan.wanted import Contraction, Contractions, Wanted, highest

MOST = 200_000  # compositions at which counting ends
HOPELESS = 10  # times as long as another strategy runs, likewise
ENTRIES = 50_000  # that run as long as the calls of a composition, most of them by some structure that is not seen here


class Estimate(NamedTuple):
    """What a strategy takes.

    Attributes:
        compositions: How many compositions of derivatives it makes.
        run: How long they run, in compositions of small tensors.
    """

    compositions: int
    run: float


def estimates(
    graph: Graph, local: Mapping[int, Local], wanted: Wanted, strategies: Sequence[str]
) -> dict[str, Estimate]:
    """Estimate what strategies take; that by blocks, which is counted block by block, is counted last."""
    by_blocks = "blocks" if isinstance(wanted, Contractions) else "reverse"
    found: dict[str, Estimate] = {}
    for name in sorted(strategies, key=lambda name: name == by_blocks):
        most = HOPELESS * min((each.run for each in found.values()), default=inf)
        found[name] = estimate(graph, local, wanted, name, most)
    return {name: found[name] for name in strategies}


def estimate(graph: Graph, local: Mapping[int, Local], wanted: Wanted, strategy: str, most: float = inf) -> Estimate:
    """Estimate what a strategy takes.

    Sizes are those of one row where rows are marked, as if nothing but rows had a structure.

    Args:
        graph: The graph.
        local: The local derivatives of its nodes.
        wanted: What is asked for.
        strategy: One of those by which it can be computed.
        most: What it may run before counting ends.
    """
    sizes = [prod(1 if isinstance(size, Rows) else int(size) for size in node.shape) for node in graph.nodes]
    rows = max((int(size) for node in graph.nodes for size in node.shape if isinstance(size, Rows)), default=1)
    if strategy == "blocks" or (strategy == "reverse" and not isinstance(wanted, Contractions)):
        return _of_reverse(graph, local, highest(wanted), sizes, rows / ENTRIES, most)
    if strategy == "each" and isinstance(wanted, Contractions):
        each = [fastest(graph, local, kind)[1] for kind in wanted.kinds()]
        return Estimate(sum(one.compositions for one in each), sum(one.run for one in each))
    if isinstance(wanted, Contractions):
        return _of_jets(graph, local, wanted, sizes, rows / ENTRIES, strategy)
    return _of_directions(graph, local, highest(wanted), sizes, rows / ENTRIES, is_mixed=strategy == "mixed")


def fastest(graph: Graph, local: Mapping[int, Local], kind: Sequence[Contraction]) -> tuple[str, Estimate]:
    """Return the strategy by which contractions of one kind should be the fastest alone, and what it takes."""
    alone = Contractions((tuple(kind),))
    found = [(name, estimate(graph, local, alone, name)) for name in ("mixed", "reverse", "forward")]
    return min(found, key=lambda one: one[1].run)


def _of_directions(
    graph: Graph, local: Mapping[int, Local], order: int, sizes: Sequence[int], rate: float, *, is_mixed: bool
) -> Estimate:
    """Count the coefficients of all nodes by the inputs on which they depend."""
    inputs = [number for number in graph.inputs if graph.nodes[number].active]
    depends = {number: {number} for number in inputs}
    directions = {number: sizes[number] for number in inputs}
    total, run = 0, 0.0
    for node in sorted(local):
        operands = {operand for key in local[node] for operand in key}
        depends[node] = set().union(*(depends[operand] for operand in operands))
        directions[node] = sum(sizes[number] for number in depends[node])
        terms = sum(len(terms) for terms in local[node].values())
        total, run = total + is_mixed, run + is_mixed
        for k in range(1, order + 1):
            if k == order and is_mixed and not is_nonlinear(local[node]):
                continue
            keys = terms * comb(len(depends[node]) + k - 1, k)
            entries = comb(directions[node] + k - 1, k) * (1 if k == order and is_mixed else sizes[node])
            total, run = total + keys, run + keys + entries * rate
    return Estimate(total, run)


def _of_reverse(
    graph: Graph, local: Mapping[int, Local], order: int, sizes: Sequence[int], rate: float, most: float
) -> Estimate:
    """Count by eliminating nodes from the keys of blocks, those of all outputs together."""
    blocks = Pending()
    for output in graph.outputs:
        blocks.add((0, (output,)), ())
    total, run = 0, 0.0
    for node in elimination_order(local):
        for (_, key), _ in blocks.taken(node):
            rest, chosen = substitutions(node, key, local[node], order)
            for groups in chosen:
                target = tuple(sorted((*rest, *(operand for group in groups for operand in group))))
                total += 1
                run += 1 + rate * prod(sizes[other] for other in target)
                blocks.add((0, target), ())
        if total > MOST or run > most:
            break
    return Estimate(total, run)


def _of_jets(
    graph: Graph, local: Mapping[int, Local], wanted: Contractions, sizes: Sequence[int], rate: float, strategy: str
) -> Estimate:
    """Count the coefficients and adjoints of all nodes, each of contractions that have some in common once."""
    steps, entries = 0, 0.0
    nonlinear = sum(is_nonlinear(each) for each in local.values())
    width = sum(sizes[node] for node in local)
    met: set[Slots] = set()
    same: dict[Slots, Slots] = {}  # of each of many variables alone, along the same ones
    for contraction in chain(*wanted.sums):
        asked = contraction.of(graph)
        whole = asked.whole()
        extents = {name: 1 if isinstance(size, Rows) else int(size) for name, size in asked.sizes(graph).items()}
        count = len(whole.slots)
        if strategy == "reverse" and count:
            whole = asked.others(whole, asked.widest(graph))
        whole = same.setdefault(whole, whole)
        top = count - 1 if strategy == "mixed" else len(whole.slots)
        for part in (whole.part(places) for places in subsets(len(whole.slots)) if len(places) <= top):
            known, _ = canonical(part)
            if known in met:
                continue
            met.add(known)
            ways = 2 ** max(0, len(part.slots) - 1)
            passes = 2 if strategy == "reverse" else 1
            steps += passes * (len(local) + nonlinear * ways)
            entries += passes * width * prod(extents[name] for name in part.open)
        if strategy == "mixed":
            steps += nonlinear * 2**count
            entries += sum(map(int, map(extents.__getitem__, whole.open)))
    return Estimate(steps, steps + entries * rate)
