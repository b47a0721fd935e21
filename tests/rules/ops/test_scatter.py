"""Writing and adding into places, against nested torch.func or, where that is wrong, written out."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, between, every_row, ints, use

aten = torch.ops.aten
pytestmark = [
    ORACLE_WARNINGS,
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning"),
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning"),
]

ADDED = [
    use("scatter_add", lambda x, y: x.scatter_add(0, ints(x, 2, 0), y), (3,), (2,)),
    use("scatter_add at one place", lambda x, y: x.scatter_add(0, ints(x, 1, 1, 1), y), (2,), (3,)),
    use("scatter_add of rows", lambda x, y: x.scatter_add(1, ints(x, [0, 2], [1, 1]), y), (2, 3), (2, 2)),
    use(
        "scatter_add of a part",
        lambda x, y: x.scatter_add(0, ints(x, [0], [1], [1]), y),
        (2, 2),
        (4, 3),
        reference=lambda x, y: x.scatter_add(0, ints(x, [0], [1], [1]), y[:3, :1]),
    ),
    use("scatter_add of itself", lambda x: x.scatter_add(-1, ints(x, [1, 0], [1, 1]), x * x), (2, 2)),
    use("scatter_add to a constant", lambda x: torch.zeros_like(x).scatter_add(0, ints(x, 1, 1), x), (2,)),
    use("scatter_add of scalars", lambda x, y: x.scatter_add(0, ints(x, 0)[0], y), (), ()),
    use("scatter_add of a scalar to a vector", lambda x, y: x.scatter_add(0, ints(x, 1)[0], y), (2,), ()),
    use(
        "scatter, adding",
        lambda x, y: x.scatter(0, ints(x, 1, 1), y, reduce="add"),
        (2,),
        (2,),
        reference=lambda x, y: x.scatter_add(0, ints(x, 1, 1), y),
    ),
    use(
        "scatter, adding a number",
        lambda x: x.scatter(0, ints(x, 1), 2.5, reduce="add"),
        (2,),
        reference=lambda x: x + torch.tensor([0, 2.5]).to(x),
    ),
    use("put, accumulated", lambda x, y: x.put(ints(x, 3, -1, 0), y, accumulate=True), (2, 2), (3,)),
]

WRITTEN = [
    use("scatter", lambda x, y: x.scatter(0, ints(x, 2, 0), y), (3,), (2,)),
    use("scatter of rows", lambda x, y: x.scatter(1, ints(x, [0, 2], [2, 1]), y), (2, 3), (2, 2)),
    use(
        "scatter of a part",
        lambda x, y: x.scatter(-1, ints(x, [1, 0]), y),
        (2, 2),
        (3, 4),
        orders=(1, 2),
        reference=lambda x, y: x.scatter(-1, ints(x, [1, 0]), y[:1, :2]),
    ),
    use("scatter of a number", lambda x: x.scatter(0, ints(x, 1, 1), 0.5), (3,)),
    use("scatter of nothing", lambda x, y: x.scatter(0, ints(x).long(), y), (2,), (0,)),
    use("scatter of scalars", lambda x, y: x.scatter(0, ints(x, 0)[0], y), (), ()),
    use("scatter of itself", lambda x: x.scatter(0, ints(x, 1, 0), x[:2] * x[1:]), (3,)),
    use("put", lambda x, y: x.put(ints(x, [3, -4]), y), (2, 2), (1, 2)),
    use("index_copy", lambda x, y: x.index_copy(1, ints(x, 2, 0), y), (2, 3), (2, 2)),
    use("index_fill", lambda x: x.index_fill(0, ints(x, 1), 2.0), (2, 2)),
    use("index_fill by a tensor", lambda x, y: x.index_fill(0, ints(x, 1, 0), y), (3,), ()),
    use("masked_scatter", lambda x, y: x.masked_scatter(_odd(x, 4), y), (4,), (3,)),
    use("masked_scatter broadcasts", lambda x, y: x.masked_scatter(_odd(x, 2), y), (2, 2), (2, 2)),
    use("masked_scatter of nothing", lambda x, y: x.masked_scatter(_odd(x, 2) & False, y), (2,), (0,)),
]


def _odd(x: Tensor, count: int) -> Tensor:
    return torch.arange(count, device=x.device) % 2 == 1


def _twice(name: str, *shapes: tuple[int, ...]) -> list[OpCase]:
    """Return rows of a reduction of two places, of which one is named twice, with the places' own value and without."""
    return [
        use(
            f"scatter_reduce, {name}{', without itself' if not include_self else ''}",
            lambda x, y, own=include_self: x.scatter_reduce(0, ints(x, 2, 0, 2), y, name, include_self=own),
            *shapes,
        )
        for include_self in (True, False)
    ]


REDUCED = [
    *(row for name in ("sum", "prod", "mean", "amax", "amin") for row in _twice(name, (4,), (3,))),
    use(
        "scatter_reduce of a part",
        lambda x, y: x.scatter_reduce(1, ints(x, [0, 0, 1]), y, "prod", include_self=False),
        (2, 2),
        (2, 4),
        orders=(1, 2),
        reference=lambda x, y: torch.stack([torch.stack([y[0, 0] * y[0, 1], y[0, 2]]), x[1]]),
    ),
    use("scatter_reduce of scalars", lambda x, y: x.scatter_reduce(0, ints(x, 0)[0], y, "prod"), (), ()),
    use("scatter_reduce of itself", lambda x: x.scatter_reduce(0, ints(x, 1, 1), x, "prod"), (2,)),
    use(
        "scatter, multiplying",
        lambda x, y: x.scatter(0, ints(x, 1, 1), y, reduce="multiply"),
        (2,),
        (2,),
        reference=lambda x, y: torch.stack([x[0], x[1] * y[0] * y[1]]),
    ),
    use("index_reduce, prod", lambda x, y: x.index_reduce(1, ints(x, 0, 0), y, "prod"), (2, 2), (2, 2)),
    use(
        "index_reduce, mean, without itself",
        lambda x, y: x.index_reduce(-2, ints(x, 1, 1), y, "mean", include_self=False),
        (2, 2),
        (2, 2),
    ),
    use("index_reduce, amax", lambda x, y: x.index_reduce(0, ints(x, 0, 1, 1), y, "amax"), (2,), (3,)),
]

CASES: list[OpCase] = [*ADDED, *WRITTEN, *REDUCED]


@every_row(CASES)
def test_scatter(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: x.scatter(0, ints(x, 1, 0, 1), y),
        lambda x, y: x.put(ints(x, 1, 0, 1), y),
        lambda x, y: x.index_copy(0, ints(x, 1, 0, 1), y),
    ],
)
def test_of_two_values_written_to_a_place_one_counts(write, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    x, y = rand(device, 3), rand(device, 3, seed=1)
    by_x, by_y = hofunc.jacobian(write, argnums=(0, 1))(x, y)
    assert by_x.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    kept = write(x, y)
    assert torch.equal(by_y @ y + by_x @ x, kept)
    assert by_y.sum() == 2


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_product_with_zeros(order: int, device: torch.device) -> None:
    index = torch.tensor([0, 1, 0, 1], device=device)
    x = torch.tensor([0.0, 2.0], dtype=torch.float64, device=device)
    y = torch.tensor([0.0, 0.0, 3.0, 5.0], dtype=torch.float64, device=device)

    def written_out(x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([x[0] * y[0] * y[2], x[1] * y[1] * y[3]])

    got = hofunc.hod(lambda x, y: x.scatter_reduce(0, index, y, "prod"), order, (0, 1))(x, y)
    torch.testing.assert_close(got, hofunc.hod(written_out, order, (0, 1))(x, y))


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_equal_ones_share_evenly(name: str, device: torch.device) -> None:
    x, y = torch.tensor([1.0, 2.0]).double().to(device), torch.tensor([1.0, 1.0, 2.0]).double().to(device)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x.scatter_reduce(0, ints(x, 0, 0, 1), y, name)

    got = hofunc.jacobian(f, argnums=(0, 1))(x, y)
    torch.testing.assert_close(got, torch.func.jacrev(f, argnums=(0, 1))(x, y))
    assert got[1].tolist() == [pytest.approx([1 / 3, 1 / 3, 0]), [0, 0, 0.5]]


def test_what_is_overwritten_may_be_infinite(device: torch.device) -> None:
    x = torch.tensor([torch.inf, 1.0], dtype=torch.float64, device=device)
    got = hofunc.hessian(lambda x: (x.scatter(0, ints(x, 0), 0.0) ** 2).sum())(x)
    assert got.tolist() == [[0, 0], [0, 2]]


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_strategy(order: int, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        sums = torch.zeros(2, 2).to(x).scatter_add(1, ints(x, [0, 1, 1], [1, 0, 0]), x)
        return sums.scatter_reduce(1, ints(x, [0, 0, 1], [1, 0, 0]), x.sin(), "prod")

    check_hod(between(f), (rand(device, 2, 3),), order, strategies=("reverse", "forward", "mixed"))


@pytest.mark.parametrize(
    ("f", "pattern"),
    [
        (lambda x: torch.zeros(4, 2).to(x).scatter_add(1, ints(x, *[[0, 1, 1]] * 4), x.tanh()).sum(1), "b, b c, b c"),
        (lambda x: (x.tanh().scatter(1, ints(x, *[[1]] * 4), 0.5) ** 2).sum(1), "b, b c, b c"),
    ],
)
def test_rows_are_kept_apart(f, pattern: str, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    assert hofunc.hod(f, 2, layout="compact")(rand(device, 4, 3)).pattern == pattern


def test_under_vmap(device: torch.device) -> None:
    index = torch.tensor([[0, 1, 1], [1, 0, 0]], device=device)

    def f(x: Tensor, index: Tensor) -> Tensor:
        return between(lambda x: torch.zeros(2).to(x).scatter_add(0, index, x).scatter(0, index[:1], x[1:2]))(x)

    x = rand(device, 2, 3)
    expected = torch.stack([hofunc.hessian(f)(row, places) for row, places in zip(x, index, strict=True)])
    torch.testing.assert_close(torch.func.vmap(hofunc.hessian(f))(x, index), expected)
