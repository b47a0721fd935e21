"""Elements that are chosen by their order, against nested torch.func or what they come down to."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, between, every_row, use

pytestmark = ORACLE_WARNINGS


def _tied(device: torch.device) -> list[Tensor]:
    return [torch.tensor([[1.0, 2.0, 2.0], [0.5, 0.5, -3.0]], dtype=torch.float64, device=device)]


def _with_nan(device: torch.device) -> list[Tensor]:
    return [torch.tensor([[1.0, torch.nan, 2.0], [torch.nan, 0.5, -3.0]], dtype=torch.float64, device=device)]


ONE_OF_A_ROW = [
    use("max over a dim", lambda x: x.max(1).values, (2, 3)),
    use("max over a negative dim, kept", lambda x: x.max(-2, keepdim=True).values, (3, 2)),
    use("max over a dim at ties", lambda x: x.max(1).values, inputs=_tied),
    use("max over a dim of a scalar", lambda x: x.max(0).values, ()),
    use("min over a dim", lambda x: x.min(0).values, (3, 2)),
    use("min over a dim at ties", lambda x: x.min(-1, keepdim=True).values, inputs=_tied),
    use("median", lambda x: x.median(1).values, (2, 3)),
    use("median of an even number", lambda x: x.median(0, keepdim=True).values.squeeze(0), (4, 2)),
    use("median over a negative dim", lambda x: x.median(-2).values, (3, 2, 1)),
    use("nanmedian over a dim", lambda x: x.nanmedian(-1).values, (2, 3)),
    use("mode", lambda x: x.mode().values, inputs=_tied),
    use("mode over the first dim, kept", lambda x: x.mode(0, keepdim=True).values, (2, 2)),
    use("kthvalue", lambda x: x.kthvalue(2).values, (4,)),
    use("kthvalue over the first dim, kept", lambda x: x.kthvalue(3, 0, keepdim=True).values, (3, 2)),
    use("kthvalue of a scalar", lambda x: x.kthvalue(1).values, ()),
]

MIDDLE = [
    use("median of all", torch.median, (2, 3)),
    use("median of a scalar", torch.median, ()),
    use("median of all at ties", lambda x: x.reshape(-1)[1:4].median(), inputs=_tied),
    use("nanmedian of all", torch.nanmedian, (5,)),
]

SEVERAL = [
    use("sort", lambda x: x.sort().values, (4,)),
    use("sort, descending, over the first dim", lambda x: x.sort(0, descending=True).values, (3, 2)),
    use("sort, stable", lambda x: x.sort(stable=True, dim=1).values, inputs=_tied),
    use("sort of a scalar", lambda x: x.sort().values, ()),
    use("sort times itself", lambda x: x.sort().values * x, (3,)),
    use("msort", torch.msort, (3, 2)),
    use("argsort", lambda x: x[x.argsort()] * x, (3,)),
    use("topk", lambda x: x.topk(2).values, (4,)),
    use("topk, smallest, over the first dim", lambda x: x.topk(2, 0, largest=False).values, (3, 2)),
    use("topk of a scalar", lambda x: x.topk(1).values, ()),
    use("cummax", lambda x: x.cummax(0).values, (4,)),
    use("cummin over a negative dim", lambda x: x.cummin(-2).values, (3, 2)),
    use("cummax at ties", lambda x: x.cummax(1).values, inputs=_tied),
    use("cummax of a scalar", lambda x: x.cummax(0).values, ()),
    use("aminmax", lambda x: tuple(x.aminmax(dim=1)), (2, 3)),
    use("quantile", lambda x: x.quantile(0.3), (4,)),
    use("quantiles over a dim", lambda x: x.quantile(torch.tensor([0.25, 0.6]).to(x), 1, keepdim=True), (2, 3)),
    use("nanquantile", lambda x: x.nanquantile(0.7, 0, interpolation="midpoint"), (4, 2)),
    use("quantile by its level", lambda x: x.quantile(x.detach().sigmoid()[0]), (4,)),
]

CASES: list[OpCase] = [*ONE_OF_A_ROW, *MIDDLE, *SEVERAL]


@every_row(CASES)
def test_order(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("f", [lambda x: x.sort(1).values, lambda x: x.kthvalue(2, 1).values])
def test_every_strategy(f, order: int, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    check_hod(between(f), (rand(device, 2, 3),), order, strategies=("reverse", "forward", "mixed"))


@pytest.mark.parametrize("choose", [lambda x: x.median(0).values, lambda x: x.nanmedian(0).values])
def test_a_median_of_a_row_at_ties_is_one_element(choose, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    x = torch.tensor([2.0, 1.0, 2.0, 2.0, 5.0], dtype=torch.float64, device=device)
    got = hofunc.jacobian(choose)(x)
    assert got.sum() == 1
    assert (got * x).sum() == 2


def test_a_middle_without_what_is_no_number(device: torch.device) -> None:
    (x,) = _with_nan(device)
    got = hofunc.jacobian(torch.nanmedian)(x)
    assert got.tolist() == [[0, 0, 0], [0, 1, 0]]
    rows = hofunc.jacobian(lambda x: x.nanmedian(1).values)(x)
    assert rows.nonzero().tolist() == [[0, 0, 0], [1, 1, 2]]


def test_a_plan_follows_the_order_of_new_values(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sort().values * torch.arange(4.0).to(x) + x.cummax(0).values

    x, other = rand(device, 4), rand(device, 4, seed=5)
    torch.testing.assert_close(hofunc.jacobian(f).plan(x)(other), torch.func.jacrev(f)(other))


@pytest.mark.parametrize("f", [lambda x: x.sort(1).values.tanh().sum(1), lambda x: x.tanh().median(1).values])
def test_rows_are_kept_apart(f, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    got = hofunc.hod(f, 2, layout="compact")(rand(device, 4, 3))
    assert got.pattern == "b, b c, b c"


def test_under_vmap(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return between(lambda x: x.sort().values + x.cummax(0).values)(x)

    x = rand(device, 2, 3)
    expected = torch.stack([hofunc.hessian(f)(row) for row in x])
    torch.testing.assert_close(torch.func.vmap(hofunc.hessian(f))(x), expected)
