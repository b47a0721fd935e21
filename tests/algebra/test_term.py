"""Terms: relabelling, patterns and slots, against dense arrays where there is something to compute."""

import numpy as np
import pytest

from hofunc.algebra.labels import Bindings, Label, Segment, fresh_axes, full, labels_of
from hofunc.algebra.term import (
    Factor,
    Term,
    identity,
    pattern,
    rebound,
    relabelled,
    renamed,
    span,
    visible,
    with_slots,
)
from tests.algebra.dense import RandomTerms, materialised


def test_visible_labels_are_those_of_the_axes_in_order() -> None:
    a, b, hidden = Label(2), Label(3), Label(4)
    term = Term(1, (Factor("w", ((full(hidden),), (full(a),))),), ((full(b),),), (((full(a), full(b)),),))
    assert list(visible(term)) == [b, a]


def test_identity_is_the_identity_matrix() -> None:
    term = identity(fresh_axes((2, 3)))
    np.testing.assert_array_equal(materialised(term, {}).reshape(6, 6), np.eye(6))


@pytest.mark.parametrize("seed", range(20))
def test_relabelling_changes_no_value_and_shares_no_label(seed: int) -> None:
    draw = RandomTerms(seed)
    term = draw.term(draw.shape(2), draw.shape(2), draw.shape(1))
    fresh = relabelled(term)
    np.testing.assert_array_equal(materialised(fresh, draw.tensors), materialised(term, draw.tensors))
    assert not {*_labels(term)} & {*_labels(fresh)}
    assert pattern(fresh) == pattern(term)


def _labels(term: Term) -> list[Label]:
    return list(labels_of(term.out, *term.slots, *(factor.axes for factor in term.factors)))


def test_renaming_exchanges_labels_at_once() -> None:
    a, b = Label(2), Label(2)
    term = Term(1, (Factor("w", ((full(a),), (full(b),))),), ((full(a),),), (((Segment(b, 1, 4),),),))
    swapped = renamed(term, {a: b, b: a})
    assert swapped.out == ((full(b),),)
    assert swapped.slots == (((Segment(a, 1, 4),),),)
    assert swapped.factors[0].axes == ((full(b),), (full(a),))


def test_rebinding_reaches_factors_output_and_slots() -> None:
    a, b = Label(3), Label(3)
    bindings: Bindings = {a: (full(b),)}
    term = rebound(Term(2, (Factor("w", ((full(a),),)),), ((full(a),),), (((full(a),),),)), bindings)
    assert {*_labels(term)} == {b}
    assert term.coefficient == 2


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_slots_are_reordered_like_dimensions(order: tuple[int, ...]) -> None:
    draw = RandomTerms(1)
    term = draw.term((), (2,), (3,), (4,))
    got = materialised(with_slots(term, order), draw.tensors)
    np.testing.assert_array_equal(got, materialised(term, draw.tensors).transpose(order))


def _diagonal(start: int = 0, extent: int = 3, size: int = 3) -> Term:
    label = Label(size)
    return Term(1, (), (), (((Segment(label, start, extent),),), ((full(label),),)))


def test_patterns_are_equal_up_to_names() -> None:
    assert pattern(_diagonal()) == pattern(_diagonal())
    hash(pattern(_diagonal()))
    others = [_diagonal(1, 4), _diagonal(0, 4), _diagonal(0, 4, 4), Term(1, (), (), (fresh_axes((3,)),) * 2)]
    others += [
        Term(1, (), (), (fresh_axes((3,)), fresh_axes((3,)))),
        Term(1, (), fresh_axes((3,)), (fresh_axes((3,)),)),
    ]
    patterns = [pattern(_diagonal()), *map(pattern, others[:3]), *map(pattern, others[4:])]
    assert len(set(patterns)) == len(patterns)
    assert pattern(others[3]) == pattern(_diagonal()), "one label in both slots is a diagonal, whoever made it"


def test_a_pattern_tells_an_output_from_a_slot_and_a_merged_axis_from_two() -> None:
    a, b = full(Label(2)), full(Label(3))
    terms = [
        Term(1, (), ((a,), (b,)), ()),
        Term(1, (), ((a, b),), ()),
        Term(1, (), ((a,),), (((b,),),)),
        Term(1, (), (), (((a,), (b,)),)),
        Term(1, (), (), (((a,),), ((b,),))),
        Term(1, (), ((a, Segment(None, 0, 3)),), ()),
    ]
    assert len({pattern(term) for term in terms}) == len(terms)


def test_a_pattern_tells_a_label_of_size_one_from_a_single_index() -> None:
    one = Segment(Label(1), 0, 3)
    index = Segment(None, 0, 3)
    assert pattern(Term(1, (), ((one,), (one,)), ())) != pattern(Term(1, (), ((one,), (index,)), ()))


def test_the_span_of_a_segment() -> None:
    assert span(Segment(Label(3), 2, 9)) == range(2, 5)
    assert span(Segment(None, 4, 9)) == range(4, 5)
    assert not span(Segment(Label(0), 1, 9))
