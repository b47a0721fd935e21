"""Composition against the contraction of dense arrays."""

import numpy as np
import pytest

from hofunc.algebra.compose import compose
from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Axes, Axis, Label, Segment, fresh_axes, full
from hofunc.algebra.operators import DELTA
from hofunc.algebra.term import Factor, Term, identity, visible
from tests.algebra.dense import RandomTerms, contracted, materialised


def assert_composes(outer: Term, *inners: Term | None, draw: RandomTerms | None = None) -> Term | None:
    """Check a composition against dense arrays, and return it."""
    tensors = draw.tensors if draw is not None else {}
    got = compose(outer, inners)
    arrays = [inner and materialised(inner, tensors) for inner in inners]
    ranks = [len(slot) for slot in outer.slots]
    expected = contracted(materialised(outer, tensors), len(outer.out), ranks, arrays)
    if got is None:
        assert not expected.any()
    else:
        assert materialised(got, tensors).shape == expected.shape
        np.testing.assert_allclose(materialised(got, tensors), expected, rtol=1e-12, atol=1e-12)
    return got


def axis(*labels: Label) -> Axis:
    """Return the axis that is the product of whole labels."""
    return tuple(full(label) for label in labels)


def axes(*labels: Label) -> Axes:
    """Return one axis per label."""
    return tuple(axis(label) for label in labels)


def labels(*sizes: int) -> list[Label]:
    return [Label(size) for size in sizes]


def part(size: int, start: int, extent: int) -> Axis:
    """Return an axis of which a new label reaches a part."""
    return (Segment(Label(size), start, extent),)


@pytest.mark.parametrize("seed", range(150))
def test_random_terms(seed: int) -> None:
    draw = RandomTerms(seed)
    shapes = [draw.shape(2) for _ in range(2)]
    outer = draw.term(draw.shape(1), *shapes)
    first, second = (draw.term(shape, draw.shape(1)) for shape in shapes)
    assert_composes(outer, first, None, draw=draw)
    assert_composes(outer, None, second, draw=draw)
    assert_composes(outer, first, second, draw=draw)


# What stays and what goes.


def test_matmul_chain() -> None:
    draw = RandomTerms(0)
    b, i, j, k, left = labels(2, 3, 4, 5, 2)
    outer = Term(1, (draw.factor(axes(j, k)),), axes(b, k), (axes(b, j),))
    inner = Term(1, (draw.factor(axes(i, j)),), axes(left, j), (axes(left, i),))
    got = assert_composes(outer, inner, draw=draw)
    assert got is not None
    assert len(got.factors) == 2
    assert got.out[0] == got.slots[0][0], "the batch stays a diagonal"


def test_slots_that_stay_come_first() -> None:
    draw = RandomTerms(0)
    a, b, c = labels(2, 3, 4)
    outer = Term(1, (draw.factor(axes(a, b, c)),), (), (axes(a), axes(b), axes(c)))
    (x,) = labels(3)
    inner = Term(2, (draw.factor(axes(x)),), axes(x), ((), axes(x)))
    got = assert_composes(outer, None, inner, None, draw=draw)
    assert got is not None
    assert [len(slot) for slot in got.slots] == [1, 1, 0, 1]
    assert got.slots[:2] == (axes(a), axes(c))


def test_identity_changes_nothing() -> None:
    draw = RandomTerms(0)
    outer = draw.term((2,), (3, 4))
    assert_composes(outer, identity(fresh_axes((3, 4))), draw=draw)
    assert_composes(identity(fresh_axes((2,))), outer, draw=draw)


def test_a_term_in_two_slots_does_not_become_a_diagonal() -> None:
    draw = RandomTerms(0)
    (i,) = labels(3)
    outer = Term(1, (draw.factor(axes(i)),), (), (axes(i), axes(i)))
    (x, y) = labels(3, 2)
    inner = Term(1, (draw.factor(axes(x, y)),), axes(x), (axes(y),))
    got = assert_composes(outer, inner, inner, draw=draw)
    assert got is not None
    assert got.slots[0] != got.slots[1]


def test_a_diagonal_stays_one() -> None:
    (i,) = labels(3)
    (x,) = labels(3)
    outer = Term(1, (), (), (axes(i), axes(i)))
    got = assert_composes(outer, identity(axes(x)), identity(axes(x)))
    assert got is not None
    assert got.slots[0] == got.slots[1]
    assert not got.factors


def test_coefficients_multiply() -> None:
    (i,) = labels(3)
    outer = Term(2, (), axes(i), (axes(i), axes(i)))
    inner = identity(fresh_axes((3,)))._replace(coefficient=-3)
    got = assert_composes(outer, inner, inner)
    assert got is not None
    assert got.coefficient == 18


# Labels that nothing bears any more.


def test_a_sum_over_a_broadcast_counts_its_indices() -> None:
    total = Term(1, (), (), (fresh_axes((5,)),))
    got = assert_composes(total, Term(1, (), fresh_axes((5,)), ((),)))
    assert got is not None
    assert got.coefficient == 5


def test_the_count_is_a_number_also_where_the_indices_are_rows() -> None:
    rows = fresh_axes((Rows(5),))
    got = compose(Term(1, (), (), (rows,)), [Term(1, (), fresh_axes((Rows(5),)), ((),))])
    assert got is not None
    assert got.coefficient == 5
    assert type(got.coefficient) is int


def test_a_sum_over_part_of_a_broadcast_counts_that_part() -> None:
    total = Term(1, (), (), ((part(2, 1, 5),),))
    got = assert_composes(total, Term(1, (), fresh_axes((5,)), ((),)))
    assert got is not None
    assert got.coefficient == 2


def test_a_sum_over_a_diagonal_of_a_broadcast_counts_it_once() -> None:
    (i,) = labels(3)
    outer = Term(1, (), (), (axes(i), axes(i)))
    inner = Term(1, (), fresh_axes((3,)), ((),))
    got = assert_composes(outer, inner, inner)
    assert got is not None
    assert got.coefficient == 3


def test_a_sum_over_a_merged_broadcast_counts_every_part() -> None:
    b, i, j = labels(2, 3, 6)
    outer = Term(1, (), (), (axes(j),))
    got = assert_composes(outer, Term(1, (), (axis(b, i),), (axes(i),)))
    assert got is not None
    assert got.coefficient == 2


# Merged axes.


def test_a_merged_axis_keeps_both_labels() -> None:
    b, i, c, j = labels(2, 3, 2, 3)
    merge = Term(1, (), (axis(b, i),), (axes(b, i),))
    split = Term(1, (), axes(c, j), ((axis(c, j),),))
    got = assert_composes(split, merge)
    assert got is not None
    assert got.out == got.slots[0]
    assert not got.factors


def test_a_label_is_split_where_the_other_axis_has_a_boundary() -> None:
    b, i = labels(2, 3)
    flat = identity(fresh_axes((6,)))
    got = assert_composes(flat, Term(1, (), (axis(b, i),), (axes(b, i),)))
    assert got is not None
    assert not got.factors
    assert [len(x) for x in (*got.out, *got.slots[0])] == [2, 1, 1]


@pytest.mark.parametrize("sizes", [(2, 3), (2, 2, 3)])
def test_either_axis_is_split_without_a_factor(sizes: tuple[int, ...]) -> None:
    """The last of the labels that stand before another boundary is split as well."""
    parts, (n,) = labels(*sizes, 4), labels(4 * np.prod(sizes).item())
    for whole, split in ((axis(n), axis(*parts)), (axis(*parts), axis(n))):
        outer = Term(1, (), (whole,), ((whole,),))
        got = assert_composes(outer, Term(1, (), (split,), ((split,),)))
        assert got is not None
        assert not got.factors


def test_a_label_after_others_is_split() -> None:
    a, b, n = labels(2, 3, 6)
    c, d, i, j = labels(2, 3, 2, 3)
    for left, right in ((axis(a, b, n), axis(c, d, i, j)), (axis(c, d, i, j), axis(a, b, n))):
        got = assert_composes(Term(1, (), (left,), ((left,),)), Term(1, (), (right,), ((right,),)))
        assert got is not None
        assert not got.factors


def test_a_split_goes_through_every_factor() -> None:
    draw = RandomTerms(0)
    (n,) = labels(6)
    outer = Term(1, (draw.factor(axes(n)), draw.factor(axes(n))), axes(n), (axes(n),))
    b, i = labels(2, 3)
    assert_composes(outer, Term(1, (draw.factor(axes(i)),), (axis(b, i),), (axes(b),)), draw=draw)


TWELVE = [(12,), (2, 6), (6, 2), (3, 4), (4, 3), (2, 2, 3), (2, 3, 2), (3, 2, 2)]


@pytest.mark.parametrize("left", TWELVE)
@pytest.mark.parametrize("right", TWELVE)
def test_axes_made_up_in_any_two_ways(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Labels of either side are split, at the end of the axis and before it, or a delta ties the axes."""
    old, new = labels(*left), labels(*right)
    outer = Term(1, (), axes(*old), ((axis(*old),),))
    assert_composes(outer, Term(1, (), (axis(*new),), (axes(*new),)))


def test_boundaries_that_do_not_nest_are_tied_by_a_delta() -> None:
    old, new = labels(2, 3), labels(3, 2)
    outer = Term(1, (), axes(*old), ((axis(*old),),))
    got = assert_composes(outer, Term(1, (), (axis(*new),), (axes(*new),)))
    assert got is not None
    assert [factor.source for factor in got.factors] == [DELTA]


def test_a_label_inside_a_longer_range_is_not_split() -> None:
    (n,) = labels(6)
    outer = Term(1, (), ((Segment(n, 1, 8),),), (axes(n),))
    b, i = labels(2, 3)
    got = assert_composes(outer, Term(1, (), (axis(b, i),), (axes(b, i),)))
    assert got is not None
    assert [factor.source for factor in got.factors] == [DELTA]


def test_a_single_index_is_split() -> None:
    outer = Term(1, (), (), (((Segment(None, 4, 6),),),))
    b, i = labels(2, 3)
    got = assert_composes(outer, Term(1, (), (axis(b, i),), (axes(b, i),)))
    assert got is not None
    assert not got.factors
    assert not visible(got)
    assert [segment.start for (segment,) in got.slots[0]] == [1, 1]


# Segments: slices, pads and chunks.


def test_a_slice_of_a_pad() -> None:
    (kept,) = labels(4)
    pad = Term(1, (), ((Segment(kept, 2, 8),),), (axes(kept),))
    (taken,) = labels(4)
    cut = Term(1, (), axes(taken), (((Segment(taken, 3, 8),),),))
    got = assert_composes(cut, pad)
    assert got is not None
    (segment,) = got.slots[0][0]
    assert segment.label is got.out[0][0].label
    assert (segment.start, segment.extent) == (1, 4)


def test_a_slice_of_a_slice_of_a_slice() -> None:
    (a,), (b,), (c,) = labels(7), labels(5), labels(2)
    first = Term(1, (), axes(a), (((Segment(a, 1, 10),),),))
    second = Term(1, (), axes(b), (((Segment(b, 2, 7),),),))
    third = Term(1, (), axes(c), (((Segment(c, 2, 5),),),))
    inner = compose(second, [first])
    got = assert_composes(third, inner)
    assert got is not None
    assert got.slots[0] == ((Segment(got.out[0][0].label, 5, 10),),)


@pytest.mark.parametrize(("one", "other"), [((2, 0), (3, 2)), ((1, 4), (4, 0)), ((2, 3), (3, 0))])
def test_disjoint_segments_vanish(one: tuple[int, int], other: tuple[int, int]) -> None:
    outer = Term(1, (), (), ((part(*one, 5),),))
    assert assert_composes(outer, Term(1, (), (part(*other, 5),), ((),))) is None


def test_two_single_indices() -> None:
    outer = Term(1, (), (), (((Segment(None, 2, 4),),),))
    same, other = (Term(1, (), ((Segment(None, start, 4),),), ((),)) for start in (2, 3))
    assert assert_composes(outer, same) is not None
    assert assert_composes(outer, other) is None


def test_a_single_index_selects_from_a_part() -> None:
    draw = RandomTerms(0)
    outer = Term(1, (), (), (((Segment(None, 3, 6),),),))
    (i,) = labels(4)
    inner = Term(1, (draw.factor(axes(i)),), ((Segment(i, 1, 6),),), (axes(i),))
    got = assert_composes(outer, inner, draw=draw)
    assert got is not None
    assert got.slots[0] == ((Segment(None, 2, 4),),)


def test_a_label_met_by_itself_at_another_place_vanishes() -> None:
    """The shift y[i] = x[i + 1] has no diagonal, and its derivative put into one is zero."""
    (m,) = labels(3)
    diagonal = Term(1, (), (), (axes(m), axes(m)))
    (x, y) = labels(3, 3)
    both = compose(diagonal, [identity(axes(x)), None])
    assert both is not None
    shifted = Term(1, (), ((Segment(y, 0, 4),), (Segment(y, 1, 4),)), (axes(y),))
    outer = Term(1, (), (), ((axis(Label(4)), axis(Label(4))),))
    (n,) = labels(4)
    trace = outer._replace(slots=((axis(n), axis(n)),))
    assert assert_composes(trace, shifted) is None


def test_parts_that_overlap_share_what_both_reach() -> None:
    draw = RandomTerms(0)
    (a,), (b,) = labels(4), labels(4)
    outer = Term(1, (draw.factor(axes(a)),), axes(a), (((Segment(a, 0, 6),),),))
    inner = Term(1, (draw.factor(axes(b)),), ((Segment(b, 2, 6),),), (axes(b),))
    got = assert_composes(outer, inner, draw=draw)
    assert got is not None
    assert [label.size for label in visible(got)] == [2]


def test_chunks_of_a_concatenation_meet_only_their_own() -> None:
    """cat([x, y]) of sizes 2 and 3, cut again into the same chunks."""
    chunks = [Segment(Label(2), 0, 5), Segment(Label(3), 2, 5)]
    pairs = [(((chunk,),), axis(chunk.label)) for chunk in chunks if chunk.label is not None]
    into = [Term(1, (), whole, ((piece,),)) for whole, piece in pairs]
    outof = [Term(1, (), (piece,), (whole,)) for whole, piece in pairs]
    for one, outer in enumerate(outof):
        for other, inner in enumerate(into):
            assert (assert_composes(outer, inner) is None) == (one != other)


# Broadcasts, scalars, sizes one and zero.


def test_a_stretched_axis_sums_in_the_factor() -> None:
    draw = RandomTerms(0)
    b, i, k = labels(4, 3, 3)
    outer = Term(1, (draw.factor(axes(b, i)),), axes(b), (((), axis(i)),))
    inner = Term(1, (draw.factor(axes(k)),), ((), axis(k)), (axes(k),))
    assert_composes(outer, inner, draw=draw)


@pytest.mark.parametrize("ones", [(), (Segment(None, 0, 1),), axis(Label(1))])
@pytest.mark.parametrize("others", [(), (Segment(None, 0, 1),), axis(Label(1))])
def test_axes_of_size_one_match_however_they_are_written(ones: Axis, others: Axis) -> None:
    i, j = labels(3, 3)
    outer = Term(1, (), axes(i), ((ones, axis(i)),))
    inner = Term(1, (), (others, axis(j)), (axes(j),))
    got = assert_composes(outer, inner)
    assert got is not None
    assert not got.factors


def test_size_one_inside_a_merged_axis() -> None:
    b, one, i, n = labels(2, 1, 3, 6)
    outer = identity(axes(n))
    got = assert_composes(outer, Term(1, (), (axis(b, one, i),), (axes(b, one, i),)))
    assert got is not None
    assert not got.factors


def test_scalars() -> None:
    draw = RandomTerms(0)
    outer = Term(3, (draw.factor(()),), (), ((), ()))
    inner = Term(1, (draw.factor(()),), (), ((),))
    got = assert_composes(outer, inner, inner, draw=draw)
    assert got is not None
    assert got.slots == ((), ())
    assert len(got.factors) == 3


def test_an_empty_axis_vanishes() -> None:
    outer = Term(1, (), (), (fresh_axes((0, 2)),))
    assert assert_composes(outer, identity(fresh_axes((0, 2)))) is None
    outer = Term(1, (), (), ((axis(Label(0), Label(2)),),))
    assert assert_composes(outer, identity(fresh_axes((0,)))) is None
    nothing = Term(1, (), (), ((part(0, 2, 5),),))
    assert assert_composes(nothing, identity(fresh_axes((5,)))) is None


def test_an_empty_axis_that_is_not_contracted_stays() -> None:
    (b, i) = labels(0, 2)
    outer = Term(1, (), axes(b), (axes(i), axes(b)))
    got = assert_composes(outer, identity(fresh_axes((2,))), None)
    assert got is not None


def test_a_factor_keeps_its_source() -> None:
    (i,) = labels(2)
    outer = Term(1, (Factor("w", axes(i)),), axes(i), (axes(i),))
    got = compose(outer, [identity(fresh_axes((2,)))])
    assert got is not None
    assert got.factors[0].source == "w"


# Parts of an axis that another one splits: 12 = 3 x 4.


def split_in_three(part: Segment, given: Segment) -> Term:
    """Split an axis of 12 of which a part is reached, from an axis on which the same label lies as given."""
    b, c = labels(3, 4)
    got = assert_composes(Term(1, (), axes(b, c), ((axis(b, c),),)), Term(1, (), ((part,),), (((given,),),)))
    assert got is not None
    return got


@pytest.mark.parametrize(("size", "start"), [(4, 4), (2, 5), (1, 7), (8, 4), (12, 0), (4, 0)])
def test_a_part_of_whole_inner_parts_or_within_one_is_split(size: int, start: int) -> None:
    label = Label(size)
    assert not split_in_three(Segment(label, start, 12), full(label)).factors


@pytest.mark.parametrize(("start", "elsewhere"), [(2, full(Label(8))), (4, Segment(None, 1, 12))])
def test_a_part_across_the_inner_parts_is_tied(start: int, elsewhere: Segment) -> None:
    label = Label(8)
    got = split_in_three(Segment(label, start, 12), elsewhere._replace(label=label))
    assert [factor.source for factor in got.factors] == [DELTA]


def test_a_label_that_lies_evenly_elsewhere_is_split_there_too() -> None:
    label = Label(8)
    got = split_in_three(Segment(label, 4, 12), Segment(label, 8, 16))
    assert not got.factors
    assert [(segment.start, segment.extent) for segment in got.slots[0][0]] == [(2, 4), (0, 4)]
