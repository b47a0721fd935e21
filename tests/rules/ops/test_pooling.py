"""Pooling against nested torch.func, and the labels that it keeps."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use

pytestmark = ORACLE_WARNINGS

SAMPLES = torch.tensor([[[0.3, 0.6], [0.7, 0.2]]], dtype=torch.float64)

AVERAGES = [
    use("avg_pool1d", lambda x: F.avg_pool1d(x, 2), (1, 2, 4)),
    use("avg_pool1d with a rest", lambda x: F.avg_pool1d(x, 2), (1, 1, 5)),
    use("avg_pool1d of overlapping windows", lambda x: F.avg_pool1d(x, 3, 1), (1, 2, 5)),
    use("avg_pool1d of windows apart", lambda x: F.avg_pool1d(x, 1, 2), (1, 1, 5)),
    use("avg_pool1d with padding", lambda x: F.avg_pool1d(x, 3, 2, 1), (1, 1, 5)),
    use("avg_pool1d, padding not counted", lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False), (1, 1, 5)),
    use("avg_pool1d of all that there is", lambda x: F.avg_pool1d(x, 2, ceil_mode=True), (1, 1, 5)),
    use("avg_pool1d without a batch", lambda x: F.avg_pool1d(x, 2), (2, 4)),
    use("avg_pool2d", lambda x: F.avg_pool2d(x, 2), (1, 1, 2, 4)),
    use("avg_pool2d, each axis its own", lambda x: F.avg_pool2d(x, (2, 1), (1, 2), (1, 0)), (1, 1, 2, 3)),
    use("avg_pool2d with a divisor", lambda x: F.avg_pool2d(x, 2, divisor_override=3), (1, 1, 2, 4)),
    use("avg_pool2d with padding and a divisor", lambda x: F.avg_pool2d(x, 2, 1, 1, divisor_override=3), (1, 1, 2, 2)),
    use("avg_pool2d of an empty batch", lambda x: F.avg_pool2d(x, 2), (0, 1, 2, 2), orders=(1,)),
    use("avg_pool2d, the height with a rest", lambda x: F.avg_pool2d(x, 2, ceil_mode=True), (1, 1, 3, 2)),
    use("avg_pool2d, the width with a rest", lambda x: F.avg_pool2d(x, 2, ceil_mode=True), (1, 1, 2, 3)),
    use("avg_pool2d without a batch", lambda x: F.avg_pool2d(x, 2, 1), (1, 2, 3)),
    use("avg_pool3d", lambda x: F.avg_pool3d(x, 2), (1, 1, 2, 2, 2)),
    use("avg_pool3d of overlapping windows", lambda x: F.avg_pool3d(x, (1, 2, 1), 1), (1, 1, 2, 3, 1)),
    use("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 2), (1, 2, 3)),
    use("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, 1)), (1, 1, 3, 2)),
    use("adaptive_avg_pool2d that divides", lambda x: F.adaptive_avg_pool2d(x, (2, 1)), (1, 1, 4, 2)),
    use("adaptive_avg_pool2d of three each", lambda x: F.adaptive_avg_pool2d(x, (2, 1)), (1, 1, 6, 1)),
    use("adaptive_avg_pool2d to more", lambda x: F.adaptive_avg_pool2d(x, (3, None)), (1, 1, 2, 2)),
    use("adaptive_avg_pool2d to one", lambda x: F.adaptive_avg_pool2d(x, 1), (2, 1, 2, 2)),
    use("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 1, 1)), (1, 1, 3, 2, 1)),
    use("lp_pool1d", lambda x: F.lp_pool1d(x * x + 1, 3, 2, 1), (1, 1, 4)),
    use("lp_pool2d", lambda x: F.lp_pool2d(x * x + 1, 2, 2), (1, 1, 2, 4)),
    use("lp_pool3d", lambda x: F.lp_pool3d(x * x + 1, 2, (2, 1, 2)), (1, 1, 2, 1, 2)),
    use("local_response_norm", lambda x: F.local_response_norm(x, 3, 0.1), (1, 4, 1)),
]

LARGEST = [
    use("max_pool1d", lambda x: F.max_pool1d(x, 2), (1, 2, 4)),
    use("max_pool1d with all options", lambda x: F.max_pool1d(x, 2, 2, 1, 2, ceil_mode=True), (1, 2, 5)),
    use("max_pool1d without a batch", lambda x: F.max_pool1d(x, 2, 1), (1, 4)),
    use("max_pool1d in inference mode", lambda x: F.max_pool1d(x, 2), (1, 1, 4), inference=True),
    use("max_pool2d", lambda x: F.max_pool2d(x, 2), (1, 2, 2, 4)),
    use("max_pool2d of overlapping windows", lambda x: F.max_pool2d(x, 2, 1, 1), (1, 1, 2, 3)),
    use("max_pool2d with indices", lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (2, 1, 2, 4)),
    use("max_pool2d of ties", lambda x: F.max_pool2d(x.expand(1, 1, 2, 3), 2, 1), (1, 1, 2, 1)),
    use("max_pool2d of an empty batch", lambda x: F.max_pool2d(x, 2), (0, 1, 2, 2), orders=(1,)),
    use("max_pool3d", lambda x: F.max_pool3d(x, 2, 1), (1, 1, 2, 2, 3)),
    use("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 2), (1, 2, 3)),
    use("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (2, 1)), (1, 1, 3, 2)),
    use("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 1, 1)), (1, 1, 3, 2, 1)),
    use(
        "fractional_max_pool2d",
        lambda x: F.fractional_max_pool2d(x, 2, output_size=2, _random_samples=SAMPLES.to(x.device)),
        (1, 2, 3, 3),
        orders=(1, 2),
    ),
    use(
        "fractional_max_pool3d",
        lambda x: F.fractional_max_pool3d(
            x, (2, 1, 1), output_size=(2, 1, 1), _random_samples=SAMPLES.new_full((1, 1, 3), 0.4).to(x.device)
        ),
        (1, 1, 4, 2, 2),
        orders=(1, 2),
    ),
    use(
        "max_unpool2d",
        lambda x: F.max_unpool2d(x, torch.tensor([[[[0, 3]]]], device=x.device), (1, 2), output_size=(1, 4)),
        (1, 1, 1, 2),
    ),
]


CASES: list[OpCase] = [*AVERAGES, *LARGEST]


@every_row(CASES)
def test_pooling(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


POOLS = {
    "tiles": lambda x: F.avg_pool2d(x, 2),
    "windows": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 3),
    "largest": lambda x: F.max_pool2d(x, 2, 1),
}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_strategy_takes_pooling(kind: str, order: int, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return (POOLS[kind](x.sin() * x).exp() ** 2).sum((1, 2, 3))

    check_hod(f, (rand(device, 1, 1, 2, 4),), order, strategies=("reverse", "forward", "mixed"))


@pytest.mark.parametrize("kind", POOLS)
def test_pooling_keeps_the_batch(kind: str, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return POOLS[kind](x).sin().sum((1, 2, 3))

    derivative = hofunc.hod(f, 2, layout="compact")(rand(device, 3, 1, 4, 4))
    assert all(axes.startswith("b") for axes in derivative.pattern.split(", "))


@pytest.mark.parametrize("ceil_mode", [False, True])
def test_pools_side_by_side_keep_what_lies_in_each_apart(ceil_mode: bool, device: torch.device) -> None:
    transform = hofunc.hod(lambda x: F.avg_pool1d(x, 2, ceil_mode=ceil_mode).sin().sum(2), 2, layout="compact")
    derivative = transform(rand(device, 3, 1, 8))
    assert derivative.nbytes == 8 * 3 * 4, "a number for each pool, and not for each pair of elements"


def test_the_largest_of_windows_depend_on_themselves_only(device: torch.device) -> None:
    derivative = hofunc.hod(lambda x: F.max_pool1d(x, 3, 1).sin().sum(2), 2, layout="compact")(rand(device, 3, 1, 8))
    assert derivative.pattern == "b c, b c I[b d], b c I[b d]"
    assert derivative.nbytes == 8 * 2 * 3 * 6  # of every window one entry, and where it is


def test_under_vmap(device: torch.device) -> None:
    x = rand(device, 3, 1, 4, 4)
    for pool in POOLS.values():

        def f(x: Tensor, pool=pool) -> Tensor:  # type: ignore[no-untyped-def]
            return pool(x).sin().sum()

        expected = torch.stack([torch.func.jacrev(torch.func.jacrev(f))(row) for row in x])
        torch.testing.assert_close(torch.func.vmap(hofunc.hessian(f))(x), expected)


def test_places_of_the_largest_are_computed_once(device: torch.device) -> None:
    x = rand(device, 2, 3, 8, 8)
    plan = hofunc.einsum(lambda x: (F.max_pool2d(x.sin(), 2) ** 3).sum(), "*o, *p, *q, *q -> *o *p").plan(
        x, operands=(x,)
    )
    calls = [getattr(step.function, "op", None) for step in plan._steps.program.steps]
    assert calls.count(torch.ops.aten.max_pool2d_with_indices.default) == 1
