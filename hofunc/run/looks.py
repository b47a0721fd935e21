"""What a program looks at before it runs: values that f read, with the steps that lead to them, apart from the rest.

A check compares a value, to the last digit, with the one that f read when the plan was made. So what it compares is
computed as it was then, op by op: a compiler orders sums otherwise, and what it made might never be equal. The rest
looks at nothing. It takes what was computed on the way to the checks, and is compiled as any other program is.
"""

from collections.abc import Callable, Collection, Sequence
from operator import getitem
from typing import Any, NamedTuple

from torch import Tensor

from hofunc.graph.node import Call
from hofunc.internals import compiling
from hofunc.plan.primal import Guard, same_shape
from hofunc.plan.program import Given, Program, Register, Step, frees_of, is_drawn
from hofunc.plan.tables import required
from hofunc.run.executor import Runner, compiled

Tensors = Sequence[Tensor]


class Parts(NamedTuple):
    """A program in two parts, of which the second checks nothing.

    Attributes:
        looks: The checks, with the steps that lead to them; returns what the rest takes.
        steps: Those of the rest, in order.
    """

    looks: Program
    steps: tuple[Step, ...]

    def rest(self, program: Program, count: int, passed: Tensors) -> Program:
        """Return the rest of a program, which takes so many tensors, as one that takes some of the first part too."""
        given = dict(program.given)
        for place, (register, tensor) in enumerate(zip(self.looks.outputs, passed, strict=True), count):
            given[register] = Given(place, tuple(tensor.shape), tensor.dtype)
        return _of(program, given, self.steps, program.outputs)


def parts_of(program: Program) -> Parts:
    """Part a program into what it looks at, and the rest."""
    early = _early(program.steps)
    first = tuple(step for step in program.steps if step.target in early)
    later = tuple(step for step in program.steps if step.target not in early)
    taken = {*program.outputs, *(read for step in later for read in _reads(step))}
    passed = tuple(step.target for step in first if step.target in taken)
    return Parts(_of(program, program.given, first, passed), later)


def _early(steps: Sequence[Step]) -> Collection[int]:
    """Return the registers that checks need: with random numbers, those that are drawn before them."""
    needed, are_drawn = set[int](), False
    for step in reversed(steps):
        if step.target in needed or looks(step) or (are_drawn and is_drawn(step)):
            needed.update((step.target, *_reads(step)))
            are_drawn |= is_drawn(step)
    for step in steps:
        if step.function is getitem and needed.intersection(_reads(step)):
            needed.add(step.target)  # of several tensors, which are passed on one by one
    return needed


def looks(step: Step) -> bool:
    """Tell whether a step checks values, a shape that follows from them, or a fact about indices."""
    op = step.function.op if isinstance(step.function, Call) else step.function
    return op is same_shape or op is required or isinstance(op, Guard)


def _reads(step: Step) -> list[int]:
    return [arg.index for arg in step.args if isinstance(arg, Register)]


def _of(program: Program, given: dict[int, Given], steps: tuple[Step, ...], outputs: tuple[int, ...]) -> Program:
    """Return some steps of a program as one of their own."""
    frees, live = frees_of(steps, outputs)
    targets = {step.target for step in steps}
    return Program(
        {register: each for register, each in given.items() if register in live},
        {register: shape for register, shape in program.shapes.items() if register in live},
        steps,
        frees,
        outputs,
        tuple([pair for pair in program.over if pair[0] in targets]),
    )


class Looking:
    """Runs the checks of a program, and then the rest, compiled from the second call on that passes them.

    After one call nobody knows whether the same values will ever be read again.

    Args:
        program: The program.
        parts: It in two parts.
        count: How many tensors it takes.
        compile: Returns what runs the rest, given it and what it takes of the first part.
    """

    def __init__(
        self,
        program: Program,
        parts: Parts,
        count: int,
        compile: Callable[[Program, Tensors], Runner],  # noqa: A002 - it is what it does
    ):
        self._program, self._parts, self._count, self._compile = program, parts, count, compile
        self._look = compiled(parts.looks)
        self._run: Runner | None = None
        self._plain: Runner | None = None

    def __call__(self, tensors: Tensors) -> Any:
        """Return the results of the program.

        Raises:
            PlanMismatchError: Values are not those that it was made for.
            BranchError: There is no one value under vmap.
        """
        passed = self._look(tensors)
        return (self._run or self._made(passed))([*tensors, *passed])

    def _made(self, passed: Tensors) -> Runner:
        """Return what runs the rest at this call, and compile it if that is not the first."""
        with compiling():
            if self._run is None:
                rest = self._parts.rest(self._program, self._count, passed)
                if self._plain is None:
                    self._plain = compiled(rest)
                    return self._plain
                self._run = self._compile(rest, passed)
        return self._run
