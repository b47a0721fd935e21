"""Unit vectors: results of a plan multiplied by them, so that they can be computed for some coordinates at a time.

Derivatives are multiplied along their first slots, contractions along labels of their results.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch

from hofunc.algebra.extents import Rows
from hofunc.algebra.partitions import Key
from hofunc.graph.node import CONSTANT, Node, Ref
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.operators import unit_rows
from hofunc.plan.program import device_of
from hofunc.plan.slots import Slot
from hofunc.plan.strategies import computing_dtype
from hofunc.plan.wanted import Contraction, Contractions, InGraph
from hofunc.rules.lower import Lowered

Shape = tuple[int, ...]

_ROW = "a row"  # the label of the coordinates, which is none of a pattern


class Part(NamedTuple):
    """A result of a plan, multiplied by unit vectors.

    Attributes:
        group: What names its rows; results of one group have the same.
        output: The node that is differentiated.
        contractions: Those of which it is the sum, multiplied, with rows in place of some labels of the result.
        shape: The shape of the result, and
        joint: with rows in place of the axes of these labels.
    """

    group: Hashable
    output: int
    contractions: tuple[Contraction, ...]
    shape: Shape
    joint: Shape

    @property
    def dim(self) -> int:
        """The axis of rows."""
        return self.contractions[0].result.index(_ROW)


def _blocks(whole: Blueprint) -> list[tuple[int, Key]]:
    """Return the derivatives that a blueprint computes, in the order of its results."""
    return sorted(whole.dense, key=whole.dense.__getitem__)


class Units:
    """Matrices of unit vectors, for every group one by each of its slots, which come after the inputs of a graph.

    Args:
        lowered: The graph.
        groups: The shapes of what the matrices of some rows multiply.

    Attributes:
        rows: How many rows there are for each group.
    """

    def __init__(self, lowered: Lowered, groups: Mapping[Hashable, tuple[Shape, ...]]):
        self._lowered, self._groups = lowered, groups
        self.rows = {group: prod(map(prod, shapes)) for group, shapes in groups.items()}
        self._starts = dict(zip(groups, accumulate(self.rows.values(), initial=0), strict=False))
        slots = [(group, slot) for group, shapes in groups.items() for slot in range(len(shapes))]
        self._numbers = {each: number for number, each in enumerate(slots)}

    def of(self, size: int) -> Lowered:
        """Return the graph with the matrices, to be planned for so many rows at a time."""
        graph, dtype = self._lowered.graph, computing_dtype(self._lowered)
        device, rows, first = device_of(graph), Rows(size), len(graph.nodes)
        nodes = [Node(first, CONSTANT, (), (), None, (), (rows,), torch.long, device, False)]
        for (group, slot), number in self._numbers.items():
            shape, *others = self._groups[group][slot:]
            args = (Ref(first), self._starts[group], prod(map(prod, others)), shape, dtype)
            place = first + 1 + number
            nodes.append(Node(place, unit_rows, args, (), None, (first,), (rows, *shape), dtype, None, False))
        numbers = tuple([node.number for node in nodes[1:]])
        places = torch.arange(sum(self.rows.values()), device=device)
        return self._lowered._replace(
            graph=graph._replace(nodes=(*graph.nodes, *nodes), inputs=(*graph.inputs, *numbers)),
            origins=(*self._lowered.origins, places, *[None] * len(numbers)),
        )

    def multiplied(
        self, asked: Contraction, group: Hashable, names: Sequence[tuple[str, ...]], start: int
    ) -> Contraction:
        """Return a contraction multiplied by the unit vectors of a group along labels of its result from a place on."""
        first = len(self._lowered.graph.inputs)
        units = [(first + self._numbers[group, slot], (_ROW, *each)) for slot, each in enumerate(names)]
        result = (*asked.result[:start], _ROW, *asked.result[start + sum(map(len, names)) :])
        return asked._replace(operands=(*asked.operands, *units), result=result)


class Multiplied(NamedTuple):
    """Results multiplied by unit vectors, and these."""

    units: Units
    parts: tuple[Part, ...]


def of_derivatives(lowered: Lowered, whole: Blueprint, slots: int) -> Multiplied:
    """Return the derivatives that a blueprint computes, of which so many slots are multiplied at most."""
    graph = lowered.graph
    keys = dict.fromkeys(sorted(key[:slots] for _, key in whole.dense))
    units = Units(lowered, {key: tuple([tuple(graph.nodes[number].shape) for number in key]) for key in keys})
    parts = []
    for output, key in _blocks(whole):
        shapes = [tuple(map(int, graph.nodes[number].shape)) for number in (output, *key)]
        names = [_names(slot, len(shape)) for slot, shape in enumerate(shapes)]
        inputs = zip(map(graph.inputs.index, key), names[1:], strict=True)
        asked = Contraction(
            (graph.outputs.index(output), names[0]), tuple([(each,) for each in inputs]), (), sum(names, ())
        )
        group = key[:slots]
        contraction = units.multiplied(asked, group, names[1 : 1 + len(group)], len(names[0]))
        joint = (*shapes[0], units.rows[group], *sum(shapes[1 + len(group) :], ()))
        parts.append(Part(group, output, (contraction,), sum(shapes, ()), joint))
    return Multiplied(units, tuple(parts))


def _names(slot: int, count: int) -> tuple[str, ...]:
    return tuple([f"{slot}.{dim}" for dim in range(count)])


def of_contractions(lowered: Lowered, whole: Blueprint, wanted: Contractions) -> Multiplied | None:
    """Return the contractions that a blueprint computes, along labels of a slot or of the output that are asked for.

    None if there is nothing to take apart.
    """
    in_graph, found = InGraph(lowered.graph), []
    for output, (number,) in _blocks(whole):
        first, *_ = contractions = wanted.sums[number]
        sizes = in_graph.sizes(in_graph.of(first))
        runs = [_run(slot, first.result) for slot in (*first.slots, (first.output,))]
        names = max(runs, key=lambda run: prod([int(sizes[name]) for name in run]))
        shape = tuple([int(sizes[name]) for name in names])
        found.append((output, contractions, names, (names, shape), tuple([int(sizes[x]) for x in first.result])))
    extents = [prod(shape) for *_, (_, shape), _ in found]
    if 0 in extents or max(extents, default=0) < 2:
        return None
    units = Units(lowered, {group: (group[1],) for *_, group, _ in found})
    parts = []
    for output, contractions, names, group, shape in found:
        start = contractions[0].result.index(names[0]) if names else 0
        multiplied = tuple([units.multiplied(each, group, [names], start) for each in contractions])
        joint = (*shape[:start], units.rows[group], *shape[start + len(names) :])
        parts.append(Part(group, output, multiplied, shape, joint))
    return Multiplied(units, tuple(parts))


def _run(slot: Slot, result: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of a slot that follow each other in a result, from its first on; none of several inputs."""
    (_, indices), *others = slot
    names = [] if others else [name for name in indices if name in result]
    count = len(names)
    while count and tuple(result[result.index(names[0]) :][:count]) != tuple(names[:count]):
        count -= 1
    return tuple([str(name) for name in names[:count]])
