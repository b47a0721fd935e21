"""Where a tensor lies in memory, by labels.

Axes that it has in common with the memory, as a whole, are told from the rest of it. The rest is split into one digit
for every axis if its strides nest, each axis being a part of its digit; that is what slices and their reshapes come to.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from hofunc.algebra.compose import matched
from hofunc.algebra.labels import Axes, Axis, Label, Segment, fresh_axes, full, rebind_all
from hofunc.algebra.term import span
from hofunc.graph.layout import Layout

Shape = Sequence[int]


class Rest(NamedTuple):
    """What lies in memory as no labels can say: windows, diagonals, every so-many-th element.

    Attributes:
        layout: Where it lies in the axes of memory that are not in common.
        shape: Shape of those.
        whole: The axes of memory that are in common.
        memory: Axes of the memory without those in common.
        tensor: Axes of the tensor without those in common.
    """

    layout: Layout
    shape: tuple[int, ...]
    whole: tuple[int, ...]
    memory: Axes
    tensor: Axes


class Place(NamedTuple):
    """Where a tensor lies in memory: equal labels mean equal elements.

    Attributes:
        memory: Axes of the memory.
        tensor: Axes of the tensor.
        rest: What of both the labels do not relate, if there is any.
    """

    memory: Axes
    tensor: Axes
    rest: Rest | None


def place_of(layout: Layout, shape: Shape) -> Place:
    """Label memory of some shape, and the tensor that lies in it at a layout."""
    common = _in_common(layout, shape)
    beside, left = _beside(layout, shape, common)
    found = _nested(beside, left)
    memory, tensor = found or (fresh_axes(left), fresh_axes(beside.size))
    rest = None if found else Rest(beside, left, tuple(sorted(common)), memory, tensor)
    wholes = {along: (full(Label(shape[along])),) for along in common}
    axes, others = iter(memory), iter(tensor)
    memory = tuple(wholes[along] if along in common else next(axes) for along in range(len(shape)))
    dims = {dim: wholes[along] for along, dim in common.items()}
    return Place(memory, tuple(dims.get(dim) or next(others) for dim in range(len(layout.size))), rest)


def _strides(shape: Shape) -> list[int]:
    return [prod(map(int, shape[dim + 1 :])) for dim in range(len(shape))]


def _in_common(layout: Layout, shape: Shape) -> dict[int, int]:
    """Return which axis of memory is as a whole which axis of the tensor."""
    strides = _strides(shape)
    common: dict[int, int] = {}
    for along in reversed(range(len(shape))):
        for dim in reversed(range(len(layout.size))):
            alike = (layout.size[dim], layout.stride[dim]) == (shape[along], strides[along])
            if alike and dim not in common.values() and _is_apart(layout, dim):
                common[along] = dim
                break
    return common


def _is_apart(layout: Layout, dim: int) -> bool:
    """Tell whether the other axes of a tensor lead beyond all that lies along one, or stay below its strides."""
    stride = layout.stride[dim]
    block = stride * layout.size[dim]
    others = [
        (size, step)
        for other, (size, step) in enumerate(zip(layout.size, layout.stride, strict=True))
        if other != dim and size > 1
    ]
    below = layout.offset % block + sum((size - 1) * step for size, step in others if step < block)
    return below < stride and not any(step % block for _, step in others if step >= block)


def _beside(layout: Layout, shape: Shape, common: dict[int, int]) -> tuple[Layout, tuple[int, ...]]:
    """Return how the rest of a tensor lies in the rest of memory, and the shape of that."""
    strides = _strides(shape)
    dims = [dim for dim in range(len(layout.size)) if dim not in common.values()]
    numbers = [layout.offset, *(layout.stride[dim] for dim in dims)]
    for along in sorted(common):
        block = strides[along] * int(shape[along])
        numbers = [number // block * strides[along] + number % strides[along] for number in numbers]
    rest = Layout(tuple(layout.size[dim] for dim in dims), tuple(numbers[1:]), numbers[0])
    return rest, tuple(size for along, size in enumerate(shape) if along not in common)


def _nested(layout: Layout, shape: Shape) -> tuple[Axes, Axes] | None:
    """Label memory and a tensor in it, if the digits of its places are parts of the memory's axes."""
    digits = digits_of(layout, prod(map(int, shape)))
    if digits is None:
        return None
    vector, tensor = digits
    memory = fresh_axes(shape)
    bindings = matched(vector, sum(memory, ()), tensor)
    return None if bindings is None else (rebind_all(memory, bindings), rebind_all(tensor, bindings))


def digits_of(layout: Layout, length: int) -> tuple[Axis, Axes] | None:
    """Label a vector and the tensor that lies in it at a layout.

    Returns:
        The axis of the vector and the axes of the tensor; None if the strides do not nest in each other and in the
        vector's length, or an axis runs over the end of its digit. A stride of zero is a broadcast.
    """
    axes = fresh_axes(layout.size)
    vector: list[Segment] = []
    above, left = length, layout.offset
    for dim in sorted(range(len(axes)), key=lambda dim: -layout.stride[dim]):
        size, stride = layout.size[dim], layout.stride[dim]
        if size == 1 or stride == 0:
            continue
        if above % stride:
            return None
        start, left = divmod(left, stride)
        if start + size > above // stride:
            return None
        vector.append(Segment(axes[dim][0].label, start, above // stride))
        above = stride
    if above > 1:
        vector.append(Segment(None, left, above))
    return tuple(vector), axes


def around(axes: Axes) -> Iterator[Axes]:
    """Yield axes of all that some axes of a tensor do not reach, in parts that have no element in common."""
    segments = [segment for axis in axes for segment in axis]
    for place, segment in enumerate(segments):
        reach = span(segment)
        for start, stop in ((0, reach.start), (reach.stop, segment.extent)):
            if stop > start:
                within = [_part(span(one), one.extent) for one in segments[:place]]
                beyond = [full(Label(one.extent)) for one in segments[place + 1 :]]
                parts = iter([*within, _part(range(start, stop), segment.extent), *beyond])
                yield tuple(tuple(next(parts) for _ in axis) for axis in axes)


def _part(reach: range, extent: int) -> Segment:
    return Segment(Label(len(reach)), reach.start, extent) if len(reach) < extent else full(Label(extent))
