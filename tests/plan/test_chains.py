"""Chains of selections: derivatives of what is read of what is read keep to what is read, and are the same."""

from collections.abc import Callable

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


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "SMALL", 0)
    cache.forget()


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name: str, order: int, strategy: str) -> None:
    f, x = PROGRAMS[name], rand(CPU, POINTS)
    expected = f
    for _ in range(order):
        expected = torch.func.jacfwd(expected)
    assert_equal(hofunc.hod(f, order, strategy=strategy)(x), expected(x))
    compact = hofunc.hod(f, order, strategy=strategy, layout="compact")(x)
    assert_equal(compact.to_sparse().to_dense(), expected(x))


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
