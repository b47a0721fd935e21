"""Programs written number by number: nodes that are alike as batches, beside nested torch.func."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from asv_benchmarks.benchmarks.stepped import cholesky
from hofunc.plan import levels, planner
from hofunc.run.cache import forget


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


SIZE = 6
BASIS = drawn(SIZE, SIZE, seed=1)
GIVEN = BASIS @ BASIS.T + SIZE * torch.eye(SIZE, dtype=torch.float64)
CHOLESKY = cholesky(SIZE).f


def written_in_place(x: Tensor) -> Tensor:
    """The log-determinant of a matrix by Cholesky's algorithm, written to its place entry by entry."""
    matrix = GIVEN + x[:, None] * x
    root = torch.zeros_like(matrix)
    for i in range(SIZE):
        for j in range(i + 1):
            left = matrix[i, j].clone()
            for k in range(j):
                left = left - root[i, k] * root[j, k]
            root[i, j] = left.sqrt() if i == j else left / root[j, j]
    return root.diagonal().log().sum() + root[-1].sum()


def eliminated(x: Tensor) -> Tensor:
    """A system of linear equations by Gauss's elimination; several outputs."""
    rows = [[GIVEN[i, j] * (1 + 0.1 * x[i] * x[j]) for j in range(SIZE)] for i in range(SIZE)]
    right = [*x]
    for k in range(SIZE):
        for i in range(k + 1, SIZE):
            times = rows[i][k] / rows[k][k]
            for j in range(k + 1, SIZE):
                rows[i][j] = rows[i][j] - times * rows[k][j]
            right[i] = right[i] - times * right[k]
    found: list[Tensor] = []
    for i in reversed(range(SIZE)):
        left = right[i]
        for j, other in zip(reversed(range(i + 1, SIZE)), found, strict=True):
            left = left - rows[i][j] * other
        found.append(left / rows[i][i])
    return torch.stack(found[:2])


def aligned(x: Tensor, y: Tensor) -> Tensor:
    """A soft alignment of two sequences: a table, of which each entry is of three others, and of constants around."""
    costs = (x[:, None] - y) ** 2
    table = {(0, 0): costs.new_zeros(())}
    for i in range(len(x) + 1):
        for j in range(len(y) + 1):
            if i * j:
                before = torch.stack([table[i - 1, j], table[i, j - 1], table[i - 1, j - 1]])
                table[i, j] = costs[i - 1, j - 1] - torch.logsumexp(-before, 0)
            elif i + j:
                table[i, j] = costs.new_tensor(10.0)
    return table[len(x), len(y)]


def pairs(places: Tensor) -> Tensor:
    """An energy of those pairs of points that are no multiples of each other's numbers, vectors of three numbers."""
    total = places.new_zeros(())
    for i in range(len(places)):
        for j in range(i):
            if j < 2 or i % j:
                apart = places[i] - places[j]
                total = total + 1 / (1 + apart @ apart) + (apart[0] * places[j, 1]).sin()
    return total


def products(x: Tensor) -> Tensor:
    """Products of small matrices that do not follow from one another, and of these, as a tree."""
    level = [torch.stack([x[i].sin(), x[i - 1], x[i] * x[i - 1], x[i - 2]]).reshape(2, 2) for i in range(16)]
    while len(level) > 1:
        level = [first @ second.mT for first, second in zip(level[::2], level[1::2], strict=True)]
    return level[0].exp().sum()


def repeated(x: Tensor) -> Tensor:
    """Each number several times over, computed anew, as scalars and as vectors."""
    twice = [(x[i].sin(), x[i].sin(), (x * 2).cos(), (x * 2).cos()) for i in range(len(x))]
    return torch.stack([one * other + (first * second).sum() for one, other, first, second in twice]).exp().sum()


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "cholesky": (CHOLESKY, (drawn(SIZE),), 2),
    "cholesky, order 3": (CHOLESKY, (drawn(SIZE),), 3),
    "written in place": (written_in_place, (drawn(SIZE),), 2),
    "eliminated": (eliminated, (drawn(SIZE),), 2),
    "aligned": (aligned, (drawn(6), drawn(5, seed=1)), 2),
    "pairs": (pairs, (drawn(9, 3),), 2),
    "products": (products, (drawn(16),), 2),
    "repeated": (repeated, (drawn(9),), 2),
}


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Batches of nodes wherever there are some; returns whether there were, of each graph that was looked at."""
    found: list[bool] = []

    def noted(*args: Any) -> Any:
        found.append((made := levels.with_levels(*args)) is not None)
        return made

    monkeypatch.setattr(planner, "with_levels", noted)
    monkeypatch.setattr(planner, "with_recurrences", lambda *_, **__: None)
    monkeypatch.setattr(planner._Asked, "_is_sooner", lambda *_: True)
    monkeypatch.setattr(planner, "LONG_RECURRENCE", 0)
    forget()
    return found


def nested(f: Callable[..., Tensor], args: tuple[Tensor, ...], order: int) -> Any:
    argnums = tuple(range(len(args)))
    for _ in range(order):
        f = torch.func.jacrev(f, argnums)
    return f(*args)


@pytest.mark.parametrize("name", CASES)
def test_derivatives_by_batches_are_those_of_nested_transforms(name: str, batches: list[bool]) -> None:
    f, args, order = CASES[name]
    transform = hofunc.hod(f, order=order, argnums=tuple(range(len(args))))
    with hofunc.options(planning="quick"):
        found = transform(*args)
    assert batches == [True]
    torch.testing.assert_close(found, nested(_out_of_place(f), args, order), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(transform.plan(*args)(*args), found, rtol=1e-9, atol=1e-9)
    others = tuple(arg + 0.1 for arg in args)
    torch.testing.assert_close(transform(*others), nested(_out_of_place(f), others, order), rtol=1e-9, atol=1e-9)


def _out_of_place(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the same function without what torch cannot differentiate twice behind vmap."""

    def closed(x: Tensor) -> Tensor:
        root = torch.linalg.cholesky(GIVEN + x[:, None] * x)
        return root.diagonal().log().sum() + root[-1].sum()

    return closed if f is written_in_place else f


@pytest.mark.parametrize("name", ["cholesky", "aligned", "pairs"])
def test_contractions_go_through_batches(name: str, batches: list[bool]) -> None:
    f, (x, *others), _ = CASES[name]
    direction = drawn(*x.shape, seed=3)
    with hofunc.options(planning="quick"):
        found = hofunc.hvp(lambda x: f(x, *others))(x, vector=direction)
    assert True in batches
    gradient = torch.func.grad(lambda x: f(x, *others))
    torch.testing.assert_close(found, torch.func.jvp(gradient, (x,), (direction,))[1], rtol=1e-9, atol=1e-9)


def test_what_is_infinite_in_a_batch_leaves_others_as_they_are(batches: list[bool]) -> None:
    def f(x: Tensor) -> Tensor:
        roots = [x[i].square().sqrt() if i else x[i].sqrt() for i in range(24)]
        return torch.stack([(root * roots[i - 1]).sin() * x[i] for i, root in enumerate(roots)])

    x = torch.linspace(0, 2, 24, dtype=torch.float64)
    found, want = hofunc.hod(f)(x), torch.func.jacrev(torch.func.jacrev(f))(x)
    assert True in batches
    torch.testing.assert_close(found[want.isfinite()], want[want.isfinite()])
    assert found.isfinite().sum() > found.numel() - 24


def test_random_numbers_are_drawn_once(batches: list[bool]) -> None:
    def f(x: Tensor) -> Tensor:
        each = [torch.nn.functional.dropout(x[i].sin(), 0.5) * x[i - 1].cos() for i in range(40)]
        return torch.stack(each).square().sum()

    x = drawn(40)
    torch.manual_seed(0)
    found = hofunc.hessian(f)(x)
    torch.manual_seed(0)
    kept = torch.stack([torch.nn.functional.dropout(torch.ones((), dtype=torch.float64), 0.5) for _ in range(40)])
    want = torch.func.hessian(lambda x: (x.sin() * kept * x.roll(1).cos()).square().sum())(x)
    assert True in batches
    torch.testing.assert_close(found, want)


def test_numbers_of_other_dtypes_are_left_alone(batches: list[bool]) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.stack([(x[i].float().sin() * x[i - 1].float()).double() * x[i] for i in range(30)]).sum()

    x = drawn(30)
    found = hofunc.hessian(f)(x)
    assert True not in batches
    torch.testing.assert_close(found, torch.func.hessian(f)(x), rtol=1e-5, atol=1e-5)


def test_a_first_call_takes_batches_of_its_own_accord(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def noted(*args: Any) -> Any:
        found.append(levels.with_levels(*args))
        return found[-1]

    monkeypatch.setattr(planner, "with_levels", noted)
    forget()
    x = drawn(SIZE)
    hofunc.hessian(CHOLESKY)(x)
    assert found
    assert found[0] is not None
    nodes = sum(node.active for node in found[0].graph.nodes)
    assert nodes < 60  # of 144
