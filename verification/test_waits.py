"""No step of a plan makes a host wait for a device.

Claim: the steps of a plan need no values on the host, make no tensors of Python numbers and copy nothing between
devices, but where the program itself does: on the meta device, where there are no values, a derivative is planned and
run as anywhere, and all its tensors are there.
Source: steps are ops of torch on the tensors of a graph, and what is constant is on the device of the inputs.
Falsifier: a rule that looks at a number, selects by a mask or makes a tensor of a list as it is called; a constant of a
plan that was made on the CPU.
Tolerance: none. Programs that wait themselves, or read values, are left out, and so are ops without a rule: what torch
computes of these is checked at every call.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.graph.node import Call
from hofunc.plan.primal import Guard
from hofunc.rules.opaque import nested_derivative
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs
from verification.waits import Waits


def waits(program: Program, plan: hofunc.Plan) -> bool:
    """Tell whether a program waits itself, reads values, which its plan compares, or has an op without a rule."""
    with Waits() as found:
        program(*program.inputs)
    ops = [step.function.op for step in plan._steps.program.steps if isinstance(step.function, Call)]
    return bool(found.ops) or any(isinstance(op, Guard) or op is nested_derivative for op in ops)


@given(programs(max_elements=8), st.integers(1, 2), st.sampled_from(STRATEGIES), st.sampled_from(["dense", "compact"]))
def test_steps_of_programs(program: Program, order: int, strategy: str, layout: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    plan = hofunc.derivatives(program, order, numbers, strategy=strategy, layout=layout).plan(*program.inputs)
    with Waits() as found:
        plan(*program.inputs)
    assert waits(program, plan) or not found.ops, found.ops


@given(programs(max_elements=8), st.integers(1, 2), st.sampled_from(STRATEGIES))
def test_programs_without_values(program: Program, order: int, strategy: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    derivatives = hofunc.derivatives(program, order, numbers, strategy=strategy)
    if waits(program, derivatives.plan(*program.inputs)):
        return
    meta = torch.device("meta")
    moved = program.to(meta)
    with Waits(meta) as own:
        moved(*moved.inputs)
    if own.ops:
        return
    with Waits(meta) as found:
        hofunc.derivatives(moved, order, numbers, strategy=strategy)(*moved.inputs)
    assert not found.ops, found.ops
