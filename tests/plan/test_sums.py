"""Sums of products: how many steps they take, and that they are what the products come to one by one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

import hofunc
from hofunc.plan import sums
from tests.cases import rand
from tests.plan.plans import is_product, lowered_plan, names


def layers(count: int) -> Callable[[Tensor], Tensor]:
    """Return layers of one width, each of which has something to add to the highest order."""
    weights = [rand(torch.device("cpu"), 5, 5, seed=seed) for seed in range(count)]

    def f(x: Tensor) -> Tensor:
        for weight in weights:
            x = (weight @ x).tanh()
        return x.sum()

    return f


def steps(count: int) -> list[str]:
    made = lowered_plan(layers(count), rand(torch.device("cpu"), 5), orders=(2,), strategy="mixed")
    return names(made.program)


def test_layers_have_one_product_for_the_highest_order_of_all() -> None:
    few, many = steps(6), steps(12)
    products = [sum(map(is_product, each)) for each in (few, many)]
    assert products[1] - products[0] == 12  # of every layer the derivatives and the adjoint
    assert few.count("stacked") == many.count("stacked")


@pytest.mark.parametrize("most", [1, 300, 1 << 16])
@pytest.mark.parametrize("order", [2, 3])
def test_whatever_is_stacked_at_once_the_sum_is_the_same(
    most: int, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "MOST", most)
    f, x = layers(9), rand(torch.device("cpu"), 5)
    expected: Callable[[Tensor], Tensor] = f
    for _ in range(order):
        expected = jacrev(expected)
    got = hofunc.hod(f, order, strategy="mixed").plan(x)(x)
    torch.testing.assert_close(got, expected(x), rtol=1e-12, atol=1e-12)


def test_what_is_large_is_not_copied() -> None:
    weights = [rand(torch.device("cpu"), 4, 300, 300, seed=seed) for seed in range(4)]

    def f(x: Tensor) -> Tensor:
        return torch.stack([(weight * x).sin().square().sum() for weight in weights]).sum()

    made = lowered_plan(f, rand(torch.device("cpu"), 1), orders=(2,), strategy="mixed")
    assert "stacked" not in names(made.program)


def test_products_of_one_node_are_for_it() -> None:
    """Of two layers, too few to be stacked: all products are for nodes, and only the sum of both is for none."""
    made = lowered_plan(layers(2), rand(torch.device("cpu"), 5), orders=(2,), strategy="mixed")
    products = [step.target for step in made.program.steps if step.function in (torch.mm, torch.matmul)]
    assert products
    assert {*products} <= {*made.owners}
