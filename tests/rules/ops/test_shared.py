"""Products of several matrices with one that torch repeats for each of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from tests import checks
from tests.cases import rand
from verification.oracles import nested_forward_over_reverse, relative_error

PLACES, ROWS, SIZE, WIDTH = 7, 3, 4, 5


def linear(x: Tensor, w: Tensor) -> Tensor:
    """A layer of inputs that do not lie in memory as their axes do."""
    return torch.nn.functional.linear(x.transpose(0, 1), w).sin()


def from_the_left(x: Tensor, w: Tensor) -> Tensor:
    return torch.matmul(w, x.transpose(1, 2)).sin()


def repeated(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x, w.t().expand(len(x), SIZE, WIDTH)).sin()


def of_rank_four(x: Tensor, w: Tensor) -> Tensor:
    return torch.matmul(x.reshape(ROWS, 1, PLACES, SIZE).expand(ROWS, 2, PLACES, SIZE), w.t()).sin()


def of_both(x: Tensor, w: Tensor) -> Tensor:
    return torch.bmm(x[:1].expand(2, PLACES, SIZE), w.t().expand(2, SIZE, WIDTH)).sin()


@pytest.mark.parametrize("f", [linear, from_the_left, repeated, of_rank_four, of_both])
@pytest.mark.parametrize("argnum", [0, 1])
@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_derivatives(f: Callable[..., Tensor], argnum: int, strategy: str, device: torch.device) -> None:
    x, w = rand(device, ROWS, PLACES, SIZE), rand(device, WIDTH, SIZE, seed=1)

    def total(x: Tensor, w: Tensor) -> Tensor:
        return (f(x, w) ** 3).sum()

    got = hofunc.hod(total, 2, argnum, strategy=strategy)(x, w)
    want = nested_forward_over_reverse(total, 2, argnum)(x, w)
    assert relative_error(got, want) < checks.TOLERANCE


def test_where_inputs_lie_makes_no_difference_to_what_is_computed(device: torch.device) -> None:
    x = rand(device, 4, 16, 16)
    parameters = {"first": rand(device, 16, 16, seed=1), "second": rand(device, 48, 16, seed=2)}

    def f(parameters: dict[str, Tensor], lay: Callable[[Tensor], Tensor]) -> Tensor:
        inputs = lay((x @ parameters["first"]).tanh().transpose(0, 1))
        return torch.nn.functional.linear(inputs, parameters["second"]).unflatten(-1, (3, 16)).sin().prod(-2).sum()

    turned, laid_out = (
        hofunc.hessian(lambda parameters, lay=lay: f(parameters, lay)).plan(parameters)
        for lay in (lambda inputs: inputs, torch.Tensor.contiguous)
    )
    assert turned.bytes < 1.1 * laid_out.bytes
    assert turned.peak_bytes < 1.1 * laid_out.peak_bytes
