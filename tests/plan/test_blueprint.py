"""Blueprints: where results are, their dtype, and whose memory they have."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.blueprint import Blueprint, copied, told_once
from tests.cases import rand
from tests.plan.plans import lowered_plan, names


@pytest.mark.parametrize("compact", [True, False])
def test_results_are_cast_to_the_dtype_of_the_output(compact: bool, device: torch.device) -> None:
    x = rand(device, 3).half()
    plan = lowered_plan(lambda x: x.exp(), x, orders=(1,), compact=compact)
    assert names(plan.program)[-1] in {"to", "copied", "clone"}
    got = hofunc.hod(torch.exp, 1, layout="compact" if compact else "dense")(x)
    assert got.dtype == torch.float16


def test_every_block_has_a_place(device: torch.device) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x.exp() * y.sin()).sum()

    inputs = rand(device, 3), rand(device, 3, seed=1)
    dense = lowered_plan(f, *inputs, orders=(1, 2))
    assert sorted(dense.dense.values()) == list(range(5))
    assert len(dense.program.outputs) == 5
    assert dense.terms == {}
    compact = lowered_plan(f, *inputs, orders=(1, 2), compact=True)
    sources = [factor.source for terms in compact.terms.values() for term in terms for factor in term.factors]
    assert sorted({*sources}) == list(range(len(compact.program.outputs)))
    assert compact.dense == {}


def _and_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x[None]


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: w @ x,  # a recorded value
        lambda x, w: w.t() @ x,
        lambda x, w: x.sum() * x.new_ones(()),  # a broadcast
        lambda x, w: (x.exp(), x.exp()),  # one value twice
        lambda x, w: _and_a_view(x.exp()),
        lambda x, w: (w @ x, (w @ x) * 1, w @ x + 1),
        lambda x, w: x,
        lambda x, w: x * w[0],
        lambda x, w: (x * x).sum(),
    ],
)
def test_dense_results_share_memory_with_nothing(f: Callable[..., Any], device: torch.device) -> None:
    x, w = rand(device, 3), rand(device, 3, 3, seed=1)
    results = hofunc.jacobian(lambda x: f(x, w))(x)
    tensors = [x, w, *(results if isinstance(results, tuple) else (results,))]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
    for tensor in tensors[2:]:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_copies_for_different_results_are_different_steps(device: torch.device) -> None:
    x = rand(device, 2, 3).t()
    assert copied(x, 0).is_contiguous()
    w = rand(device, 3, 3)
    plan = lowered_plan(lambda x: (w @ x, w @ x), rand(device, 3), orders=(1,))
    assert names(plan.program) == ["copied", "copied"]


def test_blueprints_that_run_the_same_are_told_of_once() -> None:
    asked: list[Blueprint] = []

    def peak(made: Blueprint) -> int:
        asked.append(made)
        return len(asked)

    told, x = told_once(peak), rand(torch.device("cpu"), 3)
    one, other = (lowered_plan(lambda x: x.exp().sum(), x, orders=(order,)) for order in (1, 2))
    assert [told(made) for made in (one, other, replace(one, effort=7), one, other)] == [1, 2, 1, 1, 2]
