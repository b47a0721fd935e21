"""hod commutes with vmap, grad and jvp.

Claim: vmap of hod is hod of each row; the gradient of a weighted sum of D^k f, and its tangent along v, are
contractions of D^(k+1) f; hod of hod and of grad are derivatives of the order in all.
Source: derivatives by the same variables commute, and with a map over rows.
Falsifier: a plan whose steps do not carry the batch of an outer vmap, a result that is cut off from its inputs, a
recording that mixes levels of transforms.
Tolerance: that of `verification.vectors`; where torch differentiates, that of its ops.
"""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs
from verification.rows import is_mapped, rows_of
from verification.vectors import TOLERANCE, assert_close, fitting, mixed, mixture, vector


@given(programs(max_ops=6, max_elements=6), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_vmap_of_hod(program: Program, order: int, strategy: str) -> None:
    assume(is_mapped(program))
    order, numbers, rows = reachable(program, order), inputs_of(program), rows_of(program)
    derivative = hofunc.hod(program, order, numbers, strategy=strategy)
    each = [derivative(*row) for row in zip(*rows, strict=True)]
    stacked = torch.utils._pytree.tree_map(lambda *blocks: torch.stack(blocks), *each)
    assert_close(torch.func.vmap(derivative)(*rows), stacked)


@given(programs(max_ops=6, max_elements=8), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_gradient_and_tangent_of_hod(program: Program, order: int, strategy: str) -> None:
    f, x = mixed(vector(program))
    order = fitting(order, f, x)
    below = hofunc.hod(f, order, strategy=strategy)
    derivative, above = below(x), hofunc.hod(f, order + 1)(x)
    weight, v = mixture(derivative.numel(), 1).reshape(derivative.shape), mixture(x.numel(), 1)[:, 0]
    by_func = torch.func.grad(lambda x: (weight * below(x)).sum())(x)
    at = x.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(
        (weight * below(at)).sum() + 0 * at.sum(), at
    )  # which depends on it in any case
    expected, tolerance = torch.tensordot(weight, above, weight.dim()), max(TOLERANCE, program.tolerance)
    assert_close([by_func, by_autograd], [expected, expected], tolerance)
    try:
        tangent = torch.func.jvp(below, (x,), (v,))[1]
    except NotImplementedError:  # torch has no forward mode for some ops
        assume(False)
    assert_close(tangent, above @ v, tolerance)


@given(programs(max_ops=6, max_elements=8), st.integers(1, 2), st.integers(1, 2), st.sampled_from(STRATEGIES))
def test_hod_of_hod_and_of_grad(program: Program, outer: int, inner: int, strategy: str) -> None:
    f, x = mixed(vector(program), 1)
    inner = max(1, fitting(inner + outer, f, x) - outer)
    nested = hofunc.hod(hofunc.hod(f, inner), outer, strategy=strategy)(x)
    assert_close(nested, hofunc.hod(f, outer + inner)(x))

    def gradient(x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: f(x).sum())(x)

    once = hofunc.hod(gradient, outer, strategy=strategy)(x)
    assert_close(
        once, hofunc.hod(f, outer + 1)(x)[0], max(TOLERANCE, program.tolerance)
    )  # torch's own first derivative
