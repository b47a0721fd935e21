"""Distances between rows, against the norm of their differences."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, between, every_row, use
from verification.oracles import nested_reverse, relative_error

pytestmark = ORACLE_WARNINGS

PAIRS = ((0, 1), (0, 2), (1, 2))


def written_out(x: Tensor, y: Tensor, p: float) -> Tensor:
    """Return the distances of rows, so that torch can differentiate them more than once."""
    difference = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    return difference.amax(-1) if p == torch.inf else difference.pow(p).sum(-1).pow(1 / p)


def _distance(name: str, p: float, *shapes: tuple[int, ...], orders: tuple[int, ...] = (1, 2, 3)) -> OpCase:
    return use(
        name, lambda x, y: torch.cdist(x, y, p), *shapes, orders=orders, reference=lambda x, y: written_out(x, y, p)
    )


CASES: list[OpCase] = [
    _distance("cdist", 2, (2, 2), (1, 2)),
    _distance("cdist of many rows, by a matrix product", 2, (1, 2, 1), (26, 1), orders=(1, 2)),
    _distance("cdist of batches", 2, (2, 1, 2), (2, 2, 2), orders=(1, 2)),
    _distance("cdist, p = 1", 1, (2, 2), (2, 2), orders=(1, 2)),
    _distance("cdist, p = 3", 3, (1, 2), (2, 2)),
    _distance("cdist, p = inf", torch.inf, (2, 2), (1, 2)),
    use("pdist", torch.pdist, (3, 2), reference=lambda x: torch.stack([(x[i] - x[j]).norm() for i, j in PAIRS])),
    use(
        "pdist, p = 3",
        lambda x: torch.nn.functional.pdist(x, 3),
        (3, 2),
        orders=(1, 2),
        reference=lambda x: torch.stack([(x[i] - x[j]).abs().pow(3).sum().pow(1 / 3) for i, j in PAIRS]),
    ),
]


@every_row(CASES)
def test_distances(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_strategy(order: int, device: torch.device) -> None:
    y = rand(device, 2, 2, seed=1)
    check_hod(
        between(lambda x: torch.cdist(x, y)),
        (rand(device, 2, 2),),
        order,
        reference=between(lambda x: written_out(x, y, 2)),
        strategies=("reverse", "forward", "mixed"),
    )


def test_rows_at_one_place_have_derivatives_of_zero(device: torch.device) -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 2.0]], dtype=torch.float64, device=device)
    for order in (1, 2):
        derivative = hofunc.hod(torch.pdist, order)(x)
        assert not derivative[0].any()
        assert derivative.isfinite().all()


def test_a_map_of_derivatives(device: torch.device) -> None:
    x, y = rand(device, 2, 3, 2), rand(device, 2, 2, seed=1)
    expected = torch.stack([hofunc.hessian(lambda x: torch.cdist(x, y).sum())(rows) for rows in x])
    torch.testing.assert_close(torch.func.vmap(hofunc.hessian(lambda x: torch.cdist(x, y).sum()))(x), expected)


def test_rows_are_kept_apart(device: torch.device) -> None:
    y = rand(device, 3, 2, seed=1)
    got = hofunc.hod(lambda x: torch.cdist(x, y), 2, layout="compact")(rand(device, 4, 2))
    assert got.dense(keep_batch=True).shape == (4, 3, 2, 2)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, 2.5, torch.inf])
@pytest.mark.parametrize("among", [False, True])
def test_gradients_inside_the_function(p: float, among: bool, device: torch.device) -> None:
    """torch itself cannot differentiate the backward ops."""
    x, y = rand(device, 3, 2), rand(device, 2, 2, seed=1)
    first, second = torch.triu_indices(3, 3, 1, device=device)

    def distances(x: Tensor) -> Tensor:
        return torch.nn.functional.pdist(x, p) if among else torch.cdist(x, y, p)

    def by_hand(x: Tensor) -> Tensor:
        if p == 0:
            return distances(x.detach())
        if among:
            return written_out(x[first, None], x[second, None], p)[:, 0, 0]
        return written_out(x, y, p)

    def gradient_of(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return torch.func.grad(lambda x: (f(x).sin() * (x * x).sum()).sum())

    for order in (1, 2):
        expected = nested_reverse(gradient_of(by_hand), order)(x)
        assert relative_error(hofunc.hod(gradient_of(distances), order)(x), expected) < 1e-10
