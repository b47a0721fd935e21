"""Where the elements of tensors lie in memory."""

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
import torch
from torch import Tensor

from hofunc.graph.layout import Layout, disjoint, in_memory_order, layout_of, places, read_strided, write_strided
from tests.cases import rand

LAYOUTS = [
    Layout((), (), 3),
    Layout((3, 4), (4, 1), 0),
    Layout((4, 3), (1, 4), 0),
    Layout((3,), (5,), 0),
    Layout((2, 2), (8, 2), 1),
    Layout((3, 3), (1, 1), 2),
    Layout((2, 0), (4, 1), 0),
    Layout((1, 4), (100, 3), 0),
]


@pytest.mark.parametrize("shape", [(16,), (4, 4), (2, 1, 8)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_is_as_strided(layout: Layout, shape: tuple[int, ...], device: torch.device) -> None:
    memory = rand(device, *shape)
    assert torch.equal(read_strided(memory, layout), memory.as_strided(*layout))
    assert torch.equal(memory.take(places(layout, device)).reshape(layout.size), memory.as_strided(*layout))


@pytest.mark.parametrize("shape", [(16,), (4, 4), (2, 1, 8)])
@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.stride != (1, 1)])
def test_writing_is_copying_to_as_strided(layout: Layout, shape: tuple[int, ...], device: torch.device) -> None:
    memory, value = rand(device, *shape), rand(device, *layout.size, seed=1)
    expected = memory.clone()
    expected.as_strided(*layout).copy_(value)
    assert torch.equal(write_strided(memory, value, layout), expected)


def test_the_layout_of_a_view(device: torch.device) -> None:
    x = rand(device, 3, 4)
    assert layout_of(x.t()[1:, ::2]) == Layout((3, 2), (1, 8), 1)
    assert torch.equal(in_memory_order(x.t(), (1, 0)), x)


def _elements(layout: Layout) -> set[int]:
    ranges = map(range, layout.size)
    return {layout.offset + sum(i * s for i, s in zip(index, layout.stride, strict=True)) for index in product(*ranges)}


def test_disjoint_layouts_have_no_place_in_common() -> None:
    random = Random(0)  # noqa: S311
    found = 0
    for _ in range(3000):
        one, other = (
            Layout(tuple(random.choices(range(4), k=rank)), tuple(random.choices([0, 1, 2, 3, 4, 8], k=rank)), offset)
            for rank, offset in zip(random.choices(range(3), k=2), random.choices(range(9), k=2), strict=True)
        )
        if disjoint(one, other):
            assert not _elements(one) & _elements(other), (one, other)
            found += 1
    assert found > 500


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x: x[0], lambda x: x[1]),
        (lambda x: x[:, 0], lambda x: x[:, 1:]),
        (lambda x: x[:2, :2], lambda x: x[:, 2:]),
        (lambda x: x[0, 0], lambda x: x[0, 1:]),
        (lambda x: x[1:1], lambda x: x),
        (lambda x: x.t()[0], lambda x: x[:, 3]),
    ],
)
def test_parts_that_are_seen_to_be_disjoint(
    one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], device: torch.device
) -> None:
    x = rand(device, 3, 4)
    assert disjoint(layout_of(one(x)), layout_of(other(x)))
    assert not disjoint(layout_of(x), layout_of(x[1]))
