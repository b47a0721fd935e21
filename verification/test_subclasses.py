"""A derivative does not depend on the Python class of a tensor.

Claim: a program has the same derivatives, by the transform and by a plan, if its inputs and what it captures are of a
subclass of torch.Tensor, all of them or some.
Source: a subclass that overrides nothing computes what torch.Tensor does.
Falsifier: a tensor that is told by its Python object, since every op on a subclass returns a new object; a check of the
exact class.
Tolerance: that of `verification.vectors`.
"""

from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_map

import hofunc
from hofunc.arguments import STRATEGIES
from verification.programs import Program, programs
from verification.vectors import assert_close


class Named(Tensor):
    """A subclass that overrides nothing."""


def named(tensor: Tensor) -> Tensor:
    """Return a tensor of the subclass."""
    return tensor.as_subclass(Named)


def plain(tensor: Tensor) -> Tensor:
    """Return a tensor of no subclass."""
    return tensor.as_subclass(Tensor)


def accepts(program: Program) -> bool:
    """Tell whether a program takes a subclass: `torch.func` inside of it does not always."""
    try:
        program(*program.inputs)
    except (RuntimeError, TypeError):
        return False
    return True


@given(
    programs(max_ops=5, max_elements=6),
    st.integers(1, 3),
    st.sampled_from(STRATEGIES),
    st.sampled_from(["inputs", "captured", "both"]),
)
def test_subclasses(program: Program, order: int, strategy: str, which: str) -> None:
    inputs = tuple(map(named, program.inputs)) if which != "captured" else program.inputs
    captured = tree_map(named, program.captured) if which != "inputs" else program.captured
    of_subclass = replace(program, inputs=inputs, captured=captured)
    assume(accepts(of_subclass))
    expected = hofunc.derivatives(program, order, program.argnums, strategy=strategy)(*program.inputs)
    transform = hofunc.derivatives(of_subclass, order, program.argnums, strategy=strategy)
    for call in (transform, transform.plan(*inputs)):
        assert_close(tree_map(plain, call(*inputs)), expected)
