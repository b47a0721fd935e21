"""The compact form of a derivative is the dense one.

Claim: ``layout="compact"`` and ``.dense()`` give what ``layout="dense"`` does, and ``.dense(keep_batch=True)`` holds
the same numbers, each of them once.
Source: a label that several axes bear is a Kronecker delta between them.
Falsifier: a term that shares a label though its axes are independent, terms added as if they had one pattern, a core
whose axes are in another order than its labels.
Tolerance: that of `verification.vectors`; of the sums of all entries, that of a sum of so many.
"""

from hypothesis import given
from hypothesis import strategies as st

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import compact_blocks, inputs_of, reachable
from verification.programs import Program, programs
from verification.vectors import assert_close, dense


@given(programs(max_elements=8), st.integers(1, 4), st.sampled_from(STRATEGIES))
def test_dense_of_compact(program: Program, order: int, strategy: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    compact = hofunc.hod(program, order, numbers, layout="compact", strategy=strategy)(*program.inputs)
    assert_close(dense(compact), hofunc.hod(program, order, numbers, strategy=strategy)(*program.inputs))


@given(programs(max_elements=8), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_entries_of_a_kept_batch(program: Program, order: int, strategy: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    compact = hofunc.hod(program, order, numbers, layout="compact", strategy=strategy)(*program.inputs)
    for block in compact_blocks(compact):
        full, kept = block.dense(), block.dense(keep_batch=True)
        assert kept.numel() <= full.numel()
        for power in (1, 2, 3):  # sums that only the same numbers have
            assert_close((kept**power).sum(), (full**power).sum())
