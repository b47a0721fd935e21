"""Blocks that are computed alone are those of the whole derivative.

Claim: for any choice of blocks, of groups or of the diagonal, and by every strategy, a block is what it is in the
derivative that has all of them, whether it is called or planned.
Source: a block is defined by the inputs of its slots alone.
Falsifier: a term that is left out as it seems to lead nowhere, a coefficient that is shared by blocks of other inputs,
a slot that is not where it was asked for, an input in no block that is not as a constant is.
Tolerance: that of `verification.vectors`.
"""

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import blocks_of, inputs_of, reachable
from verification.programs import Program, programs
from verification.vectors import assert_close


def _whole(program: Program, order: int, numbers: tuple[int, ...]) -> dict[tuple[int, ...], Tensor]:
    """Return all blocks, by output and by the inputs of their slots."""
    derivative = hofunc.hod(program, order, numbers)(*program.inputs)
    return blocks_of(derivative, len(program.outputs), len(numbers), order)


def _check(program: Program, order: int, options: dict[str, Any], blocks: list[tuple[int, ...]]) -> None:
    """Compare the result that options ask for with blocks of the whole derivative, output by output."""
    numbers = inputs_of(program)
    whole = _whole(program, order, numbers)
    transform = hofunc.hod(program, order, numbers, **options)
    expected = [whole[output, *block] for output in range(len(program.outputs)) for block in blocks]
    assert_close(tree_leaves(transform(*program.inputs)), expected)
    assert_close(tree_leaves(transform.plan(*program.inputs)(*program.inputs)), expected)


@given(programs(max_elements=6), st.integers(1, 3), st.sampled_from(STRATEGIES), st.data())
def test_blocks(program: Program, order: int, strategy: str, data: st.DataObject) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    block = st.tuples(*[st.sampled_from(numbers)] * order)
    blocks = data.draw(st.lists(block, min_size=1, max_size=4, unique=True))
    _check(program, order, {"blocks": blocks, "strategy": strategy}, blocks)


@given(programs(max_elements=6), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_the_diagonal(program: Program, order: int, strategy: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    options = {"blocks": "diagonal", "strategy": strategy}
    _check(program, order, options, [(number,) * order for number in numbers])


@given(programs(max_elements=6), st.integers(1, 3), st.sampled_from(STRATEGIES), st.data())
def test_groups(program: Program, order: int, strategy: str, data: st.DataObject) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    group = st.lists(st.sampled_from(numbers), min_size=1, unique=True)
    groups = data.draw(st.lists(group, min_size=1, max_size=2, unique_by=frozenset))
    blocks = [block for group in groups for block in product(group, repeat=order)]
    _check(program, order, {"groups": groups, "strategy": strategy}, blocks)
