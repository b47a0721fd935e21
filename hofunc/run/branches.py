"""Which of several plans fit a call, by the values that their function read, each of which is computed once.

NOTE [branches]: a function does the same until it reads another value. So the steps by which plans compute what is read
are the same up to there, and the plans are the leaves of a tree: at each fork a value is read, and each way on is one
that it had. Steps that do the same with the same have one number in all plans, and are computed once a call. The plan
that is left computes them again, and looks at its values itself: so it refuses what it does not fit, should this err.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from hofunc.graph.draws import draws
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Call, Ref
from hofunc.graph.reads import identical, raw
from hofunc.plan.primal import guard_of
from hofunc.plan.program import Program, Register
from hofunc.rules.lower import isolated

NEVER = sys.maxsize  # a depth at which nothing is read
SMALL = 1 << 10  # numbers of a tensor that a function makes, up to which it is told by what it holds

P = TypeVar("P")


class _Fork(Generic[P]):
    """Where a value is read, or a plan has read all that it reads.

    Attributes:
        plans: The plans that read nothing more.
        ways: By the number of what others read next, the values that it had, and where each of them leads.
    """

    __slots__ = ("plans", "ways")

    def __init__(self) -> None:
        self.plans: list[P] = []
        self.ways: dict[int, list[tuple[Any, _Fork[P]]]] = {}

    def way(self, number: int, value: Any) -> "_Fork[P]":
        """Return where a value leads, which is made if nothing is there."""
        ways = self.ways.setdefault(number, [])
        for known, fork in ways:
            if identical(known, value):
                return fork
        ways.append((value, _Fork()))
        return ways[-1][1]

    def every(self) -> Iterator[P]:
        """Yield all plans that are here, or further on."""
        waiting = [self]
        while waiting:
            fork = waiting.pop()
            yield from fork.plans
            waiting += [after for ways in [*fork.ways.values()] for _, after in ways]


class _Step(NamedTuple):
    """``function(*args)``, with Refs to the numbers of other steps.

    Attributes:
        function: What is called.
        args: Its arguments.
        needs: The numbers of steps that come before, and of what is given.
    """

    function: Callable | Call
    args: tuple
    needs: tuple[int, ...]


class Branches(Generic[P]):
    """The plans of one function for calls of one form, by the values that they read; see NOTE [branches].

    Attributes:
        count: How many plans were added.
    """

    def __init__(self) -> None:
        self.count = 0
        self._root: _Fork[P] = _Fork()
        self._numbers: dict[Any, int] = {}
        self._given: dict[int, int | Tensor] = {}
        self._steps: dict[int, _Step] = {}
        self._latest: dict[int, int] = {}  # by number, the depth of the last fork that needs it

    def add(self, plan: P, program: Program, captured: Sequence[Tensor]) -> None:
        """Add a plan.

        Args:
            plan: The plan.
            program: Its steps.
            captured: The tensors among those that it has that are of others, who may write to them.
        """
        self.count += 1
        fork = self._root
        for depth, (number, value) in enumerate(self._readings(program, frozenset(map(id, captured)))):
            self._note(number, depth)
            fork = fork.way(number, value)
        fork.plans.append(plan)

    def fitting(self, tensors: Sequence[Tensor]) -> list[P]:
        """Return the plans that read, of the tensors of a call, the values that they were made for.

        Where a value cannot be computed, these are all plans behind it, which say so as they run.
        """
        plans: list[P] = []
        known: dict[int, Any] = {n: tensors[each] if type(each) is int else each for n, each in [*self._given.items()]}
        passing = defaultdict[int, list[int]](list)  # by depth, what is not needed beyond
        waiting = [(self._root, 0)]
        with isolated(), torch.no_grad():
            while waiting:
                fork, depth = waiting.pop()
                plans += fork.plans
                for number, ways in [*fork.ways.items()]:
                    try:
                        got = self._value(number, known, passing)
                    except Exception:  # whatever an op raises, a plan that comes to it raises as well
                        plans += [plan for _, after in ways for plan in after.every()]
                    else:
                        waiting += [(after, depth + 1) for value, after in ways if identical(got, value)]
                for number in passing.pop(depth, ()):
                    known.pop(number, None)
        return plans

    def _value(self, number: int, known: dict[int, Any], passing: Mapping[int, list[int]]) -> Any:
        """Return the result of a step, which is computed after what it needs, as far as that is not known."""
        needed, waiting = set[int](), [number]
        while waiting:
            each = waiting.pop()
            if each not in known and each not in needed:
                needed.add(each)
                waiting += self._steps[each].needs
        for each in sorted(needed):
            function, args, _ = self._steps[each]
            known[each] = function(*[known[arg.node] if type(arg) is Ref else arg for arg in args])
            passing[self._latest[each]].append(each)
        return known[number]

    def _note(self, number: int, depth: int) -> None:
        """Note that a step is needed at a depth, and so is what it needs, if that is where it is computed first."""
        waiting = [number]
        while waiting:
            each = waiting.pop()
            waiting += self._steps[each].needs if each in self._steps and each not in self._latest else ()
            self._latest[each] = max(self._latest.get(each, depth), depth)

    def _readings(self, program: Program, captured: Collection[int]) -> Iterator[tuple[int, Any]]:
        """Yield the number of every step that reads a value, and the value, in the order of a program."""
        numbers: dict[int, int] = {}
        drawn: tuple[int, ...] = ()  # what drew random numbers before, on which what is drawn next depends

        def ref(register: int) -> Ref:
            if register not in numbers:
                numbers[register] = self._number_of(program.given[register].origin, captured)
            return Ref(numbers[register])

        guards = [guard_of(step) for step in program.steps]
        count = max((place for place, guard in enumerate(guards, 1) if guard is not None), default=0)
        for step, guard in zip(program.steps[:count], guards, strict=False):
            function = step.function if guard is None else guard.call
            args = tuple([ref(arg.index) if type(arg) is Register else arg for arg in step.args])
            is_drawn = isinstance(function, Call) and draws(function)
            needs = (*(arg.node for arg in args if type(arg) is Ref), *(drawn if is_drawn else ()))
            number = self._number((function, args, needs, program.shapes.get(step.target)))
            numbers[step.target] = number
            self._steps[number] = _Step(function, args, needs)
            if is_drawn:
                drawn = (number,)
                self._note(number, NEVER)  # as it is not to be drawn twice
            if guard is not None:
                yield number, guard.value

    def _number_of(self, origin: Any, captured: Collection[int]) -> int:
        """Return the number of what is given: of an argument by its place, of a small tensor of f by what it holds."""
        key: tuple[Any, ...] = ("given", origin if type(origin) is int else id(origin))
        is_own = type(origin) in PLAIN and id(origin) not in captured and not origin.is_meta
        if is_own and origin.numel() <= SMALL:
            key = "made", origin.dtype, origin.device, origin.shape, origin.stride(), bytes(raw(origin).tolist())
        number = self._number(key)
        self._given[number] = origin
        return number

    def _number(self, key: tuple) -> int:
        """Return the number of what is told by a key, a new one unless it is known."""
        return self._numbers.setdefault(key, len(self._numbers))
