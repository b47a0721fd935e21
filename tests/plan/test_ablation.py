"""Ablations: reverse without an optimisation gives the same and takes more; all cases are in test_exactness.py."""

from math import perm

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.ablation import ABLATIONS
from hofunc.plan.blueprint import Blueprint
from tests.cases import rand
from tests.plan.plans import lowered_plan
from verification.oracles import nested_reverse, relative_error

NAMES = tuple(ABLATIONS)


def network(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        x = (x @ weight).tanh()
    return (x * x).sum()


def planned(strategy: str, batch: int, *, depth: int = 2, by_weights: bool = False, order: int = 2) -> Blueprint:
    device = torch.device("cpu")
    x, *weights = rand(device, batch, 3), *(rand(device, 3, 3, seed=seed) for seed in range(1, depth + 1))
    if by_weights:
        return lowered_plan(network, x, *weights, orders=(order,), strategy=strategy)
    return lowered_plan(lambda x: network(x, *weights), x, orders=(order,), compact=True, strategy=strategy)


def test_their_names_are_those_that_users_are_told() -> None:
    assert hofunc.hod.__doc__ is not None
    assert all(f'``"{name}"``' in hofunc.hod.__doc__ for name in NAMES)


@pytest.mark.parametrize("strategy", NAMES)
@pytest.mark.parametrize("layout", ["dense", "compact"])
def test_the_result_is_the_same(strategy: str, layout: str, device: torch.device) -> None:
    x, weight = rand(device, 2, 3), rand(device, 3, 3, seed=1)
    got = hofunc.hod(network, 3, (0, 1), layout=layout, strategy=strategy)(x, weight)
    expected = nested_reverse(network, 3, (0, 1))(x, weight)
    dense = [[[d if layout == "dense" else d.dense() for d in row] for row in block] for block in got]
    for block, wanted in zip(dense, expected, strict=True):
        for row, wanted_row in zip(block, wanted, strict=True):
            for one, wanted_one in zip(row, wanted_row, strict=True):
                assert relative_error(one, wanted_one) < 1e-10


def test_without_batch_unification_the_cost_grows_with_the_square_of_the_batch() -> None:
    for strategy, power in (("reverse", 1), ("reverse-without-batch", 2), ("reverse-without-either", 2)):
        few, many = (planned(strategy, batch).cost.flops for batch in (4, 16))  # of many, steps are others
        assert 3.5**power < many / few < 4.1**power


def test_without_batch_unification_no_label_is_shared() -> None:
    assert planned("reverse", 4).cost.peak_bytes * 3 <= planned("reverse-without-batch", 4).cost.peak_bytes
    x = rand(torch.device("cpu"), 4, 3)
    for strategy, pattern in (("reverse", "(), b c, b c"), ("reverse-without-batch", "(), i j, k l")):
        assert hofunc.hessian(lambda x: x.exp().sum(), layout="compact", strategy=strategy)(x).pattern == pattern


@pytest.mark.parametrize("order", [1, 2, 3])
def test_without_schwarz_every_order_of_the_variables_is_a_block(order: int) -> None:
    """Of variables x and two weights there are 3^order tuples, and as many multisets as (order + 2 choose 2)."""
    blocks = {
        strategy: len(planned(strategy, 2, by_weights=True, order=order).dense)
        for strategy in ("reverse", "reverse-without-batch", "reverse-without-schwarz", "reverse-without-either")
    }
    alike = perm(order + 2, 2) // 2
    assert [*blocks.values()] == [alike, alike, 3**order, 3**order]


def test_without_schwarz_there_is_more_to_compute() -> None:
    ratios = []
    for depth in (2, 4):
        costs = [
            planned(strategy, 2, depth=depth, by_weights=True, order=3).cost.flops
            for strategy in ("reverse-without-schwarz", "reverse")
        ]
        ratios.append(costs[0] / costs[1])
    assert 1.5 < ratios[0] < ratios[1]
