"""Sums of convolutions: which are one, and that they are what they were."""

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from tests.cases import rand
from tests.plan.plans import names
from verification.oracles import relative_error

CPU = torch.device("cpu")


def planned(dtype: torch.dtype, images: int, stride: int = 1) -> Counter[str]:
    """Plan, and check, a product with a Hessian of two convolutions by their weights; return what its steps call."""
    x, w, u = (rand(CPU, *shape).to(dtype) for shape in ((images, 3, 16, 16), (4, 3, 3, 3), (5, 4, 3, 3)))

    def f(w: Tensor, u: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, w, padding=1).tanh(), u, padding=1, stride=stride).sin().sum()

    plan = hofunc.hvp(f, (0, 1)).plan(w, u, vector=(w, -u))
    got = plan(w, u, vector=(w, -u))
    expected = torch.func.jvp(torch.func.grad(f, (0, 1)), (w, u), (w, -u))[1]
    assert relative_error(got, expected) < (1e-12 if dtype == torch.float64 else 1e-5)
    return Counter(names(plan._steps.program))


@pytest.mark.parametrize("stride", [1, 2])
def test_two_small_convolutions_that_are_added_up_are_one(stride: int) -> None:
    called = planned(torch.float32, 6, stride)
    assert called["convolved_jointly"] == 3, "the tangents of the second, and its two cotangents"
    assert called["convolved_weight"] == 1, "the first has constant images"


def test_in_double_precision_only_transposes_are() -> None:
    called = planned(torch.float64, 6)
    assert called["convolved_jointly"] == 1
    assert called["convolved_weight"] == 3


def test_large_ones_are_not() -> None:
    assert not planned(torch.float32, 64)["convolved_jointly"]


def test_nor_are_those_that_something_else_takes() -> None:
    x, w = rand(CPU, 6, 3, 16, 16).float(), rand(CPU, 4, 3, 3, 3).float()

    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return F.conv2d(x, w), F.conv2d(x, w).sin()

    plan = hofunc.jvp(f, (0, 1)).plan(x, w, vector=(x, w))
    called = Counter(names(plan._steps.program))
    got, expected = plan(x, w, vector=(x, w)), torch.func.jvp(f, (x, w), (x, w))[1]
    assert relative_error(got, expected) < 1e-5
    assert called["convolved_jointly"] == 1, "the sum is taken twice, each convolution once"
