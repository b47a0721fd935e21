"""The peak: the most memory that a program holds at once.

What is given to a program is not counted unless it is handed over to it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from hofunc.plan.memory import memory_of
from hofunc.plan.program import Program
from hofunc.plan.tracing import Trace

Memory = dict[Any, int]  # its bytes, by what names it


def peak_of(program: Program, trace: Trace, outside: Iterable[Any] | None = None) -> int:
    """Return the most that is held at once while a program runs, its results included.

    Args:
        program: The program.
        trace: What its registers hold.
        outside: The memory that others hold, which does not count; that of all that is given if left out.
    """
    memories = {register: memory_of(value) for register, value in trace.values.items()}
    if program.over:
        memories = _written_over(program, memories)
    given = [memories[register] for register in program.given]
    held = _Held({place for memory in given for place in memory} if outside is None else outside)
    for memory in given:
        held.take(memory)
    peak = held.bytes
    for step, effect, freed in zip(program.steps, trace.effects, program.frees, strict=True):
        held.take(memories[step.target])
        peak = max(peak, held.bytes + effect.scratch)
        for register in freed:
            held.drop(memories[register])
    return peak


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


class _Held:
    """Counts the bytes of the memories that are held.

    Args:
        outside: Those that do not count.
    """

    def __init__(self, outside: Iterable[Any]):
        self._holders = dict.fromkeys(outside, 1)  # of these there is one more, who never lets go
        self.bytes = 0

    def take(self, memory: dict[Any, int]) -> None:
        """Hold a value, given its memory."""
        for place, size in memory.items():
            holders = self._holders.get(place, 0)
            self._holders[place] = holders + 1
            if not holders:
                self.bytes += size

    def drop(self, memory: dict[Any, int]) -> None:
        """Hold it no longer."""
        for place, size in memory.items():
            self._holders[place] -= 1
            if not self._holders[place]:
                self.bytes -= size
