"""The label of the rows is kept if and only if rows do not mix.

Claim: the compact derivative of a program mapped over rows, and of the sum over its rows, shares one index of the rows
in all slots; that of a function whose rows mix does not; and of any program, an index that is shared is one off whose
diagonal the derivative vanishes.
Source: the derivative of independent rows is block diagonal; what is not zero cannot be left out.
Falsifier: a rule that loses a label, which costs memory and time and no digit; one that keeps a label too long.
Tolerance: of an entry off the diagonal, as torch has it, 1e-9 of the largest: a label that is lost too late leaves out
terms of the size of others.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import blocks_of, inputs_of, kept_axes, reachable
from verification.oracles import nested_reverse
from verification.programs import Program, programs
from verification.rows import ROWS, by_rows, is_mapped, rows_of
from verification.vectors import TOLERANCE


@given(programs(max_ops=6, max_elements=4), st.integers(1, 3), st.sampled_from(STRATEGIES), st.booleans())
def test_kept_where_rows_do_not_mix(program: Program, order: int, strategy: str, is_summed: bool) -> None:
    assume(is_mapped(program))
    order, inputs = reachable(program, order, ROWS) + is_summed, rows_of(program)
    f = by_rows(program)
    summed = (lambda *rows: f(*rows).sum(0)) if is_summed else f  # linear in the rows, which therefore stay apart
    for block in compact(summed, inputs, order, strategy).values():
        assert (0,) * order in kept_axes(block) or not block.terms, block


@given(programs(max_ops=6, max_elements=3), st.sampled_from(STRATEGIES))
def test_lost_where_rows_mix(program: Program, strategy: str) -> None:
    assume(is_mapped(program))
    inputs, rows = rows_of(program), by_rows(program)

    def f(*inputs: Tensor) -> Tensor:
        y = rows(*inputs)
        return (y.cos() * y.sin().sum(0)).sum(1)

    expected = blocks_of(oracle(f, inputs), 1, len(inputs), 2)
    for place, block in compact(f, inputs, 2, strategy).items():
        axes = [1, 1 + inputs[place[1]].dim()]
        if off_diagonal(expected[place], axes) > TOLERANCE * (1 + float(expected[place].abs().max())):
            assert (0, 0) not in kept_axes(block), block


@given(programs(max_elements=6), st.sampled_from(STRATEGIES))
def test_whatever_is_kept_is_diagonal(program: Program, strategy: str) -> None:
    outputs, numbers = len(program.outputs), inputs_of(program)
    expected = blocks_of(oracle(program, program.inputs), outputs, len(numbers), 2)
    for place, block in compact(program, program.inputs, 2, strategy, outputs).items():
        first = expected[place].dim() - sum(program.inputs[number].dim() for number in place[1:])
        for one, other in kept_axes(block):
            axes = [first + one, first + program.inputs[place[1]].dim() + other]
            largest = float(expected[place].abs().max())
            allowed = max(TOLERANCE, program.tolerance) * (1 + largest)
            assert off_diagonal(expected[place], axes) < allowed, block


def compact(f: Callable[..., Any], inputs: tuple[Tensor, ...], order: int, strategy: str, outputs: int = 1) -> Any:
    """Return all blocks of a compact derivative."""
    numbers = tuple(range(len(inputs)))
    derivative = hofunc.hod(f, order, numbers, layout="compact", strategy=strategy)(*inputs)
    return blocks_of(derivative, outputs, len(inputs), order)


def oracle(f: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Any:
    """Return the second derivative as torch has it, by all inputs."""
    try:
        return nested_reverse(f, 2, tuple(range(len(inputs))))(*inputs)
    except RuntimeError:  # an op that torch cannot differentiate twice
        assume(False)


def off_diagonal(block: Tensor, axes: list[int]) -> float:
    """Return the largest entry whose indices on two axes differ."""
    apart = block.movedim(axes, [0, 1])
    found = [apart[i, j].abs().max() for i, j in combinations(range(len(apart)), 2)]
    found += [apart[j, i].abs().max() for i, j in combinations(range(len(apart)), 2)]
    return float(torch.stack(found).max()) if found else 0.0
