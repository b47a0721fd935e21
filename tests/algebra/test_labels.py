"""Labels, segments and axes."""

import pytest

from hofunc.algebra.labels import (
    Bindings,
    Label,
    Segment,
    extent,
    fresh_axes,
    full,
    labels_of,
    rebind,
    rebind_all,
    shape_of,
)


def test_labels_are_equal_only_to_themselves() -> None:
    one, other = Label(3), Label(3)
    assert one != other
    assert len({one, other, one}) == 2
    assert repr(one).startswith("Label(3)@")


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        (full(Label(3)), True),
        (full(Label(0)), True),
        (Segment(Label(3), 0, 4), False),
        (Segment(Label(3), 1, 4), False),
        (Segment(None, 0, 1), False),
    ],
)
def test_a_full_segment(segment: Segment, expected: bool) -> None:
    assert segment.is_full is expected


def test_fresh_axes_have_a_label_of_their_own_for_every_size() -> None:
    axes = fresh_axes((2, 1, 2))
    assert shape_of(axes) == (2, 1, 2)
    assert len(set(labels_of(axes))) == 3
    assert fresh_axes(()) == ()


def test_the_extent_of_an_axis_is_that_of_its_ranges() -> None:
    assert extent(()) == 1
    assert extent((Segment(Label(2), 1, 5), Segment(None, 3, 4), full(Label(3)))) == 60
    assert extent((full(Label(0)), full(Label(3)))) == 0


def test_labels_of_yields_repeated_labels_repeatedly() -> None:
    a, b = Label(2), Label(3)
    axes = ((full(b), Segment(None, 0, 2)), (full(a),)), ((full(b),), ())
    assert list(labels_of(*axes)) == [b, a, b]


def test_rebind_leaves_other_labels_alone() -> None:
    axis = (full(Label(2)), Segment(None, 1, 3))
    assert rebind(axis, {}) is axis
    assert rebind(axis, {Label(2): (full(Label(2)),)}) is axis


def test_rebind_follows_bindings_to_the_end() -> None:
    a, b, c = Label(4), Label(4), Label(4)
    assert rebind((full(a),), {a: (full(b),), b: (full(c),)}) == (full(c),)


def test_rebind_adds_up_starts() -> None:
    """Index 2 + a with a = 1 + b and b = 3 is index 6; the range stays that of a's segment."""
    a, b = Label(6), Label(4)
    assert rebind((Segment(a, 2, 9),), {a: (Segment(b, 1, 6),)}) == (Segment(b, 3, 9),)
    bindings: Bindings = {a: (Segment(b, 1, 6),), b: (Segment(None, 3, 4),)}
    assert rebind((Segment(a, 2, 9),), bindings) == (Segment(None, 6, 9),)


def test_rebind_splits_a_label_in_place() -> None:
    whole, outer, inner, other = Label(6), Label(2), Label(3), Label(5)
    bindings: Bindings = {whole: (full(outer), full(inner))}
    axis = (full(other), full(whole), full(other))
    assert rebind(axis, bindings) == (full(other), full(outer), full(inner), full(other))
    assert rebind_all((axis, (full(whole),)), bindings) == (rebind(axis, bindings), (full(outer), full(inner)))


def test_rebind_splits_the_parts_of_a_split() -> None:
    whole, outer, inner = Label(12), Label(2), Label(6)
    low, high = Label(2), Label(3)
    bindings: Bindings = {whole: (full(outer), full(inner)), inner: (full(low), full(high))}
    assert rebind((full(whole),), bindings) == (full(outer), full(low), full(high))
