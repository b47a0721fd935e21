"""A derivative does not depend on how its inputs lie in memory.

Claim: a plan, kept by the cache or by its user, gives for inputs of other strides what it gives for those that it was
made for.
Source: a function of tensors is one of their values.
Falsifier: a view or a kernel that was chosen for the strides of the recorded values, and is used for others.
Tolerance: that of the program, since kernels for other strides sum in another order.
"""

from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.arguments import STRATEGIES
from verification.oracles.measure import error_over_all
from verification.programs import Program, programs


def turned(x: Tensor) -> Tensor:
    """Return the same tensor with its axes in the opposite order of memory."""
    axes = [*reversed(range(x.dim()))]
    return x.permute(axes).contiguous().permute(axes) if axes else x


@given(programs(max_ops=6, max_elements=8), st.sampled_from(STRATEGIES))
def test_inputs_in_another_order_of_memory(program: Program, strategy: str) -> None:
    inputs = [turned(x) for x in program.inputs]
    assume(accepts(program, inputs))
    derivatives = hofunc.derivatives(program, 2, program.argnums, strategy=strategy)
    expected = derivatives(*program.inputs)
    for got in (derivatives(*inputs), derivatives.plan(*program.inputs)(*inputs)):
        for ours, theirs in zip(tree_leaves(got), tree_leaves(expected), strict=True):
            assert error_over_all(ours, theirs) <= program.tolerance, program.source(order=2, strategy=strategy)


def accepts(program: Program, inputs: list[Tensor]) -> bool:
    """Tell whether a program takes inputs of these strides: some ops do not."""
    try:
        program(*inputs)
    except RuntimeError:
        return False
    return True
