"""Backward passes are planned in two ways, of which that is taken which should run sooner."""

from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.lean import arranged
from hofunc.plan.program import Program
from hofunc.run import backward, learning
from hofunc.run.cache import forget
from tests.cases import rand

Both = tuple[Program, Program]


@pytest.fixture
def parted(monkeypatch: pytest.MonkeyPatch) -> list[Both]:
    """Note what comes before a backward pass, and this, as it is planned in each way."""
    found: list[Both] = []
    way = backward._parted

    def noting(*args: Any) -> Any:
        before, after, kept = way(*args)
        found.append((before, after))
        return before, after, kept

    monkeypatch.setattr(backward, "_parted", noting)
    forget()
    return found


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Both]:
    """Note what is taken of it."""
    found: list[Both] = []

    class Noting(learning.Learned):
        def __init__(self, parts: backward.Parts, *args: Any):
            found.append((parts.before, parts.after))
            super().__init__(parts, *args)

    monkeypatch.setattr(learning, "Learned", Noting)
    return found


@pytest.mark.parametrize(("pattern", "way"), [("b, b i, b j, j -> b i", 0), ("b, b i, b j, i j -> b", 1)])
def test_the_way_that_should_run_sooner_is_taken(
    pattern: str, way: int, parted: list[Both], taken: list[Both], device: torch.device
) -> None:
    first, second = (rand(device, size, 64).float().requires_grad_() for size in (10, 64))
    x, operand = rand(device, 32, 10).float(), rand(device, *([10] if way == 0 else [10, 10])).float()

    def f(x: Tensor) -> Tensor:
        return ((x @ first).tanh() @ second).tanh().sum(-1)

    with hofunc.options(planning="full"):
        for _ in range(3):
            hofunc.einsum(f, pattern)(x, operands=(operand,)).sum().backward()
    costs = [sum(arranged(part, x.device).made.cost(x.device).seconds for part in both) for both in parted]
    assert taken == [parted[way]]
    assert costs[way] == min(costs)
    assert len(costs) == 2


@pytest.mark.parametrize(("rows", "is_planned"), [(1024, True), (4096, False)])
@pytest.mark.parametrize("is_kept", [False, True])
def test_chunks_that_hold_little_are_one_piece(
    rows: int, is_planned: bool, is_kept: bool, taken: list[Both], device: torch.device
) -> None:
    weights = [rand(device, size, 64, seed=size).float().requires_grad_() for size in (10, 64, 64, 64)]
    x = rand(device, rows, 10).float()

    def f(x: Tensor) -> Tensor:
        for weight in weights:
            x = (x @ weight / 8).tanh()
        return x.sum(-1)

    forget()
    transform = hofunc.laplacian(f)
    with hofunc.options(planning="full"):
        plan = transform.plan(x)
        assert plan._steps.chunks is not None
        call = plan if is_kept else transform
        found = [torch.autograd.grad(call(x).square().sum(), weights) for _ in range(4)]
    assert bool(taken) == is_planned
    for got, want in zip(found[-1], found[0], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))
