"""Inputs of few elements varied jointly: as one variable, of which each is a part, cut apart in the end.

What follows a few small inputs, as the parameters of a differential equation, depends on each by a block of its own,
and the highest order has one for each pair. Where blocks are so small that calls are all that counts, one block by all
of them takes as many calls as one by a single input does.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, combinations, combinations_with_replacement, product
from math import prod

import torch

from hofunc.algebra.labels import fresh_axes, labels_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Node
from hofunc.plan.accumulate import dense
from hofunc.plan.blocks import Blocks, Local
from hofunc.plan.builder import Builder, cut
from hofunc.plan.entries import Extents
from hofunc.plan.estimate import pays_jointly
from hofunc.plan.keys import Variables, depends_of, members
from hofunc.plan.operators import eye_like
from hofunc.plan.packing import Variable
from hofunc.plan.program import Register
from hofunc.plan.wanted import Wanted, highest
from hofunc.views import each


class Jointly:
    """Inputs as one variable, one after the other.

    Args:
        nodes: The nodes of the graph.
        inputs: The numbers of the inputs.
        keys: For every node, the keys by inputs of its blocks that do not vanish.

    Attributes:
        number: The number of the variable, after those of all nodes.
        variable: The variable; no axis of it is a batch.
        ranges: Where each input lies in it.
    """

    def __init__(self, nodes: Sequence[Node], inputs: Sequence[int], keys: Mapping[int, Collection[Key]]):
        self.number, self._keys = len(nodes), keys
        self._shapes = {number: tuple(map(int, nodes[number].shape)) for number in sorted(inputs)}
        stops = [*accumulate(map(prod, self._shapes.values()), initial=0)]
        self.ranges = dict(zip(self._shapes, map(range, stops, stops[1:]), strict=False))
        self.variable = Variable((stops[-1],), frozenset())

    def seed(self, builder: Builder, number: int) -> list[Term]:
        """Return the derivative of an input by the variable, no terms if it has no elements."""
        shape, places, count = self._shapes[number], self.ranges[number], self.variable.count
        if not places:
            return []
        matrix = builder.emit(eye_like, builder.like(), count)
        rows = builder.emit(torch.narrow, matrix, 0, places.start, len(places))
        sizes = tuple([size for size in shape if size > 1])
        tensor = builder.emit(torch.reshape, rows, (*sizes, count))
        axes, slot = fresh_axes(shape), fresh_axes((count,))
        labels = [label for label in labels_of(axes, slot) if label.size > 1]
        return [Term(1, (Factor(tensor, each(labels)),), axes, (slot,))]

    def apart(self, builder: Builder, blocks: Blocks) -> Blocks:
        """Return the blocks by inputs, given those by the variable that do not vanish."""
        found: Blocks = {}
        for (output, key), terms in blocks.items():
            if self.number not in key:
                found[output, key] = terms
                continue
            whole = dense(builder, terms)
            shape = builder.lowered.graph.nodes[output].shape
            for inputs in sorted(self._keys[output]):
                if len(inputs) == len(key) and all(self.ranges[number] for number in inputs):
                    found[output, inputs] = [self._cut(builder, whole, shape, inputs)]
        return found

    def _cut(self, builder: Builder, tensor: Register, shape: Sequence[int], inputs: Sequence[int]) -> Term:
        """Return what a dense block by the variable has of some inputs."""
        for dim, number in enumerate(inputs, len(shape)):
            places = self.ranges[number]
            if len(places) < self.variable.count:
                tensor = builder.emit(cut, tensor, dim, places.start, (len(places),))
        out, slots = fresh_axes(shape), tuple([fresh_axes(self._shapes[number]) for number in inputs])
        labels = [label for label in labels_of(out, *slots) if label.size > 1]
        tensor = builder.emit(torch.reshape, tensor, tuple([label.size for label in labels]))
        return Term(1, (Factor(tensor, each(labels)),), out, slots)


def jointly(
    builder: Builder, local: Mapping[int, Local], wanted: Wanted, extents: Callable[[], Extents], *, is_mixed: bool
) -> Jointly | None:
    """Return all inputs as one variable, if that pays; None otherwise.

    What is zero by one of them may then be multiplied by the slope of another, which is to be finite, or be looked for.

    Args:
        builder: That of the plan.
        local: The local derivatives of the nodes.
        wanted: The orders wanted.
        extents: Tells how many entries derivatives have.
        is_mixed: Whether coefficients of the highest order are not propagated.
    """
    graph = builder.lowered.graph
    inputs = [number for number in graph.inputs if graph.nodes[number].active]
    if len(inputs) < 2 or not pays_jointly(extents(), is_mixed=is_mixed):
        return None
    depends = depends_of(local, inputs)
    keys = _keys(local, depends, graph.outputs)
    for output, found in keys.items():
        for order in range(3, highest(wanted) + 1):
            every = combinations_with_replacement(members(depends[output]), order)
            found.update([key for key in every if found.issuperset(combinations(key, 2))])
    return Jointly(graph.nodes, inputs, keys)


def _keys(local: Mapping[int, Local], depends: Mapping[int, Variables], outputs: Sequence[int]) -> dict[int, set[Key]]:
    """Return the keys, up to order two, of the blocks by inputs that outputs have."""
    pairs: dict[int, int] = dict.fromkeys(depends, 0)  # sets of pairs, as the bits of a number
    numbers: dict[Key, int] = {}
    known: dict[tuple[Variables, Variables], int] = {}
    for node in sorted(local):
        for key in [key for key, terms in local[node].items() if terms]:
            if len(key) == 1:
                pairs[node] |= pairs[key[0]]
            elif len(key) == 2:
                sides = depends[key[0]], depends[key[1]]
                if sides not in known:
                    met = {tuple(sorted(pair)) for pair in product(*map(members, sides))}
                    known[sides] = sum(1 << numbers.setdefault(pair, len(numbers)) for pair in met)
                pairs[node] |= known[sides]
    every = [*numbers]
    return {
        output: {*[(number,) for number in members(depends[output])], *[every[each] for each in members(pairs[output])]}
        for output in outputs
        if output in depends
    }
