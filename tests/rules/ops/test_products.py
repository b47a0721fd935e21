"""Products of rows, whole and running, against nested torch.func and, with zeros, written out."""

from itertools import product
from math import prod

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, between, every_row, use

pytestmark = ORACLE_WARNINGS

CASES: list[OpCase] = [
    use("prod", torch.prod, (2, 2)),
    use("prod of an odd number", torch.prod, (5,)),
    use("prod of two, to an order at which it vanishes", torch.prod, (2,), orders=(1, 2, 3, 4)),
    use("prod of one", torch.prod, (1,)),
    use("prod of a scalar", torch.prod, ()),
    use("prod of nothing", lambda x: x.prod() + x.sum(), (0,), orders=(1,)),
    use("prod over a dim", lambda x: x.prod(1), (2, 3)),
    use("prod over a negative dim, kept", lambda x: x.prod(-2, keepdim=True), (3, 2)),
    use("prod over a dim of one", lambda x: x.prod(0), (1, 3)),
    use("prod over a dim of a scalar, kept", lambda x: x.prod(0, keepdim=True), ()),
    use("prod over nothing", lambda x: x.prod(1) + x.sum(), (2, 0), orders=(1,)),
    use("cumprod", lambda x: x.cumprod(0), (3,)),
    use("cumprod over the first dim", lambda x: x.cumprod(0), (3, 2)),
    use("cumprod over a negative dim", lambda x: x.cumprod(-2), (1, 3, 2)),
    use("cumprod of a scalar", lambda x: x.cumprod(0), ()),
    use("cumprod of a broadcast", lambda x: x.expand(2, 3).cumprod(0), (3,)),
    use("cumprod of an empty tensor", lambda x: x.cumprod(0), (0, 2), orders=(1,)),
]


@every_row(CASES)
def test_products(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("f", [lambda x: x.prod(1), lambda x: x.cumprod(1)])
def test_every_strategy(f, order: int, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    check_hod(between(f), (rand(device, 2, 3),), order, strategies=("reverse", "forward", "mixed"))


@pytest.mark.parametrize("zeros", [(1,), (0, 3), (0, 1, 2), (4,)])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_products_with_zeros(zeros: tuple[int, ...], order: int, device: torch.device) -> None:
    numbers = [0.0 if place in zeros else 0.5 + place / 4 for place in range(5)]
    x = torch.tensor(numbers, dtype=torch.float64, device=device)
    whole, running = hofunc.hod(torch.prod, order)(x), hofunc.hod(lambda x: x.cumprod(0), order)(x)
    for slots in product(range(5), repeat=order):
        up_to = [_left(numbers[:end], slots) for end in range(1, 6)]
        assert running[(slice(None), *slots)].tolist() == pytest.approx(up_to, rel=1e-14)
        assert whole[slots].item() == pytest.approx(up_to[-1], rel=1e-14)


def _left(numbers: list[float], slots: tuple[int, ...]) -> float:
    """Return the derivative of a product by some of its elements."""
    if len(set(slots)) < len(slots) or max(slots) >= len(numbers):
        return 0.0
    return prod(number for place, number in enumerate(numbers) if place not in slots)


@pytest.mark.parametrize("f", [lambda x: x.prod(1), lambda x: x.cumprod(1).sum(1)])
def test_rows_are_kept_apart(f, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    got = hofunc.hod(f, 2, layout="compact")(rand(device, 4, 3))
    assert got.dense(keep_batch=True).shape == (4, 3, 3)


def test_under_vmap(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return x.cumprod(0) * x.prod()

    x = rand(device, 2, 3)
    expected = torch.stack([hofunc.hessian(f)(row) for row in x])
    torch.testing.assert_close(torch.func.vmap(hofunc.hessian(f))(x), expected)
