"""The same call gives the same bits.

Claim: a derivative computed again, with the plan that is kept or with a new one, after other programs or in another
transform, is bitwise the same; but where the same function was called with other numbers, of which a number may have
become a value of the plan.
Source: a plan depends on the structure of the graph only, and torch's kernels on a CPU are deterministic.
Falsifier: an order of terms that comes from a set or from ids, a choice of strategy that depends on the time.
Tolerance: none.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.run import cache
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs


@given(programs(max_elements=8), programs(max_ops=3), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_again(program: Program, other: Program, order: int, strategy: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    derivative = hofunc.derivatives(program, order, numbers, strategy=strategy)
    cache.forget()
    first = tree_leaves(derivative(*program.inputs))
    kept = tree_leaves(derivative(*program.inputs))
    cache.forget()
    hofunc.hod(other, 1)(*other.inputs)
    fresh = tree_leaves(hofunc.derivatives(program, order, numbers, strategy=strategy)(*program.inputs))
    for a, b, c in zip(first, kept, fresh, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
