"""Batch norm in training and evaluation, against the formula written out: torch's own third derivative is wrong."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS


def written_out(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Normalise every channel."""
    dims, shape = (0, *range(2, x.dim())), (-1, *[1] * (x.dim() - 2))
    centred = x - x.mean(dims, keepdim=True)
    y = centred * ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def scaled(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    shape = (-1, *[1] * (x.dim() - 2))
    return (x - mean.reshape(shape)) * (variance.reshape(shape) + 1e-5).rsqrt()


def statistics(like: Tensor) -> tuple[Tensor, Tensor]:
    """Return running statistics of two channels."""
    return like.new_tensor([0.3, -0.2]), like.new_tensor([1.5, 0.7])


def legit(x: Tensor) -> Tensor:
    mean, variance = (statistic.clone() for statistic in statistics(x))
    return aten._native_batch_norm_legit(x, None, None, mean, variance, True, 0.1, 1e-5)[0]


def moved(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the running statistics after a step, written out."""
    mean, variance = statistics(x)
    return mean * 0.9 + x.mean(0) * 0.1, variance * 0.9 + x.var(0) * 0.1


TRAINING: list[OpCase] = [
    use("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), (3, 2), reference=written_out),
    use(
        "batch_norm of images with weight and bias",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        (2, 2, 1, 2),
        (2,),
        (2,),
        orders=(1, 2),
        reference=written_out,
    ),
    use(
        "batch_norm that writes running statistics",
        lambda x: F.batch_norm(x, *statistics(x), training=True),
        (3, 2),
        reference=written_out,
    ),
    use("_native_batch_norm_legit", legit, (3, 2), reference=written_out),
    use(
        "_native_batch_norm_legit without statistics",
        lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0],
        (3, 2),
        reference=written_out,
    ),
    use(
        "_batch_norm_with_update",
        lambda x: aten._batch_norm_with_update(x, None, None, *map(torch.clone, statistics(x)), 0.1, 1e-5)[0],
        (3, 2),
        reference=written_out,
    ),
    use(
        "_batch_norm_with_update_functional",
        lambda x: aten._batch_norm_with_update_functional(x, None, None, *statistics(x), 0.1, 1e-5)[0],
        (3, 2),
        reference=written_out,
    ),
    use(
        "running statistics",
        lambda x: tuple(aten._native_batch_norm_legit_functional(x, None, None, *statistics(x), True, 0.1, 1e-5)[3:]),
        (3, 2),
        reference=moved,
    ),
    use(
        "instance_norm",
        lambda x: F.instance_norm(x),
        (1, 2, 3),
        reference=lambda x: written_out(x.reshape(1, 2, 3)).reshape(1, 2, 3),
    ),
]

EVALUATION: list[OpCase] = [
    use("batch_norm in evaluation", lambda x: F.batch_norm(x, *statistics(x)), (2, 2, 2)),
    use(
        "batch_norm by its statistics",
        lambda x, m, v: F.batch_norm(x, m, v * v),
        (2, 2),
        (2,),
        (2,),
        orders=(1, 2),
        reference=lambda x, m, v: scaled(x, m, v * v),
    ),
    use(
        "_batch_norm_no_update",
        lambda x: aten._batch_norm_no_update(x, None, None, *statistics(x), 0.1, 1e-5)[0],
        (2, 2),
        reference=lambda x: scaled(x, *statistics(x)),
    ),
    use(
        "_native_batch_norm_legit_no_training",
        lambda x: aten._native_batch_norm_legit_no_training(x, None, None, *statistics(x), 0.1, 1e-5)[0],
        (2, 2),
        reference=lambda x: scaled(x, *statistics(x)),
    ),
]

CASES = [*TRAINING, *EVALUATION]


@every_row(CASES)
def test_batch_norm(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


def test_running_statistics_move_once_a_call(device: torch.device) -> None:
    x = rand(device, 3, 2)
    mean, variance = (statistic.clone() for statistic in statistics(x))
    got = hofunc.hessian(lambda x: F.batch_norm(x, mean, variance, training=True).sin().sum())(x)
    assert relative_error(got, nested_reverse(lambda x: written_out(x).sin().sum(), 2)(x)) < 1e-10
    assert relative_error((mean, variance), moved(x)) < 1e-12


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_in_a_plan(training: bool, device: torch.device) -> None:
    x, y = rand(device, 3, 2), rand(device, 3, 2, seed=1)

    def f(x: Tensor) -> Tensor:
        return F.batch_norm(x, *statistics(x), training=training).exp().sum()

    assert relative_error(hofunc.hessian(f).plan(x)(y), hofunc.hessian(f)(y)) < 1e-10
