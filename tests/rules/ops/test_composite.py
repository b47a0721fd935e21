"""Arithmetic and softmax in terms of other ops, against nested torch.func."""

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
    use("cross", lambda a, b: torch.linalg.cross(a, b, dim=0), (3, 1), (3, 2), orders=(1, 2)),
    use("cross of one tensor", lambda x: torch.linalg.cross(x, x.sin()), (3,)),
    use("addcdiv", lambda c, a, b: torch.addcdiv(c, a, away(b), value=-2), (2,), (2, 1), (1,)),
    use("lerp.Tensor", torch.lerp, (2, 2), (2,), (2, 1)),
    use("lerp of one tensor", lambda x: torch.lerp(x, x * x, x), (3,)),
    use(
        "bilinear",
        torch.nn.functional.bilinear,
        (2, 2),
        (2, 1),
        (2, 2, 1),
        (2,),
        reference=lambda x, y, w, b: torch.einsum("bi,kij,bj->bk", x, w, y) + b,  # torch maps its own slowly
    ),
    use("bilinear of no batch", torch.nn.functional.bilinear, (2,), (2,), (1, 2, 2)),
    use("logaddexp", torch.logaddexp, (2, 2), (2,)),
    use("logaddexp with itself", lambda x: torch.logaddexp(x, x), (3,)),
    use("clamp between tensors", lambda x, y: torch.clamp(x, y - 1, y + 0.5), (4,), (4,)),
    use("clamp from below by a tensor", lambda x, y: torch.clamp(x, min=y), (2, 3), (3,)),
    use("clamp from above by a tensor", lambda x, y: torch.clamp(x, max=y), (2, 3), (1, 3)),
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

CASES: list[OpCase] = [*ARITHMETIC, *BACKWARD]


@every_row(CASES)
def test_composite(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


def test_a_sum_that_does_not_count_may_be_infinite(device: torch.device) -> None:
    a = rand(device, 2, 2)
    c = torch.full((2, 2), torch.inf, dtype=a.dtype, device=device)
    got = hofunc.hessian(lambda a: torch.addmm(c, a, a, beta=0).sum())(a)
    torch.testing.assert_close(got, hofunc.hessian(lambda a: a.mm(a).sum())(a))
