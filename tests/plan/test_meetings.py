"""Where entries meet that nobody knows as a plan is made: they are read from what is dense, of one side alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import lookups, meetings, pieces
from tests.cases import rand

CPU = torch.device("cpu")
POINTS, EDGES = 40, 160


def edges(seed: int) -> Tensor:
    """Return edges of points, of which some repeat, some lead to where they start, and some points have none."""
    return torch.randint(POINTS - 5, (2, EDGES), generator=torch.Generator().manual_seed(seed))


def embedded(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    near = torch.exp(-(x[i] - x[j]).square().sum(-1))
    return -torch.zeros(POINTS, dtype=x.dtype).index_add(0, i, near).add(0.1).sqrt().sum()


def two_layers(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    y = torch.zeros_like(x).index_add(0, i, x[j].sin()).tanh()
    return torch.zeros_like(x).index_add(0, j, y[i] * x[i]).cos().sum()


@pytest.fixture(params=[0.0, 1e9], ids=["read", "dense"])
def moved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meetings, "_MOVED", request.param)
    monkeypatch.setattr(lookups, "PIECE", 1 << 14)
    for module in (lookups, pieces):
        monkeypatch.setattr(module, "LEAST", 1 << 14)


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "auto"])
@pytest.mark.parametrize("f", [embedded, two_layers])
@pytest.mark.usefixtures("moved")
def test_a_plan_is_right_for_any_indices(f: Callable[..., Tensor], strategy: str) -> None:
    x = rand(CPU, POINTS, 3)
    plan = hofunc.hessian(f, strategy=strategy).plan(x, *edges(0))
    for seed in (0, 1, 2):
        torch.testing.assert_close(plan(x, *edges(seed)), torch.func.hessian(f)(x, *edges(seed)))


@pytest.mark.usefixtures("moved")
def test_orders_above_two() -> None:
    x = rand(CPU, POINTS, 1)

    def third(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return torch.func.jacrev(torch.func.hessian(embedded))(x, i, j)

    plan = hofunc.hod(embedded, 3).plan(x, *edges(0))
    torch.testing.assert_close(plan(x, *edges(3)), third(x, *edges(3)))


def test_few_entries_take_the_less_the_fewer_they_are() -> None:
    """Products of all points by all points by all points are not computed, where there are many of these."""
    i = torch.arange(700).repeat(5)
    j = torch.cat([torch.arange(700) + shift for shift in (1, 2, 3, 4, 5)])
    x = rand(CPU, 705, 3)

    def f(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
        near = torch.exp(-(x[i] - x[j]).square().sum(-1))
        return torch.zeros(len(x), dtype=x.dtype).index_add(0, i, near).add(0.1).sqrt().sum()

    assert hofunc.hessian(f, strategy="mixed").plan(x, i, j).flops < 30 * 2103**2
