"""Packed slots against dense arrays: products of polynomials, and the derivatives that coefficients stand for."""

from math import prod

import numpy as np
import pytest
import torch

from hofunc.algebra.labels import Axes, Label, full
from hofunc.algebra.packed import count
from hofunc.algebra.term import Term
from hofunc.plan import packing
from hofunc.plan.contract import contract
from hofunc.plan.packing import DirectionsError, RowsMixError, Variable, collected, joined, opened, scaled_rows, seed
from hofunc.plan.places import Factorials, Places
from tests.algebra.dense import RandomTerms, materialised
from tests.plan.plans import names
from tests.plan.workbench import Workbench

VARIABLES = [
    Variable((3,), frozenset()),
    Variable((3,), frozenset({0})),
    Variable((), frozenset()),
    Variable((2, 3), frozenset({0})),
    Variable((3, 2), frozenset({1})),
    Variable((2, 2), frozenset()),
    Variable((2, 1), frozenset({0})),
    Variable((1, 3), frozenset({0})),
    Variable((3, 1), frozenset()),
    Variable((1, 2, 1), frozenset()),
    Variable((2, 2, 2), frozenset({1})),
    Variable((1, 2), frozenset({0, 1})),
]
NAMES = [f"{variable.shape} {sorted(variable.batch)}" for variable in VARIABLES]


def axes(*labels: Label) -> Axes:
    """Return one whole axis per label."""
    return tuple((full(label),) for label in labels)


def batch_sizes(variable: Variable) -> tuple[int, ...]:
    return tuple(variable.shape[dim] for dim in sorted(variable.batch))


def drawn(draw: RandomTerms, variable: Variable, *orders: int) -> Term:
    """Draw a term with one packed slot for each order, all of one variable, that share the batch axes."""
    sizes = [(count(variable.count, order),) for order in orders]
    term = draw.term(draw.shape(1), batch_sizes(variable), *sizes)
    return term._replace(slots=tuple((*term.slots[0], *slot) for slot in term.slots[1:]))


def as_one_batch(array: np.ndarray, out: int, batch: int, slots: int) -> np.ndarray:
    """Turn (out, batch, packed, batch, packed, ...) into (out, batch, packed, packed, ...), the diagonal of batches."""
    letters = iter(range(40))
    start = [next(letters) for _ in range(out)]
    shared = [next(letters) for _ in range(batch)]
    packed = [next(letters) for _ in range(slots)]
    given = start + [letter for place in range(slots) for letter in (*shared, packed[place])]
    taken: np.ndarray = np.einsum(array, given, start + shared + packed)
    return taken


def derivative(array: np.ndarray, out: int, variable: Variable, order: int) -> np.ndarray:
    """Return the dense derivative that packed coefficients (out, batch, packed) stand for, entry by entry."""
    weighted = array * Factorials(variable.count, order).made().numpy()
    entries = weighted[..., Places.unpacked(variable.count, order).made().numpy()]
    result = np.zeros((*array.shape[:out], *variable.shape * order))
    for index in np.ndindex(*array.shape[:out], *batch_sizes(variable)):
        for directions, entry in zip(np.ndindex(*variable.directions * order), entries[index], strict=True):
            place, others = index[:out], iter(directions)
            for _ in range(order):
                batch = iter(index[out:])
                place += tuple(next(batch if dim in variable.batch else others) for dim in range(len(variable.shape)))
            result[place] = entry
    return result


# Variables.


def test_all_axes_are_a_batch_until_one_is_taken_out() -> None:
    variable = Variable.of([2, 3, 4])
    assert variable == Variable((2, 3, 4), frozenset({0, 1, 2}))
    assert (variable.directions, variable.count) == ((), 1)
    fewer = variable.without((1,))
    assert fewer == Variable((2, 3, 4), frozenset({0, 2}))
    assert (fewer.directions, fewer.count) == ((3,), 3)
    assert fewer.without((2,)).directions == (3, 4)
    assert fewer.without((2,)).count == 12
    assert variable.batch == {0, 1, 2}, "it is a value"


def test_a_slot_has_its_axes_where_the_variable_has_them() -> None:
    variable = Variable((2, 3, 4, 5), frozenset({1, 3}))
    a, b, c, d = axes(*map(Label, variable.shape))
    assert variable.slot((b, d), (a, c)) == (a, b, c, d)


def test_a_seed_has_its_batch_axes_and_then_one_of_all_directions() -> None:
    variable = Variable((2, 3, 4), frozenset({1}))
    a, b, c = axes(*map(Label, variable.shape))
    assert seed(variable, (a, b, c)) == Term(1, (), (a, b, c), ((b, (*a, *c)),))
    assert seed(Variable((2,), frozenset({0})), (a,)) == Term(1, (), (a,), ((a, ()),))


@pytest.mark.parametrize("variable", VARIABLES, ids=NAMES)
def test_an_opened_seed_is_the_identity(variable: Variable, device: torch.device) -> None:
    bench = Workbench(RandomTerms(0), device)
    term = seed(variable, axes(*map(Label, variable.shape)))
    got = opened(bench.builder, {7: variable}, term, [(7,)])
    expected = np.eye(prod(variable.shape)).reshape(variable.shape * 2)
    np.testing.assert_array_equal(bench.meaning([got]), expected)


def test_opening_a_seed_takes_no_step(device: torch.device) -> None:
    bench = Workbench(RandomTerms(0), device)
    variable = Variable((2, 3, 4), frozenset({0}))
    term = seed(variable, axes(*map(Label, variable.shape)))
    got = opened(bench.builder, {7: variable}, term, [(7,)])
    assert got == Term(1, (), term.out, (term.out,))


# Products.


@pytest.mark.parametrize("variable", VARIABLES, ids=NAMES)
@pytest.mark.parametrize("orders", [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("number", range(3))
def test_joined_is_the_product_of_polynomials(
    variable: Variable, orders: tuple[int, int], number: int, device: torch.device
) -> None:
    draw = RandomTerms(number)
    term = drawn(draw, variable, *orders)
    bench = Workbench(draw, device)
    given = contract(bench.builder, bench.named(term))
    got = joined(bench.builder, {7: variable}, given, [(7,) * order for order in orders])
    assert len(got.slots) == 1
    array = materialised(term, draw.tensors)
    one = as_one_batch(array, len(term.out), len(variable.batch), 2)
    expected = np.zeros((count(variable.count, sum(orders)), *one.shape[:-2]))
    places = Places(variable.count, orders).made().numpy()
    np.add.at(expected, places, np.moveaxis(one.reshape(*one.shape[:-2], -1), -1, 0))
    np.testing.assert_allclose(bench.meaning([got]), np.moveaxis(expected, 0, -1), rtol=1e-12, atol=1e-12)


def test_a_product_of_three_has_all_slots_in_one(device: torch.device) -> None:
    """Of three equal linear forms a, b, c in two directions: the coefficients of (a x + b y)^3."""
    draw = RandomTerms(0)
    i, j, k = Label(2), Label(2), Label(2)
    form = draw.factor(axes(i))
    factors = tuple(form._replace(axes=axes(label)) for label in (i, j, k))
    bench = Workbench(draw, device)
    term = contract(bench.builder, bench.named(Term(1, factors, (), (axes(i), axes(j), axes(k)))))
    got = joined(bench.builder, {0: Variable((2,), frozenset())}, term, [(0,), (0,), (0,)])
    x, y = draw.tensors[form.source]
    np.testing.assert_allclose(bench.meaning([got]), [x**3, 3 * x * x * y, 3 * x * y * y, y**3])


def test_slots_of_several_variables_are_joined_each_with_its_own(device: torch.device) -> None:
    """Of the parts x y and x, and of y and x x: one slot of both x, then one of y."""
    draw = RandomTerms(1)
    variables = {3: Variable((2,), frozenset()), 5: Variable((4, 3), frozenset({0}))}
    b, i, j, k = Label(4), Label(2), Label(3), Label(2)
    packed = Label(3)
    x, y, other, two = axes(i), axes(b, j), axes(k), axes(packed)
    one = Term(2, (draw.factor(axes(b, i, j, k)),), axes(b), (x, y, other))
    second = Term(1, (draw.factor(axes(b, j, packed)),), axes(b), (y, two))
    bench = Workbench(draw, device)
    got = joined(bench.builder, variables, contract(bench.builder, bench.named(one)), [(3, 5), (3,)])
    assert [len(slot) for slot in got.slots] == [1, 2]
    array = materialised(one, draw.tensors).transpose(0, 2, 3, 1, 4)  # of b b' j i k
    expected = np.stack([array[..., 0, 0], array[..., 0, 1] + array[..., 1, 0], array[..., 1, 1]], 1)
    np.testing.assert_allclose(bench.meaning([got]), expected)
    given = contract(bench.builder, bench.named(second))
    sorted_term = joined(bench.builder, variables, given, [(5,), (3, 3)])
    assert sorted_term == given._replace(slots=given.slots[::-1]), "nothing to multiply: only their order"


def test_one_direction_takes_no_step(device: torch.device) -> None:
    draw = RandomTerms(0)
    b = Label(4)
    variable = Variable((4, 1), frozenset({0}))
    term = Term(1, (draw.factor(axes(b)),), axes(b), ((*axes(b), ()), (*axes(b), ())))
    bench = Workbench(draw, device)
    given = contract(bench.builder, bench.named(term))
    got = joined(bench.builder, {0: variable}, given, [(0,), (0,)])
    assert got == given._replace(slots=given.slots[:1])
    back = opened(bench.builder, {0: variable}, got, [(0, 0)])
    assert back.coefficient == 2
    assert back.factors == given.factors
    np.testing.assert_array_equal(
        bench.meaning([back]), derivative(bench.meaning([got]), 1, variable, 2), "the derivative of c t^2 is 2 c"
    )


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_opening_an_axis_of_the_first_order_takes_no_step(shape: tuple[int, ...], device: torch.device) -> None:
    draw = RandomTerms(0)
    i = Label(3)
    term = Term(1, (draw.factor(axes(i)),), (), (axes(i),))
    bench = Workbench(draw, device)
    given = contract(bench.builder, bench.named(term))
    (slot,) = (got := opened(bench.builder, {0: Variable(shape, frozenset())}, given, [(0,)])).slots
    assert got.factors == given.factors
    assert slot == tuple((full(i),) if size > 1 else () for size in shape)


def test_slots_of_different_rows_cannot_be_joined(device: torch.device) -> None:
    bench = Workbench(RandomTerms(0), device)
    a, b, c, i, j = Label(2), Label(3), Label(3), Label(4), Label(4)
    variable = Variable((2, 4, 3), frozenset({0, 2}))
    mixed = Term(1, (), (), ((*axes(a), *axes(b), *axes(i)), (*axes(a), *axes(c), *axes(j))))
    with pytest.raises(RowsMixError) as caught:
        joined(bench.builder, {5: variable}, mixed, [(5,), (5,)])
    assert (caught.value.variable, caught.value.axes) == (5, (2,))
    alone = mixed._replace(slots=mixed.slots[:1])
    assert joined(bench.builder, {5: variable}, alone, [(5,)]) == alone


def test_slots_of_two_variables_need_not_share_rows(device: torch.device) -> None:
    bench = Workbench(RandomTerms(0), device)
    variables = {5: Variable((2,), frozenset({0})), 6: Variable((2,), frozenset({0}))}
    term = Term(1, (), (), ((*axes(Label(2)), ()), (*axes(Label(2)), ())))
    assert joined(bench.builder, variables, term, [(5,), (6,)]) == term
    assert joined(bench.builder, variables, term, [(6,), (5,)]).slots == term.slots[::-1]


# Opening.


@pytest.mark.parametrize("variable", VARIABLES, ids=NAMES)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("number", range(3))
def test_opened_is_the_derivative(variable: Variable, order: int, number: int, device: torch.device) -> None:
    draw = RandomTerms(number)
    term = drawn(draw, variable, order)
    bench = Workbench(draw, device)
    got = opened(bench.builder, {7: variable}, contract(bench.builder, bench.named(term)), [(7,) * order])
    assert len(got.slots) == order
    expected = derivative(materialised(term, draw.tensors), len(term.out), variable, order)
    np.testing.assert_allclose(bench.meaning([got]), expected, rtol=1e-12, atol=1e-12)


def test_the_slots_of_parts_are_opened_in_turn(device: torch.device) -> None:
    draw = RandomTerms(2)
    variables = {0: Variable((2,), frozenset()), 1: Variable((3, 2), frozenset({0}))}
    b, pair, i, j = Label(3), Label(3), Label(2), Label(2)
    term = Term(1, (draw.factor(axes(pair, b, j, i)),), axes(b), (axes(pair), axes(b, j), axes(i)))
    bench = Workbench(draw, device)
    got = opened(bench.builder, variables, contract(bench.builder, bench.named(term)), [(0, 0, 1), (0,)])
    assert [len(slot) for slot in got.slots] == [1, 1, 2, 1]
    array = materialised(term, draw.tensors)
    expected = np.stack([2 * array[:, 0], array[:, 1], array[:, 1], 2 * array[:, 2]], 1)
    np.testing.assert_allclose(bench.meaning([got]), expected.reshape(3, 2, 2, *array.shape[2:]))


def test_the_cores_of_opened_terms_have_no_dimension_of_size_one(device: torch.device) -> None:
    """Such a dimension has no label, and what is done with the term next would not count it."""
    draw = RandomTerms(0)
    variable, label = Variable((1, 3), frozenset()), Label(6)
    term = Term(1, (draw.factor(axes(label)),), (), (axes(label),))
    bench = Workbench(draw, device)
    given = contract(bench.builder, bench.named(term))
    (factor,) = opened(bench.builder, {0: variable}, given, [(0, 0)]).factors
    assert [segment.extent for (segment,) in factor.axes] == [3, 3]
    assert bench.run([factor.source])[0].shape == (3, 3)


# Limits.


def test_more_entries_than_packing_pays_for_are_refused(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_ENTRIES", 9)
    draw = RandomTerms(0)
    small, large = (Term(1, (), (), (axes(Label(n)), axes(Label(n)))) for n in (3, 4))
    builder = Workbench(draw, device).builder
    assert len(joined(builder, {0: Variable((3,), frozenset())}, small, [(0,), (0,)]).slots) == 1
    with pytest.raises(DirectionsError) as caught:
        joined(builder, {0: Variable((2, 2), frozenset())}, large, [(0,), (0,)])
    assert (caught.value.directions, caught.value.order) == (4, 2)
    packed = Term(1, (), (), (axes(Label(10)),))
    with pytest.raises(DirectionsError) as caught:
        opened(builder, {0: Variable((3,), frozenset())}, packed, [(0, 0, 0)])
    assert (caught.value.directions, caught.value.order) == (3, 3)


def test_first_derivatives_are_never_refused(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_ENTRIES", 1)
    term = Term(1, (), (), (axes(Label(6)),))
    bench = Workbench(RandomTerms(0), device)
    got = opened(bench.builder, {0: Variable((2, 3), frozenset())}, term, [(0,)])
    np.testing.assert_array_equal(bench.meaning([got]), np.ones((2, 3)))


# What the steps call.


def test_collected_adds_up_entries_of_one_place(device: torch.device) -> None:
    tensor = torch.arange(12.0, device=device).reshape(2, 3, 2)
    places = torch.tensor([0, 1, 2, 1, 2, 3], device=device)
    assert collected(tensor, places, 5).tolist() == [[0, 1], [8, 10], [12, 14], [10, 11], [0, 0]]


def test_rows_are_scaled_whatever_their_shape(device: torch.device) -> None:
    weights = torch.tensor([2.0, 3.0], device=device)
    assert scaled_rows(torch.ones(2, device=device), weights).tolist() == [2, 3]
    assert scaled_rows(torch.ones(2, 1, 2, device=device), weights).tolist() == [[[2, 2]], [[3, 3]]]


def test_what_is_joined_and_opened_in_steps(device: torch.device) -> None:
    """Multiplying is one step; opening is a product of the packed entries, which are fewer, and a lookup."""
    draw = RandomTerms(0)
    b, i, j = Label(5), Label(3), Label(3)
    variable = Variable((5, 3), frozenset({0}))
    term = Term(1, (draw.factor(axes(i, j, b)),), axes(b), (axes(b, i), axes(b, j)))
    bench = Workbench(draw, device)
    got = joined(bench.builder, {0: variable}, contract(bench.builder, bench.named(term)), [(0,), (0,)])
    assert names(bench.builder.program([got.factors[0].source])) == ["collected"]
    back = opened(bench.builder, {0: variable}, got, [(0, 0)])
    steps = names(bench.builder.program([back.factors[0].source]))
    assert steps == ["collected", "scaled_rows", "index_select", "reshape"]
