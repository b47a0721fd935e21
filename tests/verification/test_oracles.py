"""The oracles: on functions whose derivatives are known, and where they must not be trusted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cases import rand
from verification.oracles import (
    along,
    central_differences,
    contracted,
    derivatives_of_numbers,
    nested_autograd,
    nested_forward,
    nested_forward_over_reverse,
    nested_reverse,
    relative_error,
)
from verification.oracles.measure import error_over_all

# torch's forward mode compiles a helper with what it deprecates itself

NESTED = [nested_autograd, nested_forward, nested_forward_over_reverse, nested_reverse]


def two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    rows = (x @ w).sin()
    return rows * w[0], (rows * rows).sum()


@pytest.fixture
def args(device: torch.device) -> tuple[Tensor, Tensor]:
    return rand(device, 3, 2), rand(device, 2, seed=1)


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_nesting_finds_known_derivatives(nested: Callable, order: int, device: torch.device) -> None:
    x = rand(device, 3)
    falling = {1: 5 * x**4, 2: 20 * x**3, 3: 60 * x**2}[order]
    cube = torch.zeros([3] * (order + 1), dtype=x.dtype, device=device)
    cube[(torch.arange(3),) * (order + 1)] = falling
    assert relative_error(nested(lambda x: x**5, order)(x), cube) < 1e-14


@pytest.mark.parametrize("nested", NESTED)
def test_nesting_of_scalars(nested: Callable) -> None:
    assert nested(torch.sin, 2)(torch.tensor(0.5)) == -torch.sin(torch.tensor(0.5))


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("argnums", [0, (1,), (1, 0)])
def test_all_nestings_agree_in_structure_and_value(nested: Callable, argnums: Any, args: Any) -> None:
    assert relative_error(nested(two, 2, argnums)(*args), nested_reverse(two, 2, argnums)(*args)) < 1e-14


def test_autograd_of_what_does_not_depend_on_an_input(args: tuple[Tensor, Tensor]) -> None:
    derivative = nested_autograd(lambda x, w: (w * 2, torch.ones(2)), 2, (0, 1))(*args)
    assert [leaf.abs().max() for output in derivative for row in output for leaf in row] == [0] * 8
    assert not derivative[0][0][0].requires_grad


@pytest.mark.parametrize("of_first", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("argnums", [0, (1, 0)])
def test_differences_are_as_exact_as_they_say(order: int, of_first: bool, argnums: Any, args: Any) -> None:
    """At order 4 at two rows: of three, torch takes half a minute for the derivative by both arguments."""
    args = (args[0][:2], args[1]) if order == 4 else args
    directions = [[rand(x.device, *x.shape, seed=10 * slot + place) for place, x in enumerate(args)]
                  for slot in range(order)]  # fmt: skip
    if isinstance(argnums, int):
        directions = [[v, torch.zeros_like(w)] for v, w in directions]
    expected = contracted(nested_reverse(two, order, argnums)(*args), directions, argnums)
    estimate = along(two, args, directions, of_first=of_first, levels=4)
    error = (estimate.value - expected).abs().max().item()
    assert error <= 2 * estimate.error
    assert estimate.error < 10.0 ** (-13 + 3 * order)


def test_differences_say_when_they_cannot_judge(device: torch.device) -> None:
    kink = along(lambda x: (x - 0.01).abs(), [torch.zeros(1, device=device).double()], [[torch.ones(1).double()]] * 2)
    assert kink.error > 0.1


def test_central_differences_are_exact_for_smooth_functions(device: torch.device) -> None:
    x = rand(device, 2, 2)
    got = central_differences(lambda x: (x * x).sin().sum(0), x)
    assert relative_error(got, torch.func.jacrev(lambda x: (x * x).sin().sum(0))(x)) < 1e-9


def test_forty_digits_differentiate_a_power() -> None:
    points = torch.tensor([[0.5, 2.0]], dtype=torch.float64)
    assert torch.equal(derivatives_of_numbers(lambda x: x**7, points, 6), 5040 * points)


def test_errors_are_relative_to_the_largest_block() -> None:
    large, small = torch.full((2,), 100.0), torch.full((2,), 1e-6)
    assert error_over_all((large, small * 2), (large, small)) == pytest.approx(1e-8)
    assert relative_error((large, small * 2), (large, small)) == pytest.approx(1)
    assert error_over_all(small * 2, small) == pytest.approx(1e-6)
    with pytest.raises(AssertionError, match="got"):
        error_over_all(large, large.double())
    assert error_over_all(large * torch.nan, large) == float("inf")
