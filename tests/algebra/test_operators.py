"""Selections of one index, merged where that leaves the term as it is."""

from collections.abc import Callable

import numpy as np
import pytest

from hofunc.algebra.labels import Axes, Axis, Label, Segment, extent, full
from hofunc.algebra.operators import Map, with_merged_selections
from hofunc.algebra.term import Factor, Term
from tests.algebra.dense import RandomTerms, materialised


def selection(name: str = "s", *, selects: bool = True) -> Map:
    return Map(len, len, (name,), selects=selects)


def axes(*labels: Label) -> Axes:
    return tuple((full(label),) for label in labels)


@pytest.fixture
def draw() -> RandomTerms:
    """Draw factors, with the matrix of the selection s: 3 rows that take columns 1, 0 and 1 of 4."""
    draw = RandomTerms(0)
    draw.tensors[selection()] = np.eye(4)[[1, 0, 1]]
    draw.tensors[selection("other")] = np.eye(4)[[3, 3, 1]]
    return draw


def assert_merged(term: Term, draw: RandomTerms, left: int) -> Term:
    """Check that merging leaves so many factors and changes no value."""
    got = with_merged_selections(term)
    np.testing.assert_allclose(materialised(got, draw.tensors), materialised(term, draw.tensors), atol=1e-12)
    assert len(got.factors) == left
    return got


@pytest.mark.parametrize("count", [2, 3])
def test_slots_of_one_selected_index_become_a_diagonal(draw: RandomTerms, count: int) -> None:
    m, columns = Label(3), [Label(4) for _ in range(count)]
    selected = tuple(Factor(selection(), axes(m, column)) for column in columns)
    term = Term(1, (draw.factor(axes(m)), *selected), (), tuple(axes(column) for column in columns))
    got = assert_merged(term, draw, left=2)
    assert len(set(got.slots)) == 1


def test_one_selection_is_left_alone() -> None:
    m, column = Label(3), Label(4)
    term = Term(1, (Factor(selection(), axes(m, column)),), (), (axes(column),))
    assert with_merged_selections(term) is term


def test_slots_become_a_diagonal_where_the_output_bears_the_index_too(draw: RandomTerms) -> None:
    m, first, second = Label(3), Label(4), Label(4)
    selected = tuple(Factor(selection(), axes(m, column)) for column in (first, second))
    term = Term(1, selected, axes(m), (axes(first), axes(second)))
    got = assert_merged(term, draw, left=1)
    assert got.slots[0] == got.slots[1]


def test_selections_of_two_indices_or_by_two_maps_stay_apart(draw: RandomTerms) -> None:
    m, n, first, second = Label(3), Label(3), Label(4), Label(4)
    slots = (axes(first), axes(second))
    by_two = (Factor(selection(), axes(m, first)), Factor(selection(), axes(n, second)))
    assert_merged(Term(1, (draw.factor(axes(m, n)), *by_two), (), slots), draw, left=3)
    other = (Factor(selection(), axes(m, first)), Factor(selection("other"), axes(m, second)))
    assert_merged(Term(1, (draw.factor(axes(m)), *other), (), slots), draw, left=3)


def test_a_map_that_adds_up_is_not_a_selection(draw: RandomTerms) -> None:
    m, first, second = Label(3), Label(4), Label(4)
    total = selection("total", selects=False)
    draw.tensors[total] = np.ones((3, 4))
    factors = tuple(Factor(total, axes(m, column)) for column in (first, second))
    assert_merged(Term(1, factors, (), (axes(first), axes(second))), draw, left=2)


def test_the_transpose_of_a_selection_is_one_too(draw: RandomTerms) -> None:
    m, first, second = Label(3), Label(4), Label(4)
    adds = Map(len, len, ("s",), adds=True)
    draw.tensors[adds] = draw.tensors[selection()].T
    factors = (Factor(adds, axes(first, m)), Factor(selection(), axes(m, second)))
    got = assert_merged(Term(1, (draw.factor(axes(m)), *factors), axes(first), (axes(second),)), draw, left=2)
    assert got.out == got.slots[0]


def test_a_selection_given_twice_is_one(draw: RandomTerms) -> None:
    m, column = Label(3), Label(4)
    twice = (Factor(selection(), axes(m, column)), Factor(selection(), axes(m, column)))
    assert_merged(Term(1, (draw.factor(axes(m)), *twice), (), (axes(column),)), draw, left=2)


def test_a_hidden_column_merges_into_a_visible_one(draw: RandomTerms) -> None:
    m, shown, hidden = Label(3), Label(4), Label(4)
    selected = tuple(Factor(selection(), axes(m, column)) for column in (shown, hidden))
    term = Term(1, (draw.factor(axes(m)), draw.factor(axes(hidden)), *selected), (), (axes(shown),))
    assert_merged(term, draw, left=3)


def test_two_pairs_merge_one_after_the_other(draw: RandomTerms) -> None:
    m, n, columns = Label(3), Label(3), [Label(4) for _ in range(4)]
    indices = (m, n, m, n)
    selected = tuple(Factor(selection(), axes(index, column)) for index, column in zip(indices, columns, strict=True))
    term = Term(1, (draw.factor(axes(m, n)), *selected), (), tuple(axes(column) for column in columns))
    got = assert_merged(term, draw, left=3)
    assert got.slots[0] == got.slots[2] != got.slots[1] == got.slots[3]


def test_separate_axes_have_to_agree(draw: RandomTerms) -> None:
    """The factor's axes are those of the output, of the input, and those along which it acts separately."""
    m, b, c, first, second = Label(3), Label(2), Label(2), Label(4), Label(4)
    draw.tensors[selection("rows")] = np.eye(4)[[[1, 0], [2, 3], [1, 1]]].transpose(0, 2, 1)
    slots = (axes(first), axes(second))
    for labels, left in (((b, b), 2), ((b, c), 3)):
        pairs = zip((first, second), labels, strict=True)
        selected = tuple(Factor(selection("rows"), axes(m, column, label)) for column, label in pairs)
        factor = draw.factor(axes(m, *dict.fromkeys(labels)))
        assert_merged(Term(1, (factor, *selected), (), slots), draw, left=left)


@pytest.mark.parametrize(
    "column",
    [
        lambda: (),
        lambda: (full(Label(2)), full(Label(2))),
        lambda: (Segment(Label(2), 1, 4),),
        lambda: (Segment(None, 1, 4),),
    ],
    ids=["of size one", "merged", "in part", "a single index"],
)
def test_only_whole_labels_merge(draw: RandomTerms, column: Callable[[], Axis]) -> None:
    m, first, second = Label(3), column(), column()
    source = selection(f"of {extent(first)}")
    draw.tensors[source] = np.eye(extent(first))[[0, 0, extent(first) - 1]]
    selected = tuple(Factor(source, (*axes(m), axis)) for axis in (first, second))
    assert_merged(Term(1, (draw.factor(axes(m)), *selected), (), ((first,), (second,))), draw, left=3)
