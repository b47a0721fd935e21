"""Columns: dense results by some coordinates of one slot at a time, for functions that have no rows to take apart.

The coordinates of all inputs together are rows: of a matrix of unit vectors, by which the first slot of a derivative is
multiplied. Contracted so, a derivative takes for every coordinate what a product with a vector takes, and the matrix is
made for those coordinates only that a chunk is of. Where that holds too much, rows are pairs of coordinates of two
slots, and so on. Each derivative is computed for one order of its slots, as ever. A contraction is multiplied along
labels of its result, those of a slot or of the output, or along labels that it sums over, and its chunks are added up.
Source: products with unit vectors, as torch.func.jacfwd takes them; here along any slots, of any order.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate, chain, count, groupby
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.algebra.extents import UnevenError
from hofunc.plan.accumulate import dense
from hofunc.plan.apart import most_summed, of_contractions
from hofunc.plan.blocks import Blocks, Local
from hofunc.plan.blueprint import Blueprint, Limits, Peak, cast, largest
from hofunc.plan.builder import Builder, Leave
from hofunc.plan.chunks import BY_COORDINATES, Chunks, body_of, given_as, parts_of, prepared, priced_chunks, reads_of
from hofunc.plan.cost import Cost
from hofunc.plan.operators import zeros
from hofunc.plan.program import Given, Program, Register, Step, device_of, finished
from hofunc.plan.rows import unmarked
from hofunc.plan.strategies import propagated
from hofunc.plan.unit_products import with_entries_read
from hofunc.plan.units import Multiplied, Part, Shape, of_derivatives, places_in
from hofunc.plan.wanted import Contractions, Wanted
from hofunc.rules.lower import Lowered

_FEW = 8  # of them
_ALONG = (BY_COORDINATES, "pairs of coordinates", "tuples of coordinates")


class Columns(NamedTuple):
    """What is asked for, multiplied by unit vectors.

    Attributes:
        whole: The blueprint that computes the same at once.
        lowered: Its graph, with matrices of unit vectors.
        parts: Its results, multiplied, in order.
        groups: How many rows each group of them has.
        slots: Along how many slots, or labels that are summed, each is multiplied, at most.
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

    @property
    def piece(self) -> int:
        """How many bytes one coordinate makes at the least, which are there beside what they are written to."""
        graph = self.whole.lowered.graph
        return min(
            prod(part.joint) // self.groups[part.group] * graph.nodes[part.output].dtype.itemsize for part in self.parts
        )

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
        plain = lowered._replace(graph=unmarked(lowered.graph), values={}, likely={})
        if isinstance(wanted, Contractions):
            return [
                columns
                for labels in range(1, 1 + max(1, most_summed(plain, wanted)))
                for asked in of_contractions(plain, whole, wanted, labels)
                for columns in cls._ways(whole, asked, labels)
            ]
        graph = plain.graph
        counts = [prod(graph.nodes[number].shape) for number in graph.inputs if graph.nodes[number].active]
        if 0 in counts or sum(counts) < 2 or not whole.dense:
            return []
        highest = max(len(key) for _, key in whole.dense)
        every = [cls._ways(whole, of_derivatives(plain, whole, k), k) for k in range(1, max(2, highest))]
        return [*chain(*every)]

    @classmethod
    def _ways(cls, whole: Blueprint, asked: Multiplied, slots: int) -> "list[Columns]":
        """Return ways to compute results that are multiplied along so many slots or labels."""
        groups = asked.units.rows
        rows = sum(groups.values())
        sizes = dict.fromkeys([rows] * (slots == 1) + [min(_FEW, rows)])
        return [cls(whole, asked.units.of(size), asked.parts, groups, slots) for size in sizes]

    def drawn(self, local: dict[int, Local], strategy: str, leave: Leave, limits: Limits, peak: Peak) -> Blueprint:
        """Return the blueprint by a strategy of contractions, in chunks of as many coordinates as limits allow.

        Args:
            local: The local derivatives of the nodes.
            strategy: The strategy.
            leave: What planning may take.
            limits: Coordinates at a time, and memory.
            peak: Tells what is held at once where a blueprint is run.
        """
        builder, blocks = propagated(self.lowered, local, self.wanted, strategy, leave)
        try:
            return self._drawn(builder, blocks, strategy, limits, peak)
        finally:
            builder.forget()

    def _drawn(self, builder: Builder, blocks: Blocks, strategy: str, limits: Limits, peak: Peak) -> Blueprint:
        outputs: list[Register | None] = []
        for number, part in enumerate(self.parts):
            terms = blocks.get((part.output, (number,)))
            made = dense(builder, terms) if terms else None
            outputs.append(made if made is None or part.dim is None else cast(builder, part.output, made))
        drawing = _Drawing(self, builder, outputs, limits)
        size = limits.chunk_size or max(self.groups.values())
        whole = replace(self.whole, strategy=strategy, effort=builder.effort)
        least = None if limits.max_bytes is None else drawing.of(whole, 1)
        if least is not None and limits.max_bytes is not None and peak(least) > limits.max_bytes:
            return least
        first = drawing.of(whole, size)
        if first is None or limits.max_bytes is None or peak(first) <= limits.max_bytes:
            return first or whole
        return largest(first, drawing, size, limits.max_bytes, peak, least)


class _Drawing(NamedTuple):
    """The program of contractions, to be taken apart.

    Attributes:
        columns: What is asked for.
        builder: It has the steps.
        outputs: The register of every contraction, None for those that vanish.
        limits: Memory, and whether results are handed over and not held.
    """

    columns: Columns
    builder: Builder
    outputs: Sequence[Register | None]
    limits: Limits

    def of(self, whole: Blueprint, size: int) -> Blueprint | None:
        """Return the blueprint in chunks of so many coordinates, None if they cannot be taken apart."""
        try:
            return replace(whole, chunks=self._chunks(size))
        except (UnevenError, RuntimeError):
            return None

    def _chunks(self, size: int) -> Chunks:
        groups, shown = self.columns.groups, [output for output in self.outputs if output is not None]
        program, rows = with_entries_read(self.builder.program(shown)), sum(groups.values())
        early, inside, _ = parts_of(program, shown)
        taken = sorted(reads_of(inside) - {step.target for step in inside})
        first = prepared(program, early, taken, rows)
        origins = {register: program.given[register].origin for register in taken if register in program.given}
        every = places_in(self.columns.lowered)
        places_at = [place for place, register in enumerate(taken) if origins.get(register) is every is not None]
        if reads_of(early) & {taken[place] for place in places_at}:
            raise UnevenError
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
        after = finished({}, {}, [], []) if self.limits.in_pieces else self._after(places)
        along = _ALONG[min(self.columns.slots, len(_ALONG)) - 1]
        chunks = Chunks(
            first.program,
            first.dims,
            tuple(bodies),
            after,
            Cost((), 0),
            along,
            self.limits.in_pieces,
            next(iter(places_at), None),
        )
        return priced_chunks(chunks, device, self.limits.max_bytes)

    def _after(self, places: Sequence[int]) -> Program:
        """Return what makes the results of the whole of those of bodies, which are of so many of its places."""
        graph, targets = self.columns.whole.lowered.graph, self.columns.whole.program.outputs
        given: dict[int, Given] = {}
        steps: list[Step] = []
        shapes: dict[int, tuple[Shape, torch.dtype]] = {}
        fresh = count(-1 - len(self.columns.parts), -1)

        def step(*call: Any) -> Register:
            function, *args = call
            steps.append(Step(next(fresh), function, tuple(args)))
            return Register(steps[-1].target)

        for target, parts in zip(targets, self._summands(), strict=True):
            (_, part), *_ = parts
            dtype = graph.nodes[part.output].dtype
            found: list[Register] = []
            for number, each in parts:
                if number in places:
                    own = self.builder.dtype if each.dim is None else dtype
                    given[-1 - number] = Given(places.index(number), each.joint, own)
                    made = step(torch.reshape, Register(-1 - number), each.shape)
                    found.append(made if own == dtype else step(torch.Tensor.to, made, dtype))
            if found:
                reduce(partial(step, torch.add), found)
            else:
                step(zeros, part.shape, dtype, device_of(graph))
                shapes[target] = part.shape, dtype
            steps[-1] = steps[-1]._replace(target=target)
        return finished(given, shapes, steps, [*map(Register, targets)])

    def _summands(self) -> list[list[tuple[int, Part]]]:
        """Return the parts of which each result is the sum, with their numbers."""
        numbered = enumerate(self.columns.parts)
        return [[*group] for _, group in groupby(numbered, key=lambda each: each[1].place)]
