"""Tensors seen through labelled axes: reading takes back what spreading puts, and the sums of parts."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc.algebra.labels import Axes, Label, Segment, full, labels_of, shape_of
from hofunc.views import Labelled, Part, add_within, aligned, assembled, each, plus, read, run_now, spread, times
from tests.cases import rand

TWO, THREE, ONE = Label(2), Label(3), Label(1)


def axes(*groups: tuple[Segment, ...]) -> Axes:
    return groups


i, j = full(TWO), full(THREE)
LAYOUTS: dict[str, Axes] = {
    "in order": axes((i,), (j,)),
    "out of order": axes((j,), (i,)),
    "one label": axes((i,)),
    "a diagonal": axes((i,), (i,)),
    "a diagonal beside an axis": axes((i,), (j,), (i,)),
    "two diagonals": axes((i,), (j,), (j,), (i,)),
    "a label thrice": axes((i,), (i,), (i,)),
    "a part": axes((Segment(TWO, 1, 5),), (j,)),
    "a part at the end": axes((Segment(TWO, 3, 5),)),
    "a diagonal of parts": axes((Segment(TWO, 1, 5),), (Segment(TWO, 0, 4),)),
    "one index": axes((Segment(None, 2, 4),), (i,)),
    "a label of size one": axes((full(ONE),), (i,)),
    "a label of size one in part": axes((Segment(ONE, 2, 4),), (i,)),
    "an empty axis": axes((), (i,)),
    "merged": axes(
        (i, j),
    ),
    "merged out of order, beside a diagonal": axes((j, i), (i,)),
    "merged with a part": axes(
        (Segment(TWO, 1, 4), j),
    ),
    "merged with one index": axes(
        (Segment(None, 1, 3), i),
    ),
    "nothing": (),
}


def written_out(source: Tensor, labels: tuple[Label, ...], into: Axes) -> Tensor:
    """Spread element by element."""
    result = torch.zeros(shape_of(into), dtype=source.dtype)
    distinct = list(dict.fromkeys([*labels, *labels_of(into)]))
    for numbers in product(*(range(label.size) for label in distinct)):
        value = dict(zip(distinct, numbers, strict=True))
        place = []
        for axis in into:
            index = 0
            for label, start, extent in axis:
                index = index * extent + start + (0 if label is None else value[label])
            place.append(index)
        result[tuple(place)] = source[tuple(value[label] for label in labels)]
    return result


@pytest.mark.parametrize("name", LAYOUTS)
def test_spread_puts_every_element_in_its_place(name: str) -> None:
    into = LAYOUTS[name]
    labels = tuple(label for label in dict.fromkeys(labels_of(into)) if label.size > 1)
    for order in (labels, labels[::-1]):
        source = rand(torch.device("cpu"), *(label.size for label in order)).exp()
        assert torch.equal(spread(run_now, Labelled(source, order), into), written_out(source, order, into))


@pytest.mark.parametrize("name", LAYOUTS)
def test_read_takes_back_what_spread_puts(name: str) -> None:
    into = LAYOUTS[name]
    labels = tuple(label for label in dict.fromkeys(labels_of(into)) if label.size > 1)
    source = rand(torch.device("cpu"), *(label.size for label in labels))
    got = read(run_now, spread(run_now, Labelled(source, labels), into), into)
    assert set(got.labels) == set(labels)
    assert torch.equal(aligned(run_now, got, labels), source)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("coefficient", [1.0, -2.5])
def test_add_within_adds_at_those_places_only(name: str, coefficient: float) -> None:
    into = LAYOUTS[name]
    labels = tuple(label for label in dict.fromkeys(labels_of(into)) if label.size > 1)
    source = rand(torch.device("cpu"), *(label.size for label in labels))
    base = rand(torch.device("cpu"), *shape_of(into), seed=1)
    before = base.clone()
    got = add_within(run_now, base, into, Labelled(source, labels), coefficient)
    torch.testing.assert_close(got, before + coefficient * written_out(source, labels, into), rtol=0, atol=1e-14)
    assert torch.equal(base, before)


def test_a_label_that_the_source_lacks_is_broadcast() -> None:
    source = rand(torch.device("cpu"), 2)
    assert torch.equal(spread(run_now, Labelled(source, (TWO,)), each([THREE, TWO])), source.expand(3, 2))
    got = spread(run_now, Labelled(source, (TWO,)), axes((i,), (j,), (j,)))
    assert torch.equal(got, source[:, None, None] * torch.eye(3, dtype=source.dtype))


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        ((TWO, THREE), (2, 3)),
        ((THREE, TWO), (3, 2)),
        ((TWO, Label(4), THREE), (2, 1, 3)),
        ((Label(4), TWO, THREE), (2, 3)),
    ],
)
def test_aligned_leaves_leading_labels_to_broadcasting(labels: tuple[Label, ...], shape: tuple[int, ...]) -> None:
    assert aligned(run_now, Labelled(torch.ones(2, 3), (TWO, THREE)), labels).shape == shape


def test_assembled_adds_parts_to_the_densest() -> None:
    dense, diagonal, part = rand(torch.device("cpu"), 3, 3), rand(torch.device("cpu"), 3, seed=1), torch.tensor(2.0)
    k = Label(3)
    parts = [
        Part(1.0, Labelled(diagonal, (THREE,)), axes((j,), (j,))),
        Part(-1.0, Labelled(dense, (THREE, k)), axes((j,), (full(k),))),
        Part(3.0, Labelled(part.double(), ()), axes((Segment(None, 1, 3),), (Segment(None, 2, 3),))),
    ]
    expected = -dense + torch.diag(diagonal)
    expected[1, 2] += 6
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        torch.testing.assert_close(assembled(run_now, [parts[place] for place in order]), expected)


@pytest.mark.parametrize(("coefficient", "calls"), [(1, []), (-1, [torch.neg]), (2.5, [torch.mul])])
def test_times_does_no_more_than_it_must(coefficient: float, calls: list[Callable[..., Any]]) -> None:
    emitted: list[Callable[..., Any]] = []

    def emit(function: Callable[..., Any], *args: Any) -> Tensor:
        emitted.append(function)
        return function(*args)

    assert torch.equal(times(emit, torch.tensor(2.0), coefficient), torch.tensor(2.0 * coefficient))
    assert emitted == calls


@pytest.mark.parametrize("coefficient", [1, -0.5])
def test_plus(coefficient: float) -> None:
    x = rand(torch.device("cpu"), 3)
    torch.testing.assert_close(plus(run_now, x, x.sin(), coefficient), x + coefficient * x.sin())
