"""Windows apart: derivatives in terms are bands where windows are narrow, and the same as those by torch."""

import math
from collections.abc import Callable
from itertools import chain, permutations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from hofunc.plan.offsets import MOST
from tests.cases import rand
from verification.oracles import nested_forward

CPU = torch.device("cpu")
STENCIL = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
CROSS = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]], dtype=torch.float64)


def kernel(*shape: int) -> Tensor:
    return torch.linspace(-1, 1.5, math.prod(shape), dtype=torch.float64).cos().reshape(shape)


def heat(x: Tensor) -> Tensor:
    """Return the energy of a field after two steps of a reaction that diffuses."""
    for _ in range(2):
        x = x + 0.1 * F.conv1d(x[None, None], STENCIL[None, None], padding=1)[0, 0] + x.sin()
    return x.square().sum()


# Functions of a vector that they take as an image of some shape, and the shape.
CASES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "a stencil": (lambda x: F.conv1d(x[None, None], STENCIL[None, None]).sin().sum(), (80,)),
    "padded": (lambda x: F.conv1d(x[None, None], STENCIL[None, None], padding=2).sin().sum(), (80,)),
    "dilated": (lambda x: F.conv1d(x[None, None], STENCIL[None, None], padding=1, dilation=3).sin().sum(), (80,)),
    "every other": (lambda x: F.conv1d(x[None, None], STENCIL[None, None], stride=2, padding=1).sin().sum(), (80,)),
    "in threes": (lambda x: F.conv1d(x[None, None], kernel(1, 1, 4), stride=3, padding=2).sin().sum(), (81,)),
    "in periods": (
        lambda x: F.conv1d(F.pad(x[None, None], (1, 1), mode="circular"), STENCIL[None, None]).sin().sum(),
        (80,),
    ),
    "channels": (lambda x: F.conv1d(x, kernel(3, 2, 3)).sin().sum(), (2, 2, 40)),
    "groups": (lambda x: F.conv1d(x, kernel(4, 1, 3), groups=2).sin().sum(), (3, 2, 40)),
    "transposed": (lambda x: F.conv_transpose1d(x[None, None], STENCIL[None, None]).sin().sum(), (80,)),
    "transposed, apart": (
        lambda x: F.conv_transpose1d(x[None, None], STENCIL[None, None], stride=2, output_padding=1).sin().sum(),
        (80,),
    ),
    "an image": (lambda x: F.conv2d(x[None, None], CROSS[None, None], padding=1).sin().sum(), (18, 20)),
    "a volume": (lambda x: F.conv3d(x[None, None], kernel(1, 1, 2, 2, 2)).sin().sum(), (7, 7, 7)),
    "two layers": (
        lambda x: F.conv1d(F.conv1d(x[None, None], kernel(2, 1, 3)).tanh(), kernel(1, 2, 3)).sin().sum(),
        (120,),
    ),
    "steps of time": (heat, (120,)),
    "windows as they stand": (lambda x: (x.unfold(0, 3, 1) @ STENCIL).sin().sum(), (80,)),
    "windows apart": (lambda x: (x.unfold(0, 3, 2) @ STENCIL).sin().sum(), (80,)),
    "windows of columns": (lambda x: (x.unfold(1, 2, 1) @ STENCIL[:2]).sin().sum(), (3, 40)),
    "columns of an image": (lambda x: F.unfold(x[None, None], (2, 2)).prod(1).sum(), (16, 16)),
}


@pytest.mark.parametrize("name", CASES)
def test_hessians_are_bands(name: str) -> None:
    f, shape = CASES[name]
    x = rand(CPU, *shape)
    found, expected = hofunc.hessian(f, layout="compact")(x), nested_forward(f, 2)(x)
    torch.testing.assert_close(found.dense(), expected)
    torch.testing.assert_close(found.to_sparse().to_dense(), expected)
    assert found.nbytes < expected.nbytes / 2


@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("name", ["a stencil", "every other", "channels", "windows apart"])
def test_other_orders(name: str, order: int) -> None:
    f, shape = CASES[name]
    x = rand(CPU, *shape[:-1], shape[-1] // 4) if order == 3 else rand(CPU, *shape)
    torch.testing.assert_close(hofunc.hod(f, order, layout="compact")(x).dense(), nested_forward(f, order)(x))


def test_jacobians_have_an_entry_for_each_place() -> None:
    def f(x: Tensor) -> Tensor:
        return F.conv1d(x[None, None], STENCIL[None, None])[0, 0].sin()

    x = rand(CPU, 50)
    found = hofunc.jacobian(f, layout="compact")(x)
    assert found.to_sparse().values().numel() == 48 * 3
    torch.testing.assert_close(found.dense(), nested_forward(f, 1)(x))


def test_what_is_held_grows_with_the_length() -> None:
    one, other = (hofunc.hessian(heat, layout="compact")(rand(CPU, size)).nbytes for size in (200, 400))
    assert other < 2.05 * one


def test_where_windows_are_wide_matrices_are_made() -> None:
    def f(x: Tensor) -> Tensor:
        return F.conv1d(x[None, None], kernel(1, 1, 17)).sin().sum()

    assert MOST < 17**2
    x = rand(CPU, 2000)
    assert hofunc.hessian(f, layout="compact")(x).pattern == "(), i, j"


def test_by_the_kernel_too() -> None:
    def f(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv1d(x[None, None], weight[None, None]).sin().sum()

    args = rand(CPU, 40), STENCIL
    found = hofunc.hessian(f, argnums=(0, 1), layout="compact")(*args)
    blocks = torch.func.jacrev(torch.func.jacrev(f, (0, 1)), (0, 1))(*args)
    for i, j in chain(((0, 0), (1, 1)), permutations(range(2))):
        torch.testing.assert_close(found[i][j].dense(), blocks[i][j])
