"""Tensors that exchange what they hold while a function is recorded."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils import swap_tensors

import hofunc

WEIGHT = torch.full((3,), 2.0)


def of_computed(x: Tensor) -> Tensor:
    a, b = x**2, x**3
    swap_tensors(a, b)
    return a.sum()


def of_made(x: Tensor) -> Tensor:
    a, b = torch.ones(3), torch.zeros(3)
    swap_tensors(a, b)
    return (a * x**2).sum()


def of_captured(x: Tensor) -> Tensor:
    y = x * 1
    swap_tensors(y, WEIGHT)
    return (y * x**2).sum()


@pytest.mark.parametrize("f", [of_computed, of_made, of_captured])
def test_swaps_are_refused(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(3)
    hessian = hofunc.hessian(f)
    for call in (hessian, hessian.plan, lambda x: torch.func.vmap(hessian)(x.expand(2, 3))):
        with pytest.raises(hofunc.UntracedError, match=r"exchanges two tensors by torch\.utils\.swap_tensors"):
            call(x)
    assert WEIGHT.eq(2).all()


def test_swaps_outside_are_torchs() -> None:
    layer = nn.Linear(2, 1)
    hessian = hofunc.hessian(lambda x: layer(x).exp().sum())
    x = torch.ones(2)
    hessian(x)
    other = nn.Parameter(torch.full((1, 2), 3.0))
    swap_tensors(layer.weight, other)
    value = (6 + layer.bias).exp().detach()
    torch.testing.assert_close(hessian(x).detach(), 9 * value * torch.ones(2, 2))
