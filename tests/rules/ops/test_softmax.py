"""Softmax, log-softmax and logsumexp to order 4, against nested torch.func."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use

pytestmark = ORACLE_WARNINGS
TO_FOUR = (1, 2, 3, 4)


def running(x: Tensor, dim: int) -> Tensor:
    """Return logcumsumexp, of which torch differentiates the backward wrongly, as a logsumexp for each place."""
    return torch.stack([x.narrow(dim, 0, size).logsumexp(dim) for size in range(1, x.shape[dim] + 1)], dim)


def masked(x: Tensor) -> Tensor:
    """Put minus infinity in all places of the first row."""
    return x.masked_fill(torch.tensor([[1, 1], [0, 0]], device=x.device) > 0, -torch.inf)


CASES: list[OpCase] = [
    use("softmax", lambda x: x.softmax(0), (3,), orders=TO_FOUR),
    use("softmax over the first dim", lambda x: x.softmax(0), (2, 2)),
    use("softmax over a negative dim", lambda x: x.softmax(-2), (2, 3)),
    use("softmax over a dim of one", lambda x: x.softmax(0) * x, (1, 2)),
    use("softmax of a scalar", lambda x: x.softmax(0) * x, ()),
    use("softmax of a sum", lambda x: (x * x).sum().softmax(0) * x + (x * x).sum().logsumexp(0), (3,)),
    use("softmax of a broadcast", lambda x: x.expand(2, 3).softmax(0) * x, (3,)),
    use("softmax of an empty tensor", lambda x: x.softmax(1), (0, 2), orders=(1,)),
    use("softmax of a softmax", lambda x: x.softmax(0).softmax(0), (3,)),
    use(
        "softmax with a row of nothing",
        lambda x: torch.ops.aten._safe_softmax(masked(x), -1),
        (2, 2),
        orders=TO_FOUR,
        reference=lambda x: torch.stack([torch.zeros_like(x[0]), x[1].softmax(0)]),
    ),
    use("log_softmax", lambda x: x.log_softmax(0), (3,), orders=TO_FOUR),
    use("log_softmax over the last dim", lambda x: x.log_softmax(1), (2, 2), orders=TO_FOUR),
    use("log_softmax over a middle dim", lambda x: x.log_softmax(-2), (2, 2, 1)),
    use("log_softmax of a scalar", lambda x: x.log_softmax(0) * x, ()),
    use("logsumexp", lambda x: x.logsumexp(0), (3,), orders=TO_FOUR),
    use("logsumexp over the last dim, kept", lambda x: x.logsumexp(-1, keepdim=True), (2, 2), orders=TO_FOUR),
    use("logsumexp over several dims", lambda x: x.logsumexp((0, 2)), (2, 2, 2), orders=(1, 2)),
    use("logsumexp over all dims, kept", lambda x: x.logsumexp((-1, 0), keepdim=True), (2, 2)),
    use("logsumexp of a scalar", lambda x: x.logsumexp(0), ()),
    use("logcumsumexp", lambda x: x.logcumsumexp(0), (3,), orders=TO_FOUR, reference=lambda x: running(x, 0)),
    use("logcumsumexp over the first dim", lambda x: x.logcumsumexp(0), (3, 2), reference=lambda x: running(x, 0)),
    use("logcumsumexp over a negative dim", lambda x: x.logcumsumexp(-2), (2, 3, 1), reference=lambda x: running(x, 1)),
    use("logcumsumexp of a scalar", lambda x: x.logcumsumexp(0), ()),
    use("logcumsumexp of an empty tensor", lambda x: x.logcumsumexp(1), (2, 0), orders=(1,)),
]


@every_row(CASES)
def test_softmax(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_what_is_summed_over_all_categories_vanishes(order: int, device: torch.device) -> None:
    x = rand(device, 3)
    assert hofunc.hod(lambda x: x.softmax(0), order)(x).sum(0).abs().max() < 1e-13
    assert hofunc.hod(lambda x: x.logsumexp(0), order + 1)(x).sum(0).abs().max() < 1e-13


def test_large_inputs_do_not_overflow(device: torch.device) -> None:
    x = torch.tensor([800.0, 801.0, -900.0], dtype=torch.float64, device=device)
    for f in (torch.softmax, torch.log_softmax, torch.logsumexp):
        got, expected = (hofunc.hod(lambda x, f=f: f(x, 0), 3)(y) for y in (x, x - 800))
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("f", [torch.softmax, torch.log_softmax, torch.logsumexp])
def test_rows_are_kept_apart(f, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    got = hofunc.hod(lambda x: f(x, 1), 3, layout="compact")(rand(device, 4, 3))
    assert got.dense(keep_batch=True).shape == (4, *(3,) * (3 if f is torch.logsumexp else 4))


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.softmax(1),
        lambda x: x.log_softmax(1),
        lambda x: x.logsumexp(1),
        lambda x: x.logsumexp((0, 1)),
        lambda x: x.logcumsumexp(1),
    ],
)
def test_no_rounding_is_left_where_one_category_has_all_probability(  # type: ignore[no-untyped-def]
    f, order: int, strategy: str, device: torch.device
) -> None:
    """Along slopes of 1e4 it would be 1e-16 of their power: 1 at order 4."""
    slopes = torch.tensor([[1.0, 0.3, -0.5], [0.7, 0.2, 2.0]], dtype=torch.float64, device=device)
    at = torch.ones((), dtype=torch.float64, device=device)
    got = hofunc.hod(lambda t: f(1e4 * slopes * t), order, strategy=strategy)(at)
    assert got.abs().max() < 1e-20


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("f", [lambda x: x.logsumexp(1), lambda x: torch.logaddexp(x, x.flip(1))])
def test_nothing_but_minus_infinity_has_no_slope(f, order: int, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    """The other row is as without it."""
    x = torch.tensor([[0.3, -0.8], [-torch.inf, -torch.inf]], dtype=torch.float64, device=device)
    got = hofunc.hod(lambda x: f(x).nan_to_num(neginf=0.0), order)(x)
    alone = hofunc.hod(f, order)(x[:1])
    assert got.isfinite().all()
    assert got.abs().sum().item() == pytest.approx(alone.abs().sum().item())


def test_running_sums_start_from_nothing_and_spread_far(device: torch.device) -> None:
    x = torch.tensor([-torch.inf, 0.0, 1000.0, -1000.0, 1000.0], dtype=torch.float64, device=device)
    got = hofunc.jacobian(lambda x: x.logcumsumexp(0))(x)
    expected = [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0.5, 0, 0.5]]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=x.dtype, device=device))
    assert hofunc.hod(lambda x: x.logcumsumexp(0), 3)(x).isfinite().all()


def test_running_sums_of_rows_are_kept_apart(device: torch.device) -> None:
    got = hofunc.hod(lambda x: x.logcumsumexp(1), 2, layout="compact")(rand(device, 4, 3))
    assert got.dense(keep_batch=True).shape == (4, 3, 3, 3)
