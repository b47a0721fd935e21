"""Rows in another order have derivatives in that order.

Claim: for F that maps a program over rows of X, and a permutation P of rows, D^k F (P X) is D^k F (X) with the rows of
the output and of every slot permuted.
Source: F (P X) = P F (X), differentiated.
Falsifier: rows taken for others: a batch label on the wrong axis, chunks put together in the wrong order, a plan that
depends on values.
Tolerance: that of `verification.vectors`; sums over rows are rounded differently.
"""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import blocks_of, inputs_of, reachable
from verification.programs import Program, programs
from verification.rows import ROWS, by_rows, is_mapped, rows_of
from verification.vectors import assert_close


@given(
    programs(max_ops=6, max_elements=4),
    st.permutations(range(ROWS)),
    st.integers(1, 3),
    st.sampled_from(STRATEGIES),
    st.booleans(),
)
def test_permuted_rows(program: Program, turn: list[int], order: int, strategy: str, is_summed: bool) -> None:
    assume(is_mapped(program))
    order, numbers = reachable(program, order, ROWS), inputs_of(program)
    rows, inputs = by_rows(program), rows_of(program)

    def f(*inputs: Tensor) -> Tensor:
        y = rows(*inputs)
        return y * y.sin().sum() if is_summed else y  # rows that mix, or do not

    derivative = hofunc.hod(f, order, numbers, strategy=strategy)
    found = blocks_of(derivative(*(x[turn] for x in inputs)), 1, len(numbers), order)
    for slots, block in blocks_of(derivative(*inputs), 1, len(numbers), order).items():
        assert_close(found[slots], permuted(block, [2, *(inputs[number].dim() for number in slots[1:])], turn))


def permuted(block: Tensor, dims: list[int], turn: list[int]) -> Tensor:
    """Permute the rows of the output and of every slot, given how many axes each has."""
    for place in range(len(dims)):
        block = block.index_select(sum(dims[:place]), torch.tensor(turn))
    return block
