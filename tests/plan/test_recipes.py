"""Recipes: what they come to for other tensors and coefficients, and that what repeats is worked out once."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hofunc.algebra.compose import compose
from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Label, full
from hofunc.algebra.term import Factor, Term, relabelled
from hofunc.plan.accumulate import accumulated
from hofunc.plan.blocks import local_blocks
from hofunc.plan.contract import contract, contracted
from hofunc.plan.recipes import composed, interned, worked
from hofunc.plan.slots import tied
from hofunc.plan.strategies import propagated
from hofunc.rules.lower import lower
from tests.algebra.dense import RandomTerms
from tests.cases import rand
from tests.graph.recordings import recorded
from tests.plan.workbench import Workbench


def with_others(draw: RandomTerms, term: Term, coefficient: float) -> Term:
    """Return a term of the same axes, of other tensors."""
    return Term(coefficient, tuple(draw.factor(factor.axes) for factor in term.factors), term.out, term.slots)


@pytest.mark.parametrize("seed", range(60))
def test_compositions_of_other_tensors_and_coefficients(seed: int, device: torch.device) -> None:
    draw = RandomTerms(seed)
    shape = draw.shape(2)
    outer, inner = draw.term(draw.shape(1), shape, (3,)), draw.term(shape, draw.shape(1))
    outers = [outer, with_others(draw, outer, 0.5), outer]
    inners = [inner, with_others(draw, inner, -3), with_others(draw, inner, 2)]
    bench = Workbench(draw, device)
    for one, other in zip(outers, inners, strict=True):
        expected = compose(one, [other, None])
        got = contracted(bench.builder, bench.named(one), [bench.named(other), None])
        through = composed(bench.builder, bench.named(one), [bench.named(other), None])
        assert (got is None) == (through is None) == (expected is None)
        if got is not None and expected is not None:
            assert len(got.factors) <= 1
            np.testing.assert_allclose(bench.meaning([got]), bench.expected([expected]), rtol=1e-12, atol=1e-12)
    assert len(bench.builder.recipes) == 1


@pytest.mark.parametrize("seed", range(40))
def test_sums_of_other_tensors_which_may_be_equal_to_each_other(seed: int, device: torch.device) -> None:
    draw = RandomTerms(seed)
    out, slot = draw.shape(1), draw.shape(2)
    terms = [draw.term(out, slot) for _ in range(3)]
    terms.append(relabelled(terms[0]))
    others = [with_others(draw, term, term.coefficient) for term in terms]
    bench = Workbench(draw, device)
    for each in (terms, others, terms[:3] + others[3:]):
        units = [Term(1, (), term.out, (term.out,)) for term in each]
        added = [contracted(bench.builder, unit, [bench.named(term)]) for unit, term in zip(units, each, strict=True)]
        got = accumulated(bench.builder, [term for term in added if term is not None])
        assert not got or np.allclose(bench.meaning(got), bench.expected(each), rtol=1e-12, atol=1e-12)
        assert got or not bench.expected(each).any()


def test_terms_of_one_pattern_have_the_same_axes(device: torch.device) -> None:
    draw = RandomTerms(0)
    builder = Workbench(draw, device).builder

    def term(size: int) -> Term:
        i, j = Label(size), Label(3)
        return Term(2, (Factor(object(), ((full(j),), (full(i),))),), ((full(i),),), (((full(j),),),))

    one, other = (interned(builder, term(4)) for _ in range(2))
    assert one.out is other.out
    assert one.slots[0] is other.slots[0]
    assert one.factors[0].axes is other.factors[0].axes
    assert one.factors[0].source is not other.factors[0].source
    assert interned(builder, term(5)).out is not one.out
    assert interned(builder, term(Rows(4))).out is not one.out, "rows are taken apart, and what is as long is not"
    assert interned(builder, term(Rows(2, 2))).out is not interned(builder, term(Rows(4))).out


def recurrence(count: int) -> Callable[..., Tensor]:
    def f(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(count):
            x = torch.tanh(w @ x) + x
        return x.sum()

    return f


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_what_repeats_is_worked_out_once(strategy: str, device: torch.device) -> None:
    counts = []
    for count in (6, 12):
        recording = recorded(recurrence(count), rand(device, 3), rand(device, 3, 3, seed=1))
        lowered = lower(recording.graph, recording.values, 2)
        builder, _ = propagated(lowered, local_blocks(lowered, 2), (2,), strategy)
        counts.append(len(builder.recipes))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [2, 3])
def test_steps_of_other_numbers_are_worked_out_once(strategy: str, order: int, device: torch.device) -> None:
    """As long as none of them is one, or equal to another one where that makes fewer steps."""

    def steps(count: int) -> Callable[[Tensor], Tensor]:
        def f(x: Tensor) -> Tensor:
            for number in range(count):
                x = x.sin() * (1.5 + number / 7) + (2.3 - number / 9) * x * x
            return x.sum()

        return f

    counts = []
    for count in (6, 12):
        recording = recorded(steps(count), rand(device, 3))
        lowered = lower(recording.graph, recording.values, order)
        builder, _ = propagated(lowered, local_blocks(lowered, order), (order,), strategy)
        counts.append(sum(len(each) if type(each) is list else 1 for each in builder.recipes.values()))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("seed", range(40))
def test_sums_of_other_coefficients(seed: int, device: torch.device) -> None:
    draw = RandomTerms(seed)
    out, slot = draw.shape(1), draw.shape(2)
    terms = [draw.term(out, slot) for _ in range(2)]
    terms += [relabelled(terms[0]), relabelled(terms[1])]
    bench = Workbench(draw, device)
    for numbers in ([2, 3, 4, 5], [0.5, -3, 7, 0.25], [1, 1, -1, 1], [2, 2, 2, 2], [0, 1, 1, 0], [3, 2, 1, 0.5]):
        given = [term._replace(coefficient=number) for term, number in zip(terms, numbers, strict=True)]
        given = [contract(bench.builder, bench.named(term)) for term in given]
        got = accumulated(bench.builder, given)
        expected = bench.expected([t._replace(coefficient=n) for t, n in zip(terms, numbers, strict=True)])
        assert not got or np.allclose(bench.meaning(got), expected, rtol=1e-12, atol=1e-12)
        assert got or not expected.any()


@pytest.mark.parametrize("seed", range(20))
def test_contractions_of_other_tensors_and_coefficients(seed: int, device: torch.device) -> None:
    draw = RandomTerms(seed)
    shape = draw.shape(2)
    first = compose(draw.term(draw.shape(1), shape), [draw.term(shape, draw.shape(1))])
    if first is None:
        return
    terms = [first, with_others(draw, first, 0.5), relabelled(with_others(draw, first, -3))]
    bench = Workbench(draw, device)
    for term in terms:
        got = worked(bench.builder, contract, bench.named(term))
        assert len(got.factors) <= 1
        np.testing.assert_allclose(bench.meaning([got]), bench.expected([term]), rtol=1e-12, atol=1e-12)


def test_slots_are_tied_once_for_all_terms_of_the_same_axes(device: torch.device) -> None:
    draw = RandomTerms(0)
    x, y, out = Label(3), Label(3), Label(2)
    axes = ((full(out),),), (((full(x),),), ((full(y),),))
    first = Term(2, (draw.factor(((full(out),), (full(x),), (full(y),))),), *axes)
    terms = [first, with_others(draw, first, -3)]
    bench, sizes = Workbench(draw, device), {"i": 3}
    for term in terms:
        got = tied(bench.builder, bench.named(term), 0, ("i", "i"), (), (), sizes)
        assert got is not None
        assert got.coefficient == term.coefficient
        assert not got.slots
        (factor,) = got.factors
        assert factor.axes[1] == factor.axes[2]  # the diagonal, which is summed
