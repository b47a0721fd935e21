"""Products with unit vectors: what they are multiplied by is read at the entries at which they have their ones."""

from collections.abc import Iterator, Mapping
from itertools import count
from math import prod
from typing import NamedTuple

import torch

from hofunc.graph.node import Call
from hofunc.plan.operators import entries_at, unit_rows
from hofunc.plan.program import Program, Register, Step, finished


class _Units(NamedTuple):
    """Unit vectors as a matrix: the entries that they are of, as `entries_at` takes them, and whether it is turned."""

    places: Register
    start: int
    stride: int
    size: int
    is_turned: bool


def with_entries_read(program: Program) -> Program:
    """Return a program in which nothing is multiplied by a matrix of unit vectors that can be read instead."""
    makers = {step.target: step for step in program.steps}
    fresh = count(1 + max((*program.given, *makers), default=0))
    steps = [new for step in program.steps for new in _read(step, makers, fresh)]
    if len(steps) == len(program.steps):
        return program
    return finished(program.given, program.shapes, steps, [*map(Register, program.outputs)])


def _read(step: Step, makers: Mapping[int, Step], fresh: Iterator[int]) -> Iterator[Step]:
    """Yield what to do in place of a step."""
    if step.function in (torch.mm, torch.matmul):
        left, right = step.args
        for units, other, is_turned in ((left, right, False), (right, left, True)):
            found = _units(units, makers)
            if found is not None and found.is_turned == is_turned and (step.function is torch.mm or not is_turned):
                entries = Step(next(fresh), entries_at, found[:4])
                yield entries
                yield Step(step.target, torch.index_select, (other, int(is_turned), Register(entries.target)))
                return
    yield step


def _units(register: Register, makers: Mapping[int, Step]) -> _Units | None:
    """Return the unit vectors that a matrix consists of, None if it is something else."""
    step = makers.get(register.index)
    if step is None:
        return None
    if isinstance(step.function, Call) and step.function.op is unit_rows:
        _, start, stride, shape, _ = step.function.args
        return _Units(step.args[0], start, stride, prod(shape), is_turned=False) if len(shape) == 1 else None
    if step.function is torch.transpose and step.args[1:] == (-2, -1):
        found = _units(step.args[0], makers)
        return None if found is None else found._replace(is_turned=not found.is_turned)
    if step.function is torch.reshape:
        before = makers.get(step.args[0].index)
        if before is not None and isinstance(before.function, Call) and before.function.op is unit_rows:
            _, start, stride, shape, _ = before.function.args
            is_matrix = len(step.args[1]) == 2 and step.args[1][1] == prod(shape)
            return _Units(before.args[0], start, stride, prod(shape), is_turned=False) if is_matrix else None
    return None
