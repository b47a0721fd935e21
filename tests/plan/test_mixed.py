"""The mixed strategy: steps counted by hand, and what it does not compute."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.strategies import STRATEGIES
from tests.cases import rand
from tests.plan.plans import is_product, lowered_plan, names
from verification.oracles import relative_error


def plan(f: Callable[..., Any], *inputs: Tensor, orders: tuple[int, ...] = (2,), compact: bool = True) -> Blueprint:
    return lowered_plan(f, *inputs, orders=orders, compact=compact, strategy="mixed")


def products(made: Blueprint) -> int:
    """Return how many steps are matrix products."""
    return sum(map(is_product, names(made.program)))


@pytest.fixture
def weights(device: torch.device) -> list[Tensor]:
    shapes = ((3, 8), (8, 7), (7, 6), (6,))
    return [rand(device, *shape, seed=seed) for seed, shape in enumerate(shapes, 1)]


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 20, 3)


# Counted by hand.


def test_the_hessian_of_one_layer_is_one_matrix_product(weights: list[Tensor], x: Tensor) -> None:
    """W diag(tanh'') W^T for every row, for which W times itself is one matrix."""
    made = plan(lambda x: (x @ weights[0]).tanh().sum(), x)
    assert products(made) == 1
    (((term,)),) = made.terms.values()
    ((_, axes),) = term.factors
    assert sorted(segment.extent for (segment,) in axes) == [3, 3, 20], "rows are independent"


def test_the_hessian_of_two_layers_is_four(weights: list[Tensor], x: Tensor) -> None:
    """One to propagate the first derivative, one the adjoint, and one for each of the two nonlinear nodes."""
    first, second, *_, last = *weights[:2], rand(x.device, 7)
    made = plan(lambda x: ((x @ first).tanh() @ second).tanh() @ last, x)
    assert products(made) == 4


def test_a_third_order_of_two_layers_is_five(weights: list[Tensor], x: Tensor) -> None:
    """One more, to propagate the second derivative: the terms of a node are added up before they are multiplied."""
    first, second, *_, last = *weights[:2], rand(x.device, 7)
    made = plan(lambda x: ((x @ first).tanh() @ second).tanh() @ last, x, orders=(3,))
    assert products(made) == 5


def test_a_further_layer_adds_one_for_each_lower_order_one_adjoint_and_its_own_products(
    weights: list[Tensor], x: Tensor
) -> None:
    """Those of a node are one for each way to part the order in two: at order four 1 + 3 and 2 + 2."""

    def network(depth: int) -> Callable[[Tensor], Tensor]:
        def f(x: Tensor) -> Tensor:
            for weight in weights[:depth]:
                x = (x @ weight).tanh()
            return x.sum(1)

        return f

    for order in (2, 3, 4):
        counts = [products(plan(network(depth), x, orders=(order,))) for depth in (1, 2, 3)]
        assert [after - before for before, after in pairwise(counts)] == [order - 1 + 1 + order // 2] * 2


def test_the_first_order_is_the_adjoint(weights: list[Tensor], x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return ((x @ weights[0]).tanh() @ weights[1]).sin().sum()

    reverse = lowered_plan(f, x, orders=(1,), compact=True, strategy="reverse")
    made = plan(f, x, orders=(1,))
    assert products(made) == products(reverse) == 2
    assert made.cost.flops == reverse.cost.flops


def test_adjoints_are_shared_by_the_orders(weights: list[Tensor], x: Tensor) -> None:
    """The gradient beside the Hessian takes one product more: the adjoint of the input itself."""
    first, second, *_, last = *weights[:2], rand(x.device, 7)

    def f(x: Tensor) -> Tensor:
        return ((x @ first).tanh() @ second).tanh() @ last

    assert products(plan(f, x, orders=(1, 2))) == products(plan(f, x)) + 1


def test_a_composition_of_two_functions_of_single_elements(device: torch.device) -> None:
    """The adjoint f' times g'', and f'' times g' g', halved: four products and a sum, of one cosine."""
    made = plan(lambda x: x.sin().exp().sum(), rand(device, 3))
    assert sorted(names(made.program)) == ["add_scaled", "cos", "mul", "mul", "mul", "mul"]


# What it leaves out.


@pytest.mark.parametrize("order", [2, 3, 4])
def test_what_is_linear_takes_no_step(order: int, weights: list[Tensor], x: Tensor) -> None:
    made = plan(lambda x: (x @ weights[0] + 1).cumsum(1).t().reshape(-1), x, orders=(order,))
    assert made.terms == {}
    assert made.program.steps == ()


def test_linear_layers_after_the_last_nonlinear_one_only_carry_the_adjoint(weights: list[Tensor], x: Tensor) -> None:
    """Their polynomials are never asked for, so that the steps do not grow with the order."""

    def f(x: Tensor) -> Tensor:
        return ((x @ weights[0]).tanh() @ weights[1]) @ weights[2] @ weights[3]

    assert [products(plan(f, x, orders=(order,))) for order in (2, 3, 4)] == [3, 3, 3]


def test_the_constants_of_a_polynomial_are_never_propagated(device: torch.device) -> None:
    """The square of a linear function: two from labels alone, whatever the batch."""
    made = plan(lambda x: (x * x).sum(), rand(device, 4, 3))
    (((term,)),) = made.terms.values()
    assert (term.coefficient, term.factors) == (2, ())
    assert made.program.steps == ()


def test_blocks_that_vanish_are_not_there(device: torch.device) -> None:
    inputs = rand(device, 3), rand(device, 3, seed=1)
    made = plan(lambda x, y: x.exp().sum() + (x * y).sum(), *inputs, orders=(2, 3))
    assert {key for _, key in made.terms} == {(0, 0), (0, 1), (0, 0, 0)}


def test_several_outputs_have_adjoints_of_their_own(device: torch.device) -> None:
    made = plan(lambda x: (x.exp(), x.exp() * x, x, x.new_ones(3)), rand(device, 3), orders=(1, 2))
    exp, product, identity, _ = made.lowered.graph.outputs
    assert {*made.terms} == {(exp, (0,)), (exp, (0, 0)), (product, (0,)), (product, (0, 0)), (identity, (0,))}


@pytest.mark.parametrize("orders", [(2,), (3,), (1, 2, 3)])
def test_the_steps_do_not_depend_on_the_size_of_the_batch(
    orders: tuple[int, ...], weights: list[Tensor], device: torch.device
) -> None:
    def f(x: Tensor) -> Tensor:
        return ((x @ weights[0]).tanh() @ weights[1]).sigmoid().sum(1)

    steps = [names(plan(f, rand(device, n, 3), orders=orders).program) for n in (500, 999)]
    assert sorted(steps[0]) == sorted(steps[1])  # their order may: large ones are put where less is held


# Results.


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_result_is_symmetric_to_the_last_bit_at_order_two(strategy: str, weights: list[Tensor], x: Tensor) -> None:
    """Where it is not a product with itself, the two orders of its slots are one tensor and its transpose."""
    hessian = hofunc.hessian(lambda x: ((x @ weights[0]).tanh() * x.sum()).sum(), strategy=strategy)(x[:3])
    assert relative_error(hessian, hessian.permute(2, 3, 0, 1)) < 1e-15


def test_cross_blocks_of_order_two_have_their_slots_in_order(device: torch.device) -> None:
    x, w = rand(device, 4, 3), rand(device, 3, 2, seed=1)
    (_, cross), (back, _) = hofunc.hessian(lambda w, x: (x @ w).exp().sum(), (0, 1), strategy="mixed")(w, x)
    assert cross.shape == (3, 2, 4, 3)
    assert torch.equal(back, cross.permute(2, 3, 0, 1))
    y = (x @ w).exp()
    eye = torch.eye(3, dtype=x.dtype, device=device)
    expected = torch.einsum("bi,bj,kj->ijbk", x, y, w) + torch.einsum("bj,ik->ijbk", y, eye)
    assert relative_error(cross, expected) < 1e-14
