"""Derivatives are symmetric in their slots.

Claim: every derivative of order k, by one input or several, is the same for every order of its slots.
Source: Schwarz's theorem; programs are smooth around their inputs.
Falsifier: a slot that is not treated like the others: a term missing from a sum over shuffles of old and new slots, a
block used for the transpose of itself, a core with its labels swapped.
Tolerance: that of `verification.vectors`. Blocks of different inputs share memory up to the order of their slots, so
that among them only a wrong order can be found; slots of one input are computed, by reverse each on its own.
"""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import blocks_of, inputs_of, reachable
from verification.programs import Program, programs
from verification.vectors import assert_close, fitting, vector


@given(programs(max_elements=8), st.integers(2, 4), st.sampled_from(STRATEGIES))
def test_slots_of_one_vector(program: Program, order: int, strategy: str) -> None:
    f, x = vector(program)
    order = fitting(order, f, x)
    derivative = hofunc.hod(f, order, strategy=strategy)(x)
    for slots in permutations(range(1, order + 1)):
        assert_close(derivative.permute(0, *slots), derivative)


@given(programs(max_elements=6), st.integers(2, 3))
def test_slots_of_several_inputs(program: Program, order: int) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    derivative = hofunc.hod(program, order, numbers)(*program.inputs)
    blocks = blocks_of(derivative, len(program.outputs), len(numbers), order)
    flat = {
        (output, *slots): block.reshape(-1, *(program.inputs[number].numel() for number in slots))
        for (output, *slots), block in blocks.items()
    }
    for (output, *slots), block in flat.items():
        for places in permutations(range(order)):
            turned = flat[output, *(slots[place] for place in places)]
            assert_close(turned, block.permute(0, *(place + 1 for place in places)))
