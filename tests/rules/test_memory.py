"""Where tensors lie in memory, by labels, against what torch reads there."""

from itertools import product
from random import Random

import pytest
import torch

from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Axes, Label, labels_of, shape_of
from hofunc.graph.layout import Layout, layout_of
from hofunc.rules.memory import around, digits_of, place_of


def indices(axes: Axes, values: dict[Label, int]) -> tuple[int, ...]:
    """Return the index along every axis where labels have values."""
    result = []
    for axis in axes:
        index = 0
        for segment in axis:
            index = index * segment.extent + segment.start + (values[segment.label] if segment.label else 0)
        result.append(index)
    return tuple(result)


def all_values(*groups: Axes) -> list[dict[Label, int]]:
    labels = list(dict.fromkeys(labels_of(*groups)))
    return [dict(zip(labels, found, strict=True)) for found in product(*(range(label.size) for label in labels))]


def random_view(random: Random, memory: torch.Tensor) -> torch.Tensor:
    """Slice, select, permute and reshape a tensor."""
    view = memory
    for _ in range(random.randrange(4)):
        dim = random.randrange(view.dim()) if view.dim() else 0
        if not view.dim() or not view.numel():
            break
        size = view.shape[dim]
        start = random.randrange(size)
        match random.randrange(5):
            case 0:
                view = view.select(dim, start)
            case 1:
                view = view.narrow(dim, start, random.randrange(1, size - start + 1))
            case 2:
                view = view.movedim(dim, 0)
            case 3:
                view = view.unsqueeze(dim)
            case 4 if view.is_contiguous():
                view = view.view(-1)
    return view


@pytest.mark.parametrize("seed", range(60))
def test_slices_and_their_reshapes_are_relabellings(seed: int) -> None:
    random = Random(seed)  # noqa: S311
    shape = [random.choice([1, 2, 3, 4]) for _ in range(random.randrange(1, 4))]
    memory = torch.arange(torch.Size(shape).numel()).reshape(shape)
    view = random_view(random, memory)
    place = place_of(layout_of(view), shape)
    assert (shape_of(place.memory), shape_of(place.tensor)) == (tuple(shape), tuple(view.shape))
    if place.rest is None:
        seen = set()
        for values in all_values(place.memory, place.tensor):
            index = indices(place.tensor, values)
            assert memory[indices(place.memory, values)] == view[index]
            seen.add(index)
        assert len(seen) == view.numel()
    else:
        assert view.dim() < 3, "a flat view of which a part crosses the ends of rows"


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_around_are_all_the_rest(seed: int) -> None:
    random = Random(seed)  # noqa: S311
    memory = torch.zeros([random.choice([1, 2, 3, 4]) for _ in range(3)])
    place = place_of(layout_of(random_view(random, memory)), memory.shape)
    if place.rest is None:
        for axes in (*around(place.memory), place.memory):
            reached = {indices(axes, values) for values in all_values(axes)}
            for index in reached:
                memory[index] += 1
    assert memory.min() == memory.max()


@pytest.mark.parametrize(
    ("layout", "shape", "common", "beside"),
    [
        (Layout((4, 2), (5, 2), 1), (4, 5), (0,), Layout((2,), (2,), 1)),  # every second column
        (Layout((2, 4), (8, 1), 0), (3, 4), (1,), Layout((2,), (2,), 0)),  # every second row
        (Layout((4, 3), (9, 4), 0), (4, 3, 3), (0,), Layout((3,), (4,), 0)),  # the diagonals of matrices
        (Layout((3, 4), (16, 1), 0), (3, 3, 4), (2,), Layout((3,), (4,), 0)),  # a diagonal of vectors
        (Layout((4, 2, 2), (3, 1, 1), 0), (4, 3), (0,), Layout((2, 2), (1, 1), 0)),  # windows in rows
        (Layout((4, 2), (3, 3), 0), (5, 3), (), Layout((4, 2), (3, 3), 0)),  # windows of rows
    ],
)
def test_whole_axes_are_kept_apart(
    layout: Layout, shape: tuple[int, ...], common: tuple[int, ...], beside: Layout
) -> None:
    place = place_of(layout, shape)
    assert place.rest is not None
    assert (place.rest.whole, place.rest.layout) == (common, beside)
    shared = {*labels_of(place.memory)} & {*labels_of(place.tensor)}
    assert len(shared) == len(common)


def test_a_broadcast_is_one() -> None:
    place = place_of(Layout((2, 3), (0, 1), 0), (3,))
    assert place.rest is None
    assert place.tensor[1] == place.memory[0]


def test_axes_of_rows_stay_so() -> None:
    place = place_of(Layout((4, 3), (3, 1), 12), (2, Rows(4), 3))
    assert isinstance(place.tensor[0][0].extent, Rows)
    assert place.tensor[0] == place.memory[1]


def test_an_axis_of_size_one_is_one_of_memory() -> None:
    place = place_of(Layout((1, 3), (3, 1), 3), (2, 1, 3))
    assert place.tensor == place.memory[1:]


def test_digits_of_nested_strides() -> None:
    found = digits_of(Layout((3, 2), (4, 1), 1), 12)
    assert found is not None
    vector, axes = found
    assert shape_of((vector,)) == (12,)
    assert [(segment.start, segment.extent) for segment in vector] == [(0, 3), (1, 4)]
    assert [segment.label for segment in vector] == [axis[0].label for axis in axes]


@pytest.mark.parametrize(
    ("layout", "length"), [(Layout((2, 2), (3, 2), 0), 6), (Layout((3,), (2,), 0), 5), (Layout((2, 2), (2, 1), 1), 4)]
)
def test_digits_of_strides_that_do_not_nest(layout: Layout, length: int) -> None:
    assert digits_of(layout, length) is None
