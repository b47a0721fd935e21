"""Order: steps that give up as much memory as they take run as soon as they can, so that little is held at once.

The steps of a program come in the order in which results ask for them. So what several ask for is held from the first
to the last, be it that the last makes it small.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from hofunc.graph.draws import draws
from hofunc.graph.node import Call
from hofunc.plan.memory import memory_of
from hofunc.plan.program import Program, Register, Step, frees_of
from hofunc.plan.tracing import Effect, Trace

FEW = 2  # registers that hold the same memory, for which it is looked at whether one step takes all of them


def in_order(program: Program, trace: Trace) -> tuple[Program, Trace]:
    """Return a program and its trace in an order in which it is likely to hold less."""
    order = _Order(program, trace).taken()
    steps = tuple([program.steps[place] for place in order])
    other = program._replace(steps=steps, frees=frees_of(steps, program.outputs)[0])
    return other, Trace(trace.values, [trace.effects[place] for place in order], trace.known)


class _Order:
    """Takes the steps of a program one after the other, those first that take no memory.

    A step is looked at when all that it reads is there, and again when it has become the last that reads something, so
    that it is done in proportion to the program.

    Args:
        program: The program.
        trace: What its registers hold.
    """

    def __init__(self, program: Program, trace: Trace):
        self._steps, self._effects = program.steps, trace.effects
        self._memories = {register: memory_of(value) for register, value in trace.values.items()}
        self._reads = [[*{arg.index for arg in step.args if type(arg) is Register}] for step in program.steps]
        self._uses = Counter(register for reads in self._reads for register in reads)
        self._uses.update(program.outputs)
        self._takers: dict[int, list[int]] = defaultdict(list)
        for place, reads in enumerate(self._reads):
            for register in reads:
                self._takers[register].append(place)
        self._held: Counter[Any] = Counter()
        self._holders: dict[Any, set[int]] = defaultdict(set)
        self._done: list[int] = []
        self._is_done = [False] * len(program.steps)
        self._missing = [sum(register not in program.given for register in reads) for reads in self._reads]
        for register in program.given:
            self._held.update(dict.fromkeys(self._memories[register], 2))  # others hold it as well
        self._first = 1 + max(
            (n for n, pair in enumerate(zip(program.steps, trace.effects, strict=True)) if is_first(*pair)), default=-1
        )

    def taken(self) -> list[int]:
        """Return the places of the steps in the order in which they are to run."""
        for place in range(len(self._steps)):
            if not self._is_done[place]:
                waiting = self._take(place)
                while place >= self._first - 1 and waiting:
                    other = waiting.pop()
                    if not self._is_done[other] and self._is_small(other):
                        waiting += self._take(other)
        return self._done

    def _take(self, place: int) -> list[int]:
        """Take a step; returns those that may be ready now, or may take less than before."""
        target = self._steps[place].target
        self._is_done[place] = True
        self._done.append(place)
        for name in self._memories[target]:
            self._held[name] += 1
            self._holders[name].add(target)
        found: list[int] = []
        for register in self._reads[place]:
            self._uses[register] -= 1
            if self._uses[register] == 1:
                found += self._last_takers([register])
            elif not self._uses[register]:
                found += self._let_go(register)
        for taker in self._takers[target]:
            self._missing[taker] -= 1
            if not self._missing[taker]:
                found.append(taker)
        return found

    def _let_go(self, register: int) -> list[int]:
        """Hold a register no longer; returns the steps that are the last to hold memory of it."""
        found: list[int] = []
        for name in self._memories[register]:
            self._held[name] -= 1
            holders = self._holders[name]
            holders.discard(register)
            if len(holders) <= FEW:
                found += self._last_takers(holder for holder in holders if self._uses[holder] == 1)
        return found

    def _last_takers(self, registers: Iterable[int]) -> list[int]:
        """Return the steps that are yet to take registers of a single use."""
        return [taker for register in registers for taker in self._takers[register] if not self._is_done[taker]]

    def _is_small(self, place: int) -> bool:
        """Tell whether a step can run, and gives up as much as it takes."""
        reads, effect = self._reads[place], self._effects[place]
        if self._missing[place] or effect.result is None:
            return False
        new = sum(size for name, size in self._memories[self._steps[place].target].items() if not self._held[name])
        if not new:
            return True
        last = [register for register in reads if self._uses[register] == 1]
        freed = {name: size for register in last for name, size in self._memories[register].items()}
        holds = Counter(name for register in last for name in self._memories[register])
        return new <= sum(size for name, size in freed.items() if holds[name] == self._held[name])


def is_first(step: Step, effect: Effect) -> bool:
    """Tell whether a step stays before all that follow, as it draws random numbers or checks something."""
    return isinstance(step.function, Call) and (draws(step.function) or effect.made is None)
