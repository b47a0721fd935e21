"""Nothing but the result comes out of a call.

Claim: inputs and captured tensors keep their values and flags; modes and random numbers are as they were; and what is
written into a derivative reaches neither an input, nor a captured tensor, nor what a later call returns.
Source: transforms of pure functions are pure.
Falsifier: a step that works in place on what it does not own, a result that is a view of an input, a mode left on.
Tolerance: none.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs


@given(programs(max_elements=8), st.integers(1, 3), st.sampled_from(STRATEGIES), st.sampled_from(["dense", "compact"]))
def test_nothing_is_written(program: Program, order: int, strategy: str, layout: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    watched = [*program.inputs, *program.captured.values()]
    before = [tensor.clone() for tensor in watched]
    versions = [tensor._version for tensor in watched]
    state, graded = torch.get_rng_state(), torch.is_grad_enabled()
    derivative = hofunc.derivatives(program, order, numbers, strategy=strategy, layout=layout)
    result = derivative(*program.inputs)
    assert [tensor._version for tensor in watched] == versions
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == graded
    if layout == "dense":
        expected = [leaf.clone() for leaf in tree_leaves(derivative(*program.inputs))]
        for leaf in tree_leaves(result[1:]):  # the value is what the program returned, which may be its input
            leaf.fill_(torch.nan)
        again = tree_leaves(derivative(*program.inputs))
        assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(watched, before, strict=True))
    assert not any(tensor.requires_grad for tensor in [*watched, *tensors_of(result)])


def tensors_of(result: object) -> list[Tensor]:
    """Return the tensors of a result, those of compact derivatives as well."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
