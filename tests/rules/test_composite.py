"""Arithmetic and products in terms of other ops, against nested torch.func."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS


def away(x: Tensor) -> Tensor:
    """Return numbers above one."""
    return x * x + 1


ARITHMETIC = [
    use("div", lambda x, y: x / away(y), (2, 2), (2,)),
    use("div by itself", lambda x: away(x) / away(x), (2,)),
    use("div by a number", lambda x: x / 3, (3,)),
    use("div of a number", lambda x: 3 / away(x), (3,)),
    use("div.Scalar", lambda x: aten.div.Scalar(x, -2.5), (3,)),
    use("addmm", torch.addmm, (2, 2), (2, 1), (1, 2)),
    use("addmm with weights", lambda c, a, b: torch.addmm(c, a, b, beta=-1.5, alpha=2), (2,), (2, 1), (1, 2)),
    use("addmm without the sum", lambda c, a: torch.addmm(c, a, a, beta=0), (2, 2), (2, 2), orders=(1, 2)),
    use("addmm without the product", lambda c, a: torch.addmm(c, a, a, alpha=0), (2, 2), (2, 2), orders=(1, 2)),
    use("addmm of one tensor", lambda x: torch.addmm(x, x, x), (2, 2)),
    use("addmv", lambda c, a, b: torch.addmv(c, a, b, beta=2, alpha=-1), (2,), (2, 2), (2,), orders=(1, 2)),
    use("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=3), (2, 1, 1), (2, 1, 2), (2, 2, 1)),
    use("addbmm", lambda c, a, b: torch.addbmm(c, a, b, beta=2, alpha=3), (1, 2), (2, 1, 1), (2, 1, 2)),
    use("addr", lambda c, a, b: torch.addr(c, a, b, beta=2, alpha=3), (2, 2), (2,), (2,)),
    use("addr of one vector", lambda a: torch.addr(torch.zeros(2, 2).to(a), a, a), (2,)),
    use("addcmul", lambda c, a, b: torch.addcmul(c, a, b, value=-2), (2, 2), (2, 1), (2,)),
    use("addcmul of one tensor", lambda x: torch.addcmul(x, x, x), (3,)),
    use("addcdiv", lambda c, a, b: torch.addcdiv(c, a, away(b), value=-2), (2,), (2, 1), (1,)),
    use("lerp.Tensor", torch.lerp, (2, 2), (2,), (2, 1)),
    use("lerp of one tensor", lambda x: torch.lerp(x, x * x, x), (3,)),
    use("logaddexp", torch.logaddexp, (2, 2), (2,)),
    use("logaddexp with itself", lambda x: torch.logaddexp(x, x), (3,)),
    use("clamp between tensors", lambda x, y: torch.clamp(x, y - 1, y + 0.5), (4,), (4,)),
    use("clamp from below by a tensor", lambda x, y: torch.clamp(x, min=y), (2, 3), (3,)),
    use("clamp from above by a tensor", lambda x, y: torch.clamp(x, max=y), (2, 3), (1, 3)),
]


def _with_zeros(*zeros: int) -> list[float]:
    return [0.0 if place in zeros else 0.5 + place / 4 for place in range(5)]


PRODUCTS = [
    use("prod", torch.prod, (2, 2)),
    use("prod of an odd number", torch.prod, (5,)),
    use("prod of one", torch.prod, (1,)),
    use("prod of a scalar", torch.prod, ()),
    use("prod over a dim", lambda x: x.prod(1), (2, 3)),
    use("prod over a negative dim, kept", lambda x: x.prod(-2, keepdim=True), (3, 2)),
    use("prod over a dim of one", lambda x: x.prod(0), (1, 3)),
    use("prod over nothing", lambda x: x.prod(1) + x.sum(), (2, 0), orders=(1,)),
]


def _weighted_softmax(x: Tensor) -> Tensor:
    return (x.softmax(-1) * x.detach().sin()).sum()


def _squared_log_softmax(x: Tensor) -> Tensor:
    return (x.log_softmax(0) ** 2).sum()


BACKWARD = [
    use("_softmax_backward_data", lambda g, y: aten._softmax_backward_data(g, y, -1, torch.float64), (2, 2), (2, 2)),
    use("_log_softmax_backward_data", lambda g, y: aten._log_softmax_backward_data(g, y, 0, torch.float64), (2,), (2,)),
    use("the gradient of a softmax", torch.func.grad(_weighted_softmax), (3,)),
    use("the gradient of a log-softmax", torch.func.grad(_squared_log_softmax), (3,)),
]

CASES: list[OpCase] = [*ARITHMETIC, *PRODUCTS, *BACKWARD]


@every_row(CASES)
def test_composite(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("zeros", [(1,), (0, 3), (0, 1, 2)])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_product_with_zeros(zeros: tuple[int, ...], order: int, device: torch.device) -> None:
    x = torch.tensor(_with_zeros(*zeros), dtype=torch.float64, device=device)
    got = hofunc.hod(torch.prod, order)(x)
    for slots in torch.cartesian_prod(*[torch.arange(5)] * order).reshape(-1, order).tolist():
        left = [value for place, value in enumerate(x.tolist()) if place not in slots]
        expected = torch.tensor(left).double().prod() if len(set(slots)) == order else torch.tensor(0.0).double()
        torch.testing.assert_close(got[tuple(slots)].cpu(), expected)


def test_a_sum_that_does_not_count_may_be_infinite(device: torch.device) -> None:
    a = rand(device, 2, 2)
    c = torch.full((2, 2), torch.inf, dtype=a.dtype, device=device)
    got = hofunc.hessian(lambda a: torch.addmm(c, a, a, beta=0).sum())(a)
    torch.testing.assert_close(got, hofunc.hessian(lambda a: a.mm(a).sum())(a))
