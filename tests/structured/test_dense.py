"""Dense tensors of structured derivatives: what is written over, and that nothing else is."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.structured import dense
from hofunc.views import WRITES
from tests.cases import rand

CPU = torch.device("cpu")


def neighbours(x: Tensor) -> Tensor:
    return (x[1:] * x[:-1]).sin().sum() + (x[2:] * x[:-2]).pow(3).sum()


def pairs(x: Tensor) -> Tensor:
    return (x[::2] * x[1::2]).exp()


def groups(x: Tensor) -> Tensor:
    rows = x.reshape(-1, 3)
    return (rows.roll(1, 0) * rows).prod(1)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("f", [neighbours, pairs, groups])
def test_parts_are_written_to_their_places(f: Callable[[Tensor], Tensor], order: int) -> None:
    x = rand(CPU, 12)
    derivative, expected = hofunc.hod(f, order=order, layout="compact")(x), hofunc.hod(f, order=order)(x)
    for _ in range(2):  # of the same terms, which stay as they are
        torch.testing.assert_close(derivative.dense(), expected)
    followed = hofunc.hod(f, order=order, layout="compact")(x.clone().requires_grad_()).dense()
    torch.testing.assert_close(followed.detach(), expected)


def test_no_part_but_the_first_copies_what_there_is() -> None:
    derivative = hofunc.hod(neighbours, order=2, layout="compact")(rand(CPU, 12))
    recipe = dense._recipe(dense.template(derivative.terms), False)
    copies = [sum(function in WRITES for function, _ in calls) for calls in (recipe.calls, recipe.over)]
    assert copies[0] > 2 > copies[1]


def test_what_is_read_again_is_not_written_over() -> None:
    given, made = dense._Held(0), dense._Held(1)
    calls: dense.Calls = [
        (torch.mul, (given, 2)),
        (torch.narrow, (made, 0, 0, 1)),
        (torch.diagonal_scatter, (given, made)),  # what is given
        (torch.diagonal_scatter, (made, given)),  # what a view is read of later
        (torch.add, (dense._Held(2), given)),
        (torch.diagonal_scatter, (made, given)),
    ]
    own = WRITES[torch.diagonal_scatter]
    functions = [function for function, _ in dense._writing_over(calls, 1)]
    assert functions == [torch.mul, torch.narrow, torch.diagonal_scatter, torch.diagonal_scatter, torch.add, own]
