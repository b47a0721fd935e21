"""Quotients: at every order and by every strategy, of tensors and numbers that are broadcast, and of whole numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hofunc import hod
from hofunc.plan.strategies import STRATEGIES
from tests.cases import rand
from tests.checks import assert_equal, check_hod
from verification.oracles import nested_reverse

QUOTIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "of two": lambda x: x.sin() / (x.cos() + 3),
    "of one by itself": lambda x: x / x,
    "by a number": lambda x: (x.sin() / 3) ** 2,
    "of a number": lambda x: 2 / (x * x + 1),
    "by one that is broadcast": lambda x: x.sin() / (x[:1] * x[:1] + 1),
    "of one that is broadcast": lambda x: x[:1].sin() / (x * x + 1),
    "of a sum by a sum": lambda x: x.sum(1, keepdim=True) / (x.square().sum() + 1),
    "a share": lambda x: x.exp() / x.exp().sum(1, keepdim=True),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients(name: str, order: int, device: torch.device) -> None:
    check_hod(lambda x: QUOTIENTS[name](x).sin(), [rand(device, 2, 3)], order, strategies=("auto", *STRATEGIES))


def test_the_slope_of_a_quotient_by_whole_numbers_has_full_precision(device: torch.device) -> None:
    x, counts = rand(device, 2, 3), torch.tensor([3, 7, 11], device=device)
    for f in (lambda x: (x / counts).sin(), lambda x: (counts / (x * x + 1)).sin()):
        assert_equal(hod(f, 2)(x), nested_reverse(f, 2)(x))
        single = hod(f, 2)(x.float())
        assert single.dtype == torch.float32
        assert torch.allclose(single.double(), hod(f, 2)(x), atol=1e-6)


def test_high_orders_of_a_reciprocal(device: torch.device) -> None:
    x = torch.tensor(1.25, dtype=torch.float64, device=device)
    expected = [1.0]
    for order in range(1, 8):
        expected.append(-order * expected[-1])
        assert_equal(hod(lambda x: 1 / x, order)(x), expected[-1] / x ** (order + 1))
