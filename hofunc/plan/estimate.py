"""How many compositions a strategy makes, and how long they run, counted from which nodes take which, without any term.

What a plan takes to make, and to run where no tensor is large, is nearly in proportion to their number, so that the
strategy that needs least is planned first, and one that cannot be the better one need not be planned to be left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import inf, prod
from typing import NamedTuple

from hofunc.algebra import packed
from hofunc.algebra.extents import Rows
from hofunc.algebra.partitions import Key
from hofunc.graph.node import Graph
from hofunc.plan.adjoints import subsets
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.entries import Extents, sizes_of_row
from hofunc.plan.reverse import choices_of, elimination_order
from hofunc.plan.rows import number_of_rows
from hofunc.plan.slots import Places, Slots, canonical
from hofunc.plan.sums import FEW
from hofunc.plan.wanted import Contraction, Contractions, InGraph, Wanted

MOST = 200_000  # compositions at which counting ends
CLOSE = 1.02  # times what the best strategy is estimated to run, up to which another one is as likely to be faster
HOPELESS = 1.5  # times as long as another strategy runs, at which counting ends
BY_FAR = 4  # times as long as reverse may run, at which other strategies do not run as short, whatever is left out
HOPELESS_ALONG_SLOTS = 2  # likewise along slots, where estimates err by more
FUTILE_ALONG_SLOTS = 20  # times, from which on a strategy along slots is not planned even where that takes few steps
CLOSE_AS_TERMS = 4  # times, for results in terms, which take longer to read than to compute
ENTRIES = 2500  # that are computed as long as a call takes beyond them
CALLS = 2  # that a composition is
PLACED = 3  # calls, by which what is read from a part of a node is added to it; of an input, all are at once
CUTS = 2  # calls, by which a block of two inputs is cut out of that of all
TURNED = 2  # calls, by which a block gets a composition with its slots exchanged as well
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
    extents: Extents, wanted: Wanted, strategies: Sequence[str], *, compact: bool = False, joins: bool = False
) -> dict[str, Estimate]:
    """Estimate what strategies take, those along directions jointly if inputs may be joined and that pays.

    That by blocks, which is counted block by block, is counted last; along slots that first of which contractions by
    each of many variables have nearly all in common.
    """
    by_blocks, hopeless = (
        ("blocks", HOPELESS_ALONG_SLOTS) if isinstance(wanted, Contractions) else ("reverse", HOPELESS)
    )
    found: dict[str, Estimate] = {}
    along = _Along(extents.graph, extents.local, chain(*wanted.sums)) if isinstance(wanted, Contractions) else None
    for name in sorted(strategies, key=lambda name: (name == by_blocks, along is not None and name != "reverse")):
        most = max(hopeless, CLOSE_AS_TERMS * compact) * min((each.run for each in found.values()), default=inf)
        found[name] = _estimate(extents, wanted, name, most, along, joins=joins)
    return {name: found[name] for name in strategies}


def estimate(graph: Graph, local: Mapping[int, Local], wanted: Wanted, strategy: str) -> Estimate:
    """Estimate what a strategy takes, one of those by which what is asked for can be computed."""
    return estimates(Extents(graph, local, wanted), wanted, (strategy,))[strategy]


def _estimate(
    extents: Extents, wanted: Wanted, strategy: str, most: float, along: "_Along | None", *, joins: bool
) -> Estimate:
    """Estimate what a strategy takes; counting ends where it runs longer than is of interest."""
    if strategy == "blocks" or (strategy == "reverse" and along is None):
        found = _of_reverse(extents, most)
        return found._replace(compositions=found.compositions + extents.compositions)
    if strategy == "each" and isinstance(wanted, Contractions):
        each = [fastest(extents.graph, extents.local, kind)[1] for kind in wanted.kinds()]
        return Estimate(sum(one.compositions for one in each), sum(one.run for one in each))
    if along is not None:
        return along.by(strategy, most * FUTILE_ALONG_SLOTS / HOPELESS_ALONG_SLOTS)
    found = _of_directions(extents, is_mixed=strategy == "mixed", joins=joins)
    return found._replace(compositions=found.compositions + extents.compositions)


def fastest(graph: Graph, local: Mapping[int, Local], kind: Sequence[Contraction]) -> tuple[str, Estimate]:
    """Return the strategy by which contractions of one kind should be the fastest alone, and what it takes."""
    along = _Along(graph, local, kind)
    found = [(name, along.by(name)) for name in ("mixed", "reverse", "forward")]
    return min(found, key=lambda one: one[1].run)


def _of_directions(extents: Extents, *, is_mixed: bool, joins: bool) -> Estimate:
    """Count by directions of each input, or of all inputs as one variable where that pays and may be done."""
    apart = _directions(extents, is_mixed=is_mixed)
    joint = None
    if joins:
        joint = _jointly(extents, apart, is_mixed=is_mixed)
        extents.pays_jointly[is_mixed] = joint is not None
    return (joint or apart).estimate()


def pays_jointly(extents: Extents, *, is_mixed: bool) -> bool:
    """Tell whether it pays to vary all inputs jointly, as one variable, see `hofunc.plan.jointly`."""
    if is_mixed not in extents.pays_jointly:  # as nobody estimated it
        _of_directions(extents, is_mixed=is_mixed, joins=True)
    return extents.pays_jointly[is_mixed]


def _jointly(extents: Extents, apart: "_Count", *, is_mixed: bool) -> "_Count | None":
    """Count by directions of all inputs as one variable; None if that does not pay.

    It does if all that runs is less than what runs by each input alone, of which blocks have structure, as weights have
    of the layer that takes them, which is lost where they are parts of another one.
    """
    order = extents.asked.highest
    if extents.asked.are_chosen or extents.count < 2:
        return None
    joint = _directions(extents.jointly(), is_mixed=is_mixed)
    blocks = len(extents.graph.outputs) * packed.count(extents.count, order)
    joint.compositions += blocks
    joint.calls += CUTS * blocks
    if joint.run * CALLS >= apart.calls:  # which are so many whatever the blocks are
        compact = _directions(extents.compactly(), is_mixed=is_mixed) if joint.run < apart.run else apart
        return joint if joint.run < compact.run else None
    return joint


def _directions(extents: Extents, *, is_mixed: bool) -> "_Count":
    """Count the coefficients of all nodes by the inputs on which they depend; by mixed, those below the highest order.

    The highest is what nonlinear nodes make of it, by their adjoints.
    """
    total, order = _Count(), extents.asked.highest
    replaced = extents.wide if is_mixed else frozenset()
    nonlinear = sum(extents.facts(node).is_nonlinear for node in extents.counted)
    for node, times in extents.alike():
        count = _Count()
        facts, known = extents.facts(node), node in extents.parts  # of which the derivative by the input is no tensor
        count.calls += facts.made
        is_replaced = node in replaced
        for k in range(1, order + (not is_mixed)) if not is_replaced else ():
            if taken := [(degree + (0 if known else own), part) for degree, own, _, part in facts.terms if degree <= k]:
                count.put(taken, extents.keys(node, k), extents.coefficient(node, k))
        if is_mixed:
            first = [(1 + (0 if known else own), part) for degree, own, _, part in facts.terms if degree == 1]
            count.put(first, 1, extents.adjoint(node, 1))
            several = [each for each in facts.terms if 1 < each[0] <= order] if facts.is_nonlinear else ()
            keys = extents.keys(node, order) if several else 0
            for degree, own, stacks, _ in several if keys else ():
                if is_replaced:
                    count.add(1, keys, degree + own + 1, extents.adjoint(node, 1))
                elif node in extents.leading:
                    count.add(1, keys, degree + own + 1, extents.coefficient(node, 1))
                elif stacks and keys * FEW <= nonlinear:  # so many contribute to each
                    count.add(1, keys, 0, 0)
                    count.entries += CALLS * extents.product(node, order)
                else:
                    count.add(1, keys, degree + own + 1, extents.adjoint(node, order))
                    count.entries += CALLS * extents.operations(node, order)
        total.compositions += times * count.compositions
        total.calls += times * count.calls
        total.entries += times * count.entries
    return total


@dataclass(slots=True)
class _Count:
    """Compositions, the calls that they are, and the entries of what these make."""

    compositions: int = 0
    calls: int = 0
    entries: float = 0

    def add(self, compositions: int, keys: int, calls: int, entries: int) -> None:
        """Add compositions of so many keys, with the calls for each of them, of which each makes entries of all."""
        self.compositions += compositions * keys
        if calls:
            self.calls += calls * keys
            self.entries += calls * entries

    def put(self, terms: Sequence[tuple[int, float]], keys: int, entries: int) -> None:
        """Add terms of so many keys, of which each takes some calls and makes a part of the entries, and their sum."""
        self.add(len(terms), keys, 0, 0)
        if calls := sum(own for own, _ in terms) - 1:
            self.calls += calls * keys
            self.entries += entries * max(0, sum(own * part for own, part in terms) - 1)

    @property
    def run(self) -> float:
        """How long it runs."""
        return (self.calls + self.entries / ENTRIES) / CALLS

    def estimate(self, part: float = 1) -> Estimate:
        """Return the estimate of all, given what is counted of a part of it."""
        return Estimate(int(self.compositions / part), self.run / part)


def _of_reverse(extents: Extents, most: float) -> Estimate:
    """Count by eliminating nodes from the keys of blocks, those of all outputs together.

    A block has the entries of the one that it comes from, once for every index that is new in a local derivative; as
    long as it is a number it has none of its own, and what it is multiplied by has as many. Where counting ends early,
    it is in proportion to the nodes that are left. Entries are left out where no other strategy runs as short, however
    many these are.
    """
    local, asked = extents.counted, extents.asked
    order = elimination_order(local)
    if most < inf and not asked.are_chosen and asked.highest > 1:
        least = _pairs_of_reverse(extents, order, most)
        whole = least.run * (1 + extents.largest**2 / ENTRIES)  # about the most, of blocks as large as there may be
        if least.run > most or (asked.highest == 2 and BY_FAR * whole < most):
            return least
    blocks = _Blocks(extents, order)
    inputs = {*blocks.places(n for n in extents.graph.inputs if n in extents.depends)}
    for output in extents.graph.outputs:
        blocks.start(output)
    count = _Count()
    for done, node in enumerate(order, 1):
        facts = extents.facts(node)
        growth = {key: times for key, times in zip(local[node], facts.growth, strict=True) if times}
        own = dict(zip(local[node], facts.calls, strict=True))
        ways: dict[tuple[int, int], list[tuple[Key, int, int]]] = {}
        count.calls += facts.made
        for key, before, was_number in blocks.taken(node):
            rest = key[key.count(key[0]) :]
            case = len(key), len(rest)
            if case not in ways:
                chosen = choices_of(growth, len(key) - len(rest), asked.highest - len(rest))
                ways[case] = [
                    (
                        blocks.places(chain(*groups)),
                        prod([growth[group] for group in groups]),
                        sum(own[group] for group in groups),
                    )
                    for groups in chosen
                ]
            for operands, times, calls in ways[case]:
                target = tuple(sorted(rest + operands))
                if asked.are_chosen and not asked.leads([extents.depends[node] for node in blocks.nodes(target)]):
                    continue
                is_number = was_number and not calls
                after = min(before * times, blocks.size(target))
                each = calls - (was_number and calls > 0)
                is_added = blocks.add(target, after, is_number=is_number)
                each += is_added and (PLACED * inputs.isdisjoint(operands) if facts.reads else 1)
                each += TURNED * (not is_number and not {*rest}.isdisjoint(operands))
                count.add(1, 1, each, 0 if is_number else after)
        if count.compositions > MOST or count.run > most:
            return count.estimate(done / len(order))
    return count.estimate()


def _pairs_of_reverse(extents: Extents, order: Sequence[int], most: float) -> Estimate:
    """Count the compositions up to order two alone, without entries, from which nodes share a block.

    That is the least that reverse takes, told in a tenth of the time, and nearly all where no tensor is large. Where
    counting ends early, it is in proportion to the nodes that are left.
    """
    local, count = extents.counted, _Count()
    alone, beside = {*extents.graph.outputs}, defaultdict[int, set[int]](set)
    tensors, tensors_beside = set[int](), set[int]()  # nodes by which a first derivative, or a second, is no number
    for done, node in enumerate(order, 1):
        facts = extents.facts(node)
        own = [*zip(local[node], facts.calls, facts.growth, strict=True)]
        first = {key[0]: calls for key, calls, times in own if len(key) == 1 and times}
        second = {key: calls for key, calls, times in own if len(key) == 2 and times} if facts.is_nonlinear else {}
        factors = [one for one, calls in first.items() if calls]
        others, each = beside.pop(node, set()), sum(first.values())
        calls = facts.made
        if node in alone:
            count.compositions += len(first) + len(second)
            calls += each + sum(second.values())
            if node in tensors:
                tensors.update(first)
                tensors_beside.update(*second)
            else:
                several = [key for key, calls in second.items() if calls]
                calls -= len(factors) + len(several)
                tensors.update(factors)
                tensors_beside.update(*several)
            calls += 0 if facts.reads else len(alone.intersection(first) & tensors)
            alone.update(first)
            for one, other in second:
                beside[one].add(other)
                beside[other].add(one)
        is_tensor = node in tensors_beside
        if others and (is_tensor or factors):
            tensors_beside.update(first if is_tensor else factors, others)
        if node in others:
            others.discard(node)
            pairs = len(first) * (len(first) + 1) // 2
            count.compositions += pairs
            calls += (len(first) + 1) * each - (0 if is_tensor or not factors else pairs)
            for one in first:
                beside[one].update(first)
        count.compositions += len(first) * len(others)
        calls += TURNED * len(others.intersection(first) & tensors_beside)
        calls += (each - (0 if is_tensor else len(factors))) * len(others)
        for one in first if others else ():
            before = len(beside[one])
            beside[one] |= others
            calls += len(others) - (len(beside[one]) - before) if one in tensors_beside and not facts.reads else 0
        for other in others:
            beside[other].update(first)
            beside[other].discard(node)
        count.calls += calls
        if count.run > most:
            return count.estimate(done / len(order))
    return count.estimate()


class _Blocks:
    """The entries of blocks, by the places that their nodes have in the order in which these are eliminated.

    So the first node of a block is the next one that is eliminated of those that it has.

    Args:
        extents: How many entries derivatives have.
        order: The nodes in that order; inputs come after them.
    """

    def __init__(self, extents: Extents, order: Sequence[int]):
        self._nodes = [*order, *sorted({*extents.depends}.difference(order))]
        self._places = {node: place for place, node in enumerate(self._nodes)}
        self._having: list[dict[Key, int]] = [{} for _ in self._nodes]
        self._tensors: set[Key] = set()
        self._sizes, self._of_rows, self._rows = extents.sizes_of(self._nodes)

    def places(self, nodes: Iterable[int]) -> Key:
        """Return the places of nodes."""
        return tuple([self._places[node] for node in nodes])

    def nodes(self, places: Key) -> Key:
        """Return the nodes at places."""
        return tuple([self._nodes[place] for place in places])

    def start(self, output: int) -> None:
        """Add the block of an output by itself, for all outputs together: the number one."""
        if output in self._places:
            key = (self._places[output],)
            self.add(key, self.size(key), is_number=True)

    def add(self, key: Key, entries: int, *, is_number: bool) -> bool:
        """Add entries to a block, which may be those that a number is for; tells whether that takes a call."""
        having = self._having[key[0]]
        before = having.get(key)
        having[key] = entries + (before or 0)
        if not is_number:
            self._tensors.add(key)
        return before is not None and key in self._tensors

    def taken(self, node: int) -> Iterator[tuple[Key, int, bool]]:
        """Yield the blocks that have a node, with their entries and whether they are numbers, and forget them."""
        place = self._places[node]
        having, self._having[place] = self._having[place], {}
        for key, entries in having.items():
            yield key, min(entries, self.size(key)), key not in self._tensors

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


class _Asked:
    """A contraction of which coefficients and adjoints are counted, with all its slots if these are asked for.

    Args:
        in_graph: Knows what contractions have in common.
        contraction: The contraction, with nodes.
    """

    def __init__(self, in_graph: InGraph, contraction: Contraction):
        self._in_graph, self._contraction = in_graph, contraction
        self.count = len(contraction.slots)

    @cached_property
    def rest(self) -> Slots:
        """All slots but the one that is read off adjoints, which contractions by other variables have as well."""
        return self._in_graph.read_off(self._contraction).others if self.count else self.whole

    @cached_property
    def whole(self) -> Slots:
        """All slots."""
        return self._contraction.whole()

    @cached_property
    def extents(self) -> dict[str, int]:
        """Of how many elements every label is, of all rows of one."""
        sizes = self._in_graph.sizes(self._contraction)
        return {name: 1 if isinstance(size, Rows) else int(size) for name, size in sizes.items()}

    def part(self, places: Places) -> Slots:
        """Return some of all slots; without the last it is one that contractions by other variables have as well."""
        last = self._in_graph.read_off(self._contraction).place if places else None
        if last is None or last in places:
            return self.whole.part(places)
        return self.rest.part(tuple([place - (place > last) for place in places]))


class _Along:
    """Counts coefficients and adjoints of all nodes along slots, what contractions have in common of them once.

    Args:
        graph: The graph.
        local: The local derivatives of its nodes.
        contractions: What is asked for, which is told once for all strategies.
    """

    def __init__(self, graph: Graph, local: Mapping[int, Local], contractions: Iterable[Contraction]):
        self._nodes, self._nonlinear = len(local), sum(is_nonlinear(each) for each in local.values())
        sizes, self._rows = sizes_of_row(graph), number_of_rows(graph) or 1
        self._width = sum(sizes[node] for node in local)
        in_graph = InGraph(graph)
        self._asked = [_Asked(in_graph, in_graph.of(contraction)) for contraction in contractions]

    def by(self, strategy: str, most: float = inf) -> Estimate:
        """Estimate what a strategy takes; counting ends where it runs longer than is of interest.

        What is left then takes as much for each contraction as what was counted.
        """
        steps, entries = 0, 0.0
        met: set[Slots] = set()
        passes = 2 if strategy == "reverse" else 1
        for done, asked in enumerate(self._asked, 1):
            count, slots = asked.count, asked.rest if strategy == "reverse" else asked.whole
            top = count - 1 if strategy == "mixed" else len(slots.slots)
            part_of = asked.rest.part if strategy == "reverse" else asked.part
            for part in (part_of(places) for places in subsets(len(slots.slots)) if len(places) <= top):
                known, _ = canonical(part)
                if known in met:
                    continue
                met.add(known)
                ways = 2 ** max(0, len(part.slots) - 1)
                steps += passes * (self._nodes + self._nonlinear * ways)
                entries += passes * self._width * prod(asked.extents[name] for name in part.open)
            if strategy == "mixed":
                steps += self._nonlinear * 2**count
                entries += sum(map(asked.extents.__getitem__, asked.whole.open))
            run = steps + entries * self._rows / JET_ENTRIES
            if run > most:
                return Estimate(steps * len(self._asked) // done, run * len(self._asked) / done)
        return Estimate(steps, steps + entries * self._rows / JET_ENTRIES)
