"""Which terms can be added into one: groups, covers and embeddings, against dense arrays."""

import numpy as np
import pytest

from hofunc.algebra.combine import cover, embedding, grouped, is_partial, split_alike
from hofunc.algebra.labels import Axes, Bindings, Label, Segment, fresh_axes, full, labels_of
from hofunc.algebra.term import Factor, Term, pattern, rebound, relabelled, visible
from tests.algebra.dense import RandomTerms, materialised


def bare(out: Axes, *slots: Axes) -> Term:
    return Term(1, (), out, slots)


def reach(term: Term) -> np.ndarray:
    """Return which elements a term can reach."""
    return materialised(bare(term.out, *term.slots), {}) != 0


def part(label: Label, start: int, extent: int) -> Axes:
    return ((Segment(label, start, extent),),)


# Groups.


@pytest.mark.parametrize("seed", range(20))
def test_groups_share_names_and_keep_their_values(seed: int) -> None:
    draw = RandomTerms(seed)
    first, second = draw.term((4,), (3,), (4,)), draw.term((4,), (3,), (4,))
    other = relabelled(first)._replace(factors=(), coefficient=5)
    groups = grouped([first, second, other])
    assert sum(map(len, groups)) == 3
    assert groups[0][0] == first
    for term in groups[0][1:]:
        assert (term.out, term.slots) == (first.out, first.slots)
    assert 5 in [term.coefficient for term in groups[0]]
    total = sum(materialised(term, draw.tensors) for group in groups for term in group)
    expected = sum(materialised(term, draw.tensors) for term in (first, second, other))
    np.testing.assert_allclose(total, expected, rtol=1e-12, atol=1e-12)


def test_a_diagonal_and_a_full_term_are_two_groups() -> None:
    i = full(Label(3))
    diagonal, dense = bare((), ((i,),), ((i,),)), bare((), fresh_axes((3,)), fresh_axes((3,)))
    assert [len(group) for group in grouped([diagonal, dense, relabelled(diagonal)])] == [2, 1]


def test_hidden_labels_are_not_renamed_into_visible_ones() -> None:
    draw = RandomTerms(0)
    i, j, hidden = Label(3), Label(3), Label(3)
    first = bare(((full(i),),), ((full(j),),))
    second = Term(1, (draw.factor(((full(j),), (full(hidden),))),), ((full(j),),), (((full(i),),),))
    ((_, got),) = grouped([first, second])
    assert (got.out, got.slots) == (first.out, first.slots)
    np.testing.assert_allclose(materialised(got, draw.tensors), materialised(second, draw.tensors))


# Covers.


@pytest.mark.parametrize("seed", range(40))
def test_a_cover_is_whole_and_contains_its_term(seed: int) -> None:
    draw = RandomTerms(seed)
    term = draw.term(draw.shape(2), draw.shape(2))
    whole = cover(term)
    assert not is_partial(whole)
    assert not (reach(term) & ~reach(whole)).any()
    assert pattern(cover(whole)) == pattern(whole)


def test_parts_of_one_whole_have_one_cover() -> None:
    covers = {pattern(cover(bare(*[part(label, start, 5)] * 2))) for label, start in ((Label(2), 0), (Label(3), 2))}
    i = Label(5)
    assert covers == {pattern(bare(part(i, 0, 5), part(i, 0, 5)))}


def test_a_shift_is_not_covered_by_a_diagonal() -> None:
    label = Label(3)
    whole = cover(bare(part(label, 0, 5), part(label, 1, 5)))
    assert len(visible(whole)) == 2
    assert reach(whole).all()


def test_single_indices_are_covered_by_labels_of_their_own() -> None:
    index = ((Segment(None, 2, 3),),)
    whole = cover(bare(index, index))
    assert len(visible(whole)) == 2


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (part(Label(3), 0, 3), False),
        (part(Label(3), 1, 4), True),
        (((Segment(None, 0, 1),),), False),
        (((Segment(None, 0, 2),),), True),
        ((), False),
    ],
)
def test_a_partial_term(axes: Axes, expected: bool) -> None:
    assert is_partial(bare(axes, ())) is expected
    assert is_partial(bare((), axes)) is expected


# Embeddings.


def assert_embeds(special: Term, general: Term) -> None:
    bindings = embedding(special, general)
    assert bindings is not None
    assert bindings.keys() == visible(general).keys()
    placed = rebound(bare(general.out, *general.slots), bindings)
    np.testing.assert_array_equal(reach(placed), reach(special))


@pytest.mark.parametrize("seed", range(60))
def test_a_term_embeds_in_what_it_is_a_special_case_of(seed: int) -> None:
    """Narrow some labels of a random term, make some equal and fix some: the result lies in the term."""
    draw, random = RandomTerms(seed), np.random.default_rng(seed)
    general = draw.term(draw.shape(2), draw.shape(2), draw.shape(1))
    names: Bindings = {}
    for label in visible(general):
        narrow = Label(int(random.integers(1, label.size + 1)))
        equal = [target for old, (target,) in names.items() if old.size == label.size]
        start = int(random.integers(0, label.size - narrow.size + 1))
        choices = [
            full(Label(label.size)),
            Segment(narrow, start, label.size),
            Segment(None, start, label.size),
            *equal,
        ]
        names[label] = (choices[random.integers(0, len(choices))],)
    special = rebound(bare(general.out, *general.slots), names)
    assert_embeds(special, general)


@pytest.mark.parametrize("seed", range(200))
def test_an_embedding_of_random_terms_is_true(seed: int) -> None:
    draw = RandomTerms(seed)
    general, special = (draw.term((4,), (3,), (4,)) for _ in range(2))
    if embedding(special, general) is not None:
        assert_embeds(special, general)


def test_a_dense_term_does_not_lie_in_a_diagonal() -> None:
    i = Label(3)
    diagonal, dense = bare(part(i, 0, 3), part(i, 0, 3)), bare(fresh_axes((3,)), fresh_axes((3,)))
    assert embedding(dense, diagonal) is None
    assert_embeds(diagonal, dense)


def test_a_part_lies_only_in_a_range_that_contains_it() -> None:
    narrow, wide = bare(part(Label(2), 2, 6)), bare(part(Label(3), 1, 6))
    assert_embeds(narrow, wide)
    assert embedding(wide, narrow) is None
    assert embedding(bare(part(Label(2), 3, 6)), wide) is None
    assert_embeds(bare(((Segment(None, 3, 6),),)), wide)
    assert embedding(bare(((Segment(None, 4, 6),),)), wide) is None


def test_a_shift_lies_in_no_diagonal() -> None:
    i, j = Label(4), Label(3)
    diagonal = bare(part(i, 0, 4), part(i, 0, 4))
    assert embedding(bare(part(j, 0, 4), part(j, 1, 4)), diagonal) is None


def test_axes_cut_at_other_places_do_not_embed() -> None:
    merged = bare(((full(Label(2)), full(Label(3))),))
    assert embedding(merged, bare(fresh_axes((6,)))) is None
    assert embedding(bare(((Segment(None, 1, 2),),)), bare(((Segment(None, 0, 2),),))) is None


def test_what_is_the_same_along_an_axis_is_so_along_its_parts() -> None:
    """As the mean is of a tensor that was reshaped: both are then of one pattern, and added."""
    rows, joined, parts = Label(2), Label(6), [Label(3), Label(2)]
    tensors = {"mean": np.array([3.0, 5.0])}
    mean = Term(1, (Factor("mean", ((full(rows),),)),), ((full(rows),), (full(joined),)), ())
    axis = tuple(map(full, parts))
    tensor = Factor("tensor", ((full(rows),), *((full(part),) for part in parts)))
    dense = Term(1, (tensor,), ((full(rows),), axis), ())
    split, same = split_alike([mean, dense])
    assert same is dense
    assert pattern(split) == pattern(dense)
    np.testing.assert_array_equal(materialised(split, tensors), materialised(mean, tensors))


def test_what_a_factor_bears_is_not_split() -> None:
    joined, parts = Label(6), [Label(3), Label(2)]
    term = Term(1, (Factor("tensor", ((full(joined),),)),), ((full(joined),),), ())
    other = Term(1, (), (tuple(map(full, parts)),), ())
    assert split_alike([term, other]) == [term, other]


def test_what_would_not_be_added_is_not_split() -> None:
    joined, parts = Label(6), [Label(3), Label(2)]
    same, diagonal = bare(((full(joined),),), fresh_axes((6,))), [tuple(map(full, parts))] * 2
    terms = [same, Term(1, (), (diagonal[0],), ((diagonal[1],),))]
    assert split_alike(terms) == terms


def test_a_label_of_two_axes_is_split_in_both() -> None:
    joined, parts = Label(6), [Label(3), Label(2)]
    diagonal = Term(1, (), ((full(joined),),), (((full(joined),),),))
    other = Term(1, (), (tuple(map(full, parts)),), ((tuple(map(full, [Label(3), Label(2)])),),))
    (found, _) = split_alike([diagonal, other])
    assert len({*labels_of(found.out)}) == 2
    assert labels_of(found.out) == labels_of(*found.slots)
    np.testing.assert_array_equal(materialised(found, {}), materialised(diagonal, {}))
