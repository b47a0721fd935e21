"""Compiling in another thread: each kind of call once, and none of them waits for it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import hofunc
from tests.cases import rand
from tests.checks import assert_equal

CPU = torch.device("cpu")
X = rand(CPU, 3, 4)


def f(x: Tensor) -> Tensor:
    return (x.sin() * x.cumsum(0)).exp().sum()


def wait(compiled: Any) -> None:
    for task in compiled._run._tasks.values():
        task.result()


@pytest.mark.parametrize(
    "laid",
    [
        lambda x: x,
        lambda x: x.t().contiguous().t(),
        lambda x: x[:1].expand(3, 4),
        lambda x: torch.cat([x, x], 1)[:, ::2],
        lambda x: torch.cat([x, x])[2:5],
        lambda x: torch.cat([x, x])[1::2],
    ],
)
def test_what_lies_otherwise_in_memory_is_compiled_once(
    laid: Callable[[Tensor], Tensor], graphs: list[GraphModule]
) -> None:
    x = laid(X)
    plan = hofunc.hessian(f).plan(x)
    compiled = plan.compile(backend="none", background=True)
    for _ in range(3):
        assert_equal(compiled(x), plan(x))
        wait(compiled)
    assert len(graphs) == 1


def test_what_needs_gradients_is_compiled_apart(graphs: list[GraphModule]) -> None:
    plan, leaf = hofunc.hessian(f).plan(X), X.clone().requires_grad_()
    compiled: Any = plan.compile(backend="none", background=True)
    for count, (x, is_enabled) in enumerate([(X, True), (leaf, True), (leaf, False)], 1):
        for _ in range(2):
            with torch.set_grad_enabled(is_enabled):
                got = compiled(x)
            assert_equal(got, plan(x))
            assert got.requires_grad == (count == 2)
            wait(compiled)
            assert len(graphs) == min(count, 2)
