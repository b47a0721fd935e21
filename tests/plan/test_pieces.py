"""Additions in pieces: the same as at once, and nothing is held of what is made for all entries."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import lookups, pieces
from hofunc.plan.adding import Summed, Work, add_in_pieces, added_in_pieces
from hofunc.plan.lean import lean
from hofunc.plan.lookups import elements
from hofunc.plan.program import Given, Program, Register, Step, finished
from hofunc.plan.tracing import traced
from hofunc.run.executor import compiled, interpreted
from hofunc.scatter import added, flat_places
from tests.cases import rand
from verification.memory import SLACK, taken

CPU = torch.device("cpu")
PAIRS, POINTS = 3000, 20
FIRST, SECOND = torch.triu_indices(12, 12, 1)
X, Y, ONE, OTHER = map(Register, range(4))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lookups, pieces):
        monkeypatch.setattr(module, "LEAST", 1 << 14)
    monkeypatch.setattr(lookups, "PIECE", 1 << 14)


def values() -> list[Tensor]:
    """Return numbers and vectors of points, and pairs of these."""
    i, j = torch.randint(POINTS, (2, PAIRS), generator=torch.Generator().manual_seed(0))
    return [rand(CPU, 3, POINTS), rand(CPU, POINTS, 3, seed=1), i, j]


def outer(*, and_return: bool = False) -> Program:
    """Add twice the products of vectors of pairs of points to the places of the pairs, and something shorter."""
    read, other, turned, product, laid, places = map(Register, range(10, 16))
    short, total = Register(20), Register(21)
    steps = [
        Step(read.index, torch.index_select, (X, 1, ONE)),
        Step(other.index, elements, (Y, OTHER)),
        Step(turned.index, torch.permute, (other, (1, 0))),
        Step(25, torch.unsqueeze, (read, 1)),
        Step(product.index, torch.mul, (Register(25), turned)),
        Step(laid.index, torch.permute, (product, (2, 0, 1))),
        Step(places.index, flat_places, ((PAIRS,), (1, 0, POINTS, 1, 0, 1), X, ONE, OTHER)),
        Step(short.index, torch.reshape, (Register(26), (POINTS, 9))),
        Step(26, torch.index_select, (Register(27), 0, Register(28))),
        Step(28, torch.narrow, (ONE, 0, 0, POINTS)),
        Step(27, torch.mul, (Register(29), 1.5)),
        Step(29, torch.Tensor.expand, (Register(30), (POINTS, 9))),
        Step(30, torch.sum, (X, (0, 1))),
        Step(31, torch.narrow, (OTHER, 0, 0, POINTS)),
        Step(total.index, added, (POINTS**2, 9, (2.0, -1.0), places, Register(31), laid, short)),
    ]
    given = {
        0: Given(0, (3, POINTS), torch.float64),
        1: Given(1, (POINTS, 3), torch.float64),
        2: Given(2, (PAIRS,), torch.long),
        3: Given(3, (PAIRS,), torch.long),
    }
    return finished(given, {}, steps, [total, product] if and_return else [total])


def functions(program: Program) -> list[object]:
    return [step.function for step in program.steps]


def test_what_is_made_in_pieces_is_what_is_made_at_once() -> None:
    program = outer()
    made = lean(program, traced(program), CPU).program
    assert added_in_pieces in functions(made)
    assert {elements, torch.permute, flat_places}.isdisjoint(functions(made))
    for run in (compiled, interpreted):
        torch.testing.assert_close(run(made)(values()), run(program)(values()))


def test_it_is_counted_as_it_is() -> None:
    program = outer()
    whole, made = traced(program), lean(program, traced(program), CPU)
    product = 9 * 8 * PAIRS
    assert made.peak < product < sum(effect.result.nbytes for effect in whole.effects if effect.result)
    given, run = values(), compiled(made.program)
    assert taken(lambda: run(given)) <= made.peak + SLACK


def test_what_others_take_too_is_made_as_a_whole() -> None:
    program = outer(and_return=True)
    made = lean(program, traced(program), CPU).program
    assert torch.mul in functions(made)
    torch.testing.assert_close(compiled(made)(values()), compiled(program)(values()))


def test_autograd_and_vmap_follow_it() -> None:
    program = outer()
    run, plain = compiled(lean(program, traced(program), CPU).program), compiled(program)
    x, *others = values()
    torch.testing.assert_close(
        torch.func.jacrev(lambda x: run([x, *others])[0])(x), torch.func.jacrev(lambda x: plain([x, *others])[0])(x)
    )
    xs = torch.stack([x, 2 * x])
    (got,) = torch.func.vmap(lambda x: run([x, *others]))(xs)
    (expected,) = torch.func.vmap(lambda x: plain([x, *others]))(xs)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("mapped", [(0,), (1,), (0, 1), (2,), (0, 1, 2, 3)])
def test_vmap_keeps_no_pieces(mapped: tuple[int, ...]) -> None:
    """Of numbers, vectors, or indices."""
    program = outer()
    made = lean(program, traced(program), CPU)
    in_dims = tuple(0 if place in mapped else None for place in range(4))

    def under_vmap(program: Program) -> Callable[..., Tensor]:
        run = compiled(program)
        return torch.func.vmap(lambda *given: run(given)[0], in_dims)

    run, plain = under_vmap(made.program), under_vmap(program)
    given = [torch.stack([each, each.flip(-1)]) if place in mapped else each for place, each in enumerate(values())]
    torch.testing.assert_close(run(*given), plain(*given))
    with torch.no_grad():
        assert taken(lambda: run(*given)) < taken(lambda: plain(*given)) / 2


@pytest.mark.parametrize("size", [1, 7, PAIRS])
def test_pieces_may_be_of_any_size(size: int) -> None:
    x, _, i, j = values()
    places = torch.arange(POINTS**2).reshape(POINTS, POINTS)[i, j]
    rows = rand(CPU, PAIRS, 9)
    total = x.new_ones(POINTS**2, 9)
    args = (PAIRS, size, (0, 0), (Summed(0.5, 0, 1), Summed(1, 0, 1, (0, 1))), Work(), places, rows)
    expected = total.index_add(0, places, 1.5 * rows)
    torch.testing.assert_close(added_in_pieces(total, *args), expected)
    torch.testing.assert_close(total, x.new_ones(POINTS**2, 9))
    torch.testing.assert_close(add_in_pieces(total, *args), expected)


LINES: dict[str, Callable[[Tensor], Tensor]] = {
    "distances": lambda x: ((x[FIRST] - x[SECOND]) ** 2).sum(-1).sqrt(),
    "products": lambda x: (x[FIRST] * x[SECOND]).sum(-1),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("of", LINES)
def test_energies_of_neighbours(of: str, order: int) -> None:
    """Which meet at points: in pieces, of every strategy, and as many as nested torch.func has."""
    x, weight = rand(CPU, 12, 3), rand(CPU, 4, 4, seed=1)

    def energy(x: Tensor) -> Tensor:
        messages = (LINES[of](x)[:, None] * weight[0]).tanh()
        return (messages.new_zeros(12, 4).index_add(0, FIRST, messages) @ weight).tanh().sum()

    expected = torch.func.jacrev(energy)
    for _ in range(order - 1):
        expected = torch.func.jacfwd(expected)
    for strategy in ("mixed", "reverse"):
        torch.testing.assert_close(hofunc.hod(energy, order, strategy=strategy).plan(x)(x), expected(x))
