"""Reshapes after sums: what is reshaped alike to be added up is added up first, and reshaped once.

A product of matrices is then added to another by the call that computes it. A tensor that has the shape that it is to
have is taken as it is, and what is reshaped twice is reshaped once.
"""

from collections import Counter
from typing import Any

import torch

from hofunc.algebra.extents import has_rows
from hofunc.plan.memory import Held
from hofunc.plan.program import Program, Register, Step, finished
from hofunc.plan.tracing import Trace
from hofunc.views import add_scaled

Shape = tuple[int, ...]


def with_late_reshapes(program: Program, trace: Trace) -> Program:
    """Return a program that reshapes as late as it can, so that it reshapes less.

    Args:
        program: The program.
        trace: What its registers hold.
    """
    if any(has_rows(given.shape) for given in program.given.values()):
        return program  # an extent of rows is told by how it was reshaped
    late = _Late(program, trace)
    for step in program.steps:
        late.take(step)
    if not late.are_fewer:
        return program
    return finished(program.given, program.shapes, late.steps, [Register(each) for each in program.outputs])


class _Late:
    """The steps of a program in which reshapes come late.

    Attributes:
        steps: The steps.
        are_fewer: Whether any could be left out.
    """

    def __init__(self, program: Program, trace: Trace):
        self.steps: list[Step] = []
        self.are_fewer = False
        self._outputs = {*program.outputs}
        self._uses = Counter([*program.outputs])
        for step in program.steps:
            self._uses.update(arg.index for arg in step.args if type(arg) is Register)
        self._fresh = max((*program.given, *(step.target for step in program.steps)), default=0) + 1
        self._same: dict[int, int] = {}
        self._reshaped: dict[int, int] = {}  # what was reshaped in order, by what it became
        self._shapes: dict[int, Shape] = {
            register: tuple(held.shape)
            for register, held in trace.values.items()
            if type(held) is Held and held.kind.is_contiguous
        }

    def take(self, step: Step) -> None:
        """Add a step, or what is done in its place."""
        args: list[Any] = [self._known(arg) if type(arg) is Register else arg for arg in step.args]
        if step.function is torch.reshape:
            self._reshape(step, args)
        elif not self._is_added_before(step, args):
            self.steps.append(step._replace(args=tuple(args)))

    def _known(self, register: Register) -> Register:
        same = self._same.get(register.index)
        return register if same is None else Register(same)

    def _reshape(self, step: Step, args: list[Any]) -> None:
        source = self._reshaped.get(args[0].index, args[0].index)
        shape = self._shapes.get(source)
        if shape is not None and step.target in self._shapes:
            if shape == self._shapes[step.target] and step.target not in self._outputs:
                self._same[step.target], self.are_fewer = source, True
                return
            self._reshaped[step.target] = source
            self.are_fewer |= source != args[0].index
            args[0] = Register(source)
        self.steps.append(step._replace(args=tuple(args)))

    def _is_added_before(self, step: Step, args: list[Any]) -> bool:
        """Add up what was reshaped alike, and reshape the sum, if that can be; tell whether it was."""
        is_sum = (step.function is torch.add and len(args) == 2) or step.function is add_scaled
        if not is_sum or not all(type(arg) is Register for arg in args[:2]):
            return False
        sources = [self._reshaped.get(arg.index) for arg in args[:2]]
        shapes = {self._shapes.get(source) for source in sources if source is not None}
        results = {self._shapes.get(register) for register in (step.target, *(arg.index for arg in args[:2]))}
        are_alike = None not in sources and len(shapes) == len(results) == 1 and None not in shapes | results
        if not are_alike or any(self._uses[arg.index] > 1 for arg in step.args[:2]):
            return False
        one, other = [Register(source) for source in sources if source is not None]
        self.steps.append(Step(self._fresh, step.function, (one, other, *args[2:])))
        self.steps.append(Step(step.target, torch.reshape, (Register(self._fresh), self._shapes[step.target])))
        self._shapes[self._fresh] = self._shapes[one.index]
        self._reshaped[step.target] = self._fresh
        self._fresh += 1
        self.are_fewer = True
        return True
