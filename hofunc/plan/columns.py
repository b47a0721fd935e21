"""Columns: dense results by some coordinates of one slot at a time, for functions that have no rows to take apart.

The coordinates of all inputs together are rows: of a matrix of unit vectors, by which the first slot of a derivative is
multiplied. Contracted so, a derivative takes for every coordinate what a product with a vector takes, and the matrix is
made for those coordinates only that a chunk is of. Where that holds too much, rows are pairs of coordinates of two
slots, and so on. Each derivative is computed for one order of its slots, as ever. A contraction is multiplied along
labels of its result, those of a slot or of the output.
Source: products with unit vectors, as torch.func.jacfwd takes them; here along any slots, of any order.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
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
from hofunc.plan.slots import Slot
from hofunc.plan.strategies import computing_dtype, propagated
from hofunc.plan.wanted import Contraction, Contractions, Wanted
from hofunc.rules.lower import Lowered

Shape = tuple[int, ...]

_ROW = "a row"  # the label of the coordinates, which is none of a pattern
_FEW = 8  # of them
_ALONG = ("coordinates", "pairs of coordinates", "tuples of coordinates")


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


class Columns(NamedTuple):
    """What is asked for, multiplied by unit vectors.

    Attributes:
        whole: The blueprint that computes the same at once.
        lowered: Its graph, with matrices of unit vectors.
        parts: Its results, multiplied, in order.
        groups: How many rows each group of them has.
        slots: By how many unit vectors each is multiplied, at most.
    """

    whole: Blueprint
    lowered: Lowered
    parts: tuple[Part, ...]
    groups: dict[Hashable, int]
    slots: int

    @property
    def wanted(self) -> Contractions:
        """The contractions."""
        return Contractions(tuple([part.contractions for part in self.parts]))

    @classmethod
    def of(cls, lowered: Lowered, whole: Blueprint, wanted: Wanted) -> "list[Columns]":
        """Return ways to compute what a blueprint of dense results does, if there are enough coordinates to part.

        The first is the best for all at a time: it multiplies before what all of them are multiplied by. The second is
        the best for a few, and holds less; others are by more slots.

        Args:
            lowered: The graph.
            whole: The blueprint.
            wanted: What is asked for.
        """
        plain = lowered._replace(graph=unmarked(lowered.graph), values={})
        if isinstance(wanted, Contractions):
            return cls._ways(whole, _of_contractions(plain, whole, wanted), 1)
        graph = plain.graph
        counts = [prod(graph.nodes[number].shape) for number in graph.inputs if graph.nodes[number].active]
        if 0 in counts or sum(counts) < 2 or not whole.dense:
            return []
        highest = max(len(key) for _, key in whole.dense)
        every = [cls._ways(whole, _of_derivatives(plain, whole, k), k) for k in range(1, max(2, highest))]
        return [*chain(*every)]

    @classmethod
    def _ways(cls, whole: Blueprint, asked: "_Multiplied | None", slots: int) -> "list[Columns]":
        """Return ways to compute results that are multiplied by so many unit vectors."""
        if asked is None:
            return []
        groups = asked.units.rows
        rows = sum(groups.values())
        sizes = dict.fromkeys([rows] * (slots == 1) + [min(_FEW, rows)])
        return [cls(whole, asked.units.of(size), asked.parts, groups, slots) for size in sizes]

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
        for number, part in enumerate(self.parts):
            terms = blocks.get((part.output, (number,)))
            outputs.append(cast(builder, part.output, dense(builder, terms)) if terms else None)
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
                for place, each in enumerate(self.columns.parts)
                if each.group == group and (output := self.outputs[place]) is not None
            ]
            if not registers:
                continue
            part = finished(given, program.shapes, inside, [register for _, register in registers])
            joints = tuple([self.columns.parts[place].dim for place, _ in registers])
            results = tuple([place for place, _ in registers])
            bodies.append(body_of(part, joints, groups[group], size)._replace(start=start, places=results))
            places += results
        device = device_of(self.columns.lowered.graph)
        after = finished({}, {}, [], []) if self.in_pieces else self._after(places)
        along = _ALONG[min(self.columns.slots, len(_ALONG)) - 1]
        chunks = Chunks(first.program, first.dims, tuple(bodies), after, Cost((), 0), along, self.in_pieces)
        return chunks._replace(cost=cost_of_chunks(chunks, device))

    def _after(self, places: Sequence[int]) -> Program:
        """Return what makes the results of the whole of those of bodies, which are of so many of its places."""
        graph, targets = self.columns.whole.lowered.graph, self.columns.whole.program.outputs
        given: dict[int, Given] = {}
        steps: list[Step] = []
        shapes: dict[int, tuple[Shape, torch.dtype]] = {}
        for place, part in enumerate(self.columns.parts):
            dtype = graph.nodes[part.output].dtype
            if place in places:
                given[-1 - place] = Given(places.index(place), part.joint, dtype)
                steps.append(Step(targets[place], torch.reshape, (Register(-1 - place), part.shape)))
            else:
                steps.append(Step(targets[place], zeros, (part.shape, dtype, device_of(graph))))
                shapes[targets[place]] = part.shape, dtype
        return finished(given, shapes, steps, [*map(Register, targets)])


def _blocks(whole: Blueprint) -> list[tuple[int, Key]]:
    """Return the derivatives that a blueprint computes, in the order of its results."""
    return sorted(whole.dense, key=whole.dense.__getitem__)


class _Units:
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


class _Multiplied(NamedTuple):
    """Results multiplied by unit vectors, and these."""

    units: _Units
    parts: tuple[Part, ...]


def _of_derivatives(lowered: Lowered, whole: Blueprint, slots: int) -> _Multiplied:
    """Return the derivatives that a blueprint computes, of which so many slots are multiplied at most."""
    graph = lowered.graph
    keys = dict.fromkeys(sorted(key[:slots] for _, key in whole.dense))
    units = _Units(lowered, {key: tuple([tuple(graph.nodes[number].shape) for number in key]) for key in keys})
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
    return _Multiplied(units, tuple(parts))


def _names(slot: int, count: int) -> tuple[str, ...]:
    return tuple([f"{slot}.{dim}" for dim in range(count)])


def _of_contractions(lowered: Lowered, whole: Blueprint, wanted: Contractions) -> _Multiplied | None:
    """Return the contractions that a blueprint computes, along labels of a slot or of the output that are asked for.

    None if there is nothing to take apart.
    """
    graph, found = lowered.graph, []
    for output, (number,) in _blocks(whole):
        first, *_ = contractions = wanted.sums[number]
        sizes = first.of(graph).sizes(graph)
        runs = [_run(slot, first.result) for slot in (*first.slots, (first.output,))]
        names = max(runs, key=lambda run: prod([int(sizes[name]) for name in run]))
        shape = tuple([int(sizes[name]) for name in names])
        found.append((output, contractions, names, (names, shape), tuple([int(sizes[x]) for x in first.result])))
    extents = [prod(shape) for *_, (_, shape), _ in found]
    if 0 in extents or max(extents, default=0) < 2:
        return None
    units = _Units(lowered, {group: (group[1],) for *_, group, _ in found})
    parts = []
    for output, contractions, names, group, shape in found:
        start = contractions[0].result.index(names[0]) if names else 0
        multiplied = tuple([units.multiplied(each, group, [names], start) for each in contractions])
        joint = (*shape[:start], units.rows[group], *shape[start + len(names) :])
        parts.append(Part(group, output, multiplied, shape, joint))
    return _Multiplied(units, tuple(parts))


def _run(slot: Slot, result: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of a slot that follow each other in a result, from its first on; none of several inputs."""
    (_, indices), *others = slot
    names = [] if others else [name for name in indices if name in result]
    count = len(names)
    while count and tuple(result[result.index(names[0]) :][:count]) != tuple(names[:count]):
        count -= 1
    return tuple([str(name) for name in names[:count]])
