"""No step of a plan makes a host wait for a device.

Claim: the steps of a plan need no values on the host, make no tensors of Python numbers and copy nothing between
devices, but where the program itself does: on the meta device, where there are no values, a derivative is planned and
run as anywhere, and all its tensors are there.
Source: steps are ops of torch on the tensors of a graph, and what is constant is on the device of the inputs.
Falsifier: a rule that looks at a number, selects by a mask or makes a tensor of a list as it is called; a constant of a
plan that was made on the CPU.
Tolerance: none. Programs that wait themselves are called as often as they do.
"""

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs
from verification.waits import Waits


def waits_of(program: Program) -> Counter[str]:
    """Return what a program itself waits for."""
    with Waits() as waits:
        program(*program.inputs)
    return Counter(waits.ops)


@given(programs(max_elements=8), st.integers(1, 2), st.sampled_from(STRATEGIES), st.sampled_from(["dense", "compact"]))
def test_steps_of_programs(program: Program, order: int, strategy: str, layout: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    plan = hofunc.derivatives(program, order, numbers, strategy=strategy, layout=layout).plan(*program.inputs)
    own = waits_of(program)
    with Waits() as waits:
        plan(*program.inputs)
    assert own or not waits.ops, waits.ops


@given(programs(max_elements=8), st.integers(1, 2), st.sampled_from(STRATEGIES))
def test_programs_without_values(program: Program, order: int, strategy: str) -> None:
    if waits_of(program):
        return
    order, numbers = reachable(program, order), inputs_of(program)
    meta = torch.device("meta")
    moved = program.to(meta)
    derivatives = hofunc.derivatives(moved, order, numbers, strategy=strategy)
    with Waits(meta) as waits:
        derivatives(*moved.inputs)
    assert not waits.ops, waits.ops
