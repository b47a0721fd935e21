"""A large plan in regions is the plan.

Claim: wherever the graph of a plan is cut, its regions, each compiled by itself and equal ones once, compute what the
plan does, and have its gradients.
Source: a region is a part of a straight line of ops that write nowhere.
Falsifier: a tensor that does not pass a cut, regions that pass for equal and differ, strides that a compiler has
changed, or a tensor that is given up too soon.
Tolerance: that of `verification.vectors`; what inductor makes of single precision differs in the last digits.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.run import compiler
from hofunc.run.regions import regions
from verification.blocks import inputs_of, reachable
from verification.profiles import PROFILE
from verification.programs import Program, programs
from verification.vectors import assert_close


@given(programs(), st.integers(1, 3), st.sampled_from(STRATEGIES), st.integers(1, 4), st.integers(0, 4))
def test_random_programs(program: Program, order: int, strategy: str, least: int, more: int) -> None:
    """The compiler is none; `test_inductor` has the real one."""
    order, numbers = reachable(program, order), inputs_of(program)
    plan = hofunc.hod(program, order, numbers, strategy=strategy).plan(*program.inputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "regions", lambda module: regions(module, least, least + more))
        patch.setattr(compiler, "_by_torch", lambda _options, module, _tensors: module)
        cut = plan.compile(backend="none")
        cut(*program.inputs)  # what reads values is compiled at the second call
        leaves = [tensor.clone().requires_grad_() for tensor in program.inputs]
        for inputs in (program.inputs, leaves, leaves):
            got, expected = (tree_leaves(each(*inputs)) for each in (cut, plan))
            assert_close([one.detach() for one in got], [other.detach() for other in expected])
    followed = [(one, other) for one, other in zip(got, expected, strict=True) if other.requires_grad]
    assert all(one.requires_grad for one, _ in followed)
    if followed:
        first, second = (_gradients([pair[place] for pair in followed], leaves) for place in (0, 1))
        assert_close(first, second)


def _gradients(results: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    total = torch.stack([result.sin().sum() for result in results]).sum()
    return [*torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)]


def _decoder(x: Tensor) -> Tensor:
    """Return what two layers of attention make of x, which differ in their weights."""
    weights = torch.randn(2, 3, 4, 4, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    for query, key, value in weights:
        y = torch.nn.functional.layer_norm(x, (4,))
        scores = ((y @ query) @ (y @ key).transpose(-1, -2)).masked_fill(torch.ones(3, 3).triu(1).bool(), -1e4)
        x = x + torch.nn.functional.gelu(scores.softmax(-1) @ y @ value)
    return x.logsumexp(-1).sum()


def _shapes(x: Tensor) -> tuple[Tensor, ...]:
    """Return tensors that are views, of other strides and of other dtypes."""
    pairs = (x[0].t().exp().reshape(-1) * x[1].flatten()).view(2, 6)
    sorted_, places = pairs.sin().sort(1)
    parts = [part.cumsum(1) for part in sorted_.split(3, 1)]
    return parts[0] @ parts[1].t(), pairs.gather(1, places).to(torch.float64).tanh().t(), x.transpose(0, 2), x


def _small(x: Tensor) -> Tensor:
    return x.sin().cumsum(2).transpose(0, 2).tanh().sum()


# The first takes seconds, the others minutes: these are for the night.
LARGE = [(_shapes, 30), (_decoder, 30)] if PROFILE == "nightly" else []


@pytest.mark.filterwarnings("ignore")  # of inductor
@pytest.mark.parametrize(("f", "least"), [(_small, 3), *LARGE])
def test_inductor(f: Callable[[Tensor], Any], least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(compiler, "regions", lambda module: regions(module, least, 3 * least))
    plan = hofunc.derivatives(f, 2).plan(x)
    done: list[tuple[int, int]] = []
    compiled = plan.compile(progress=lambda *numbers: done.append(numbers))
    with torch.no_grad():
        for inputs in (x, 2 * x):
            assert_close(tree_leaves(compiled(inputs)), tree_leaves(plan(inputs)))
    assert done == [(place + 1, done[0][1]) for place in range(done[0][1])]
    assert len(done) > 1
    leaf = x.clone().requires_grad_()
    gradients = [_gradients(tree_leaves(each(leaf)), [leaf]) for each in (compiled, plan, compiled)]
    assert_close(gradients[0], gradients[1])
    assert_close(gradients[2], gradients[1])
