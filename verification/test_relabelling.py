"""It does not matter in which order axes, arguments and outputs stand.

Claim: where the axes of an input are transposed before a program, those of its slots are, and nothing else changes;
with arguments and outputs in another order, so are the blocks.
Source: changes of variables that permute the standard basis.
Falsifier: an axis that is known by its place or its size rather than its label; a block of one input taken for that of
another.
Tolerance: that of `verification.vectors`.
"""

from itertools import permutations
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import blocks_of, inputs_of, reachable, transposed
from verification.programs import Program, programs
from verification.vectors import assert_close

turns = st.integers(0, 23)  # of which orders of up to four things are made


def shuffled(number: int, count: int) -> tuple[int, ...]:
    """Return the numbers up to a count in one of all orders."""
    orders = list(permutations(range(count)))
    return orders[number % len(orders)]


@given(programs(max_elements=8), turns, st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_transposed_inputs(program: Program, number: int, order: int, strategy: str) -> None:
    turn = [shuffled(number + place, x.dim()) for place, x in enumerate(program.inputs)]
    assume(any(list(each) != sorted(each) for each in turn))
    back = [sorted(range(len(each)), key=each.__getitem__) for each in turn]
    order, numbers = reachable(program, order), inputs_of(program)

    def f(*inputs: Tensor) -> Any:
        return program(*(x.permute(each) for x, each in zip(inputs, back, strict=True)))

    at = [x.permute(each) for x, each in zip(program.inputs, turn, strict=True)]
    sizes = len(program.outputs), len(numbers), order
    found = blocks_of(hofunc.hod(f, order, numbers, strategy=strategy)(*at), *sizes)
    expected = blocks_of(hofunc.hod(program, order, numbers)(*program.inputs), *sizes)
    for (output, *slots), block in expected.items():
        dims = block.dim() - sum(len(turn[slot]) for slot in slots)
        assert_close(found[output, *slots], transposed(block, [range(dims), *(turn[slot] for slot in slots)]))


@given(programs(max_elements=8), turns, st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_arguments_and_outputs_in_another_order(program: Program, number: int, order: int, strategy: str) -> None:
    numbers, outputs = inputs_of(program), len(program.outputs)
    order, place = reachable(program, order), shuffled(number, len(numbers))

    def f(*inputs: Tensor) -> Any:
        output = program(*(inputs[place.index(argument)] for argument in numbers))
        return output[::-1] if outputs > 1 else output

    at = [program.inputs[argument] for argument in place]
    found = blocks_of(hofunc.hod(f, order, numbers, strategy=strategy)(*at), outputs, len(numbers), order)
    expected = blocks_of(hofunc.hod(program, order, numbers)(*program.inputs), outputs, len(numbers), order)
    for (output, *slots), block in found.items():
        assert_close(block, expected[outputs - 1 - output, *(place[slot] for slot in slots)])
