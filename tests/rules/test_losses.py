"""Losses, against nested torch.func."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, ints, use

pytestmark = ORACLE_WARNINGS

REDUCTIONS = ("none", "mean", "sum")


def _pairs(name: str, loss: Any, **options: Any) -> list[OpCase]:
    """Return a row for every reduction of a loss of two tensors."""
    return [
        use(f"{name}, {reduction}", lambda x, t, r=reduction: loss(x, t, reduction=r, **options), (2, 2), (2, 2))
        for reduction in REDUCTIONS
    ]


def _nll(name: str, shape: tuple[int, ...], *targets: Any, **options: Any) -> list[OpCase]:
    def loss(x: Tensor, reduction: str) -> Tensor:
        weight = torch.arange(1.0, 4.0).to(x) if options.get("weighted") else None
        ignore = options.get("ignore_index", -100)
        return F.nll_loss(x, ints(x, *targets), weight=weight, ignore_index=ignore, reduction=reduction)

    return [
        use(f"{name}, {reduction}", lambda x, r=reduction: loss(x.log_softmax(min(1, x.dim() - 1)), r), shape)
        for reduction in REDUCTIONS
    ]


CASES: list[OpCase] = [
    *_pairs("mse", F.mse_loss),
    *_pairs("huber", F.huber_loss, delta=0.8),
    *_pairs("smooth l1", F.smooth_l1_loss, beta=0.8),
    *_pairs("smooth l1 without its smooth part", F.smooth_l1_loss, beta=0.0),
    use("mse of a tensor and itself", lambda x: F.mse_loss(x, x.sin()), (3,)),
    *_nll("nll", (2, 3), 2, 0),
    *_nll("weighted nll", (2, 3), 2, 0, weighted=True),
    *_nll("nll with ignored rows", (3, 3), 2, 1, 0, ignore_index=1),
    *_nll("nll with a negative ignored index", (2, 3), -100, 1, weighted=True),
    use("nll of one sample", lambda x: F.nll_loss(x.log_softmax(0), ints(x, 1)[0]), (3,)),
    *_nll("nll of an image", (1, 3, 1, 2), [[2, 0]]),
    *_nll("weighted nll of an image", (1, 3, 2, 1), [[2], [-100]], weighted=True),
]


@every_row(CASES)
def test_losses(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss])
def test_the_two_parts_of_a_loss_that_is_linear_far_away(loss: Any, device: torch.device) -> None:
    x = torch.tensor([-3.0, -0.5, 0.5, 3.0], dtype=torch.float64, device=device)
    got = hofunc.hessian(lambda x: loss(x, torch.zeros_like(x), reduction="sum"))(x)
    torch.testing.assert_close(got, torch.diag(torch.tensor([0.0, 1.0, 1.0, 0.0]).to(x)))


def test_a_loss_without_reduction_keeps_the_batch(device: torch.device) -> None:
    target = ints(rand(device, 1), 2, 0, 1, 1)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction="none")

    got = hofunc.hod(loss, 2, layout="compact")(rand(device, 4, 3))
    assert got.dense(keep_batch=True).shape == (4, 3, 3)
