"""Moments and norms, against nested torch.func or, where that is wrong, against the formula written out."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import central_differences, nested_reverse, relative_error

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS


def shifted(x: Tensor) -> Tensor:
    """Return numbers that are not near zero."""
    return x + torch.where(x.detach() < 0, -1, 1)


MOMENTS = [
    use("var", torch.var, (4,)),
    use("var over a dim", lambda x: x.var(1), (2, 3)),
    use("var over a negative dim, kept, biased", lambda x: x.var(-1, keepdim=True, correction=0), (2, 3)),
    use("var over several dims", lambda x: x.var((0, 2)), (2, 1, 3)),
    use("var with a large correction", lambda x: x.var(0, correction=2), (4,)),
    use("var_mean", lambda x: torch.var_mean(x, 1), (2, 3)),
    use("var_mean over all, kept", lambda x: torch.var_mean(x, None, keepdim=True), (2, 2)),
    use("std", lambda x: x.std(), (4,)),
    use("std over a dim, kept", lambda x: x.std(0, keepdim=True), (3, 2)),
    use("std_mean", lambda x: torch.std_mean(x, -1, correction=0), (2, 3)),
]


def _norm(order: float) -> OpCase:
    return use(f"norm of order {order}", lambda x: torch.linalg.vector_norm(shifted(x), order), (3,))


NORMS = [
    *(_norm(order) for order in (2, 1, 3, 2.5, 0, -1, float("inf"), float("-inf"))),
    use("norm over a dim", lambda x: torch.linalg.vector_norm(x, dim=1), (2, 3)),
    use("norm over several dims, kept", lambda x: torch.linalg.vector_norm(x, 3, (0, -1), keepdim=True), (2, 1, 2)),
    use("norm of a scalar", lambda x: torch.linalg.vector_norm(shifted(x)), ()),
    use("norm.Scalar", lambda x: aten.norm.Scalar(x, 3), (3,)),
    use("norm.Scalar of order two", aten.norm.Scalar, (2, 2)),
    use("norm.ScalarOpt_dim", lambda x: aten.norm.ScalarOpt_dim(x, None, [1], True), (2, 2)),
    use("norm.ScalarOpt_dim of order three", lambda x: aten.norm.ScalarOpt_dim(shifted(x), 3, [0]), (2, 2)),
    use("normalize", lambda x: F.normalize(x, dim=1), (2, 3)),
    use("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=1), (2, 2), (1, 2)),
    use("pairwise_distance", F.pairwise_distance, (2, 2), (2, 2)),
]


def layer_norm(x: Tensor, rank: int, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Normalise over the last axes, written out."""
    dims = tuple(range(-rank, 0))
    centred = x - x.mean(dims, keepdim=True)
    y = centred * ((centred * centred).mean(dims, keepdim=True) + 1e-5).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


LAYER_NORMS = [
    use(
        "group_norm",
        lambda x, w, b: F.group_norm(x, 2, w, b),
        (1, 4, 1),
        (4,),
        (4,),
        reference=lambda x, w, b: layer_norm(x.reshape(1, 2, 2), 1).reshape(1, 4, 1) * w[:, None] + b[:, None],
    ),
    use(
        "native_group_norm, with its mean and scale",
        lambda x: aten.native_group_norm(x, None, None, 2, 2, 3, 1, 1e-5),
        (2, 2, 3),
        reference=lambda x: (
            layer_norm(x, 2),
            x.mean((1, 2))[:, None],
            (x.var((1, 2), correction=0) + 1e-5).rsqrt()[:, None],
        ),
        orders=(1, 2),
    ),
    use(
        "layer_norm",
        lambda x, w, b: F.layer_norm(x, (3,), w, b),
        (2, 3),
        (3,),
        (3,),
        reference=lambda x, w, b: layer_norm(x, 1, w, b),
    ),
    use("layer_norm without parameters", lambda x: F.layer_norm(x, (4,)), (4,), reference=lambda x: layer_norm(x, 1)),
    use(
        "layer_norm over two axes with a weight",
        lambda x, w: F.layer_norm(x, (2, 2), w),
        (1, 2, 2),
        (2, 2),
        reference=lambda x, w: layer_norm(x, 2, w),
    ),
    use(
        "native_layer_norm, with its mean and scale",
        lambda x: aten.native_layer_norm(x, [3], None, None, 1e-5),
        (2, 3),
        reference=lambda x: (
            layer_norm(x, 1),
            x.mean(1, keepdim=True),
            (x.var(1, keepdim=True, correction=0) + 1e-5).rsqrt(),
        ),
    ),
]

CASES: list[OpCase] = [*MOMENTS, *NORMS, *LAYER_NORMS]


@every_row(CASES)
def test_norms(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_layer_norm_against_differences(order: int, device: torch.device) -> None:
    x, weight = rand(device, 3), rand(device, 3, seed=1)

    def f(x: Tensor) -> Tensor:
        return F.layer_norm(x, (3,), weight).sin().sum()

    lower = f if order == 1 else hofunc.hod(f, order - 1)
    assert relative_error(hofunc.hod(f, order)(x), central_differences(lower, x)) < 1e-6


@pytest.mark.parametrize("order", [2, 3, 1])
def test_the_derivatives_of_a_norm_of_zeros_are_zero(order: int, device: torch.device) -> None:
    x = torch.zeros(3, dtype=torch.float64, device=device)
    assert not hofunc.jacobian(lambda x: torch.linalg.vector_norm(x, order))(x).any()


@pytest.mark.parametrize("order", [0.5, 2, 3])
def test_the_norm_of_a_number_loses_no_digits_near_zero(order: float, device: torch.device) -> None:
    """By the root of a power, terms as large as 1 / 0.03 ** 3 would have to cancel."""
    x = torch.tensor([[1.77]], dtype=torch.float64, device=device)
    got = hofunc.hod(lambda x: torch.linalg.vector_norm(x - x.cos() - 2, order, dim=1), 4)(x)
    assert abs(got.item() - x.cos().item()) < 1e-14


def test_norms_keep_the_batch(device: torch.device) -> None:
    derivative = hofunc.hod(lambda x: F.layer_norm(x, (3,)).norm(dim=1), 2, layout="compact")(rand(device, 4, 3))
    assert derivative.dense(keep_batch=True).shape == (4, 3, 3)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("order", [-0.5, -1, -2])
def test_a_norm_of_negative_order_has_no_slope_at_zero(order: float, keepdim: bool, device: torch.device) -> None:
    x = torch.tensor([[1.0, 0.0], [2.0, 3.0]], dtype=torch.float64, device=device)

    def f(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, order, dim=1, keepdim=keepdim)

    _, first, second = hofunc.derivatives(f, 2)(x)
    assert not first[0].any()
    assert not second[0].any()
    assert relative_error(first[1:, ..., 1:, :], nested_reverse(f, 1)(x[1:])) < 1e-10
    assert relative_error(second[1:, ..., 1:, :, 1:, :], nested_reverse(f, 2)(x[1:])) < 1e-10
