"""Contraction against the meaning of terms, and what it is lowered to."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hofunc.algebra.compose import compose
from hofunc.algebra.labels import Axes, Label, full, labels_of
from hofunc.algebra.operators import DELTA, Map
from hofunc.algebra.term import Factor, Term, visible
from hofunc.plan.contract import _around, contract
from tests.algebra.dense import RandomTerms
from tests.plan.plans import names
from tests.plan.workbench import Workbench


def axes(*labels: Label) -> Axes:
    """Return one whole axis per label."""
    return tuple((full(label),) for label in labels)


def labels(*sizes: int) -> list[Label]:
    return [Label(size) for size in sizes]


def assert_contracts(term: Term, draw: RandomTerms, device: torch.device) -> list[str]:
    """Check a contraction, and return the names of its steps."""
    bench = Workbench(draw, device)
    got = contract(bench.builder, bench.named(term))
    assert len(got.factors) <= 1
    assert (got.out, got.slots) == (term.out, term.slots)
    own = list(labels_of(*(factor.axes for factor in got.factors)))
    assert len(set(own)) == len(own)
    assert {*own} <= visible(term).keys()
    np.testing.assert_allclose(bench.meaning([got]), bench.expected([term]), rtol=1e-12, atol=1e-12)
    return names(bench.builder.program([factor.source for factor in got.factors]))


@pytest.mark.parametrize("seed", range(60))
def test_random_compositions(seed: int, device: torch.device) -> None:
    draw = RandomTerms(seed)
    shape = draw.shape(2)
    term = compose(draw.term(draw.shape(1), shape, (3,)), [draw.term(shape, draw.shape(1)), None])
    if term is not None:
        assert "einsum" not in assert_contracts(term, draw, device)


# Steps counted by hand.

Build = Callable[[RandomTerms], Term]


def _matmul(draw: RandomTerms) -> Term:
    i, j, k = labels(2, 3, 4)
    return Term(1, (draw.factor(axes(i, k)), draw.factor(axes(k, j))), axes(i), (axes(j),))


def _batched(draw: RandomTerms) -> Term:
    b, i, j, k = labels(5, 2, 3, 4)
    return Term(1, (draw.factor(axes(b, i, k)), draw.factor(axes(b, k, j))), axes(b, i), (axes(b, j),))


def _elementwise(draw: RandomTerms) -> Term:
    i, j = labels(2, 3)
    return Term(1, (draw.factor(axes(i, j)), draw.factor(axes(i, j))), (), (axes(i, j),))


def _scaled_rows(draw: RandomTerms) -> Term:
    i, j = labels(2, 3)
    return Term(1, (draw.factor(axes(i)), draw.factor(axes(i, j))), (), (axes(i, j),))


def _outer(draw: RandomTerms) -> Term:
    i, j = labels(2, 3)
    return Term(1, (draw.factor(axes(i)), draw.factor(axes(j))), axes(i), (axes(j),))


def _hidden(draw: RandomTerms) -> Term:
    i, j = labels(2, 3)
    return Term(1, (draw.factor(axes(i, j)),), axes(i), ((),))


def _inner(draw: RandomTerms) -> Term:
    (i,) = labels(3)
    return Term(1, (draw.factor(axes(i)), draw.factor(axes(i))), (), ((),))


@pytest.mark.parametrize(
    ("build", "steps"),
    [
        (_matmul, ["mm"]),
        (_batched, ["bmm"]),
        (_elementwise, ["mul"]),
        (_scaled_rows, ["mul"]),
        (_outer, ["mul"]),
        (_hidden, ["sum"]),
        (_inner, ["mul", "sum"]),
    ],
)
def test_steps_that_are_no_views(build: Build, steps: list[str], device: torch.device) -> None:
    draw = RandomTerms(0)
    got = assert_contracts(build(draw), draw, device)
    views = {"transpose", "permute", "unsqueeze"}
    assert [name for name in got if name not in views] == steps


def test_where_what_is_summed_comes_first_the_long_axis_stays_last(device: torch.device) -> None:
    i, j, n = labels(3, 2, 7)
    draw = RandomTerms(0)
    term = Term(1, (draw.factor(axes(i, n)), draw.factor(axes(j, i))), axes(n), (axes(j),))
    bench = Workbench(draw, device)
    got = contract(bench.builder, bench.named(term))
    assert labels_of(got.factors[0].axes) == [j, n]
    assert assert_contracts(term, draw, device) == ["mm"]


def test_what_is_summed_by_rows_stays_where_it_lies(device: torch.device) -> None:
    """A sum over j of z_ij z_j for every b and f: the derivative of a sum over turned axes takes torch far longer."""
    draw = RandomTerms(0)
    i, j, b, f = labels(2, 2, 5, 3)
    term = Term(1, (draw.factor(axes(i, j, b, f)), draw.factor(axes(j, b, f))), axes(b, f), (axes(i),))
    assert assert_contracts(term, draw, device) == ["mul", "sum"]


@pytest.mark.parametrize(("rows", "order", "copied"), [(16, "wi", True), (16, "iw", False), (4, "wi", False)])
def test_a_large_product_lies_as_its_axes_are(rows: int, order: str, copied: bool, device: torch.device) -> None:
    """Slopes of rows times a weight that would be turned: what would follow had to copy the product."""
    named = dict(zip("bwi", labels(rows, 4, 3), strict=True))
    b, w, i = named.values()
    draw = RandomTerms(0)
    slopes, weight = draw.factor(axes(b, w)), draw.factor(axes(*(named[name] for name in order)))
    term = Term(1, (slopes, weight), axes(b), (axes(i, w),))
    assert ("contiguous" in assert_contracts(term, draw, device)) == copied
    bench = Workbench(draw, device)
    factor = contract(bench.builder, bench.named(term)).factors[0]
    (product,) = bench.run([factor.source])
    assert list(labels_of(factor.axes)) == [i, b, w]
    assert product.flags.c_contiguous or rows == 4


@pytest.mark.parametrize(("order", "steps"), [("kib", ["mul", "sum"]), ("ikb", ["mul", "sum"]), ("bik", ["bmm"])])
def test_products_of_matrices_and_vectors_that_lie_across_each_other_are_multiplied_and_summed(
    order: str, steps: list[str], device: torch.device
) -> None:
    """A sum over k of z_ik v_k for every b that lies last: torch copies every matrix, and takes ten times as long."""
    named = dict(zip("bik", labels(5, 32, 4), strict=True))
    b, i, k = named.values()
    draw = RandomTerms(0)
    matrices = draw.factor(axes(*(named[name] for name in order)))
    vectors = draw.factor(axes(k, b) if order.endswith("b") else axes(b, k))
    term = Term(1, (matrices, vectors), axes(b), (axes(i),))
    assert [step for step in assert_contracts(term, draw, device) if step in ("mul", "sum", "bmm")] == steps


@pytest.mark.parametrize(
    ("rows", "width", "columns", "product"), [(128, 16, 3, "mm"), (128, 16, 16, "bmm"), (4, 8, 3, "bmm")]
)
def test_products_with_few_columns_are_one(
    rows: int, width: int, columns: int, product: str, device: torch.device
) -> None:
    """128 products of 16 x 16 by 16 x 3 take torch as long as by 16 x 16; 4 of 8 x 8, no longer than to turn them."""
    b, j, k, n = labels(rows, width, width, columns)
    draw = RandomTerms(0)
    term = Term(1, (draw.factor(axes(b, k, n)), draw.factor(axes(j, k))), axes(b), (axes(j, n),))
    steps = assert_contracts(term, draw, device)
    assert [step for step in steps if step in ("mm", "bmm")] == [product]


@pytest.mark.parametrize(
    ("summed", "around"),
    [
        ([1], ([0], [2, 3, 4])),
        ([2, 1], ([0], [3, 4])),
        ([2, 3], ([0, 1], [4])),
        ([0, 1], None),
        ([4], None),
        ([1, 3], None),
        ([0, 1, 2, 3, 4], None),
    ],
)
def test_labels_around_those_that_are_summed(summed: list[int], around: tuple[list[int], list[int]] | None) -> None:
    own = labels(2, 3, 4, 5, 6)
    expected = None if around is None else tuple(tuple(own[place] for place in side) for side in around)
    assert _around(tuple(own), tuple(own[place] for place in summed)) == expected


def test_a_batch_is_neither_summed_nor_doubled(device: torch.device) -> None:
    """W^T diag(d_b) W for every b: one product by rows and one matrix product over (b, i), no bmm of full size."""
    draw = RandomTerms(0)
    b, k, i, j = labels(6, 4, 3, 2)
    factors = (draw.factor(axes(b, k)), draw.factor(axes(k, i)), draw.factor(axes(k, j)))
    got = assert_contracts(Term(1, factors, axes(b), (axes(b, i), axes(b, j))), draw, device)
    assert got.count("mm") + got.count("bmm") == 1
    assert got.count("mul") == 1


def test_the_cheap_order_is_taken(device: torch.device) -> None:
    """A (2 x 50) times B (50 x 50) times c (50): from the right, so that no product of matrices is made."""
    draw = RandomTerms(0)
    i, j, k = labels(2, 50, 50)
    factors = (draw.factor(axes(i, j)), draw.factor(axes(j, k)), draw.factor(axes(k)))
    bench = Workbench(draw, device)
    got = contract(bench.builder, bench.named(Term(1, factors, axes(i), ((),))))
    np.testing.assert_allclose(bench.meaning([got]), bench.expected([Term(1, factors, axes(i), ((),))]), rtol=1e-12)
    steps = bench.builder.program([factor.source for factor in got.factors]).steps
    computed = [register for register in bench.builder._producers if register.index in {step.target for step in steps}]
    assert max(array.size for array in bench.run(computed)) == 50


def test_a_term_without_factors_is_contracted_already(device: torch.device) -> None:
    term = Term(3, (), axes(*labels(2)), ((),))
    bench = Workbench(RandomTerms(0), device)
    assert contract(bench.builder, term) is term
    assert not bench.builder.program([]).steps


# Deltas and maps.


def _delta(draw: RandomTerms, *, hidden: bool, factor: bool) -> Term:
    """A reshape of (2, 3) to (3, 2), which no relabelling describes."""
    a, b, c, d = labels(2, 3, 3, 2)
    tie = Factor(DELTA, ((full(a), full(b)), (full(c), full(d))))
    factors = (draw.factor(axes(b, a)), tie) if factor else (tie,)
    return Term(2, factors, axes(c, d), (() if hidden else axes(a, b),))


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("factor", [True, False])
def test_a_delta(hidden: bool, factor: bool, device: torch.device) -> None:
    draw = RandomTerms(0)
    term = _delta(draw, hidden=hidden, factor=factor)
    steps = assert_contracts(term, draw, device)
    assert ("eye_like" in steps) == (not hidden), "a delta is applied, and built only where both of its ends are seen"


def test_two_deltas_in_a_row(device: torch.device) -> None:
    draw = RandomTerms(0)
    a, b, c, d, e, f = labels(2, 3, 3, 2, 6, 1)
    ties = (
        Factor(DELTA, ((full(a), full(b)), (full(c), full(d)))),
        Factor(DELTA, ((full(c), full(d)), (full(e), full(f)))),
    )
    assert_contracts(Term(1, (draw.factor(axes(a, b)), *ties), axes(e), (axes(f),)), draw, device)
    assert_contracts(Term(1, ties, axes(e), (axes(a, b),)), draw, device)


def reversed_sums(tensor: torch.Tensor) -> torch.Tensor:
    """Add up along the last axis, from its end."""
    return tensor.flip(-1).cumsum(-1).flip(-1)


SUMS = Map(lambda tensor: tensor.cumsum(-1), reversed_sums, ())


@pytest.mark.parametrize("shown", ["out", "in", "both", "neither"])
def test_a_map_is_applied_where_one_end_is_contracted(shown: str, device: torch.device) -> None:
    draw = RandomTerms(0)
    matrix = np.tril(np.ones((4, 4)))
    out, into, other = labels(4, 4, 3)
    operands = {
        "out": (draw.factor(axes(into, other)),),
        "in": (draw.factor(axes(out, other)),),
        "both": (),
        "neither": (draw.factor(axes(into)), draw.factor(axes(out, other))),
    }[shown]
    slots = {"out": axes(out), "in": axes(into), "both": axes(out, into), "neither": ()}[shown]
    term = Term(1, (*operands, Factor(SUMS, axes(out, into))), () if shown == "both" else axes(other), (slots,))
    bench = Workbench(draw, device)
    named = bench.named(term._replace(factors=operands))
    got = contract(bench.builder, named._replace(factors=(*named.factors, term.factors[-1])))
    draw.tensors[SUMS] = matrix
    np.testing.assert_allclose(bench.meaning([got]), bench.expected([term]), rtol=1e-12, atol=1e-12)
    steps = names(bench.builder.program([factor.source for factor in got.factors]))
    assert ("eye_like" in steps) == (shown == "both")


def test_operands_that_a_map_is_summed_with_are_multiplied_before(device: torch.device) -> None:
    draw = RandomTerms(0)
    out, into = labels(4, 4)
    ends = [draw.factor(axes(label)) for label in (out, out, into, into)]
    matrix = draw.factor(axes(out, into))
    bench = Workbench(draw, device)
    *operands, _ = bench.named(Term(1, (*ends, matrix), (), ((),))).factors
    got = contract(bench.builder, Term(1, (*operands, Factor(SUMS, axes(out, into))), (), ((),)))
    steps = names(bench.builder.program([factor.source for factor in got.factors]))
    assert "eye_like" not in steps
    assert "reversed_sums" in steps


def test_maps_that_share_a_label_are_applied_from_the_ends(device: torch.device) -> None:
    draw = RandomTerms(0)
    shared, one, other = labels(4, 4, 4)
    term = Term(1, (draw.factor(axes(shared)), draw.factor(axes(one))), axes(other), ((),))
    bench = Workbench(draw, device)
    operands = bench.named(term).factors
    maps = (Factor(SUMS, axes(shared, one)), Factor(SUMS, axes(shared, other)))
    for order in (maps, maps[::-1]):  # that of the open label waits for the other one
        got = contract(bench.builder, term._replace(factors=(*operands, *order)))
        assert "eye_like" not in names(bench.builder.program([factor.source for factor in got.factors]))


def test_a_map_that_cannot_be_applied_is_replaced_by_its_parts(device: torch.device) -> None:
    draw = RandomTerms(0)
    out, into, one, other = labels(4, 3, 5, 6)
    ends = [draw.factor(axes(into, one)), draw.factor(axes(into, other))]  # whose product is larger than the matrix
    term = Term(1, (*ends, draw.factor(axes(out, into))), axes(out, one, other), ((),))
    bench = Workbench(draw, device)
    *operands, matrix = bench.named(term).factors
    source = SUMS._replace(parts=lambda _: (matrix,))
    got = contract(bench.builder, term._replace(factors=(*operands, Factor(source, axes(out, into)))))
    np.testing.assert_allclose(bench.meaning([got]), bench.expected([term]), rtol=1e-12, atol=1e-12)
    assert "eye_like" not in names(bench.builder.program([factor.source for factor in got.factors]))
