"""The peak: the most memory that a program holds at once.

What is given to a program is not counted unless it is handed over to it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hofunc.plan.memory import Held, memory_of
from hofunc.plan.program import Program, Register
from hofunc.plan.tracing import Trace

Memory = dict[Any, int]  # its bytes, by what names it


def peak_of(program: Program, trace: Trace, outside: Iterable[Any] | None = None) -> int:
    """Return the most that is held at once while a program runs, its results included.

    Args:
        program: The program.
        trace: What its registers hold.
        outside: The memory that others hold, which does not count; that of all that is given if left out.
    """
    return max(held_by(program, trace, outside))


def held_by(program: Program, trace: Trace, outside: Iterable[Any] | None = None) -> list[int]:
    """Return what is held before the first step of a program, and the most that is while each of them runs."""
    memories = _memories(program, trace)
    given = [memories[register] for register in program.given]
    outside = {place for memory in given for place in memory} if outside is None else outside
    holders = dict.fromkeys(outside, 1)  # of what does not count there is one more, who never lets go
    held = 0
    for memory in given:
        for place, size in memory.items():
            count = holders.get(place, 0)
            holders[place] = count + 1
            held += 0 if count else size
    found = [held]
    for step, effect, freed in zip(program.steps, trace.effects, program.frees, strict=True):
        for place, size in memories[step.target].items():
            count = holders.get(place, 0)
            holders[place] = count + 1
            held += 0 if count else size
        found.append(held + effect.scratch)
        for register in freed:
            for place, size in memories[register].items():
                holders[place] -= 1
                held -= 0 if holders[place] else size
    return found


def held_by_one(program: Program, trace: Trace) -> int:
    """Return the most that a single step takes, makes and computes with, which is held in any order of the steps."""
    memories = _memories(program, trace)
    outside = {place for register in program.given for place in memories[register]}
    most = 0
    for step, effect in zip(program.steps, trace.effects, strict=True):
        own = {**memories[step.target]}
        for arg in step.args:
            own |= memories[arg.index] if type(arg) is Register else {}
        most = max(most, effect.scratch + sum(size for place, size in own.items() if place not in outside))
    return most


def at_peak(program: Program, trace: Trace) -> tuple[int, dict[int, int]]:
    """Return at which step a program holds most, and the bytes of it by the registers that they were allocated for."""
    memories = _memories(program, trace)
    given = len(program.given)  # of which others hold the memory, who never let go
    holders = {place: 1 + given for register in program.given for place in memories[register]}
    owners: dict[Any, int] = {}
    held: Memory = {}
    total = peak = 0
    most: dict[int, int] = {}
    place = 0
    for number, (step, effect, freed) in enumerate(zip(program.steps, trace.effects, program.frees, strict=True)):
        for name, size in memories[step.target].items():
            holders[name] = holders.get(name, 0) + 1
            if holders[name] == 1:
                owners[name], held[name] = step.target, size
                total += size
        if total + effect.scratch > peak:
            place, peak = number, total + effect.scratch
            most = {owners[name]: size for name, size in held.items()}
        for register in freed:
            for name in memories[register]:
                holders[name] -= 1
                if not holders[name]:
                    total -= held.pop(name)
    return place, most


def _memories(program: Program, trace: Trace) -> dict[int, Memory]:
    """Return the memory that each register has."""
    memories = {
        register: value.memory if type(value) is Held else memory_of(value) for register, value in trace.values.items()
    }
    return _written_over(program, memories) if program.over else memories


def _written_over(program: Program, memories: Mapping[int, Memory]) -> dict[int, Memory]:
    """Return the memory of registers, which a step that writes over an operand has of that."""
    instead: dict[Any, Any] = {}
    over = dict(program.over)
    for step in program.steps:
        if step.target in over:
            (own,), (taken,) = memories[step.target], memories[step.args[over[step.target]].index]
            instead[own] = instead.get(taken, taken)
    return {
        register: {instead.get(place, place): size for place, size in memory.items()}
        for register, memory in memories.items()
    }
