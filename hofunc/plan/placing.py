"""Placing: many small parts of a dense tensor written at once, by one vector of all their entries."""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import torch

from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Axes, Label, labels_of, shape_of
from hofunc.plan.builder import Builder
from hofunc.plan.program import Register
from hofunc.views import Part, assembled, times

MANY = 8  # parts, from which on they are placed at once
MOST = 1 << 22  # entries of which places are kept
WORD = 8  # bytes of a place
_TIMES = 3  # as many places of parts are held as they are made


def joint(builder: Builder, parts: Sequence[Part]) -> Register:
    """Add parts, one at least, into one dense tensor; the axes of all parts have the same extents."""
    if len(parts) < MANY:
        return assembled(builder.emit, parts)
    shape = shape_of(parts[0].axes)
    entries = sum(prod(label.size for label in _labels(part.axes)) for part in parts)
    is_large = entries > MOST or not builder.may_hold(WORD * (_TIMES * entries + prod(shape)))
    if is_large or any(isinstance(size, Rows) for part in parts for size in _sizes(part)):
        return assembled(builder.emit, parts)
    alike: dict[float, list[Part]] = {}
    for part in parts:
        alike.setdefault(part.coefficient, []).append(part)
    from_start = cache(_from_start)  # as most parts are of few shapes
    places = torch.cat([_places(part, from_start) for some in alike.values() for part in some])
    vectors = [vector for some in alike.values() for vector in _scaled(builder, some)]
    size = prod(shape)
    # a sum takes longer than a look-up for each entry of the result, but not where most of these are zero
    if 2 * entries < size or _are_hit(places, size) < entries:
        total = builder.emit(scattered, builder.hold(places.to(builder.device)), size, *vectors)
    else:
        index = torch.full((size,), entries).index_copy(0, places, torch.arange(entries))
        total = builder.emit(gathered, builder.hold(index.to(builder.device)), *vectors)
    return total if len(shape) == 1 else builder.emit(torch.reshape, total, shape)


def _are_hit(places: torch.Tensor, size: int) -> int:
    """Return how many places there are, of which some may be there more than once."""
    return int(torch.zeros(size, dtype=torch.bool).index_fill(0, places, True).sum())


def _labels(axes: Axes) -> list[Label]:
    return [label for label in dict.fromkeys(labels_of(axes)) if label.size > 1]


def _sizes(part: Part) -> list[int]:
    return [
        size for axis in part.axes for s in axis for size in (s.start, s.extent, *([s.label.size] if s.label else ()))
    ]


def _order(part: Part) -> list[Label]:
    """Return the labels of a part in the order in which its tensor has them, after those that it lacks."""
    own = part.source.labels
    return [*(label for label in _labels(part.axes) if label not in own), *own]


def _places(part: Part, from_start: Callable[[tuple[tuple[int, int], ...]], torch.Tensor]) -> torch.Tensor:
    """Return the places of the entries of a part in the memory of the whole, as its tensor has them."""
    labels, start, stride = _order(part), 0, 1
    steps = dict.fromkeys(labels, 0)
    for segment in reversed([segment for axis in part.axes for segment in axis]):
        start += segment.start * stride
        if segment.label in steps:
            steps[segment.label] += stride
        stride *= segment.extent
    return start + from_start(tuple([(steps[label], int(label.size)) for label in labels]))


def _from_start(steps: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """Return the places of entries from the first of them on, given the stride and the size along every axis."""
    places = torch.tensor(0)
    for stride, size in steps:
        places = places[..., None] + stride * torch.arange(size)
    return places.reshape(-1)


def _scaled(builder: Builder, parts: Sequence[Part]) -> list[Register]:
    """Return tensors with the entries of parts of one coefficient, times that."""
    tensors = [_whole(builder, part) for part in parts]
    coefficient = parts[0].coefficient
    if coefficient != 1 and len(tensors) > 1:
        tensors = [builder.emit(flat, *tensors)]
    return [times(builder.emit, tensor, coefficient) for tensor in tensors]


def _whole(builder: Builder, part: Part) -> Register:
    """Return the tensor of a part with all its labels."""
    labels = _order(part)
    tensor = part.source.tensor
    if len(part.source.labels) < len(labels):
        tensor = builder.emit(torch.Tensor.expand, tensor, tuple(label.size for label in labels))
    return tensor


def flat(*tensors: torch.Tensor) -> torch.Tensor:
    """Return the entries of tensors, one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def scattered(places: torch.Tensor, size: int, *tensors: torch.Tensor) -> torch.Tensor:
    """Return zeros to which the entries of tensors are added, at the given places."""
    entries = flat(*tensors)
    return torch.index_add(entries.new_zeros(size), 0, places, entries)


def gathered(index: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
    """Return the entries of tensors at the given places in all of them; zero at the place after the last."""
    return flat(*tensors, tensors[0].new_zeros(1)).index_select(0, index)
