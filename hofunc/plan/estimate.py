"""How many compositions a strategy makes, and how long they run, counted from which nodes take which, without any term.

What a plan takes to make, and to run where no tensor is large, is nearly in proportion to their number, so that the
strategy that needs least is planned first, and one that cannot be the better one need not be planned to be left out.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf, prod
from typing import NamedTuple

from hofunc.algebra import packed
from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import labels_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.graph.node import Graph
from hofunc.plan.adjoints import subsets
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.keys import Keys, Variables, depends_of, members
from hofunc.plan.reverse import elimination_order, is_reading, operands_of, substitutions
from hofunc.plan.rows import number_of_rows
from hofunc.plan.slots import Slots, canonical
from hofunc.plan.wanted import Contraction, Contractions, Wanted

MOST = 200_000  # compositions at which counting ends
CLOSE = 1.25  # times what the best strategy is estimated to run, up to which another one is likely to be faster
HOPELESS = 2  # times as long as another strategy runs, at which counting ends along slots, where estimates err by more
ENTRIES = 2500  # that run as long as the calls of a composition
JET_ENTRIES = 50_000  # likewise along slots, as most of them have some structure that is not seen here


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
    by_blocks, hopeless = ("blocks", HOPELESS) if isinstance(wanted, Contractions) else ("reverse", CLOSE)
    found: dict[str, Estimate] = {}
    extents = _Extents(graph, local, wanted)
    for name in sorted(strategies, key=lambda name: name == by_blocks):
        most = hopeless * min((each.run for each in found.values()), default=inf)
        found[name] = _estimate(extents, wanted, name, most)
    return {name: found[name] for name in strategies}


def estimate(graph: Graph, local: Mapping[int, Local], wanted: Wanted, strategy: str) -> Estimate:
    """Estimate what a strategy takes, one of those by which what is asked for can be computed."""
    return _estimate(_Extents(graph, local, wanted), wanted, strategy, inf)


def _estimate(extents: "_Extents", wanted: Wanted, strategy: str, most: float) -> Estimate:
    """Estimate what a strategy takes; counting ends where it runs longer than is of interest."""
    graph, local = extents.graph, extents.local
    if strategy == "blocks" or (strategy == "reverse" and not isinstance(wanted, Contractions)):
        return _of_reverse(extents, most)
    if strategy == "each" and isinstance(wanted, Contractions):
        each = [fastest(graph, local, kind)[1] for kind in wanted.kinds()]
        return Estimate(sum(one.compositions for one in each), sum(one.run for one in each))
    if isinstance(wanted, Contractions):
        return _of_jets(graph, local, wanted, strategy)
    return _of_directions(extents, is_mixed=strategy == "mixed")


def fastest(graph: Graph, local: Mapping[int, Local], kind: Sequence[Contraction]) -> tuple[str, Estimate]:
    """Return the strategy by which contractions of one kind should be the fastest alone, and what it takes."""
    alone = Contractions((tuple(kind),))
    found = [(name, _of_jets(graph, local, alone, name)) for name in ("mixed", "reverse", "forward")]
    return min(found, key=lambda one: one[1].run)


def _sizes_of_row(graph: Graph) -> list[int]:
    """Return the size of every node, of one row where it has rows."""
    return [prod([1 if isinstance(size, Rows) else int(size) for size in node.shape]) for node in graph.nodes]


class _Extents:
    """How many entries derivatives have: those of one row for each row as long as rows do not mix, or else of all.

    Args:
        graph: The graph.
        local: The local derivatives of its nodes.
        wanted: What is asked for.

    Attributes:
        graph: What was given.
        local: Likewise.
        asked: The keys of the blocks that are asked for.
        depends: The inputs on which each node depends.
    """

    def __init__(self, graph: Graph, local: Mapping[int, Local], wanted: Wanted):
        self.graph, self.local, self.asked = graph, local, Keys(wanted, graph.inputs)
        self._rows = number_of_rows(graph)
        self._of_row = _sizes_of_row(graph)
        inputs = [number for number in graph.inputs if graph.nodes[number].active]
        self.depends = depends_of(local, inputs)
        self._parts_of: dict[tuple[Variables, int], list[Key]] = {}
        self._of_all = [prod(map(int, node.shape)) for node in graph.nodes]
        self._outputs = {*graph.outputs}
        self._mixing: set[int] = set()  # nodes whose elements depend on several rows, other than by a sum
        self._parts = {*inputs}  # nodes of which every element is one of an input
        self._directions = {number: (self._of_row[number], self._of_all[number]) for number in inputs}
        for node in sorted(local):
            operands = operands_of(local[node])
            is_summed = self._rows is not None and not any(isinstance(size, Rows) for size in graph.nodes[node].shape)
            if is_summed and (is_nonlinear(local[node]) or not self._mixing.isdisjoint(operands)):
                self._mixing.add(node)
            if operands <= self._parts and is_reading(local[node]):
                self._parts.add(node)
            self._directions[node] = (
                self._varying(node, operands, self._of_row, 0),
                self._varying(node, operands, self._of_all, 1),
            )

    def _varying(self, node: int, operands: Collection[int], sizes: Sequence[int], place: int) -> int:
        """Return by how many elements of inputs a node varies at most."""
        inputs = sum(sizes[number] for number in members(self.depends[node]))
        if node in self._parts:
            return min(inputs, sizes[node])
        return min(inputs, sum(self._directions[operand][place] for operand in operands))

    def _of(self, node: int) -> tuple[Sequence[int], int, int]:
        """Return the sizes that count for a node, how often, and by how many elements of inputs it varies."""
        if node in self._mixing:
            return self._of_all, 1, self._directions[node][1]
        return self._of_row, self._rows or 1, self._directions[node][0]

    def keys(self, node: int, order: int) -> int:
        """Return how many coefficients of an order a node has."""
        if self.asked.are_chosen:
            return len(self._chosen(node, order))
        return packed.count(self.depends[node].bit_count(), order)

    def coefficient(self, node: int, order: int) -> int:
        """Return the entries of the packed coefficients of a node."""
        sizes, times, directions = self._of(node)
        if not self.asked.are_chosen:
            return times * sizes[node] * packed.count(directions, order)
        return times * sizes[node] * sum(_packed(key, sizes, directions) for key in self._chosen(node, order))

    def _chosen(self, node: int, order: int) -> list[Key]:
        """Return the keys of an order that a node has, where blocks are chosen."""
        place = self.depends[node], order
        if place not in self._parts_of:
            self._parts_of[place] = self.asked.among(self.depends[node], [order])
        return self._parts_of[place]

    def adjoint(self, node: int, order: int) -> int:
        """Return the entries of what a node makes of the coefficient of the outputs; of its adjoint, at order one."""
        sizes, times, directions = self._of(node)
        width = sum(sizes[output] for output in self._outputs)
        if order == 1:
            return times * width * sizes[node]
        if self.asked.are_chosen:
            keys = [key for key in self._chosen(node, order) if self.asked.has(key)]
            return times * width * sum(prod([min(sizes[each], directions) for each in key]) for key in keys)
        return times * width * (directions**2 if order == 2 else packed.count(directions, order))

    def sizes_of(self, nodes: Iterable[int]) -> tuple[list[int], list[int], int]:
        """Return the size of every node, that of one row, negative where it mixes rows, and the number of rows."""
        numbers = [*nodes]
        of_rows = [-1 if number in self._mixing else self._of_row[number] for number in numbers]
        return [self._of_all[number] for number in numbers], of_rows, self._rows or 1


def _packed(key: Key, sizes: Sequence[int], most: int) -> int:
    """Return the entries of the packed slots of a key, of variables that have some sizes, and count most at most."""
    return prod([packed.count(min(sizes[variable], most), n) for variable, n in Counter(key).items()])


def _of_directions(extents: _Extents, *, is_mixed: bool) -> Estimate:
    """Count the coefficients of all nodes by the inputs on which they depend; by mixed, those below the highest order.

    The highest is what nonlinear nodes make of it, by their adjoints.
    """
    total, entries, order = 0, 0, extents.asked.highest
    for node, blocks in sorted(extents.local.items()):
        degrees = [len(key) for key, terms in blocks.items() for _ in terms]
        for k in range(1, order + (not is_mixed)):
            if terms := sum(degree <= k for degree in degrees):
                total += terms * extents.keys(node, k)
                entries += extents.coefficient(node, k)
        if is_mixed:
            total += degrees.count(1)
            entries += extents.adjoint(node, 1)
            if terms := sum(1 < degree <= order for degree in degrees):
                total += terms * extents.keys(node, order)
                entries += extents.adjoint(node, order)
    return Estimate(total, total + entries / ENTRIES)


def _of_reverse(extents: _Extents, most: float) -> Estimate:
    """Count by eliminating nodes from the keys of blocks, those of all outputs together.

    A block has the entries of the one that it comes from, once for every index that is new in a local derivative; it
    has none of its own where a node only reads a part of another. Where counting ends early, it is in proportion to the
    nodes that are left.
    """
    local, asked = extents.local, extents.asked
    order = elimination_order(local)
    if most < inf and not asked.are_chosen and asked.highest > 1:
        least = _pairs_of_reverse(extents, order, most)
        if least.run > most:
            return least
    blocks = _Blocks(extents, order)
    for output in extents.graph.outputs:
        blocks.start(output)
    total, entries = 0, 0
    for done, node in enumerate(order, 1):
        growth = {key: max(map(_new, terms)) for key, terms in local[node].items() if terms}
        is_read, ways = is_reading(local[node]), {}
        for key, before in blocks.taken(node):
            rest = key[key.count(key[0]) :]
            case = len(key), len(rest)
            if case not in ways:
                _, chosen = substitutions(key[0], key, growth, asked.highest)
                ways[case] = [
                    (blocks.places(chain(*groups)), prod([growth[group] for group in groups])) for groups in chosen
                ]
            for operands, times in ways[case]:
                target = tuple(sorted(rest + operands))
                if asked.are_chosen and not asked.leads([extents.depends[node] for node in blocks.nodes(target)]):
                    continue
                after = min(before * times, blocks.size(target))
                total += 1
                entries += 0 if is_read else after
                blocks.add(target, after)
        if total > MOST or total + entries / ENTRIES > most:
            return Estimate(total * len(order) // done, (total + entries / ENTRIES) * len(order) / done)
    return Estimate(total, total + entries / ENTRIES)


def _pairs_of_reverse(extents: _Extents, order: Sequence[int], most: float) -> Estimate:
    """Count the compositions up to order two alone, without entries, from which nodes share a block.

    That is the least that reverse takes, told in a tenth of the time, and nearly all where no tensor is large. Where
    counting ends early, it is in proportion to the nodes that are left.
    """
    local, total = extents.local, 0
    alone, beside = {*extents.graph.outputs}, defaultdict[int, set[int]](set)
    for done, node in enumerate(order, 1):
        first = {key[0] for key, terms in local[node].items() if len(key) == 1 and terms}
        second = [key for key, terms in local[node].items() if len(key) == 2 and terms]
        others = beside.pop(node, set())
        if node in alone:
            total += len(first) + len(second)
            alone |= first
            for one, other in second:
                beside[one].add(other)
                beside[other].add(one)
        if node in others:
            others.discard(node)
            total += len(first) * (len(first) + 1) // 2
            for one in first:
                beside[one] |= first
        total += len(first) * len(others)
        for one in first if others else ():
            beside[one] |= others
        for other in others:
            beside[other] |= first
            beside[other].discard(node)
        if total > most:
            return Estimate(total * len(order) // done, total * len(order) / done)
    return Estimate(total, total)


class _Blocks:
    """The entries of blocks, by the places that their nodes have in the order in which these are eliminated.

    So the first node of a block is the next one that is eliminated of those that it has.

    Args:
        extents: How many entries derivatives have.
        order: The nodes in that order; inputs come after them.
    """

    def __init__(self, extents: _Extents, order: Sequence[int]):
        self._nodes = [*order, *sorted({*extents.depends}.difference(order))]
        self._places = {node: place for place, node in enumerate(self._nodes)}
        self._having: list[dict[Key, int]] = [{} for _ in self._nodes]
        self._sizes, self._of_rows, self._rows = extents.sizes_of(self._nodes)

    def places(self, nodes: Iterable[int]) -> Key:
        """Return the places of nodes."""
        return tuple([self._places[node] for node in nodes])

    def nodes(self, places: Key) -> Key:
        """Return the nodes at places."""
        return tuple([self._nodes[place] for place in places])

    def start(self, output: int) -> None:
        """Add the block of an output by itself, for all outputs together."""
        if output in self._places:
            self.add((self._places[output],), self.size((self._places[output],)))

    def add(self, key: Key, entries: int) -> None:
        """Add entries to a block."""
        having = self._having[key[0]]
        having[key] = having.get(key, 0) + entries

    def taken(self, node: int) -> Iterator[tuple[Key, int]]:
        """Yield the blocks that have a node, with their entries, and forget them."""
        place = self._places[node]
        having, self._having[place] = self._having[place], {}
        for key, entries in having.items():
            yield key, min(entries, self.size(key))

    def size(self, key: Key) -> int:
        """Return the most entries that a block can have."""
        entries, sizes = self._rows, self._of_rows
        for place in key:
            if sizes[place] < 0:  # it mixes rows
                entries, sizes = 1, self._sizes
                break
        for place in key:
            entries *= sizes[place]
        return entries


def _new(term: Term) -> int:
    """Return how many indices a local derivative has for each element of the node."""
    if all(slot is term.out for slot in term.slots):
        return 1
    return prod([int(label.size) for label in {*labels_of(*term.slots)} - {*labels_of(term.out)}])


def _of_jets(graph: Graph, local: Mapping[int, Local], wanted: Contractions, strategy: str) -> Estimate:
    """Count the coefficients and adjoints of all nodes, each of contractions that have some in common once."""
    steps, entries = 0, 0.0
    nonlinear = sum(is_nonlinear(each) for each in local.values())
    sizes, rows = _sizes_of_row(graph), number_of_rows(graph) or 1
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
    return Estimate(steps, steps + entries * rows / JET_ENTRIES)
