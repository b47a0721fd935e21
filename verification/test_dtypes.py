"""A derivative is the same in single precision, on every device, and however the inputs are laid out in memory.

Claim: hod of a program in float32 is that in float64 up to rounding; on another device it is that on the CPU; strides
of the inputs do not matter.
Source: rules are formulas of torch ops; a plan depends on shapes, dtypes and devices only.
Falsifier: a constant made in the default dtype or on the CPU, a cast on the way, a kernel that takes strides for
granted.
Tolerance: in float32 a thousandth of the largest entry, which is what cancellation leaves of seven digits in the worst
of some thousand programs; wrong terms are far larger. Elsewhere that of `verification.vectors`.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs
from verification.vectors import assert_close, difference, fitting, vector

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SINGLE = 1e-3


@given(programs(max_elements=8), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_single_precision(program: Program, order: int, strategy: str) -> None:
    f, x = vector(program)
    order = fitting(order, f, x)
    low, low_x = vector(program.to(torch.float32))
    found = hofunc.hod(low, order, strategy=strategy)(low_x)
    assert found.dtype == low(low_x).dtype
    assert difference(found.double(), hofunc.hod(f, order)(x), floor=1.0) < SINGLE


@given(programs(max_elements=8), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_strides(program: Program, order: int, strategy: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    derivative = hofunc.hod(program, order, numbers, strategy=strategy)
    assert_close(derivative(*map(scattered, program.inputs)), derivative(*program.inputs))


def scattered(x: Tensor) -> Tensor:
    """Return a tensor of the same values that lie apart in memory, in another order."""
    wide = torch.full((*reversed(x.shape), 2), torch.nan, dtype=x.dtype)
    place = wide[..., 1].permute(tuple(reversed(range(x.dim()))))
    return place.copy_(x)


@pytest.mark.parametrize("device", DEVICES)
@given(program=programs(max_elements=8), order=st.integers(1, 3), strategy=st.sampled_from(STRATEGIES))
def test_devices(device: str, program: Program, order: int, strategy: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    there = program.to(device)
    found = hofunc.hod(there, order, numbers, strategy=strategy)(*there.inputs)
    assert all(block.device.type == device for block in tree_leaves(found))
    expected = hofunc.hod(program, order, numbers)(*program.inputs)
    assert_close(tree_map(Tensor.cpu, found), expected)
