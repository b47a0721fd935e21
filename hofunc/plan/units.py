"""Unit vectors: results of a plan multiplied by them, so that they can be computed for some coordinates at a time.

Derivatives are multiplied along their first slots, contractions along labels of their results, or along labels that
they sum over: each place of such a label has a name of its own then, and the sum over all rows is the contraction.
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
from hofunc.plan.operators import rows_read, unit_rows
from hofunc.plan.program import device_of
from hofunc.plan.slots import Bearer
from hofunc.plan.strategies import computing_dtype
from hofunc.plan.wanted import Contraction
from hofunc.rules.lower import Lowered

Shape = tuple[int, ...]

ROW = "a row"  # the label of the coordinates, which is none of a pattern


class Part(NamedTuple):
    """A result of a plan, multiplied by unit vectors.

    Attributes:
        group: What names its rows; results of one group have the same.
        output: The node that is differentiated.
        contractions: Those of which it is the sum, multiplied, with rows in place of some labels of the result, unless
            it is summed over these.
        shape: The shape of the result, and
        joint: with rows in place of the axes of these labels.
        place: The result of which it is the whole, or a summand.
    """

    group: Hashable
    output: int
    contractions: tuple[Contraction, ...]
    shape: Shape
    joint: Shape
    place: int

    @property
    def dim(self) -> int | None:
        """The axis of rows, None if it is summed over them."""
        result = self.contractions[0].result
        return result.index(ROW) if ROW in result else None


def blocks_of(whole: Blueprint) -> list[tuple[int, Key]]:
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
        self._read: dict[tuple[int, int, Hashable, int], int] = {}  # operands of which rows read entries, by their axes

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
        for (operand, dim, group, slot), number in self._read.items():
            node, place = graph.nodes[graph.inputs[operand]], first + 1 + number
            ((size,), *others) = self._groups[group][slot:]
            taken = (Ref(node.number), Ref(first), dim, self._starts[group], prod(map(prod, others)), size)
            shape = (*node.shape[:dim], rows, *node.shape[dim + 1 :])
            nodes.append(Node(place, rows_read, taken, (), None, (node.number, first), shape, node.dtype, None, False))
        numbers = tuple([node.number for node in nodes[1:]])
        places = torch.zeros(1, dtype=torch.long, device=device).expand(
            sum(self.rows.values())
        )  # chunks have their own
        return self._lowered._replace(
            graph=graph._replace(nodes=(*graph.nodes, *nodes), inputs=(*graph.inputs, *numbers)),
            origins=(*self._lowered.origins, places, *[None] * len(numbers)),
        )

    def multiplied(
        self, asked: Contraction, group: Hashable, names: Sequence[tuple[str, ...]], start: int
    ) -> Contraction:
        """Return a contraction multiplied by the unit vectors of a group along labels of its result from a place on."""
        units = [(self._first + self._numbers[group, slot], (ROW, *each)) for slot, each in enumerate(names)]
        result = (*asked.result[:start], ROW, *asked.result[start + sum(map(len, names)) :])
        return asked._replace(operands=(*asked.operands, *units), result=result)

    def summed(self, asked: Contraction, group: Hashable, names: Sequence[str]) -> Contraction:
        """Return a contraction of which rows of a group are the entries of labels that it sums over.

        The derivative has another name at each of its axes for such a label, and is multiplied there by unit vectors.
        An operand has the name of a slot; where no slot has the label, rows read it.
        """
        for slot, name in enumerate(names):
            asked = self._along(asked, group, slot, name)
        return asked

    def _along(self, asked: Contraction, group: Hashable, slot: int, name: str) -> Contraction:
        found: list[str] = []

        def apart(bearer: Bearer) -> Bearer:
            indices = []
            for index in bearer[1]:
                found.extend([f"{name} at {len(found)}"] * (index == name))
                indices.append(found[-1] if index == name else index)
            return bearer[0], tuple(indices)

        slots = tuple([tuple(map(apart, each)) for each in asked.slots])
        own = found[0] if found else None
        output = apart(asked.output)
        units = [(self._first + self._numbers[group, slot], (ROW, each)) for each in found]
        operands = [self._operand(bearer, group, slot, name, own) for bearer in asked.operands]
        return asked._replace(output=output, slots=slots, operands=(*operands, *units))

    def _operand(self, bearer: Bearer, group: Hashable, slot: int, name: str, own: str | None) -> Bearer:
        """Return an operand with another name for a label, or what rows read of it if there is none."""
        number, indices = bearer
        if own is not None:
            return number, tuple([own if index == name else index for index in indices])
        if name not in indices:
            return bearer
        dim = indices.index(name)
        read = self._read.setdefault((number, dim, group, slot), len(self._numbers) + len(self._read))
        return self._first + read, (*indices[:dim], ROW, *indices[dim + 1 :])

    @property
    def _first(self) -> int:
        """The number of the first matrix among the inputs of the graph."""
        return len(self._lowered.graph.inputs)


def places_in(lowered: Lowered) -> torch.Tensor | None:
    """Return what stands for the places of all rows in a graph with matrices, which is never made for all of them."""
    nodes = lowered.graph.nodes
    first = next((node.operands[0] for node in nodes if node.op is unit_rows), None)
    found = None if first is None else lowered.origins[first]
    return found if isinstance(found, torch.Tensor) else None


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
    for place, (output, key) in enumerate(blocks_of(whole)):
        shapes = [tuple(map(int, graph.nodes[number].shape)) for number in (output, *key)]
        names = [_names(slot, len(shape)) for slot, shape in enumerate(shapes)]
        inputs = zip(map(graph.inputs.index, key), names[1:], strict=True)
        asked = Contraction(
            (graph.outputs.index(output), names[0]), tuple([(each,) for each in inputs]), (), sum(names, ())
        )
        group = key[:slots]
        contraction = units.multiplied(asked, group, names[1 : 1 + len(group)], len(names[0]))
        joint = (*shapes[0], units.rows[group], *sum(shapes[1 + len(group) :], ()))
        parts.append(Part(group, output, (contraction,), sum(shapes, ()), joint, place))
    return Multiplied(units, tuple(parts))


def _names(slot: int, count: int) -> tuple[str, ...]:
    return tuple([f"{slot}.{dim}" for dim in range(count)])
