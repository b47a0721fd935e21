"""Expansions: what of them is planned, and which outputs have derivatives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.plan.plans import lowered_plan, names
from verification.oracles import relative_error

linalg = torch.linalg


@pytest.mark.parametrize("strategy", ["reverse", "forward"])
@pytest.mark.parametrize("f", [linalg.inv, linalg.cholesky, linalg.eigvalsh, linalg.svdvals])
def test_changes_are_never_computed_with(f: Callable[[Tensor], Tensor], strategy: str, device: torch.device) -> None:
    a = rand(device, 3, 3)
    program = lowered_plan(f, a @ a.mT, orders=(3,), strategy=strategy).program
    assert "unchanged" not in names(program)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_parts_above_the_order_are_left_out(order: int, device: torch.device) -> None:
    lowered = lowered_plan(linalg.inv, rand(device, 2, 2), orders=(order,)).lowered
    products = [node for node in lowered.graph.nodes if node.active and node.op is torch.ops.aten.mm.default]
    assert len(products) == order + 1


def test_orders_of_one_call_are_expanded_together(device: torch.device) -> None:
    a = rand(device, 2, 2)
    value, *orders = hofunc.derivatives(linalg.inv, order=3)(a)
    assert relative_error(value, linalg.inv(a)) < 1e-12
    for order, got in enumerate(orders, 1):
        assert relative_error(got, hofunc.hod(linalg.inv, order)(a)) < 1e-12


def test_what_does_not_change_has_no_derivative(device: torch.device) -> None:
    a = rand(device, 2, 2)
    assert not hofunc.jacobian(lambda a: linalg.lu(a)[0] + linalg.slogdet(a)[0])(a).any()


def test_a_plan_follows_new_values(device: torch.device) -> None:
    plan = hofunc.hessian(lambda a: linalg.svdvals(a).sum() + linalg.inv(a)).plan(rand(device, 2, 2))
    b = rand(device, 2, 2, seed=5)
    assert relative_error(plan(b), hofunc.hessian(lambda a: linalg.svdvals(a).sum() + linalg.inv(a))(b)) < 1e-12
