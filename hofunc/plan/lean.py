"""Lean programs: the same steps so that little is held at once, without more to compute than is worth it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from math import inf, log2
from operator import itemgetter
from typing import NamedTuple

import torch

from hofunc.algebra.extents import has_rows
from hofunc.plan.cost import Cost, cost_of, seconds_of_loop
from hofunc.plan.devices import rates_of
from hofunc.plan.joint_convolutions import with_joint_convolutions
from hofunc.plan.known import Known
from hofunc.plan.late import deepest_first, put_off
from hofunc.plan.lookups import LEAST
from hofunc.plan.loops import Loop, apart, with_loops
from hofunc.plan.memory import Held, bytes_of
from hofunc.plan.order import in_order
from hofunc.plan.peak import at_peak, held_by, held_by_one
from hofunc.plan.pieces import in_pieces
from hofunc.plan.program import Program
from hofunc.plan.regions import SMALL, Region, regions_at
from hofunc.plan.remade import computed_after, with_remade
from hofunc.plan.reuse import with_reuse
from hofunc.plan.tracing import Trace, traced

LARGE = 1 << 18  # bytes at once, from which on it is worth to look for an order that holds less,
EACH = 1 << 12  # if there are as many for each step, whose place takes as long to find as to write four times these,
MANY = 1 << 10  # and twice as many for each beyond so many steps, for which one would wait

FEW = 1 << 8  # Up to so many steps it takes no time to speak of; beyond,
GAINED = 1 << 12  # it is not worth it to be rid of fewer bytes for each step that are held beside those of a single one

MOST = 3  # times the results, below which memory is not at issue,
HELD = 4 << 20  # nor below so many bytes,
HELD_QUICKLY = 64 << 20  # in plans that are quick to make, before it is known whether they are run more than once,
HELD_EACH = 1 << 14  # or so many for each step, of which all are put in order again for each loop that is tried
SLOWER = 1.1  # times as long as it may take to hold half as much
FEWER = 0.9  # of what was held that is worth another way
ROUNDS = 4  # of loops that are looked for one after the other
_FINER = 4  # times as many entries at a time as are tried next where too much is held
HOPEFUL = 4  # times as much as loops took away in the best round so far, which those of another may
LIKELIEST = 8  # loops that are tried in a round, of those whose tensors are held most
LARGEST = 4  # tensors at the peak for which they are


def priced(
    program: Program, device: torch.device, longest: float = inf, most: int | None = None
) -> tuple[Program, Cost]:
    """Return a program that writes over what it can, and what it costs on a device, without running it there.

    Args:
        program: The program.
        device: Where it is to run.
        longest: How many seconds it may run; of one that runs longer it is of no interest what it holds.
        most: How many bytes it may hold at once, however long it takes if it can be kept to; None for any.
    """
    first = arranged(program, device, most)
    made = first.leaner(longest) if most is None or first.made.peak <= most else first.within(most)
    return made.program, made.cost(device)


class Lean(NamedTuple):
    """A program that writes over what it can, what its registers hold, and what is held before and at each step."""

    program: Program
    trace: Trace
    held: list[int]

    @classmethod
    def of(cls, program: Program, trace: Trace) -> "Lean":
        """Return a program in its order."""
        program = with_reuse(program, trace)
        return cls(program, trace, held_by(program, trace))

    @property
    def peak(self) -> int:
        """The most that is held at once."""
        return max(self.held)

    def excess(self, goal: float) -> int:
        """Return how many bytes are held beyond so many, by all steps together."""
        return sum(int(held - goal) for held in self.held if held > goal)

    def excess_of(self, goal: float) -> dict[int, int]:
        """Return how many bytes each register has at the steps that hold more than so many, by all these together."""
        beyond = [0, *accumulate(held > goal for held in self.held)]
        first: dict[int, int] = {}
        found: dict[int, int] = {}
        for place, (step, freed) in enumerate(zip(self.program.steps, self.program.frees, strict=True)):
            first[step.target] = place + 1
            for register in freed:
                held = self.trace.values[register]
                if type(held) is Held and register in first:
                    found[register] = held.kind.nbytes * (beyond[place + 2] - beyond[first[register]])
        return found

    def cost(self, device: torch.device) -> Cost:
        """Return what it costs on a device, without running it there."""
        return cost_of(self.program, device, self.trace, self.peak)


class Arranged(NamedTuple):
    """A program in the order in which it holds least, to be made so that it holds less.

    Attributes:
        program: The program.
        trace: What its registers hold.
        device: Where it is to run.
        made: It in that order.
    """

    program: Program
    trace: Trace
    device: torch.device
    made: Lean

    def leaner(self, longest: float = inf, allowed: int = 0) -> Lean:
        """Return it so that it holds little at once, without more to compute than is worth it.

        Args:
            longest: How many seconds it may run for that to be worth something.
            allowed: How many bytes it may hold in any case.
        """
        made, goal = self.made, _goal(self.program, self.trace)
        if FEWER * made.peak <= goal or made.peak <= allowed:
            return made
        if any(has_rows(given.shape) for given in self.program.given.values()):
            return made
        cost = made.cost(self.device)
        if cost.seconds - cost.large > longest:  # which loops may save, as they make no tensors that large
            return made
        return _in_loops(self.program, self.trace, made, goal, self.device)

    def within(self, most: int) -> Lean:
        """Return it so that it holds no more than it may, however long it takes; about the least if that is more.

        Loops that are worth it are looked for where they are to hold no more, or where there are too many steps for
        others.
        """
        is_long = len(self.program.steps) > MANY
        made = self.leaner() if is_long or _goal(self.program, self.trace) <= most else self.made
        if made.peak <= most or is_long:
            return made
        return _within(made, self.program, self.trace, most, self.device)


def arranged(program: Program, device: torch.device, most: float | None = None) -> Arranged:
    """Return a program in the order in which it holds least.

    Args:
        program: The program.
        device: Where it is to run.
        most: How many bytes it may hold at once; None for any.
    """
    trace = traced(program)
    if device.type == "cpu" and (joint := with_joint_convolutions(program, trace)) is not program:
        program, trace = joint, traced(joint)
    return Arranged(program, trace, device, _in_order(program, trace, most))


def lean(program: Program, trace: Trace, device: torch.device) -> Lean:
    """Return a program so that it holds little at once, without more to compute than is worth it.

    Args:
        program: The program.
        trace: What its registers hold.
        device: Where it is to run.
    """
    return Arranged(program, trace, device, _in_order(program, trace)).leaner()


def is_much(peak: int, program: Program) -> bool:
    """Tell whether so many bytes, that a program holds, are worth to hold less."""
    return peak > max(HELD, HELD_EACH * len(program.steps)) and peak > _goal(program, traced(program))


def _goal(program: Program, trace: Trace) -> int:
    """Return how many bytes a program may hold at once before memory is at issue."""
    return max(HELD, HELD_EACH * len(program.steps), MOST * bytes_of(trace.of(program.outputs)))


def _in_order(program: Program, trace: Trace, most: float | None = inf) -> Lean:
    """Return a program in the order, of those that are tried, in which it holds least, what it adds in pieces."""
    return _ordered(*in_pieces(program, trace), most)


def _ordered(program: Program, trace: Trace, most: float | None = inf) -> Lean:
    """Return a program in the order, of those that are tried, in which it holds least."""
    orders, count = _orders(program, trace), len(program.steps)
    best = next(orders)
    if best.peak < max(LARGE, EACH * count, 2 * EACH * (count - MANY)):
        return best
    by_one = held_by_one(best.program, trace)
    if count > MANY and most is not None and by_one > most:
        return best  # as a single step holds too much, and nobody looks for loops in place of it
    while not (count > FEW and most is None and best.peak - by_one < GAINED * count):
        other = next(orders, None)
        if other is None:
            break
        best = min(best, other, key=lambda each: each.peak)
    return best


def _orders(program: Program, trace: Trace) -> Iterator[Lean]:
    """Yield a program in its own order, and in others that are likely to hold less."""
    yield Lean.of(program, trace)
    for start in ((program, trace), deepest_first(program, trace)):
        ordered = in_order(*start)
        yield Lean.of(*ordered)
        yield Lean.of(*put_off(*ordered))


def _in_loops(
    program: Program,
    trace: Trace,
    made: Lean,
    goal: int,
    device: torch.device,
    longest: float | None = None,
    size: int | None = None,
    most: float = inf,
) -> Lean:
    """Return a program with loops in place of what leads from its largest tensors to sums, as far as it holds less.

    A loop may not tell in the peak before there is another one, where as much is held at other steps, and the one that
    tells most may be in the way of others, so that two programs are kept to go on from: that which holds least beyond
    the goal at all steps together, and that with the lowest peak of the others. Nobody goes on where far more is held
    beyond the most that may be than the loops of all rounds that are left can be expected to take away.
    """
    best, seconds = made, made.cost(device).seconds
    longest = worth(seconds, made.peak, goal) if longest is None else longest
    size = size or max(LEAST, bytes_of(trace.of(program.outputs)))
    search = _Search(int(goal), size, longest, device)
    states = [_State(made.excess(goal), made, program, trace)]
    enough = goal if longest == inf else goal / FEWER  # as a tenth less is not worth another way
    beyond, gained = made.excess(most), 0
    for left in reversed(range(ROUNDS)):
        every: list[_State] = []
        for state in states:
            every += _better(state, search)
            if every and not every[-1].excess:
                break
        if not every:
            break
        every.sort(key=itemgetter(0))
        lowest = min(every[1:], key=lambda state: state.made.peak, default=every[0])
        states = every[:1] if lowest is every[0] else [every[0], lowest]
        least = lowest if lowest.made.peak < FEWER * every[0].made.peak else every[0]
        if least.made.peak < FEWER * best.peak or least.made.peak <= goal:
            found = min(least.made, _in_order(least.program, least.trace), key=lambda made: made.peak)
            if longest == inf or found.cost(device).seconds <= worth(seconds, made.peak, found.peak):
                best = found
        before, beyond = beyond, min(state.made.excess(most) for state in states)
        gained = max(gained, before - beyond)
        if best.peak <= enough or beyond > HOPEFUL * left * gained:
            break
    return best


def worth(seconds: float, before: int, after: float) -> float:
    """Return how long a program may take that holds less than one which takes some seconds: the less, the longer."""
    return seconds * SLOWER ** max(1.0, log2(before / after))


def _within(made: Lean, program: Program, trace: Trace, most: int, device: torch.device) -> Lean:
    """Return a program with loops that holds no more than it may; that which holds least of those found, if none does.

    Loops of the fewest entries at a time come first, which hold least, whatever is allowed: where these hold too much,
    nobody looks for others. Loops take the more time the fewer entries they have, so that else they have as many as
    fit, about.
    """
    least = _in_loops(program, trace, made, 0, device, longest=inf, size=SMALL, most=most)
    if least.peak > most:
        return min(made, least, key=lambda each: each.peak)
    size = (most - bytes_of(trace.of(program.outputs))) // 2
    while size > SMALL:
        found = _in_loops(program, trace, made, most, device, longest=inf, size=size)
        if found.peak <= most:
            return found
        size //= _FINER
    return least


class _State(NamedTuple):
    """A program with some loops.

    Attributes:
        excess: What it holds beyond the goal.
        made: What is made of it.
        program: Its steps before that.
        trace: What its registers hold.
        loop: The loop that it has beside those of the one that it was made from.
    """

    excess: int
    made: Lean
    program: Program
    trace: Trace
    loop: Loop | None = None


class _Search(NamedTuple):
    """What is looked for.

    Attributes:
        goal: How many bytes may be held.
        size: How many may be made of some entries, if a loop does not take too long then.
        longest: How many seconds a program may run.
        device: Where it runs.
    """

    goal: int
    size: int
    longest: float
    device: torch.device


def _better(state: _State, search: _Search) -> list[_State]:
    """Return programs that hold less than one, by one more change, and do not run longer than they may.

    They are in the order in which most hold least, as to try others takes most of the time. What a loop holds of some
    entries can be made less by no other one, so that loops that hold more than the goal by that are tried last. Those
    that are better are made together too, as far as they are apart.
    """
    known = Known(state.program, state.trace, widely=search.longest == inf)
    place, held = at_peak(state.made.program, state.made.trace)
    largest = sorted(held, key=lambda register: -held[register])[:LARGEST]
    loops = [*_loops(known, state.made, held, largest, search)]
    after = computed_after(known, state.made.program, place)
    looped = [[loop for loop in loops if (loop.scratch > search.goal) is is_large] for is_large in (False, True)]
    few, many = (((with_loops(known, [loop]), loop) for loop in some) for some in looped)
    remade = ((with_remade(known, register, after), None) for register in largest)
    found = [*_tried(chain(few, remade), state, search)] or [*_tried(many, state, search)]
    if found and not found[-1].excess:
        return found
    better = sorted(found, key=itemgetter(0))
    together = apart(known, [each.loop for each in better if each.loop is not None])
    return found if len(together) < 2 else [*found, *_tried([(with_loops(known, together), None)], state, search)]


def _loops(
    known: Known, made: Lean, held: Mapping[int, int], largest: Sequence[int], search: _Search
) -> Iterator[Loop]:
    """Yield loops over labels of the largest tensors, of those that make something of what is held at the peak."""
    over = dict(made.program.over)
    excess = made.excess_of(search.goal)
    sizes = _Sizes(known, made, search)
    regions = [
        region
        for region in regions_at(known, largest)
        if any(register in held or register in over for register in region.made)  # of others, that only read, is none
    ]
    regions.sort(key=lambda region: -sum(excess.get(register, 0) for register in region.gone))
    for number, region in enumerate(regions[:LIKELIEST]):
        size = sizes.of(region)
        loop = None if size is None else Loop.of(known, region, size, number)
        if loop is not None:
            yield loop


class _Sizes:
    """How many entries loops take at a time.

    Args:
        known: The program.
        made: What is made of it.
        search: What is looked for.
    """

    def __init__(self, known: Known, made: Lean, search: _Search):
        self._search = search
        if search.longest < inf:
            self._rates = rates_of(search.device)
            steps = cost_of(known.program, search.device, known.trace, 0).steps
            pairs = zip(known.program.steps, steps, strict=True)
            self._seconds = {step.target: cost.seconds - cost.renewing for step, cost in pairs}
            self._others = made.cost(search.device).working

    def of(self, region: Region) -> int | None:
        """Return how many entries a loop takes at a time; None if it takes too long, however many these are.

        The fewer they are the less it holds, and the longer it takes to call what it does.
        """
        most, size = self._search.size, region.size(self._search.size)
        if self._search.longest == inf:
            return size
        left = self._search.longest - self._others + sum(self._seconds[register] for register in region.gone)
        while seconds_of_loop(region.work(size), self._rates) > left:
            most *= _FINER
            if most > self._search.goal // 2:
                return None
            size = region.size(most)
        return size


def _tried(
    changed: Iterable[tuple[tuple[Program, Trace] | None, Loop | None]], state: _State, search: _Search
) -> Iterator[_State]:
    """Yield those of some programs that hold less than one, and do not run longer than they may.

    The first that holds no more than the goal is the last, as nothing is gained by another one.
    """
    for other, loop in changed:
        if other is None:
            continue
        program, trace = in_pieces(*other)
        if search.longest < inf and cost_of(program, search.device, trace, 0).working > search.longest:
            continue
        made = Lean.of(*put_off(*in_order(program, trace)))
        if made.peak <= state.made.peak and (excess := made.excess(search.goal)) < state.excess:
            yield _State(excess, made, *other, loop)
            if not excess:
                return
