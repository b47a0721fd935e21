"""Regions: the steps between what is read and sums over it, along axes of which they do the same for every entry."""

from collections.abc import Iterator, Sequence
from itertools import count, product
from math import prod
from operator import getitem
from typing import Any

import torch

from hofunc.algebra.extents import UnevenError
from hofunc.graph.node import Ref
from hofunc.plan.known import Known
from hofunc.plan.looped import MADE_BESIDE, VIEW, Body, Inside, Part, Work, looped
from hofunc.plan.memory import Held, memory_of
from hofunc.plan.peak import peak_of
from hofunc.plan.program import Given, Program, Register, Step, frees_of
from hofunc.plan.slicing import (
    VIEWS,
    Along,
    is_cheap,
    is_read,
    made,
    op_of,
    registers_of,
    sized,
    summed,
    template,
)
from hofunc.plan.tracing import traced
from hofunc.rules.ops.maps import picked, put_back
from hofunc.views import folded

SMALL = 1 << 12  # bytes that are not worth to be made for some entries at a time
KEPT = 4  # times as many bytes a tensor has at least as each that is kept of what it leads to
PRODUCTS = (torch.mm, torch.bmm, torch.matmul, folded)


class Region:
    """Steps that can be run for some entries of a label, and the sums over it that they end in.

    Args:
        known: The program.
        entries: How many entries the label has.
        small: Up to how many bytes it may keep of each tensor that others take.
    """

    def __init__(self, known: Known, entries: int, small: int = 0):
        self._known, self.entries = known, entries
        self.axes: dict[int, Along] = {}  # of all that is made or taken for some entries
        self.inside: dict[int, Step] = {}
        self.ends: dict[int, Step] = {}
        self.kept: set[int] = set()  # of what is inside, what others take as well
        self.whole: set[int] = set()
        self._small = small

    @classmethod
    def at(cls, known: Known, register: int, dim: int) -> "Iterator[Region]":
        """Yield the regions that a tensor is in along one of its axes; none if it leads to more than such sums.

        The first may have sums that nothing leads to but what it takes. The last ones keep what is small beside it.

        Args:
            known: The program.
            register: The tensor.
            dim: The axis.
        """
        held = known.looks[register]
        if held.shape[dim] < 2:
            return
        for small, ways in ((0, (True, False)), (known.made(register) // KEPT, (False,))):
            least = cls(known, held.shape[dim], small)
            if not least._include(register, Along(dim)) or not least._leads_straight():
                continue
            for grows in ways:
                region = least._copy()
                region._draw_in(grows=grows)
                if region.ends or region.kept:
                    yield region

    def _copy(self) -> "Region":
        other = Region(self._known, self.entries, self._small)
        other.axes, other.inside, other.ends, other.kept, other.whole = (
            {**self.axes},
            {**self.inside},
            {**self.ends},
            {*self.kept},
            {*self.whole},
        )
        return other

    def _become(self, other: "Region") -> None:
        self.axes, self.inside, self.ends, self.kept, self.whole = (
            other.axes,
            other.inside,
            other.ends,
            other.kept,
            other.whole,
        )

    def _include(self, register: int, along: Along, *, anew: bool = False) -> bool:
        """Make a register for some entries, and all that is made of it, unless it is made as a whole as well."""
        return self._include_all([(register, along)], anew=anew)

    def _include_all(self, waiting: list[tuple[int, Along]], *, anew: bool = False) -> bool:
        while waiting:
            register, along = waiting.pop()
            if register in self.inside:
                if self.axes[register] != along:
                    return False
                continue
            step = self._known.makers.get(register)
            found = None if step is None else self._known.taken(step, along)
            if step is None or found is None or not self._take([*found, (register, along)]):
                return False
            self.inside[register] = step
            users = [] if anew else self._known.users[register]
            if users and self._known.made(register) <= self._small:
                self.kept.add(register)
            elif not all(self._use(user, register, along, waiting) for user in users):
                return False
            anew = False
        return True

    def _use(self, user: Step | None, register: int, along: Along, waiting: list[tuple[int, Along]]) -> bool:
        """Do what takes a register for some entries likewise, or sum it up; tells whether that can be done."""
        if user is None:
            return False
        if user.target in self.inside or user.target in self.ends:
            return True  # which took it along the same axis
        own = made(user, register, along, self._known.looks)
        if own is not None:
            waiting.append((user.target, own))
            return True
        found = summed(user, register, along, self._known.looks)
        if found is None or not self._take(found):
            return False
        self.ends[user.target] = user
        return True

    def _take(self, found: Sequence[tuple[int, Along | None]]) -> bool:
        for register, along in found:
            if along is None and register in self.axes:
                return False
            if along is None:
                self.whole.add(register)
            elif register in self.whole or self.axes.setdefault(register, along) != along:
                return False
        return True

    def _draw_in(self, *, grows: bool) -> None:
        """Make what is taken for some entries, if it is large and nothing else takes it, or if it is made easily."""
        tried: set[int] = set()
        while waiting := [register for register in self.axes if register not in self.inside and register not in tried]:
            for register in waiting:
                tried.add(register)
                step = self._known.makers.get(register)
                if step is None or self._known.bytes(register) < SMALL:
                    continue
                found = self._known.taken(step, self.axes[register])
                if found is None or is_read(step, found):
                    continue
                ways = [False, True] if is_cheap(step.function) else [False]
                for anew in [True] if step.function in VIEWS else ways:
                    other = self._copy()
                    done = other._include(register, self.axes[register], anew=anew)
                    is_more = len(other.results) > len(self.results)
                    if done and (grows or not is_more) and not other._goes_in_circles():
                        self._become(other)
                        break

    def _leads_straight(self) -> bool:
        """Do for some entries as well what leads from what is kept back to what is taken; tells if nothing does."""
        while back := [register for register in self.kept if self._known.depend(self.taken, [register])]:
            register, waiting = min(back), list[tuple[int, Along]]()
            for user in self._known.users[register]:
                leads_back = user is not None and self._known.depend(self.taken, [user.target])
                if leads_back and not self._use(user, register, self.axes[register], waiting):
                    return False
            if not waiting or not self._include_all(waiting):
                return False
        self.kept = {register for register in self.kept if not self._is_used_inside(register)}
        return not self._goes_in_circles()

    def _is_used_inside(self, register: int) -> bool:
        own = self.inside.keys() | self.ends.keys()
        return all(user is not None and user.target in own for user in self._known.users[register])

    def _goes_in_circles(self) -> bool:
        """Tell whether what is taken depends on what the region ends in."""
        return self._known.depend(self.taken, self.results)

    @property
    def results(self) -> set[int]:
        """The registers that others take: sums, and what is kept."""
        return self.kept | {*self.ends}

    @property
    def taken(self) -> list[int]:
        """The registers that are given to it."""
        return [*dict.fromkeys(r for r in (*self.axes, *sorted(self.whole)) if r not in self.inside)]

    @property
    def gone(self) -> Iterator[int]:
        """The registers that nobody makes as a whole once it is a loop."""
        for register in (*self.inside, *self.ends):
            if register in self.results or self._is_used_inside(register):
                yield register

    @property
    def made(self) -> list[int]:
        """The registers of what is made for some entries, rather than read."""
        return [register for register, step in self.inside.items() if self._known.is_made(step)]

    @property
    def bytes(self) -> int:
        """The bytes of what is made for all entries together."""
        return sum(map(self._known.made, self.made))

    def steps(self) -> list[Step]:
        """Return its steps, and those that it ends in, in their order."""
        return [s for s in self._known.program.steps if s.target in self.inside or s.target in self.ends]

    def size(self, bytes_at_a_time: int) -> int:
        """Return of how many entries so many bytes are made at most, if not of one, or half of all."""
        pieces = min(self.entries, max(2, -(-self.bytes // max(1, bytes_at_a_time))))
        return -(-self.entries // pieces)

    def looped(self, size: int, fresh: int) -> list[Step]:
        """Return the steps that do what it does.

        Args:
            size: How many entries it takes at a time.
            fresh: A number of registers that are not used yet.
        """
        slots, steps = self.taken, self.steps()
        results = [step.target for step in steps if step.target in self.results]
        places = {register: place for place, register in enumerate(results)}
        numbers = {register: number for number, register in enumerate(slots)}
        inside = []
        for step in steps:
            args = template(step, self._known.looks, self.axes)
            filled = tuple([Ref(numbers[arg.index]) if type(arg) is Register else arg for arg in args])
            place, is_end = places.get(step.target), step.target in self.ends
            total, kept = (place, None) if is_end else (None, place)
            inside.append(Inside(step.function, filled, (), total, kept))  # type: ignore[arg-type] # a Call is called too
            if not is_end:
                numbers[step.target] = len(numbers)
        taken = tuple([self.axes.get(register) for register in slots])
        laid = tuple([None if register in self.ends else self.axes[register] for register in results])
        shapes = tuple([self._known.looks[register].shape for register in results])
        body = Body(self.entries, size, taken, tuple(_freeing(inside, len(slots))), shapes, laid)
        work = self.work(size)._replace(scratch=self._scratch(size, steps))
        args = (body, work, *map(Register, slots))
        return [
            Step(fresh, looped, args),
            *(Step(result, getitem, (Register(fresh), place)) for place, result in enumerate(results)),
        ]

    def work(self, size: int) -> Work:
        """Return what a loop does that takes so many entries at a time, but for what it holds."""
        steps = [*self.inside.values(), *self.ends.values()]
        parts = [self._part(size, step) if self._known.is_made(step) else VIEW for step in steps]
        parts += [
            part for step in steps if op_of(step.function) in (picked, put_back) for part in self._places(size, step)
        ]
        parts += [VIEW for register in self.taken if register in self.axes]
        parts += [self._writing(size, register) for register in sorted(self.kept)]
        return Work(tuple(parts), -(-self.entries // size), 0)

    def _places(self, size: int, step: Step) -> list[Part]:
        """Return what it takes to count indices from the front, which three calls do."""
        index = self._numel(step.args[1].index, size)
        return [Part(0, 3 * torch.long.itemsize * index, 0)] * 3

    def _writing(self, size: int, register: int) -> Part:
        """Return what it takes to write so many entries of what is kept to all of them."""
        return Part(0, 2 * self._numel(register, size) * self._known.looks[register].dtype.itemsize, 0)

    def _part(self, size: int, step: Step) -> Part:
        """Return what a step does for so many entries."""
        looks, is_product = self._known.looks, step.function in PRODUCTS
        taken = [self._numel(register, size) for register in registers_of(step)]
        made = self._numel(step.target, size)
        depth = looks[step.args[0].index].shape[-1] if is_product else 1
        along = self.axes.get(step.args[0].index) if is_product else None
        if along is not None and along.dim == len(looks[step.args[0].index].shape) - 1:
            depth = depth // self.entries * size
        items = prod(looks[step.target].shape[:-2]) if step.function is torch.bmm else 1
        flops = 2 * made * depth if is_product else made
        rows = 0 if is_product else self._rows(size, step)
        return Part(flops, looks[step.target].dtype.itemsize * (made + sum(taken)), items if is_product else 0, rows)

    def _rows(self, size: int, step: Step) -> int:
        """Return how many rows there are of so many entries of the last axis."""
        looks = self._known.looks
        alongs = {register: self.axes.get(register) for register in (step.target, *registers_of(step))}
        last = [r for r, own in alongs.items() if own is not None and own.dim == len(looks[r].shape) - 1]
        return max((self._numel(r, size) // (size * self.axes[r].inner) for r in last), default=0)

    def _numel(self, register: int, size: int) -> int:
        """Return how many entries a register has of so many entries of the label."""
        count = self._known.looks[register].kind.numel
        return count // self.entries * size if register in self.axes else count

    def _scratch(self, size: int, steps: Sequence[Step]) -> int:
        """Return what is held for so many entries, beside the sums."""
        looks, whole = self._known.looks, self._known.program
        shapes: dict[int, Any] = {}
        given, held = {}, {}
        for number, register in enumerate(self.taken):
            along, look = self.axes.get(register), looks[register]
            given[register] = Given(number, look.shape, look.dtype)
            if along is not None and along.outer > 1:
                held[register] = Held.fresh(_some(look.shape, along, size), look.dtype)
            else:
                held[register] = look if along is None else look.narrowed(along.dim, 0, size * along.inner)
        parts: list[Step] = []
        for step in steps:
            args = template(step, looks, self.axes)
            parts.append(step._replace(args=tuple([sized(arg, size) for arg in args])))
            if step.target in whole.shapes:
                shape, dtype = whole.shapes[step.target]
                shapes[step.target] = _some(shape, self.axes.get(step.target), size), dtype
        ends = [*self.ends]
        frees, read = frees_of(parts, ends)
        pairs = zip(parts, frees, strict=True)
        frees = tuple([freed if step.target in read else (*freed, step.target) for step, freed in pairs])
        program = Program(given, shapes, tuple(parts), frees, tuple(ends))
        trace = traced(program, held)
        for step in parts:
            expected = _some(looks[step.target].shape, self.axes.get(step.target), size)
            if trace.values[step.target].shape != expected:
                raise UnevenError
        slices = sum(sum(one.memory.values()) for r, one in held.items() if (a := self.axes.get(r)) and a.outer > 1)
        beside = max((looks[e].kind.nbytes for e, s in self.ends.items() if s.function in MADE_BESIDE), default=0)
        outside = [name for register in given for name in memory_of(trace.values[register])]
        sums = [name for end in ends for name in memory_of(trace.values[end])]
        return slices + beside + peak_of(program, trace, [*outside, *sums])


def _some(shape: Sequence[int], along: Along | None, size: int) -> tuple[int, ...]:
    """Return the shape of so many entries of a label."""
    own = (along.outer * along.inner * size,) if along is not None else ()
    return (*shape[: along.dim], *own, *shape[along.dim + 1 :]) if along is not None else tuple(shape)


def _freeing(steps: Sequence[Inside], given: int) -> Iterator[Inside]:
    """Yield the steps of a loop, which is given so many tensors, with the numbers of what is not read after each."""
    reads = [{arg.node for arg in step.args if type(arg) is Ref} for step in steps]
    numbers = count(given)
    for place, step in enumerate(steps):
        reads[place] |= {next(numbers)} if step.total is None else set()  # of what is kept alone there is no reader
    last: dict[int, int] = {}
    for place, own in enumerate(reads):
        last |= dict.fromkeys(own, place)
    for place, step in enumerate(steps):
        dead = [number for number in reads[place] if last[number] == place]
        yield step._replace(frees=tuple(sorted(dead)))


def regions_at(known: Known, registers: Sequence[int]) -> Iterator[Region]:
    """Yield the regions that tensors are in, along any of their axes."""
    seen: set[frozenset[Any]] = set()
    for register in registers:
        held = known.looks.get(register)
        if type(held) is not Held or register not in known.makers:
            continue
        views = [other for memory in held.memory for other in known.viewing(memory)]
        same = [*dict.fromkeys((*known.laid_out(register), *views))]
        most = max(len(known.looks[other].shape) for other in same)
        starts = [other for other in same if len(known.looks[other].shape) == most]
        for start, dim in product(starts, range(most)):
            for region in Region.at(known, start, dim):
                key = frozenset((*region.axes.items(), *region.kept))
                if key not in seen:
                    seen.add(key)
                    yield region
