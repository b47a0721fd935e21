"""Entries: how many entries derivatives have, and how many calls make them, told from which nodes take which."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import prod
from typing import NamedTuple

from hofunc.algebra import packed
from hofunc.algebra.extents import Rows, distinct
from hofunc.algebra.labels import extent, labels_of
from hofunc.algebra.operators import Map
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.graph.node import Call, Graph
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.following import counted
from hofunc.plan.keys import Keys, Variables, depends_of, members
from hofunc.plan.leading import leading
from hofunc.plan.recipes import is_applied
from hofunc.plan.reverse import is_reading, operands_of
from hofunc.plan.rows import number_of_rows
from hofunc.plan.states import PASSES, calls_of_pass
from hofunc.plan.sums import FREE
from hofunc.plan.wanted import Contractions, Wanted
from hofunc.plan.wide import wide
from hofunc.plan.widths import ORDER_OF_WAYS, Directions, read_labels, widths
from hofunc.rules.local import Alike

OPERATIONS = 50  # of a product, each a multiplication and a sum, that run as long as an entry


def sizes_of_row(graph: Graph) -> list[int]:
    """Return the size of every node, of one row where it has rows."""
    return [prod([1 if isinstance(size, Rows) else int(size) for size in node.shape]) for node in graph.nodes]


class Extents:
    """How many entries derivatives have: those of one row for each row as long as rows do not mix, or else of all.

    Args:
        graph: The graph.
        local: The local derivatives of its nodes.
        wanted: What is asked for.

    Attributes:
        graph: What was given.
        local: Likewise.
        counted: The local derivatives that strategies go by, in which regions may be preaccumulated.
        compositions: How many that takes, which are part of all strategies.
        asked: The keys of the blocks that are asked for.
        depends: The inputs on which each node depends.
        parts: The nodes of which every element is one of an input.
        pays_jointly: Whether it pays to vary all inputs jointly, by mixed and not, as far as that was estimated.
    """

    def __init__(self, graph: Graph, local: Mapping[int, Local], wanted: Wanted):
        self.graph, self.local, self.asked = graph, local, Keys(wanted, graph.inputs)
        self._rows = number_of_rows(graph)
        self._of_row = sizes_of_row(graph)
        inputs = [number for number in graph.inputs if graph.nodes[number].active]
        self.depends = depends_of(local, inputs)
        self._parts_of: dict[tuple[Variables, int], list[Key]] = {}
        self._facts: dict[int, Facts] = {}
        self._of_all = [prod(map(int, node.shape)) for node in graph.nodes]
        self._outputs = tuple(
            [sum(sizes[output] for output in {*graph.outputs}) for sizes in (self._of_row, self._of_all)]
        )
        self._mixing: set[int] = set()  # nodes whose elements depend on several rows, other than by a sum
        self.parts = {*inputs}
        self._inputs = inputs
        self._jointly: int | None = None
        self.pays_jointly: dict[bool, bool] = {}
        self._directions = {number: (self._of_row[number], self._of_all[number]) for number in inputs}
        self.counted, self.compositions = local, 0
        for node in sorted(local):
            operands = operands_of(local[node])
            is_summed = self._rows is not None and not any(isinstance(size, Rows) for size in graph.nodes[node].shape)
            if is_summed and (self.facts(node).is_nonlinear or not self._mixing.isdisjoint(operands)):
                self._mixing.add(node)
            if operands <= self.parts and self.facts(node).reads:
                self.parts.add(node)
            self._directions[node] = (
                self._varying(node, operands, self._of_row, 0),
                self._varying(node, operands, self._of_all, 1),
            )
        self._widths = self._directions
        if self.asked.highest > ORDER_OF_WAYS and not isinstance(wanted, Contractions):
            self._count_regions()

    def _count_regions(self) -> None:
        """Put the derivatives of regions by their starts in place of local ones, and count what makes them."""
        found = counted(self.graph, self.local, self.asked.highest)
        for node in [node for node, own in self.local.items() if found.get(node) is not own]:
            degrees = [degree for degree, *_ in self.facts(node).terms]
            self.compositions += sum(max(0, self.asked.highest - degree + 1) for degree in degrees)
        self.counted = found

    @cached_property
    def _directions_of_all(self) -> Directions:
        return Directions(self.graph, self.local)

    @cached_property
    def wide(self) -> frozenset[int]:
        """The wide nodes that it may pay to replace, see `hofunc.plan.wide`."""
        return wide(self._directions_of_all, self.asked.highest)

    @cached_property
    def leading(self) -> frozenset[int]:
        """The nodes that it may pay to lead halves on through, see `hofunc.plan.leading`."""
        return leading(self._directions_of_all, self.asked.highest)

    @property
    def count(self) -> int:
        """How many inputs there are to differentiate by."""
        return len(self._inputs)

    @property
    def largest(self) -> int:
        """How many elements the largest node has of those that have derivatives."""
        return max([self._of_all[number] for number in self.depends], default=0)

    def jointly(self) -> "Extents":
        """Return the same of all inputs as one variable, which has no rows."""
        joint = copy(self)
        joint._jointly, joint.parts = sum(self._of_all[number] for number in self._inputs), set()
        return joint

    def compactly(self) -> "Extents":
        """Return the same with one entry for all zeros that a derivative has since elements do not mix yet.

        See `hofunc.plan.widths`.
        """
        compact = copy(self)
        compact._widths = widths(self.graph, self.local, {each: self._directions[each] for each in self._inputs})
        return compact

    def _varying(self, node: int, operands: Collection[int], sizes: Sequence[int], place: int) -> int:
        """Return by how many elements of inputs a node varies at most."""
        inputs = sum(sizes[number] for number in members(self.depends[node]))
        if node in self.parts:
            return min(inputs, sizes[node])
        return min(inputs, sum(self._directions[operand][place] for operand in operands))

    def _of(self, node: int) -> "_Sizes":
        """Return the sizes that count for a node."""
        if self._jointly is not None:
            return _Sizes(self._of_all, 1, self._outputs[1], self._jointly, self._jointly)
        if node in self._mixing:
            return _Sizes(self._of_all, 1, self._outputs[1], self._directions[node][1], self._widths[node][1])
        of_row, rows = self._of_row, self._rows or 1
        return _Sizes(of_row, rows, rows * self._outputs[0], self._directions[node][0], self._widths[node][0])

    def alike(self) -> list[tuple[int, int]]:
        """Return one of all nodes of which the same is told here, and how many these are, in order."""
        found: dict[Hashable, tuple[int, int]] = {}
        for node in sorted(self.counted):
            local, sizes = self.counted[node], self._of(node)
            same = id(local.template) if type(local) is Alike else node
            told = node in self.parts, node in self._mixing, node in self.wide, node in self.leading
            kind = same, self.depends[node], sizes.sizes[node], *sizes[1:], *told
            first, times = found.get(kind, (node, 0))
            found[kind] = first, times + 1
        return [*found.values()]

    def keys(self, node: int, order: int) -> int:
        """Return how many coefficients of an order a node has."""
        if self._jointly is not None:
            return 1
        if self.asked.are_chosen:
            return len(self._chosen(node, order))
        return packed.count(self.depends[node].bit_count(), order)

    def coefficient(self, node: int, order: int) -> int:
        """Return the entries of the packed coefficients of a node."""
        sizes, times, _, directions, width = self._of(node)
        if not self.asked.are_chosen:
            return times * sizes[node] * packed.count(width, order)
        return times * sizes[node] * sum(_packed(key, sizes, directions) for key in self._chosen(node, order))

    def _chosen(self, node: int, order: int) -> list[Key]:
        """Return the keys of an order that a node has, where blocks are chosen."""
        place = self.depends[node], order
        if place not in self._parts_of:
            self._parts_of[place] = self.asked.among(self.depends[node], [order])
        return self._parts_of[place]

    def adjoint(self, node: int, order: int) -> int:
        """Return the entries of what a node makes of the coefficient of the outputs; of its adjoint, at order one."""
        sizes, _, outputs, directions, width = self._of(node)
        if order == 1:
            return outputs * sizes[node]
        if self.asked.are_chosen:
            keys = [key for key in self._chosen(node, order) if self.asked.has(key)]
            return outputs * sum(prod([min(sizes[each], directions) for each in key]) for key in keys)
        return outputs * min(_made(directions, order), sizes[node] * _made(width, order))

    def product(self, node: int, order: int) -> float:
        """Return the entries of what a node makes of the highest coefficient of the outputs, where it is stacked.

        At order two the coefficients of like nodes are stacked, and their product is one, of which operations count.
        """
        sizes, times, outputs, directions, _ = self._of(node)
        copied, made = 2 * sizes[node] * directions, directions**2
        if order > 2 or self.asked.are_chosen or times * copied > 3 * times * made + FREE:
            return self.adjoint(node, order)
        return outputs * copied + self.operations(node, order)

    def operations(self, node: int, order: int) -> float:
        """Return the entries that run as long as the operations of that product."""
        if self.asked.are_chosen:
            return 0
        sizes, _, outputs, _, width = self._of(node)
        return outputs * sizes[node] * _made(width, order) / OPERATIONS

    def facts(self, node: int) -> "Facts":
        """Return what is told of the local derivatives of a node, once for those that are alike."""
        local = self.counted[node]
        if type(local) is not Alike:
            return facts_of(local)
        found = self._facts.get(id(local.template))
        if found is None:
            found = self._facts[id(local.template)] = facts_of(local)
        return found

    def sizes_of(self, nodes: Iterable[int]) -> tuple[list[int], list[int], int]:
        """Return the size of every node, that of one row, negative where it mixes rows, and the number of rows."""
        numbers = [*nodes]
        of_rows = [-1 if number in self._mixing else self._of_row[number] for number in numbers]
        return [self._of_all[number] for number in numbers], of_rows, self._rows or 1


class _Sizes(NamedTuple):
    """The sizes that count for a node.

    Attributes:
        sizes: Those of all nodes.
        times: How often they count.
        outputs: How many elements all outputs have, so often.
        directions: By how many elements of inputs the node varies.
        width: How many entries its first derivative has for each of its elements.
    """

    sizes: Sequence[int]
    times: int
    outputs: int
    directions: int
    width: int


def _made(directions: int, order: int) -> int:
    """Return the entries of a derivative of an order, that of order two not being packed."""
    return directions**2 if order == 2 else packed.count(directions, order)


def _packed(key: Key, sizes: Sequence[int], most: int) -> int:
    """Return the entries of the packed slots of a key, of variables that have some sizes, and count most at most."""
    return prod([packed.count(min(sizes[variable], most), n) for variable, n in Counter(key).items()])


class Facts(NamedTuple):
    """What is told of the local derivatives of a node without their names.

    Attributes:
        terms: Of every term the order, the calls that it takes to multiply a tensor by it, whether that is stacked with
            the products of others, and what part of the elements of the node it makes.
        calls: For each key the calls that it takes to multiply a tensor by its terms; none if they only read a part.
        growth: For each key how many indices its terms have at most for each element of the node.
        made: How many calls make the factors, and pass over the steps of a recurrence beyond one each.
        reads: Whether every element of the node is one of its only operand.
        is_nonlinear: Whether there are derivatives above the first order.
    """

    terms: tuple[tuple[int, int, bool, float], ...]
    calls: tuple[int, ...]
    growth: tuple[int, ...]
    made: int
    reads: bool
    is_nonlinear: bool


def facts_of(local: Local) -> Facts:
    """Tell what there is to tell of local derivatives without their names."""
    reads = is_reading(local)
    sources = [factor.source for terms in local.values() for term in terms for factor in term.factors]
    return Facts(
        tuple(
            [
                (len(key), _calls(term), not is_applied(term), _part(term))
                for key, terms in local.items()
                for term in terms
            ]
        ),
        tuple([0 if reads else sum(map(_calls, terms)) for terms in local.values()]),
        tuple([max(map(_new, terms), default=0) for terms in local.values()]),
        len({distinct(source) for source in sources if isinstance(source, Call)}) + passing(local),
        reads,
        is_nonlinear(local),
    )


def passing(local: Local) -> int:
    """Return how many calls it takes to pass over the steps of a recurrence, beyond one for each time."""
    factors = [factor for terms in local.values() for term in terms for factor in term.factors]
    counts = [
        int(extent(factor.axes[0]))
        for factor in factors
        if isinstance(factor.source, Map) and factor.source.forward in PASSES
    ]
    return sum(int(calls_of_pass(count)) - 1 for count in counts)


def _calls(term: Term) -> int:
    """Return how many calls it takes to multiply a tensor by a local derivative; to name axes anew takes none."""
    inner, outer = {*labels_of(*term.slots)}, {*labels_of(term.out)}
    if term.factors:
        return len(term.factors) + (not inner <= outer)
    return int(
        inner != outer or any(not each.is_full for axes in (term.out, *term.slots) for axis in axes for each in axis)
    )


def _part(term: Term) -> float:
    """Return what part of the elements of a node a local derivative makes, as one of those that lie side by side."""
    elements = prod([int(extent(axis)) for axis in term.out])
    return prod([int(label.size) for label in labels_of(term.out)]) / elements if elements else 1


def _new(term: Term) -> int:
    """Return how many indices a local derivative has for each element of the node, apart from those it reads at."""
    if all(slot is term.out for slot in term.slots):
        return 1
    kept = read_labels(term).union(labels_of(term.out))
    return prod([int(label.size) for label in {*labels_of(*term.slots)} - kept])
