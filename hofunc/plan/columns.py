"""Columns: dense derivatives by some coordinates of one slot at a time, for functions that have no rows to take apart.

The coordinates of all inputs together are rows: of a matrix of unit vectors, by which the first slot of a derivative is
multiplied. Contracted so, a derivative takes for every coordinate what a product with a vector takes, and the matrix is
made for those coordinates only that a chunk is of. Each derivative is computed for one order of its slots, as ever.
Source: products with unit vectors, as torch.func.jacfwd takes them; here along any slot, of any order.
"""

from collections.abc import Sequence
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


class Columns(NamedTuple):
    """What is asked for, multiplied by unit vectors.

    Attributes:
        whole: The blueprint that computes the same at once.
        lowered: Its graph, with a matrix of unit vectors for every input.
        wanted: The contractions, in the order of the results of the whole.
        inputs: For each of them, the place of the input among those that are differentiated by.
    """

    whole: Blueprint
    lowered: Lowered
    wanted: Contractions
    inputs: tuple[int, ...]

    @classmethod
    def of(cls, lowered: Lowered, whole: Blueprint) -> "list[Columns]":
        """Return ways to compute what a blueprint of dense derivatives does, if there are enough coordinates to part.

        The first is the best for all at a time: it multiplies before what all of them are multiplied by. The second is
        the best for a few, and holds less.

        Args:
            lowered: The graph.
            whole: The blueprint.
        """
        lowered = lowered._replace(graph=unmarked(lowered.graph))
        graph = lowered.graph
        active = [number for number in graph.inputs if graph.nodes[number].active]
        counts = [prod(graph.nodes[number].shape) for number in active]
        if 0 in counts or sum(counts) < 2 or not whole.dense:
            return []
        blocks = sorted(whole.dense, key=whole.dense.__getitem__)
        sums = tuple([(_contraction(lowered, active, *block),) for block in blocks])
        inputs = tuple([active.index(key[0]) for _, key in blocks])
        sizes = dict.fromkeys((sum(counts), min(_FEW, sum(counts))))
        return [cls(whole, _with_units(lowered, active, size), Contractions(sums), inputs) for size in sizes]

    @property
    def counts(self) -> list[int]:
        """How many coordinates each input has."""
        graph = self.lowered.graph
        return [prod(graph.nodes[number].shape) for number in graph.inputs if graph.nodes[number].active]

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
        size = limits.chunk_size or max(self.counts)
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
        counts, shown = self.columns.counts, [output for output in self.outputs if output is not None]
        program, rows = self.builder.program(shown), sum(counts)
        early, inside, _ = parts_of(program, shown)
        taken = sorted(reads_of(inside) - {step.target for step in inside})
        first = prepared(program, early, taken, rows)
        given, bodies = given_as(taken, first.looks), []
        places: list[int] = []
        for number, (start, count) in enumerate(zip(accumulate(counts, initial=0), counts, strict=False)):
            own = [place for place, of in enumerate(self.columns.inputs) if of == number]
            registers = [(place, output) for place in own if (output := self.outputs[place]) is not None]
            if not registers:
                continue
            part = finished(given, program.shapes, inside, [register for _, register in registers])
            joints = tuple([self._joint(place) for place, _ in registers])
            results = tuple([place for place, _ in registers])
            bodies.append(body_of(part, joints, count, size)._replace(start=start, places=results))
            places += results
        device = device_of(self.columns.lowered.graph)
        after = finished({}, {}, [], []) if self.in_pieces else self._after(places)
        along = "coordinates"
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
        blocks = sorted(self.columns.whole.dense, key=self.columns.whole.dense.__getitem__)
        for place, (output, key) in enumerate(blocks):
            sizes = [tuple(map(int, graph.nodes[number].shape)) for number in (output, *key)]
            shape, dtype = sum(sizes, ()), graph.nodes[output].dtype
            if place in places:
                joint = (*sizes[0], prod(sizes[1]), *sum(sizes[2:], ()))
                given[-1 - place] = Given(places.index(place), joint, dtype)
                steps.append(Step(targets[place], torch.reshape, (Register(-1 - place), shape)))
            else:
                steps.append(Step(targets[place], zeros, (shape, dtype, device_of(graph))))
                shapes[targets[place]] = shape, dtype
        return finished(given, shapes, steps, [*map(Register, targets)])


def _with_units(lowered: Lowered, active: Sequence[int], size: int) -> Lowered:
    """Return a graph with a matrix of unit vectors for every input, to be planned for so many of them at a time."""
    graph, device, dtype = lowered.graph, device_of(lowered.graph), computing_dtype(lowered)
    counts = [prod(graph.nodes[number].shape) for number in active]
    rows, first = Rows(size), len(graph.nodes)
    nodes = [Node(first, CONSTANT, (), (), None, (), (rows,), torch.long, device, False)]
    for start, number in zip(accumulate(counts, initial=0), active, strict=False):
        shape = tuple(graph.nodes[number].shape)
        args = (Ref(first), start, shape, dtype)
        nodes.append(Node(first + len(nodes), unit_rows, args, (), None, (first,), (rows, *shape), dtype, None, False))
    numbers = tuple([node.number for node in nodes[1:]])
    places = torch.arange(sum(counts), device=device)
    return lowered._replace(
        graph=graph._replace(nodes=(*graph.nodes, *nodes), inputs=(*graph.inputs, *numbers)),
        origins=(*lowered.origins, places, *[None] * len(active)),
    )


def _contraction(lowered: Lowered, active: Sequence[int], output: int, key: Key) -> Contraction:
    """Return what is asked for of one derivative."""
    graph = lowered.graph
    names = [_names(slot, len(graph.nodes[number].shape)) for slot, number in enumerate((output, *key))]
    slots = tuple([((graph.inputs.index(number), own),) for number, own in zip(key, names[1:], strict=True)])
    units = len(graph.inputs) + active.index(key[0]), (_ROW, *names[1])
    result = (*names[0], _ROW, *sum(names[2:], ()))
    return Contraction((graph.outputs.index(output), names[0]), slots, (units,), result)


def _names(slot: int, count: int) -> tuple[str, ...]:
    return tuple([f"{slot}.{dim}" for dim in range(count)])
