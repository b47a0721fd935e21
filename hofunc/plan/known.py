"""What is known of a program from which another one is to be made: who makes what, and who takes it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hofunc.graph.node import Call
from hofunc.plan.memory import Held
from hofunc.plan.order import is_first
from hofunc.plan.program import Program, Step, depth_first, frees_of
from hofunc.plan.slicing import VIEWS, Along, Taken, registers_of, taken
from hofunc.plan.tracing import Trace, retraced
from hofunc.rules.kinds import is_elementwise


class Known:
    """What is known of the steps of a program.

    Args:
        program: The program.
        trace: What its registers hold.
        widely: Whether functions that rules compute of every number may be in loops too. It takes them to hold little
            at any price; of more regions, a search that may take no longer finds worse ones.

    Attributes:
        program: What was given.
        trace: Likewise.
        looks: What its registers hold.
        makers: The step that computes each register.
        users: The steps that take each, None for whoever takes the results.
        fresh: The first of the registers that are not used yet.
    """

    def __init__(self, program: Program, trace: Trace, *, widely: bool = False):
        self.program, self.trace, self.looks = program, trace, trace.values
        self._widely = widely
        self.makers = {step.target: step for step in program.steps}
        self.users: dict[int, list[Step | None]] = defaultdict(list)
        for step in program.steps:
            for register in {*registers_of(step)}:
                self.users[register].append(step)
        for register in program.outputs:
            self.users[register].append(None)
        self.fresh = 1 + max((*program.given, *self.makers), default=0)
        self._before: dict[int, int] = {}  # by register, a bit for each from which it is computed, and for itself
        for step in program.steps:
            bits = 1 << step.target
            for register in registers_of(step):
                bits |= self._before.get(register, 0)
            self._before[step.target] = bits

    def taken(self, step: Step, along: Along) -> Taken | None:
        """Return what a step takes for some entries of its result; None if it is not known, or not to be done so."""
        is_computed = isinstance(step.function, Call) and is_elementwise(step.function.op)
        return None if is_computed and not self._widely else taken(step, along, self.looks)

    def is_made(self, step: Step) -> bool:
        """Tell whether a step makes what it returns, as a reshape may too, rather than reads it."""
        own = self.looks[step.target].memory
        return step.function not in VIEWS or own.keys().isdisjoint(self.looks[step.args[0].index].memory)

    def made(self, register: int) -> int:
        """Return the bytes of the entries of a tensor."""
        return int(self.looks[register].kind.numel * self.looks[register].dtype.itemsize)

    def bytes(self, register: int) -> int:
        """Return the bytes of the memory that a register holds."""
        held = self.looks[register]
        return sum(held.memory.values()) if type(held) is Held else 0

    def viewing(self, memory: Any) -> Iterator[int]:
        """Yield the registers that hold some memory."""
        return (r for r, held in self.looks.items() if type(held) is Held and memory in held.memory)

    def laid_out(self, register: int) -> Iterator[int]:
        """Yield what a register has the entries of, be it that it is a copy in another order."""
        while register in self.makers and self.makers[register].function in VIEWS:
            register = self.makers[register].args[0].index
            yield register

    def depend(self, registers: Iterable[int], others: Iterable[int]) -> bool:
        """Tell whether some registers are among others, or are computed from them."""
        bits = 0
        for register in others:
            bits |= 1 << register
        return any(self._before.get(register, 0) & bits for register in registers)

    def changed(self, steps: Mapping[int, Step]) -> tuple[Program, Trace]:
        """Return the program and its trace with other steps for some registers, and without those nobody needs then."""
        program, makers = self.program, {**self.makers, **steps}
        pairs = zip(program.steps, self.trace.effects, strict=True)
        first = [step.target for step, effect in pairs if is_first(step, effect)]
        order = tuple(depth_first(makers, [*first, *program.outputs]))
        targets = {step.target for step in order}
        shapes = {r: looks for r, looks in program.shapes.items() if r in targets and r not in steps}
        frees, live = frees_of(order, program.outputs)
        given = {register: one for register, one in program.given.items() if register in live}
        other = program._replace(given=given, shapes=shapes, steps=order, frees=frees)
        return other, retraced(other, program, self.trace)
