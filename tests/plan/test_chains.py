"""Chains of selections: derivatives of what is read of what is read keep to what is read, and are the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import selections
from hofunc.run import cache
from tests.cases import rand
from tests.checks import assert_equal

CPU = torch.device("cpu")
POINTS, READ, EDGES = 7, 9, 12
GENERATOR = torch.Generator().manual_seed(0)
FIRST = torch.randint(POINTS, (READ,), generator=GENERATOR)  # with repeated and missing ones
SECOND, THIRD = torch.randint(-READ, READ, (2, EDGES), generator=GENERATOR)
AGAIN = torch.randint(EDGES, (5,), generator=GENERATOR)
ROWS = torch.randint(READ, (READ,), generator=GENERATOR)


def messages(x: Tensor) -> Tensor:
    heard = torch.zeros(READ, dtype=x.dtype).index_add(0, SECOND % READ, x[FIRST].sin()[THIRD])
    return (heard[ROWS] * x[FIRST]).tanh().sum()


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "a read of a read, linear": lambda x: (x[FIRST][ROWS] - x[FIRST]).cos().sum(),
    "a read of a nonlinear read": lambda x: ((y := x[FIRST].sin())[ROWS] * y).cos().sum(),
    "two reads of a read": lambda x: ((y := x[FIRST].exp())[SECOND] * y[THIRD]).tanh().sum(),
    "a read of a read of a read": lambda x: ((x[FIRST].sin()[SECOND] ** 2)[AGAIN] * x[:5]).sin().sum(),
    "one element twice": lambda x: x[FIRST][:1][torch.tensor([0, 0])].sin() * x[:2],
    "no sum": lambda x: x[FIRST].sin()[SECOND] * x[FIRST][THIRD],
    "messages": messages,
    "a mask between": lambda x: ((y := x[FIRST].relu().square())[SECOND] * y[THIRD]).sin().sum(),
}

# The same of a matrix of three columns: read for each of them at indices of its own, and at pairs of indices.
COLUMNS = 3
EACH = torch.randint(POINTS, (READ, COLUMNS), generator=GENERATOR)
EACH_AGAIN, EACH_OTHER = torch.randint(READ, (2, EDGES, COLUMNS), generator=GENERATOR)
COLUMN, OTHER_COLUMN = torch.randint(-COLUMNS, COLUMNS, (2, EDGES), generator=GENERATOR)

OF_COLUMNS: dict[str, Callable[[Tensor], Tensor]] = {
    "columns of columns": lambda x: (
        ((y := x.gather(0, EACH).sin()).gather(0, EACH_AGAIN) * y.gather(0, EACH_OTHER)).sum(1).cos().sum()
    ),
    "rows of columns": lambda x: ((y := x.gather(0, EACH).exp())[SECOND] * y[THIRD]).sum(1).tanh().sum(),
    "columns of rows": lambda x: ((y := x[FIRST].exp()).gather(0, EACH_AGAIN) * y[THIRD]).sum(1).tanh().sum(),
    "elements of rows": lambda x: ((y := x[FIRST].sin())[SECOND, COLUMN] * y[THIRD, OTHER_COLUMN]).cos().sum(),
    "rows of elements": lambda x: ((y := x[SECOND % POINTS, COLUMN].sin())[AGAIN] * y[:5]).cos().sum(),
    "elements of columns": lambda x: ((y := x.gather(0, EACH).exp())[SECOND, COLUMN] * y[THIRD, 1]).tanh().sum(),
    "along rows": lambda x: (x.t()[:, FIRST].sin().gather(1, EACH_AGAIN.t()) ** 2).sum(0).cos().sum(),
    "columns, added": lambda x: (
        (torch.zeros(READ, COLUMNS, dtype=x.dtype).scatter_add(0, EACH_AGAIN, x[FIRST].sin()[THIRD])[ROWS] * x[FIRST])
        .tanh()
        .sum()
    ),
}


# Of each row of a matrix, at places that are known to the op.
TURNED: dict[str, Callable[[Tensor], Tensor]] = {
    "turned and turned again": lambda x: (((y := x.sin().roll(1, 1)) + x).sin().roll(1, 1) * y).exp().sum(-1),
    "turned back": lambda x: ((x.exp().flip(-1) + x).sin().flip(-1) * x).tanh().sum(-1),
}


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "SMALL", 0)
    cache.forget()


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name: str, order: int, strategy: str) -> None:
    assert_derivatives(PROGRAMS[name], rand(CPU, POINTS), order, strategy, torch.func.jacfwd)


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", OF_COLUMNS)
def test_derivatives_by_a_matrix(name: str, order: int, strategy: str) -> None:
    assert_derivatives(OF_COLUMNS[name], rand(CPU, POINTS, COLUMNS), order, strategy, torch.func.jacrev)


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", TURNED)
def test_what_is_turned_twice(name: str, order: int, strategy: str) -> None:
    assert_derivatives(TURNED[name], rand(CPU, 2, COLUMNS), order, strategy, torch.func.jacrev)


def assert_derivatives(
    f: Callable[[Tensor], Tensor], x: Tensor, order: int, strategy: str, jacobian: Callable[..., Any]
) -> None:
    """Check derivatives in both layouts, beside a transform of torch's that is nested."""
    expected: Callable[[Tensor], Tensor] = f
    for _ in range(order):
        expected = jacobian(expected)
    assert_equal(hofunc.hod(f, order, strategy=strategy)(x), expected(x))
    compact = hofunc.hod(f, order, strategy=strategy, layout="compact")(x)
    assert_equal(compact.to_sparse().to_dense(), expected(x))


@pytest.mark.parametrize("strategy", ["reverse", "mixed"])
@pytest.mark.parametrize("name", [name for name in OF_COLUMNS if name != "columns, added"])  # where nearly all meet
def test_what_is_read_of_a_matrix_is_kept(name: str, strategy: str) -> None:
    x = rand(CPU, POINTS, COLUMNS)
    assert "[" in hofunc.hessian(OF_COLUMNS[name], strategy=strategy, layout="compact")(x).pattern


@pytest.mark.parametrize("strategy", ["reverse", "mixed"])
@pytest.mark.parametrize("name", ["a read of a read, linear", "a read of a nonlinear read", "two reads of a read"])
def test_nothing_is_larger_than_what_is_read(name: str, strategy: str) -> None:
    plan = hofunc.hessian(PROGRAMS[name], strategy=strategy, layout="compact").plan(rand(CPU, POINTS))
    steps = plan._subject.at_once.steps
    assert max(torch.Size(step.shape).numel() for step in steps) <= 2 * EDGES
    assert "[b]" in plan(rand(CPU, POINTS)).pattern


def test_rows_of_features() -> None:
    """What is read of a matrix that is read: its columns are gathered, unless the matrix of the indices is smaller."""
    weights = rand(CPU, 3, 3, seed=1)

    def f(x: Tensor) -> Tensor:
        y = (x[FIRST] @ weights).tanh()
        return (y[SECOND] - y[THIRD]).square().sum(-1).log1p().sum()

    x = rand(CPU, POINTS, 3)
    for strategy in ("reverse", "mixed"):
        assert_equal(hofunc.hessian(f, strategy=strategy)(x), torch.func.hessian(f)(x))


def test_indices_of_the_call_are_those_that_are_read() -> None:
    def f(x: Tensor, first: Tensor, rows: Tensor) -> Tensor:
        return ((y := x[first].sin())[rows] * y).cos().sum()

    x = rand(CPU, POINTS)
    plan = hofunc.hessian(f).plan(x, FIRST, ROWS)
    other, others = FIRST.flip(0), ROWS.roll(2)
    assert_equal(plan(x, other, others), torch.func.hessian(f)(x, other, others))
    with pytest.raises(IndexError):
        plan(x, other, others + READ)
    mapped = torch.func.vmap(lambda rows: hofunc.hessian(f)(x, FIRST, rows))(torch.stack([ROWS, others]))
    assert_equal(mapped[1], torch.func.hessian(f)(x, FIRST, others))


def test_indices_of_the_call_for_each_column() -> None:
    def f(x: Tensor, first: Tensor, again: Tensor, column: Tensor) -> Tensor:
        y = x.gather(0, first).sin()
        return (y.gather(0, again).sum(1) * y[again[:, 0], column]).cos().sum()

    x = rand(CPU, POINTS, COLUMNS)
    plan = hofunc.hessian(f).plan(x, EACH, EACH_AGAIN, COLUMN)
    for given in ((EACH, EACH_AGAIN, COLUMN), (EACH.flip(0), EACH_OTHER, OTHER_COLUMN)):
        assert_equal(plan(x, *given), torch.func.hessian(f)(x, *given))
    mapped = torch.func.vmap(lambda again: hofunc.hessian(f)(x, EACH, again, COLUMN))(
        torch.stack([EACH_AGAIN, EACH_OTHER])
    )
    assert_equal(mapped[1], torch.func.hessian(f)(x, EACH, EACH_OTHER, COLUMN))


@pytest.mark.parametrize("name", OF_COLUMNS)
def test_contractions_by_a_matrix(name: str) -> None:
    f, x, v = OF_COLUMNS[name], rand(CPU, POINTS, COLUMNS), rand(CPU, POINTS, COLUMNS, seed=1)
    hessian = torch.func.jacrev(torch.func.jacrev(f))(x)
    assert_equal(hofunc.hvp(f)(x, vector=v), torch.einsum("aibj,bj->ai", hessian, v))
    assert_equal(
        hofunc.einsum(f, ", n i, n j -> n i j")(x), torch.einsum("ainj,an->nij", hessian, torch.eye(POINTS).to(x))
    )
    third = torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(f)))(x)
    got = hofunc.einsum(f, ", n i, n i, m j -> m j")(x)
    assert_equal(got, torch.einsum("niNIpq,nN,iI->pq", third, torch.eye(POINTS).to(x), torch.eye(COLUMNS).to(x)))
