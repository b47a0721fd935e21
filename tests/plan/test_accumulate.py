"""Sums of terms against their meaning, and which terms become one."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jacrev
from torch.nn import functional

import hofunc
from hofunc.algebra.labels import Axes, Axis, Label, Segment, full
from hofunc.algebra.term import Term, relabelled
from hofunc.plan.accumulate import accumulated, dense
from hofunc.plan.contract import contract
from hofunc.plan.cost import cost_of
from tests.algebra.dense import RandomTerms
from tests.cases import rand
from tests.plan.plans import lowered_plan, names
from tests.plan.workbench import Workbench
from verification.oracles import relative_error


def axes(*labels: Label) -> Axes:
    """Return one whole axis per label."""
    return tuple((full(label),) for label in labels)


def part(label: Label, start: int, extent: int) -> Axis:
    return (Segment(label, start, extent),)


def assert_adds_up(terms: list[Term], draw: RandomTerms, device: torch.device, count: int | None = None) -> list[str]:
    """Check the sum of terms and its dense tensor; returns the names of the steps of the sum."""
    bench = Workbench(draw, device)
    got = accumulated(bench.builder, [contract(bench.builder, bench.named(term)) for term in terms])
    expected = bench.expected(terms)
    if got:
        np.testing.assert_allclose(bench.meaning(got), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(bench.run([dense(bench.builder, got)])[0], expected, rtol=1e-12, atol=1e-12)
    else:
        assert not expected.any()
    assert count is None or len(got) == count
    return names(bench.builder.program([factor.source for term in got for factor in term.factors]))


@pytest.mark.parametrize("seed", range(60))
def test_random_terms(seed: int, device: torch.device) -> None:
    draw = RandomTerms(seed)
    out, slot = draw.shape(1), draw.shape(2)
    terms = [draw.term(out, slot) for _ in range(3)]
    assert_adds_up([*terms, relabelled(terms[0])], draw, device)


def test_terms_of_one_pattern_become_one(device: torch.device) -> None:
    draw = RandomTerms(0)
    terms = []
    for _ in range(3):
        i, j = Label(2), Label(3)
        terms.append(Term(1, (draw.factor(axes(j, i)),), axes(i), (axes(j),)))
    assert assert_adds_up(terms, draw, device, 1).count("add") == 2


def test_the_same_core_is_weighted_rather_than_added(device: torch.device) -> None:
    draw = RandomTerms(0)
    i = Label(3)
    term = Term(1, (draw.factor(axes(i)),), axes(i), (axes(i),))
    assert assert_adds_up([term, term, relabelled(term)], draw, device, 1) == []


def test_terms_that_cancel_are_gone(device: torch.device) -> None:
    draw = RandomTerms(0)
    i = Label(3)
    term = Term(2, (draw.factor(axes(i)),), axes(i), (axes(i),))
    assert assert_adds_up([term, term._replace(coefficient=-2)], draw, device, 0) == []
    one = Term(2, (), axes(i), (axes(i),))
    assert_adds_up([one, one._replace(coefficient=-2)], draw, device, 0)
    assert_adds_up([one, one._replace(coefficient=3)], draw, device, 1)


def test_a_common_coefficient_is_left_outside(device: torch.device) -> None:
    draw = RandomTerms(0)
    i = Label(3)
    terms = [Term(-3, (draw.factor(axes(i)),), (), (axes(i),)) for _ in range(2)]
    assert assert_adds_up(terms, draw, device, 1) == ["add"]


def test_cores_with_fewer_labels_are_broadcast(device: torch.device) -> None:
    draw = RandomTerms(0)
    i, j = Label(2), Label(3)
    shape = (axes(i), (axes(j),))
    terms = [Term(2, (draw.factor(axes(*own)),), *shape) for own in ((i,), (j,), (i, j), (j, i), ())]
    assert_adds_up([*terms, Term(5, (), *shape)], draw, device, 1)


def test_cores_with_fewer_labels_are_added_up_first(device: torch.device) -> None:
    draw = RandomTerms(0)
    i, j = Label(2), Label(3)
    terms = [Term(1, (draw.factor(axes(*own)),), axes(i), (axes(j),)) for own in ((i, j), (i,), (i,))]
    bench = Workbench(draw, device)
    (got,) = accumulated(bench.builder, [contract(bench.builder, bench.named(term)) for term in terms])
    program = bench.builder.program([factor.source for factor in got.factors])
    assert cost_of(program, device).flops == 2 + 6


def test_tensors_are_added_as_most_lie_in_memory(device: torch.device) -> None:
    """One of three is turned, whatever comes first, and the sum lies as the others do."""
    draw = RandomTerms(0)
    i, j, k = Label(2), Label(3), Label(4)
    for orders in ([(k, i, j), (i, j, k), (i, j, k)], [(i, j, k), (k, i, j), (i, j, k)], [(i, j, k)] * 2 + [(k, i, j)]):
        terms = [Term(1, (draw.factor(axes(*order)),), (), (axes(i), axes(j), axes(k))) for order in orders]
        assert sorted(assert_adds_up(terms, draw, device, 1)) == ["add", "add", "permute"]
        bench = Workbench(draw, device)
        (got,) = accumulated(bench.builder, [contract(bench.builder, bench.named(term)) for term in terms])
        assert bench.run([factor.source for factor in got.factors])[0].strides == (8 * 12, 8 * 4, 8)


def test_a_diagonal_is_folded_into_a_dense_term(device: torch.device) -> None:
    draw = RandomTerms(0)
    i, j, k = Label(3), Label(3), Label(3)
    full_term = Term(2, (draw.factor(axes(i, j)),), (), (axes(i), axes(j)))
    diagonal = Term(-1, (draw.factor(axes(k)),), (), (axes(k), axes(k)))
    assert_adds_up([diagonal, full_term], draw, device, 1)
    assert_adds_up([full_term, diagonal._replace(factors=())], draw, device, 1)
    assert_adds_up([full_term._replace(factors=()), diagonal], draw, device, 1)
    assert_adds_up([full_term._replace(factors=full_term.factors[:0], coefficient=-1), diagonal], draw, device, 1)


def test_a_diagonal_alone_stays_one(device: torch.device) -> None:
    draw = RandomTerms(0)
    b, i = Label(3), Label(2)
    one = Term(1, (draw.factor(axes(b)),), (), (axes(b, i), axes(b, i)))
    j, k, m = Label(3), Label(2), Label(2)
    other = Term(1, (draw.factor(axes(j, k, m)),), (), (axes(j, k), axes(j, m)))
    assert_adds_up([one, other], draw, device, 1)
    assert_adds_up([one], draw, device, 1)


def test_patterns_that_do_not_contain_each_other_stay_apart(device: torch.device) -> None:
    draw = RandomTerms(0)
    i, j = Label(3), Label(3)
    first = Term(1, (draw.factor(axes(i, j)),), axes(i), (axes(i), axes(j)))
    second = Term(1, (draw.factor(axes(i, j)),), axes(i), (axes(j), axes(i)))
    assert assert_adds_up([first, second], draw, device, 2) == []


def test_chunks_come_back_together(device: torch.device) -> None:
    """The diagonals of two halves are that of the whole; a lone part stays what it is, and so do distant ones."""
    draw = RandomTerms(0)
    parts = []
    for size, start in ((3, 0), (2, 3)):
        label = Label(size)
        parts.append(Term(1, (draw.factor(axes(label)),), (), ((part(label, start, 5),),) * 2))
    assert assert_adds_up(parts, draw, device, 1) == ["concatenated"]
    assert assert_adds_up(parts[1:], draw, device, 1) == []

    def moved(term: Term, by: int) -> Term:
        slots = [tuple((s._replace(extent=50, start=s.start + by),) for (s,) in x) for x in term.slots]
        return term._replace(slots=tuple(slots))

    assert_adds_up([moved(term, 10) for term in parts], draw, device, 1)
    assert assert_adds_up([moved(term, 20 * place) for place, term in enumerate(parts)], draw, device, 2) == []


def test_steps_of_a_sequence_come_together(device: torch.device) -> None:
    """Each is read by its index; the range that they reach is dense, in one slot and in two."""
    draw = RandomTerms(0)
    i, j = Label(2), Label(3)

    def read(*steps: int) -> Term:
        slots = tuple(((Segment(None, step, 9),), (full(label),)) for step, label in zip(steps, (j, i), strict=False))
        labels = (j, i)[: len(steps)]
        return Term(1, (draw.factor(axes(*labels)),), (), slots)

    assert assert_adds_up([read(2), read(3), read(4)], draw, device, 1).count("concatenated") == 1
    grid = [read(first, second) for first in (2, 3) for second in (2, 3)]
    assert assert_adds_up(grid, draw, device, 1).count("concatenated") == 3
    assert_adds_up([read(0), read(8)], draw, device, 2)
    assert_adds_up([read(0), read(2), read(4), read(6), read(8)], draw, device, 1)


def test_parts_that_lie_in_each_other_are_added_from_the_least_on(device: torch.device) -> None:
    """So that no step reads or writes all of the largest for the sake of a small one."""
    draw = RandomTerms(0)
    labels = [Label(size) for size in (2, 4, 7, 9)]
    terms = [Term(1, (draw.factor(axes(label)),), (), ((part(label, 0, 9),),)) for label in labels]
    assert assert_adds_up(terms[::-1], draw, device, 1).count("add") == 3


def recurrence(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(2, dtype=x.dtype)
    for row in x:
        state = (state + row).tanh()
    return state.square().sum()


def test_a_state_has_the_axes_of_few_patterns() -> None:
    made = lowered_plan(recurrence, rand(torch.device("cpu"), 40, 2), strategy="mixed")
    sizes = {cost.shape for cost in made.cost.steps if len(cost.shape) == 3 and cost.shape[::2] == (2, 2)}
    assert len(sizes) < 16  # of 40 steps


def test_what_a_state_does_not_depend_on_stays_zero_beside_a_slope_that_is_infinite() -> None:
    """A range that has more zeros than it needs would make nan of them."""

    def f(x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(2)
        for row in x:
            state = (state + row).sqrt()
        return state.sum()

    x = torch.zeros(9, 2, dtype=torch.float64)
    x[0], x[4], x[5] = 1, -1, 1  # the fifth is the root of zero
    slopes = hofunc.jacobian(f, strategy="forward")(x)
    torch.testing.assert_close(slopes[5:], jacrev(f)(x)[5:])


def test_means_are_added_to_what_was_reshaped(device: torch.device) -> None:
    """As in normalisation by groups, which then takes what normalisation of the last axis does."""
    x = rand(device, 2, 4, 3, 3)

    def by_groups(x: Tensor) -> Tensor:
        return functional.group_norm(x.tanh(), 2).pow(3).sum()

    def of_layers(x: Tensor) -> Tensor:
        return functional.layer_norm(x.tanh(), (18,)).pow(3).sum()

    product = hofunc.hvp(by_groups)
    rows = x.reshape(2, 2, 18)
    assert product.plan(x, vector=x).flops <= hofunc.hvp(of_layers).plan(rows, vector=rows).flops
    expected = torch.func.jvp(torch.func.grad(by_groups), (x,), (x,))[1]
    assert relative_error(product(x, vector=x), expected) < 1e-12


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize(("order", "count"), [(1, 200), (2, 200), (3, 200), (1, 1100)])
def test_coefficients_of_many_steps_neither_overflow_nor_underflow(strategy: str, order: int, count: int) -> None:
    """Each step doubles the coefficient and halves the tensor; no number of single precision has 2^200."""

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = x * x + 0.25
        return x.sum()

    x = torch.full((2,), 0.5)  # which stays where it is, so that the derivatives are 1, 1 + 1 + ..., and their sums
    expected = {1: 1, 2: 2 * count, 3: 6 * count * (count - 1)}[order]
    found = hofunc.hod(f, order, strategy=strategy)(x)
    assert found[(0,) * order].item() == expected


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_coefficients_of_many_steps_along_slots_neither_overflow_nor_underflow(strategy: str) -> None:
    places = torch.tensor([1, 0])

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(200):
            x = (x * x)[places] + 0.25
        return x.sum()

    laplacian = hofunc.einsum(f, ", i, i ->", strategy=strategy)
    assert laplacian(torch.full((2,), 0.5)).item() == 800
