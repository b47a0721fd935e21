"""Which write to a storage was the latest to some of its places."""

from collections.abc import Callable
from itertools import product
from random import Random
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from hofunc.graph.layout import Layout, layout_of
from hofunc.graph.overlaps import Overlaps, places_of
from tests.cases import rand


def _elements(layout: Layout) -> set[int]:
    ranges = map(range, layout.size)
    return {layout.offset + sum(i * s for i, s in zip(index, layout.stride, strict=True)) for index in product(*ranges)}


def _layout(random: Random) -> Layout:
    rank = random.randrange(4)
    sizes, strides = random.choices([0, *range(1, 7)], k=rank), random.choices([0, 1, 2, 3, 4, 8, 24], k=rank)
    return Layout(tuple(sizes), tuple(strides), random.randrange(9))


def test_the_places_are_those_of_the_elements() -> None:
    random = Random(0)  # noqa: S311
    for layout in (_layout(random) for _ in range(500)):
        assert places_of(layout) == sum(1 << place for place in _elements(layout)), layout


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x[0], lambda x: x[1]),
        (lambda x: x[:, 0], lambda x: x[:, 1:]),
        (lambda x: x[:, ::2], lambda x: x[:, 1::2]),
        (lambda x: x[0, 0], lambda x: x[0, 1:]),
        (lambda x: x[1:1], lambda x: x),
        (lambda x: x.t()[0], lambda x: x[:, 3]),
        (lambda x: x[:, :3].diagonal(), lambda x: x[1:, 0]),
    ],
)
def test_parts_that_are_apart(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], device: torch.device
) -> None:
    x = rand(device, 3, 4)
    assert not places_of(layout_of(one(x))) & places_of(layout_of(other(x)))
    assert places_of(layout_of(x)) & places_of(layout_of(x[1]))


def test_the_latest_is_found() -> None:
    random = Random(1)  # noqa: S311
    overlaps, entered = Overlaps(), list[int]()
    for _ in range(200):
        places, first = random.getrandbits(40) & random.getrandbits(40) & random.getrandbits(40), random.randrange(210)
        meeting = [number for number, other in enumerate(entered) if other & places and number >= first]
        assert overlaps.latest(places, first) == max(meeting, default=None)
        overlaps.enter(places)
        entered.append(places)
        assert len(overlaps) == len(entered)


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_the_comparisons_are_as_many_as_the_number_has_digits(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    meets = Mock(side_effect=Overlaps._meets)
    monkeypatch.setattr(Overlaps, "_meets", lambda *args: meets(*args))
    overlaps = Overlaps()
    for place in range(count):
        assert overlaps.latest(1 << place) is None
        overlaps.enter(1 << place)
    for place in range(count):
        meets.reset_mock()
        assert overlaps.latest(1 << place) == place
        assert 0 < meets.call_count <= 2 * count.bit_length()
