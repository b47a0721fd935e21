"""Sums of two small convolutions by one kernel, as one of both: torch takes longer to set a kernel up than to run it.

A product with a Hessian adds two of each up, as the derivative of a product has two terms: what is summed over in the
convolution is as long again where both are one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.graph.node import Call, Ref
from hofunc.plan.program import Program, Register, Step, finished
from hofunc.plan.tracing import Trace
from hofunc.rules.ops.convolution import AXES_SUMMED, convolved_back, convolved_jointly
from hofunc.views import add_scaled

SMALL = 1 << 15  # entries of what is convolved, above which it takes as long to lay both together as is gained


class _Weighted(NamedTuple):
    """A summand, and what a sum multiplies it by."""

    register: int
    weight: float


def with_joint_convolutions(program: Program, trace: Trace) -> Program:
    """Return a program in which small convolutions that are added up are one by twos, if nothing else takes them.

    Args:
        program: The program, that is to run on a CPU.
        trace: What its registers hold.
    """
    found = {step.target: step for step in program.steps if _is_small(step, trace)}
    uses = Counter([register for step in program.steps for register in _reads(step)] + [*program.outputs])
    if sum(uses[register] == 1 for register in found) < 2:
        return program
    makers = {step.target: step for step in program.steps}
    inside = {register for step in program.steps if _is_sum(step) for register in _reads(step) if uses[register] == 1}
    sums = _Sums(max((*makers, *program.given)) + 1, dict(program.shapes))
    for step in program.steps:
        summands = [*_summands(step, makers, uses)] if _is_sum(step) and step.target not in inside else []
        pairs = _pairs([each for each in summands if each.register in found and uses[each.register] == 1], found, trace)
        if pairs:
            sums.add(step.target, summands, pairs, found, trace)
        else:
            sums.steps.append(step)
    outputs = [Register(output) for output in program.outputs]
    return finished(program.given, sums.shapes, sums.steps, outputs)


_Pairs = Sequence[tuple[_Weighted, _Weighted]]


class _Sums:
    """The steps of a program in which sums are of joint convolutions.

    Args:
        fresh: A register that there is not yet, and none after it.
        shapes: As of the program.
    """

    def __init__(self, fresh: int, shapes: dict[int, tuple[tuple[int, ...], torch.dtype]]):
        self.steps: list[Step] = []
        self.shapes = shapes
        self._fresh = fresh

    def add(
        self, target: int, summands: Sequence[_Weighted], pairs: _Pairs, found: Mapping[int, Step], trace: Trace
    ) -> None:
        """Add the steps of a sum, of which pairs are joint."""
        joined = [each for pair in pairs for each in pair]
        left = [each for each in summands if each not in joined]
        is_all = not left and len(pairs) == 1
        for one, other in pairs:
            call, args = self._joint(found[one.register], found[other.register], other.weight / one.weight, trace)
            made = self._emit(call, args, target if is_all else None)
            self.shapes[made] = self.shapes[one.register]
            left.append(_Weighted(made, one.weight))
        left.sort(key=lambda each: each.weight != 1)  # of a sum the first has that weight
        total = left[0].register
        for place, each in enumerate(left[1:], 2):
            scale = () if each.weight == 1 else (each.weight,)
            args = (Register(total), Register(each.register), *scale)
            total = self._emit(add_scaled if scale else torch.add, args, target if place == len(left) else None)

    def _joint(self, one: Step, other: Step, weight: float, trace: Trace) -> tuple[Call, tuple]:
        """Return the call, and what it takes, of a convolution and so many times another."""
        tensors = [*other.args]
        if weight != 1:
            place = min((0, 1), key=lambda place: trace.values[tensors[place].index].kind.numel)
            tensors[place] = Register(self._emit(torch.mul, (tensors[place], weight)))
        call: Any = one.function
        return Call(convolved_jointly, (*map(Ref, range(4)), call.op, call.args[-1])), (*one.args, *tensors)

    def _emit(self, function: Callable | Call, args: tuple, target: int | None = None) -> int:
        if target is None:
            target, self._fresh = self._fresh, self._fresh + 1
        self.steps.append(Step(target, function, args))
        return target


def _reads(step: Step) -> list[int]:
    return [arg.index for arg in step.args if type(arg) is Register]


def _is_sum(step: Step) -> bool:
    if step.function is torch.add:
        return len(step.args) == 2 and all(type(arg) is Register for arg in step.args)
    return step.function is add_scaled and isinstance(step.args[2], int | float)


def _is_small(step: Step, trace: Trace) -> bool:
    """Tell whether a step is a convolution of which two take longer than one of both."""
    function = step.function.op if isinstance(step.function, Call) else None
    if function not in AXES_SUMMED or len(step.args) != 2:
        return False
    images, other = (trace.values[register] for register in _reads(step))
    kernel = step.function.args[-1]  # type: ignore[union-attr]
    is_plain = kernel.groups == 1 and not kernel.transposed and len(images.shape) == kernel.rank + 2
    gains = images.dtype != torch.float64 or function is convolved_back
    return is_plain and gains and max(images.kind.numel, other.kind.numel) <= SMALL


def _summands(step: Step, makers: Mapping[int, Step], uses: Mapping[int, int]) -> Iterator[_Weighted]:
    """Yield what a sum adds up, with what sums do which nothing else takes."""
    waiting = _added_up(step, 1)
    while waiting:
        summand = waiting.pop()
        maker = makers.get(summand.register)
        if maker is not None and uses[summand.register] == 1 and _is_sum(maker):
            waiting += _added_up(maker, summand.weight)
        else:
            yield summand


def _added_up(step: Step, weight: float) -> list[_Weighted]:
    """Return the summands of one sum, the last one first."""
    one, other = _reads(step)
    return [_Weighted(other, weight * (step.args[2] if step.function is add_scaled else 1)), _Weighted(one, weight)]


def _pairs(convolutions: Sequence[_Weighted], found: Mapping[int, Step], trace: Trace) -> _Pairs:
    """Return pairs of convolutions by one kernel, of tensors of the same shapes; of each pair the first has weight one.

    Where neither has, the first is any.
    """
    waiting: dict[Any, _Weighted] = {}
    pairs = []
    for each in convolutions:
        step = found[each.register]
        call: Any = step.function
        shapes = (trace.values[register].shape for register in (*_reads(step), step.target))
        key = call.op, call.args[-1], *shapes
        other = waiting.pop(key, None)
        if other is None:
            waiting[key] = each
        else:
            pairs.append((each, other) if each.weight == 1 else (other, each))
    return pairs
