"""The forward strategy: how keys are split, powers of polynomials against hand, and steps counted by hand."""

from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from hofunc.algebra.labels import Label, full
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.plan import jointly
from hofunc.plan.blocks import local_blocks
from hofunc.plan.forward import Group, Polynomials, grouped_slots, halves, splits
from hofunc.plan.keys import Keys
from hofunc.plan.packing import Variable, seed
from hofunc.rules.lower import lower
from hofunc.run.executor import compiled
from tests.cases import rand
from tests.graph.recordings import recorded
from tests.plan.plans import builder_of, is_product, lowered_plan, names

KEYS: list[Key] = [(0,), (0, 0), (0, 1), (0, 0, 0), (0, 0, 1), (0, 1, 2), (0, 0, 1, 1), (0, 0, 0, 1), (0, 0, 0, 0, 0)]


# Keys.


def test_splits_by_hand() -> None:
    assert list(splits((0, 1), (1, 1))) == [((1,), (0,)), ((0,), (1,))]
    assert list(splits((0, 0), (1, 1))) == [((0,), (0,))]
    assert list(splits((0, 0, 0), (1, 2))) == [((0,), (0, 0))]
    assert list(splits((0, 0, 1), (2, 1))) == [((0, 1), (0,)), ((0, 0), (1,))]
    assert list(splits((0, 1), (2,))) == [((0, 1),)]
    assert list(splits((0,), (1, 1))) == []
    assert list(splits((0,), (2,))) == []


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("least", [(1,), (1, 1), (2, 1), (1, 1, 1), (1, 2, 1)])
def test_splits_are_all_tuples_of_multisets_that_make_up_the_key(key: Key, least: tuple[int, ...]) -> None:
    found = list(splits(key, least))
    expected = set()
    for owners in product(range(len(least)), repeat=len(key)):
        parts = tuple(tuple(v for v, o in zip(key, owners, strict=True) if o == part) for part in range(len(least)))
        if all(len(part) >= size for part, size in zip(parts, least, strict=True)):
            expected.add(parts)
    assert len(set(found)) == len(found)
    assert set(found) == expected


@pytest.mark.parametrize("key", KEYS)
def test_the_halves_of_a_square_count_each_order_of_its_factors(key: Key) -> None:
    weights: Counter[tuple[Key, Key]] = Counter()
    for (first, rest), weight in halves(key, 2):
        assert first <= rest
        weights[first, rest] += weight
    expected = Counter(min(parts, parts[::-1]) for parts in splits(key, (1, 1)))
    assert weights == expected


def test_the_halves_of_a_cube_are_a_factor_and_a_square() -> None:
    assert list(halves((0, 0, 0), 3)) == [(((0,), (0, 0)), 1)]
    assert {parts for parts, _ in halves((0, 0, 1), 3)} == {((0,), (0, 1)), ((1,), (0, 0))}
    assert {weight for _, weight in halves((0, 0, 1, 1), 3)} == {1}


def test_slots_of_one_operand_on_one_diagonal_are_one_group() -> None:
    i, j = ((full(Label(3)),), (full(Label(2)),))
    elementwise = Term(6, (), (i,), ((i,),) * 3)
    assert grouped_slots((4, 4, 4), elementwise) == ([Group(4, 3)], Term(1, (), (i,), ((i,),)))
    pair = Term(6, (), (i,), ((i,),) * 3)
    assert grouped_slots((4, 4, 5), pair) == ([Group(4, 2), Group(5, 1)], Term(3, (), (i,), ((i,),) * 2))
    product_of_one = Term(1, (), (), ((i,), (j,)))
    assert grouped_slots((4, 4), product_of_one) == ([Group(4, 1), Group(4, 1)], Term(0.5, (), (), ((i,), (j,))))


# Polynomials.


def polynomials_of_exp(device: torch.device) -> tuple[Polynomials, list[Tensor]]:
    """Return the polynomials of x -> exp(x), of which x is node 0 and the value node 1, in one direction."""
    recording = recorded(torch.exp, torch.tensor(0.3, dtype=torch.float64, device=device))
    builder = builder_of(recording)
    local = local_blocks(lower(recording.graph, recording.values, 5), 5)
    return Polynomials(builder, local, {0: Variable((), frozenset())}, Keys((5,), (0,))), list(recording.values)


# (e^t - 1)^p = (t + t^2/2 + t^3/6 + t^4/24 + ...)^p
POWERS: dict[int, list[float]] = {
    1: [1, 1 / 2, 1 / 6, 1 / 24, 1 / 120],
    2: [0, 1, 1, 7 / 12, 1 / 4],
    3: [0, 0, 1, 3 / 2, 5 / 4],
    4: [0, 0, 0, 1, 2],
    5: [0, 0, 0, 0, 1],
}


@pytest.mark.parametrize(("exponent", "order"), list(product(POWERS, range(1, 6))))
def test_powers_of_a_polynomial_by_hand(exponent: int, order: int, device: torch.device) -> None:
    polynomials, values = polynomials_of_exp(device)
    terms = polynomials.power(1, exponent, (0,) * order)
    expected = POWERS[exponent][order - 1]
    if expected == 0:
        assert terms == []
        return
    (term,) = terms
    (got,) = compiled(polynomials.builder.program([term.factors[0].source]))(values)
    assert (got * term.coefficient).item() == pytest.approx(expected * values[1].item() ** exponent, rel=1e-14)


def test_the_polynomial_of_a_variable_is_its_seed(device: torch.device) -> None:
    polynomials, _ = polynomials_of_exp(device)
    assert polynomials.coefficient(0, (0,)) == [seed(Variable((), frozenset()), ())]
    assert polynomials.coefficient(0, (0, 0)) == []
    assert polynomials.coefficient(0, (1,)) == []


def test_what_is_asked_for_twice_is_computed_once(device: torch.device) -> None:
    polynomials, _ = polynomials_of_exp(device)
    assert polynomials.coefficient(1, (0, 0)) is polynomials.coefficient(1, (0, 0))


def test_filling_asks_for_every_order_of_the_nodes_in_turn(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    polynomials, _ = polynomials_of_exp(device)
    asked: list[tuple[int, Key]] = []

    def noted(node: int, key: Key) -> list[Term]:
        asked.append((node, key))
        return []

    monkeypatch.setattr(polynomials, "coefficient", noted)
    polynomials.fill([1, 0], 2)
    assert asked == [(0, (0,)), (0, (0, 0)), (1, (0,)), (1, (0, 0))]


# Steps, counted by hand.


def products(f: Callable[[Tensor], Tensor], x: Tensor, *orders: int) -> int:
    """Return how many matrix products a compact forward plan has."""
    plan = lowered_plan(f, x, orders=orders, compact=True, strategy="forward")
    return sum(map(is_product, names(plan.program)))


def test_a_linear_layer_takes_one_matrix_product_for_each_order(device: torch.device) -> None:
    """The first layer takes none, its derivative is its weight; the last one takes one for each order asked for."""
    first, second, last = rand(device, 2, 8, seed=1), rand(device, 8, 7, seed=2), rand(device, 7, 6, seed=3)
    x = rand(device, 20, 2)

    def shallow(x: Tensor) -> Tensor:
        return (x @ first).tanh() @ second

    def deep(x: Tensor) -> Tensor:
        return ((x @ first).tanh() @ second).sin() @ last

    assert [products(shallow, x, order) for order in (1, 2, 3)] == [1, 1, 1]
    assert [products(shallow, x, *range(1, order + 1)) for order in (1, 2, 3)] == [1, 2, 3]
    assert [products(deep, x, order) for order in (1, 2, 3)] == [1 + 1, 2 + 1, 3 + 1]
    assert [products(deep, x, *range(1, order + 1)) for order in (1, 2, 3)] == [2, 4, 6]


def test_a_composition_of_two_functions_of_single_elements(device: torch.device) -> None:
    """Of the order two, halved, f' g'' + f'' g' g' with no axis to pack: four products and a sum, of one cosine."""
    plan = lowered_plan(lambda x: x.sin().exp(), rand(device, 3), orders=(2,), compact=True, strategy="forward")
    assert sorted(names(plan.program)) == ["add_scaled", "cos", "mul", "mul", "mul", "mul"]


@pytest.mark.parametrize("orders", [(1,), (2,), (3,), (1, 2, 3)])
def test_the_steps_do_not_depend_on_the_size_of_the_batch(orders: tuple[int, ...], device: torch.device) -> None:
    first, second = rand(device, 2, 8, seed=1), rand(device, 8, 3, seed=2)

    def f(x: Tensor) -> Tensor:
        return ((x @ first).tanh() @ second).sigmoid()

    plans = [lowered_plan(f, rand(device, n, 2), orders=orders, compact=True, strategy="forward") for n in (100, 999)]
    steps = [names(plan.program) for plan in plans]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("compact", [True, False])
def test_blocks_that_vanish_are_not_there(compact: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jointly, "pays_jointly", lambda *_, **__: False)  # as of those by triples are found by pairs
    inputs = rand(device, 3), rand(device, 3, seed=1)
    plan = lowered_plan(lambda x, y: x.exp() + x * y, *inputs, orders=(2, 3), compact=compact, strategy="forward")
    assert {key for _, key in plan.terms or plan.dense} == {(0, 0), (0, 1), (0, 0, 0)}
    linear = lowered_plan(lambda x, y: x * 2 + y.sum(), *inputs, orders=(2,), compact=compact, strategy="forward")
    assert linear.program.steps == ()
    assert not linear.terms
    assert not linear.dense
