"""Columns: dense derivatives by some coordinates of one slot at a time, for functions that have no rows to take apart.

The coordinates of all inputs together are rows: of a matrix of unit vectors, by which the first slot of a derivative is
multiplied. Contracted so, a derivative takes for every coordinate what a product with a vector takes, and the matrix is
made for those coordinates only that a chunk is of. Where that holds too much, rows are pairs of coordinates of two
slots, and so on. Each derivative is computed for one order of its slots, as ever.
Source: products with unit vectors, as torch.func.jacfwd takes them; here along any slots, of any order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch

from hofunc.algebra.extents import Rows, UnevenError
from hofunc.algebra.partitions import Key
from hofunc.graph.node import CONSTANT, Node, Ref
from hofunc.plan.accumulate import dense
from hofunc.plan.blocks import Local
from hofunc.plan.blueprint import Blueprint, Limits, Peak, cast, largest
from hofunc.plan.chunks import Chunks, body_of, cost_of_chunks, given_as, parts_of, prepared, reads_of
from hofunc.plan.cost import Cost
from hofunc.plan.operators import unit_rows, zeros
from hofunc.plan.program import Builder, Given, Program, Register, Step, device_of, finished
from hofunc.plan.rows import unmarked
from hofunc.plan.strategies import computing_dtype, propagated
from hofunc.plan.wanted import Contraction, Contractions
from hofunc.rules.lower import Lowered

_ROW = "row"  # the label of the coordinates
_FEW = 8  # of them
_ALONG = ("coordinates", "pairs of coordinates", "tuples of coordinates")


class Columns(NamedTuple):
    """What is asked for, multiplied by unit vectors.

    Attributes:
        whole: The blueprint that computes the same at once.
        lowered: Its graph, with matrices of unit vectors.
        wanted: The contractions, in the order of the results of the whole.
        groups: How many rows there are for the inputs of the first slots, by these inputs.
        slots: How many slots are multiplied, at most.
    """

    whole: Blueprint
    lowered: Lowered
    wanted: Contractions
    groups: dict[Key, int]
    slots: int

    @classmethod
    def of(cls, lowered: Lowered, whole: Blueprint) -> "list[Columns]":
        """Return ways to compute what a blueprint of dense derivatives does, if there are enough coordinates to part.

        The first is the best for all at a time: it multiplies before what all of them are multiplied by. The second is
        the best for a few, and holds less; others are by more slots.

        Args:
            lowered: The graph.
            whole: The blueprint.
        """
        graph = unmarked(lowered.graph)
        counts = {number: prod(graph.nodes[number].shape) for number in graph.inputs if graph.nodes[number].active}
        if 0 in counts.values() or sum(counts.values()) < 2 or not whole.dense:
            return []
        found, highest = [], max(len(key) for _, key in whole.dense)
        for slots in range(1, max(2, highest)):
            keys = dict.fromkeys(sorted(key[:slots] for _, key in whole.dense))
            groups = {key: prod(counts[number] for number in key) for key in keys}
            rows = sum(groups.values())
            units = _Units(lowered._replace(graph=graph, values={}), groups)
            sums = tuple([(units.contraction(output, key, slots),) for output, key in _blocks(whole)])
            sizes = dict.fromkeys([rows] * (slots == 1) + [min(_FEW, rows)])
            found += [cls(whole, units.of(size), Contractions(sums), groups, slots) for size in sizes]
        return found

    def drawn(self, local: dict[int, Local], strategy: str, most_steps: float, limits: Limits, peak: Peak) -> Blueprint:
        """Return the blueprint by a strategy of contractions, in chunks of as many coordinates as limits allow.

        Args:
            local: The local derivatives of the nodes.
            strategy: The strategy.
            most_steps: How many steps it may take.
            limits: Coordinates at a time, and memory.
            peak: Tells what is held at once where a blueprint is run.
        """
        builder, blocks = propagated(self.lowered, local, self.wanted, strategy, most_steps)
        outputs: list[Register | None] = []
        for number, (contraction,) in enumerate(self.wanted.sums):
            output = self.lowered.graph.outputs[contraction.output[0]]
            terms = blocks.get((output, (number,)))
            outputs.append(cast(builder, output, dense(builder, terms)) if terms else None)
        drawing = _Drawing(self, builder, outputs, limits.in_pieces)
        size = limits.chunk_size or max(self.groups.values())
        whole = replace(self.whole, strategy=strategy, effort=builder.effort)
        first = drawing.of(whole, size)
        if first is None or limits.max_bytes is None or peak(first) <= limits.max_bytes:
            return first or whole
        return largest(first, drawing, size, limits.max_bytes, peak)


class _Drawing(NamedTuple):
    """The program of contractions, to be taken apart.

    Attributes:
        columns: What is asked for.
        builder: It has the steps.
        outputs: The register of every contraction, None for those that vanish.
        in_pieces: Whether results are handed over and not held.
    """

    columns: Columns
    builder: Builder
    outputs: Sequence[Register | None]
    in_pieces: bool

    def of(self, whole: Blueprint, size: int) -> Blueprint | None:
        """Return the blueprint in chunks of so many coordinates, None if they cannot be taken apart."""
        try:
            return replace(whole, chunks=self._chunks(size))
        except (UnevenError, RuntimeError):
            return None

    def _chunks(self, size: int) -> Chunks:
        groups, shown = self.columns.groups, [output for output in self.outputs if output is not None]
        program, rows = self.builder.program(shown), sum(groups.values())
        early, inside, _ = parts_of(program, shown)
        taken = sorted(reads_of(inside) - {step.target for step in inside})
        first = prepared(program, early, taken, rows)
        given, bodies = given_as(taken, first.looks), []
        places: list[int] = []
        for start, group in zip(accumulate(groups.values(), initial=0), groups, strict=False):
            registers = [
                (place, output)
                for place, (_, key) in enumerate(_blocks(self.columns.whole))
                if key[: self.columns.slots] == group and (output := self.outputs[place]) is not None
            ]
            if not registers:
                continue
            part = finished(given, program.shapes, inside, [register for _, register in registers])
            joints = tuple([self._joint(place) for place, _ in registers])
            results = tuple([place for place, _ in registers])
            bodies.append(body_of(part, joints, groups[group], size)._replace(start=start, places=results))
            places += results
        device = device_of(self.columns.lowered.graph)
        after = finished({}, {}, [], []) if self.in_pieces else self._after(places)
        along = _ALONG[min(self.columns.slots, len(_ALONG)) - 1]
        chunks = Chunks(first.program, first.dims, tuple(bodies), after, Cost((), 0), along, self.in_pieces)
        return chunks._replace(cost=cost_of_chunks(chunks, device))

    def _joint(self, place: int) -> int:
        """Return the axis of the coordinates in a result."""
        ((contraction,)) = self.columns.wanted.sums[place]
        return contraction.result.index(_ROW)

    def _after(self, places: Sequence[int]) -> Program:
        """Return what makes the results of the whole of those of bodies, which are of so many of its places."""
        graph, targets = self.columns.whole.lowered.graph, self.columns.whole.program.outputs
        given: dict[int, Given] = {}
        steps: list[Step] = []
        shapes: dict[int, tuple[tuple[int, ...], torch.dtype]] = {}
        slots = self.columns.slots
        for place, (output, key) in enumerate(_blocks(self.columns.whole)):
            sizes = [tuple(map(int, graph.nodes[number].shape)) for number in (output, *key)]
            shape, dtype = sum(sizes, ()), graph.nodes[output].dtype
            if place in places:
                joint = (*sizes[0], prod(map(prod, sizes[1 : 1 + slots])), *sum(sizes[1 + slots :], ()))
                given[-1 - place] = Given(places.index(place), joint, dtype)
                steps.append(Step(targets[place], torch.reshape, (Register(-1 - place), shape)))
            else:
                steps.append(Step(targets[place], zeros, (shape, dtype, device_of(graph))))
                shapes[targets[place]] = shape, dtype
        return finished(given, shapes, steps, [*map(Register, targets)])


def _blocks(whole: Blueprint) -> list[tuple[int, Key]]:
    """Return the derivatives that a blueprint computes, in the order of its results."""
    return sorted(whole.dense, key=whole.dense.__getitem__)


class _Units:
    """Matrices of unit vectors, for every group one by each of its slots, which come after the inputs of a graph.

    Args:
        lowered: The graph.
        groups: How many rows there are for some inputs.
    """

    def __init__(self, lowered: Lowered, groups: Mapping[Key, int]):
        self._lowered, self._groups = lowered, groups
        self._starts = dict(zip(groups, accumulate(groups.values(), initial=0), strict=False))
        slots = [(key, slot) for key in groups for slot in range(len(key))]
        self._numbers = {each: number for number, each in enumerate(slots)}

    def of(self, size: int) -> Lowered:
        """Return the graph with the matrices, to be planned for so many rows at a time."""
        graph, dtype = self._lowered.graph, computing_dtype(self._lowered)
        device, rows, first = device_of(graph), Rows(size), len(graph.nodes)
        nodes = [Node(first, CONSTANT, (), (), None, (), (rows,), torch.long, device, False)]
        for (key, slot), number in self._numbers.items():
            shape = tuple(graph.nodes[key[slot]].shape)
            stride = prod(prod(graph.nodes[other].shape) for other in key[slot + 1 :])
            args = (Ref(first), self._starts[key], stride, shape, dtype)
            place = first + 1 + number
            nodes.append(Node(place, unit_rows, args, (), None, (first,), (rows, *shape), dtype, None, False))
        numbers = tuple([node.number for node in nodes[1:]])
        places = torch.arange(sum(self._groups.values()), device=device)
        return self._lowered._replace(
            graph=graph._replace(nodes=(*graph.nodes, *nodes), inputs=(*graph.inputs, *numbers)),
            origins=(*self._lowered.origins, places, *[None] * len(numbers)),
        )

    def contraction(self, output: int, key: Key, slots: int) -> Contraction:
        """Return what is asked for of one derivative, of which so many slots are multiplied at most."""
        graph, group = self._lowered.graph, key[:slots]
        names = [_names(slot, len(graph.nodes[number].shape)) for slot, number in enumerate((output, *key))]
        open_slots = tuple([((graph.inputs.index(number), own),) for number, own in zip(key, names[1:], strict=True)])
        operands = tuple(
            [(len(graph.inputs) + self._numbers[group, slot], (_ROW, *names[1 + slot])) for slot in range(len(group))]
        )
        result = (*names[0], _ROW, *sum(names[1 + len(group) :], ()))
        return Contraction((graph.outputs.index(output), names[0]), open_slots, operands, result)


def _names(slot: int, count: int) -> tuple[str, ...]:
    return tuple([f"{slot}.{dim}" for dim in range(count)])
