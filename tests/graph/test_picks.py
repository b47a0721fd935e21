"""What a number of each member of a batch picks, where vmap maps it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import one_hot

import hofunc
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

LABELS = [0, 3, -1, 2]


def set_to(x: Tensor, label: Tensor, *, value: bool) -> Tensor:
    """Write to what a label picks, out of what lies before it as well."""
    y = x * x
    y[label] = y.clone()[label] * x[0] if value else 2.0
    return (y * x).sum()


def set_part(x: Tensor, label: Tensor) -> Tensor:
    y = x.view(2, 2).repeat(3, 4).view(6, 8)
    y[..., None, :, label] = y[1:, label + 1].sum() * y.clone()[:, 2]
    return y.sin().sum()


@pytest.mark.parametrize(
    "f",
    [
        lambda x, label: x[label] ** 3,
        lambda x, label: x.log_softmax(0)[label] * x[-1],
        lambda x, label: (x.view(2, 2, 1) * x)[1, ..., None, label].prod(),
        lambda x, label: (x[:, None] * x)[label, label] * x[0],
        lambda x, label: (x[:, None] * x)[label][label] * x[0],
        lambda x, label: (x[:, None, None] * x[:, None] * x)[label, :, label].pow(2).sum(),
        lambda x, label: (x[:, None] * x)[label, 1:3].sum() * x[torch.tensor([0, 2])].prod(),
        lambda x, label: set_to(x, label, value=True),
        lambda x, label: set_to(x, label, value=False),
        set_part,
        lambda x, label: vmap(lambda y: x[y] * (one_hot(y, 4) * x).sum())((label + torch.arange(3)) % 4).prod(),
        lambda x, label: (one_hot(label % 4, 5)[:4] * x).sum() ** 3,
        lambda x, label: (one_hot((x * (label + 2)).argmax(), num_classes=4) * x).sum() ** 3 + x.prod(),
    ],
)
@pytest.mark.parametrize("order", [1, 2])
def test_each_member_has_a_part_of_its_own(
    f: Callable[[Tensor, Tensor], Tensor], order: int, device: torch.device
) -> None:
    """They were refused, since torch reads the number."""
    x, labels = rand(device, 4, 4) + 1, torch.tensor(LABELS, device=device)
    expected = torch.stack(
        [nested_reverse(lambda x, y=y: f(x, y), order)(row) for row, y in zip(x, labels, strict=True)]
    )
    assert relative_error(vmap(hofunc.hod(f, order))(x, labels), expected) < 1e-13


def increment(x: Tensor, label: Tensor) -> Tensor:
    y = x.exp()
    y[label] += x[0]
    return y.sum()


def double_the_part(x: Tensor, label: Tensor) -> Tensor:
    y = x.exp()[:, None] * x
    y[label][1:].mul_(2)
    return y.sum()


def use_the_part_later(x: Tensor, label: Tensor) -> Tensor:
    y = x.exp()[:, None] * x
    part = y[label][1:]
    y[2, 1] = 0.0
    return part.sum() * x.sum()


def return_the_part_later(x: Tensor, label: Tensor) -> Tensor:
    y = x.exp()
    part = y[label]
    y.mul_(2)
    return part


@pytest.mark.parametrize("f", [increment, double_the_part, use_the_part_later, return_the_part_later])
def test_a_part_that_torch_takes_for_a_view_is_refused(
    f: Callable[[Tensor, Tensor], Tensor], device: torch.device
) -> None:
    x, labels = rand(device, 4, 4) + 1, torch.tensor(LABELS, device=device)
    with pytest.raises(hofunc.BranchError, match=r"picks a part by an index that vmap maps.*Write x\[index\] = "):
        vmap(hofunc.jacobian(f))(x, labels)


@pytest.mark.parametrize("label", [4, -5])
@pytest.mark.parametrize("f", [lambda x, y: x[y] ** 3, lambda x, y: (one_hot(y.abs(), 4) * x).sum()])
def test_places_that_there_are_not_are_errors(
    f: Callable[[Tensor, Tensor], Tensor], label: int, device: torch.device
) -> None:
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        vmap(hofunc.hessian(f))(rand(device, 2, 4), torch.tensor([1, label], device=device))
