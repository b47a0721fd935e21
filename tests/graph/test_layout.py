"""Where the elements of tensors lie in memory."""

import pytest
import torch

from hofunc.graph.layout import Layout, in_memory_order, layout_of, places, read_strided, write_strided
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
