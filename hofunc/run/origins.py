"""From which of the values that a program takes autograd may follow what it returns."""

from typing import Any

import torch

from hofunc.graph.node import Call
from hofunc.plan.constants import with_tables
from hofunc.plan.operators import eye_like, one_like
from hofunc.plan.program import Program, Register
from hofunc.scatter import range_like

# What takes a tensor for its dtype and device only.
_LIKE = frozenset({eye_like, one_like, range_like, torch.zeros_like})


def taking_own(program: Program) -> tuple[Program, dict[int, torch.Tensor]]:
    """Return a program that takes the tensors that it holds too, and these by the numbers under which it does."""
    given, own = {}, {}
    program = with_tables(program)
    for register, each in program.given.items():
        given[register] = each
        if isinstance(each.origin, torch.Tensor):
            number = -1 - id(each.origin)
            own[number], given[register] = each.origin, each._replace(origin=number)
    return program._replace(given=given), own


def sources(program: Program) -> list[frozenset[int]]:
    """Return for each result of a program the numbers of those values of a call that autograd may follow it to."""
    nowhere = frozenset[int]()
    found: dict[int, frozenset[int]] = {}
    for register, given in program.given.items():
        number = given.origin
        found[register] = frozenset((number,)) if isinstance(number, int) and _can_vary(given.dtype) else nowhere
    for step in program.steps:
        operands = {found[arg.index] for arg in step.args if isinstance(arg, Register)}
        _, dtype = program.shapes.get(step.target, ((), torch.float64))
        is_cut = step.function in _LIKE or (isinstance(step.function, Call) and detaches(step.function.op))
        is_one = _can_vary(dtype) and not is_cut
        found[step.target] = nowhere.union(*operands) if is_one else nowhere
    return [found[output] for output in program.outputs]


def detaches(op: Any) -> bool:
    """Tell whether autograd does not follow what an op returns to what it takes."""
    return op is torch.ops.aten.detach.default


def _can_vary(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
