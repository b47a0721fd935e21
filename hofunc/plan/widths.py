"""Widths: how many entries first derivatives have for each element of a node, told from labels alone.

An element of an input varies by itself, so that its derivative has one entry for each. What is computed of it element
by element has as many, and what sums over an axis has one for each index of that. A weight of a layer has an entry for
every element of it by itself at last, where its layer has been mixed with others, and far fewer before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Label, labels_of
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Term
from hofunc.graph.node import Graph
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.reverse import operands_of
from hofunc.rules.local import Alike

ORDER_OF_WAYS = 2  # for which mixed has ways of its own: what nodes start from, wide nodes replaced, halves led on


class Width(NamedTuple):
    """How many entries a derivative by one input has for each element of a node.

    Attributes:
        of_row: Those of one row.
        of_all: Those of all rows.
        shared: The axes of the node that are axes of the input too, where the derivative is diagonal, one bit each.
    """

    of_row: int
    of_all: int
    shared: int

    def without(self, shape: Sequence[int], shared: int) -> "Width":
        """Return the same where no more than some axes are diagonal."""
        lost = [size for axis, size in enumerate(shape) if self.shared & ~shared & 1 << axis]
        return self._times(lost, self.shared & shared)

    def through(self, term: Term) -> "Width":
        """Return the width of what a local derivative of first order makes of it."""
        (slot,) = term.slots
        before = {label for axis, each in enumerate(slot) if self.shared & 1 << axis for label in labels_of((each,))}
        kept = before.intersection(labels_of(term.out))
        lost, shared = [label.size for label in before - kept - read_labels(term)], 0
        for axis, each in enumerate(term.out):
            labels = {*labels_of((each,))}
            if labels <= kept:
                shared |= 1 << axis
            else:
                lost += [label.size for label in labels & kept]
        return self._times(lost, shared)

    def _times(self, lost: Sequence[int], shared: int) -> "Width":
        of_row = self.of_row * prod([1 if isinstance(size, Rows) else int(size) for size in lost])
        return Width(of_row, self.of_all * prod(map(int, lost)), shared)


class Directions:
    """How many elements the nodes of a graph have, and in how many directions they vary, of all inputs together.

    Args:
        graph: The graph.
        local: The local derivatives of its nodes.

    Attributes:
        graph: What was given.
        local: Likewise.
        sizes: How many elements each node has.
        inputs: How many each input has that is differentiated by.
        count: How many these are.
    """

    def __init__(self, graph: Graph, local: Mapping[int, Local]):
        self.graph, self.local = graph, local
        self.sizes = [prod(map(int, node.shape)) for node in graph.nodes]
        self.inputs = {number: self.sizes[number] for number in graph.inputs if graph.nodes[number].active}
        self.count = sum(self.inputs.values())

    @property
    def most(self) -> int:
        """How many multiplications by directions on both sides the largest node could take."""
        return max((self.sizes[node] for node in self.local), default=0) * self.count**2

    @cached_property
    def of(self) -> dict[int, int]:
        """In how many directions each node varies."""
        found = widths(self.graph, self.local, {number: (size, size) for number, size in self.inputs.items()})
        return {node: min(width, self.count) for node, (_, width) in found.items()}

    def on_both_sides(self, nodes: Collection[int]) -> int:
        """Return how many multiplications by directions on both sides those of some nodes take that are not linear."""
        nonlinear = [each for each in self.local.values() if is_nonlinear(each)]
        taken = {operand for each in nonlinear for operand in operands_of(each)}.intersection(nodes)
        return sum(self.sizes[node] * self.of[node] ** 2 for node in taken)


def widths(
    graph: Graph, local: Mapping[int, Local], sizes: Mapping[int, tuple[int, int]]
) -> dict[int, tuple[int, int]]:
    """Return how many entries the first derivatives of every node have for each of its elements, by all inputs.

    Args:
        graph: The graph.
        local: The local derivatives of its nodes.
        sizes: How many elements every input has, of one row and of all.

    Returns:
        Those of one row, and those of all, node by node.
    """
    found: dict[int, dict[int, Width]] = {
        number: {number: Width(1, 1, (1 << len(graph.nodes[number].shape)) - 1)} for number in sizes
    }
    steps: dict[tuple[int, int, Width], Width] = {}
    for node in sorted(local):
        parts: dict[int, list[Width]] = {}
        block = local[node]
        alike = id(block.template) if type(block) is Alike else id(block)
        for place, (operands, terms) in enumerate(block.items()):
            if len(operands) > 1 or not terms:
                continue
            for given, width in found[operands[0]].items():
                key = alike, place, width
                if key not in steps:
                    shape = graph.nodes[node].shape
                    steps[key] = _together([width.through(term) for term in terms], shape)
                parts.setdefault(given, []).append(steps[key])
        found[node] = {given: _together(each, graph.nodes[node].shape, sizes[given]) for given, each in parts.items()}
    return {node: _summed(each.values()) for node, each in found.items()}


def _together(found: Sequence[Width], shape: Sequence[int], most: tuple[int, int] | None = None) -> Width:
    """Return the width of a sum: that of the part that has most, where it is diagonal by no more axes than others."""
    if len(found) == 1 and (most is None or (found[0].of_row <= most[0] and found[0].of_all <= most[1])):
        return found[0]
    shared = found[0].shared
    for each in found:
        shared &= each.shared
    alike = found if len(found) == 1 else [each.without(shape, shared) for each in found]
    of_row, of_all = max(each.of_row for each in alike), max(each.of_all for each in alike)
    return Width(of_row, of_all, shared) if most is None else Width(min(of_row, most[0]), min(of_all, most[1]), shared)


def _summed(found: Iterable[Width]) -> tuple[int, int]:
    every = [*found]
    return sum(each.of_row for each in every), sum(each.of_all for each in every)


def read_labels(term: Term) -> set[Label]:
    """Return the labels of slots of which one index is read for each along an axis of the node."""
    return {
        label
        for factor in term.factors
        if isinstance(factor.source, Map) and factor.source.selects
        for label in labels_of(factor.axes[factor.source.outs : factor.source.outs + factor.source.ins])
    }
