"""Tensors seen through labelled axes: reading, spreading and adding, as sequences of plain torch calls.

Each function takes `emit`, which either runs a torch function (`emit = run_now`) or appends it to a program, so that
the same code serves a program at plan time and a `Derivative` that its user asks for a dense tensor. Nothing here
writes in place, so every sequence works under autograd, vmap and another recording.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.algebra.labels import Axes, Label, Segment, full, labels_of, shape_of, whole
from hofunc.graph.followed import is_followed
from hofunc.graph.layout import select_scatter

Emit = Callable[..., Any]


class Labelled(NamedTuple):
    """A tensor (or the register of one) whose dimensions run over distinct labels of size above one."""

    tensor: Any
    labels: tuple[Label, ...]


def run_now(function: Callable, *args: Any) -> torch.Tensor:
    """Emit by calling."""
    return function(*args)


class _Read(NamedTuple):
    """A view, ``read(tensor, *args)``, and what writes through it, ``write(tensor, part, *args)``."""

    read: Callable
    write: Callable
    args: tuple


def _reads(axes: Axes) -> tuple[list[_Read], tuple[Label, ...]]:
    """List the views that turn a tensor with these axes into one dimension per distinct label."""
    every = [segment for axis in axes for segment in axis]
    segments = [segment for segment in every if segment.extent != 1]
    reads = []
    if len(segments) != len(axes) or any(len(axis) != 1 for axis in axes):
        split = tuple([segment.extent for segment in segments])
        reads.append(_Read(torch.reshape, _shaped_like, (split,)))
    for dim in reversed(range(len(segments))):
        label, start, extent = segments[dim]
        if label is None or label.size == 1:
            reads.append(_Read(torch.select, select_scatter, (dim, start)))
            del segments[dim]
        elif label.size != extent:
            reads.append(_Read(torch.narrow, narrow_scatter, (dim, start, label.size)))
    labels = [segment.label for segment in segments if segment.label is not None]
    while (repeat := _first_repeat(labels)) is not None:
        reads.append(_Read(torch.diagonal, torch.diagonal_scatter, (0, *repeat)))
        label = labels[repeat[0]]
        labels = [other for dim, other in enumerate(labels) if dim not in repeat] + [label]
    return reads, tuple(labels)


def _shaped_like(tensor: torch.Tensor, part: torch.Tensor, _: tuple[int, ...]) -> torch.Tensor:
    return torch.reshape(part, tensor.shape)


def narrow_scatter(tensor: torch.Tensor, part: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    """Return the tensor with a part written to where `torch.narrow` takes it from."""
    return torch.slice_scatter(tensor, part, dim, start, start + length)


def _first_repeat(labels: Sequence[Label]) -> tuple[int, int] | None:
    for second, label in enumerate(labels):
        first = labels.index(label)
        if first != second:
            return first, second
    return None


def read(emit: Emit, tensor: Any, axes: Axes) -> Labelled:
    """View a tensor through its axes: only the indices that the labels reach, repeated labels as diagonals."""
    reads, labels = _reads(axes)
    for step in reads:
        tensor = emit(step.read, tensor, *step.args)
    return Labelled(tensor, labels)


def aligned(emit: Emit, source: Labelled, labels: Sequence[Label]) -> Any:
    """Return the source with its dimensions in the order of labels, size 1 where it lacks the label.

    Leading missing labels are left to broadcasting.
    """
    if source.labels == tuple(labels):
        return source.tensor
    order = tuple([source.labels.index(label) for label in labels if label in source.labels])
    tensor = permuted(emit, source.tensor, order)
    first = next((place for place, label in enumerate(labels) if label in source.labels), len(labels))
    missing = [place - first for place in range(first, len(labels)) if labels[place] not in source.labels]
    if not missing:
        return tensor
    if len(missing) == 1:
        return emit(torch.unsqueeze, tensor, missing[0])
    return emit(torch.reshape, tensor, tuple([x.size if x in source.labels else 1 for x in labels[first:]]))


def permuted(emit: Emit, tensor: Any, order: tuple[int, ...]) -> Any:
    """Permute dimensions, unless they are in order already."""
    if order == tuple(range(len(order))):
        return tensor
    return emit(torch.permute, tensor, order)


Reads = tuple[tuple[Any, ...], ...]  # views of views of a tensor: the name of each, and its arguments


def _named(reads: Sequence[_Read]) -> Reads:
    """Return views as what a step takes, which is compared, saved and cut to rows."""
    return tuple([(step.read.__name__, *step.args) for step in reads])


def put(tensor: torch.Tensor, part: torch.Tensor, reads: Reads) -> torch.Tensor:
    """Return a tensor with a part written to where views of views of it are, which may broadcast."""
    if is_followed((tensor, part)):
        return _put(tensor, part, reads)
    return write(tensor.clone(memory_format=torch.contiguous_format), part, reads)


def filled(part: torch.Tensor, shape: tuple[int, ...], reads: Reads) -> torch.Tensor:
    """Return zeros with a part written to where views of views of them are, which may broadcast."""
    zeros = part.new_zeros(shape)
    return _put(zeros, part, reads) if is_followed((part,)) else write(zeros, part, reads)


def write(tensor: torch.Tensor, part: torch.Tensor, reads: Reads) -> torch.Tensor:
    """Write a part to where views of views of a contiguous tensor are, and return the tensor."""
    view = tensor
    for name, *args in reads:
        view = _VIEWED[name].read(view, *args)
    view.copy_(part)
    return tensor


def _put(tensor: torch.Tensor, part: torch.Tensor, reads: Reads) -> torch.Tensor:
    """Return what `put` does by ops that others can follow."""
    if not reads:
        return part.expand(tensor.shape)
    (name, *args), *rest = reads
    known = _VIEWED[name]
    return known.write(tensor, _put(known.read(tensor, *args), part, tuple(rest)), *args)


class _Known(NamedTuple):
    """A view, and what writes through it."""

    read: Callable
    write: Callable


_VIEWED = {
    "reshape": _Known(torch.reshape, _shaped_like),
    "select": _Known(torch.select, select_scatter),
    "narrow": _Known(torch.narrow, narrow_scatter),
    "diagonal": _Known(torch.diagonal, torch.diagonal_scatter),
}


def _write_diagonal(tensor: torch.Tensor, part: torch.Tensor, *args: int) -> torch.Tensor:
    torch.diagonal(tensor, *args).copy_(part)
    return tensor


def _write_selected(tensor: torch.Tensor, part: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    torch.select(tensor, dim, index).copy_(part)
    return tensor


def _write_narrowed(tensor: torch.Tensor, part: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    torch.narrow(tensor, dim, start, length).copy_(part)
    return tensor


# What writes a part to a tensor itself, for what returns a tensor with the part.
WRITES: dict[Any, Callable[..., torch.Tensor]] = {
    torch.diagonal_scatter: _write_diagonal,
    select_scatter: _write_selected,
    narrow_scatter: _write_narrowed,
    put: write,
}


def spread(emit: Emit, source: Labelled, axes: Axes) -> Any:
    """Write a labelled tensor into zeros of the shape of axes: the inverse of `read`.

    A label of the axes that the source lacks is broadcast, one that several axes bear is a diagonal.
    """
    if (distinct := whole(axes)) is not None:
        return _broadcast(emit, source, distinct)
    if _is_spread_often(axes):
        reads, own = _reads(axes)
        return emit(filled, aligned(emit, source, own), shape_of(axes), _named(reads))
    segments = [_pinned(segment) for axis in axes for segment in axis]
    labels = [segment.label for segment in segments if segment.label is not None]
    tensor = _with_diagonals(emit, _broadcast(emit, source, [*dict.fromkeys(labels)]), labels)
    if len(labels) < len(segments):
        tensor = emit(torch.reshape, tensor, tuple(s.label.size if s.label else 1 for s in segments))
    padding = _padding(segments)
    if any(padding):
        tensor = emit(torch.constant_pad_nd, tensor, padding)
    if any(len(axis) != 1 for axis in axes):
        tensor = emit(torch.reshape, tensor, shape_of(axes))
    return tensor


def _broadcast(emit: Emit, source: Labelled, labels: Sequence[Label]) -> Any:
    """Return a labelled tensor with a dimension for each of some labels, its own among them."""
    tensor = aligned(emit, source, labels)
    if len(source.labels) == len(labels):
        return tensor
    return emit(torch.Tensor.expand, tensor, tuple([label.size for label in labels]))


def _is_spread_often(axes: Axes) -> bool:
    """Tell whether to lay out diagonals one after the other, and zeros around, would make several large tensors."""
    segments = [_pinned(segment) for axis in axes for segment in axis]
    labels = [segment.label for segment in segments if segment.label is not None]
    return len(labels) - len({*labels}) + any(_padding(segments)) > 1


def _padding(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return how many zeros come before and after what segments reach, of the last one first."""
    return tuple([amount for s in reversed(segments) for amount in (s.start, s.extent - s.stop)])


def _pinned(segment: Segment) -> Segment:
    """Turn a label of size 1, which no tensor has a dimension for, into the single index that it stands for."""
    return segment._replace(label=None) if segment.label is not None and segment.label.size == 1 else segment


def _with_diagonals(emit: Emit, tensor: Any, labels: Sequence[Label]) -> Any:
    """Embed every repeated label as a diagonal, starting from one dimension per distinct label."""
    places = [labels.index(label) for label in dict.fromkeys(labels)]
    for place, label in enumerate(labels):
        if place in places:
            continue
        first = places.index(labels.index(label))
        rest = tuple(dim for dim in range(len(places)) if dim != first)
        tensor = permuted(emit, tensor, (*rest, first))
        second = sum(other < place for other in places)
        tensor = emit(torch.diag_embed, tensor, 0, first, second)
        places = sorted([*places, place])
    return tensor


def add_within(emit: Emit, base: Any, axes: Axes, source: Labelled, coefficient: float) -> Any:
    """Add a labelled tensor to the part of a base tensor that axes describe, leaving the rest as it is."""
    reads, labels = _reads(axes)
    if all(step.read is torch.narrow for step in reads) and {*labels} == {*source.labels}:
        segments = [segment for axis in axes for segment in axis]
        if reads and 2 * prod(s.stop - s.start for s in segments) >= prod(s.extent for s in segments):
            part = emit(torch.constant_pad_nd, aligned(emit, source, labels), _padding(segments))
            return plus(emit, base, part, coefficient)

    part = base
    for step in reads:
        part = emit(step.read, part, *step.args)
    total = plus(emit, part, aligned(emit, source, labels), coefficient)
    if len(reads) > 1:
        return emit(put, base, total, _named(reads))
    return emit(reads[0].write, base, total, *reads[0].args) if reads else total


def plus(emit: Emit, left: Any, right: Any, coefficient: float) -> Any:
    """Return left + coefficient * right."""
    if coefficient == 1:
        return emit(torch.add, left, right)
    return emit(add_scaled, left, right, as_number(coefficient))


def add_scaled(left: torch.Tensor, right: torch.Tensor, coefficient: float) -> torch.Tensor:
    """Return left + coefficient * right, in one call."""
    return torch.add(left, right, alpha=coefficient)


def times(emit: Emit, tensor: Any, coefficient: float) -> Any:
    """Return coefficient * tensor."""
    if coefficient == 1:
        return tensor
    return emit(torch.neg, tensor) if coefficient == -1 else emit(torch.mul, tensor, as_number(coefficient))


def as_number(coefficient: float) -> float:
    """Return a coefficient as ops take it: they take no int of more than 64 bits, and tensors keep 53 of them."""
    return float(coefficient) if isinstance(coefficient, int) and abs(coefficient) >> 53 else coefficient


class Part(NamedTuple):
    """What a term contributes to a dense tensor: coefficient * source, at the places that its labels have in axes."""

    coefficient: float
    source: Labelled
    axes: Axes


def assembled(emit: Emit, parts: Sequence[Part]) -> Any:
    """Add parts, one at least, into one dense tensor; the axes of all parts have the same extents."""
    axes = parts[0].axes
    if len(parts) == 1 or len({tuple(tuple(s.extent for s in axis) for axis in part.axes) for part in parts}) > 1:
        return _added(emit, parts)
    flat = [Part(part.coefficient, part.source, tuple((s,) for axis in part.axes for s in axis)) for part in parts]
    total = _laid(emit, flat)
    return total if all(len(axis) == 1 for axis in axes) else emit(torch.reshape, total, shape_of(axes))


def _laid(emit: Emit, parts: Sequence[Part]) -> Any:
    """Add parts of which every axis is one segment; those that lie side by side are concatenated."""
    for dim in range(len(parts[0].axes)) if len(parts) > 1 else []:
        groups = _side_by_side(parts, dim)
        if groups:
            return emit(concatenated, dim, *[_laid(emit, group) for group in groups])
    return _added(emit, parts)


def _side_by_side(parts: Sequence[Part], dim: int) -> list[list[Part]]:
    """Group parts by ranges of an axis that are disjoint and leave no gap, each seen in its range; none if they do."""
    groups: list[list[Part]] = []
    bounds = [0]
    for part in sorted(parts, key=lambda part: part.axes[dim][0].start):
        start, stop = part.axes[dim][0].start, part.axes[dim][0].stop
        if start > bounds[-1]:
            return []
        if start == bounds[-1]:
            groups.append([])
            bounds.append(stop)
        groups[-1].append(part)
        bounds[-1] = max(bounds[-1], stop)
    if len(groups) < 2 or bounds[-1] != parts[0].axes[dim][0].extent:
        return []
    ranges = zip(groups, bounds, bounds[1:], strict=False)
    return [[within(part, dim, start, stop) for part in group] for group, start, stop in ranges]


def within(part: Part, dim: int, start: int, stop: int) -> Part:
    """Return a part as it is seen in a range of an axis."""
    (segment,) = part.axes[dim]
    narrowed = Segment(segment.label, segment.start - start, stop - start)
    return Part(part.coefficient, part.source, (*part.axes[:dim], (narrowed,), *part.axes[dim + 1 :]))


def concatenated(dim: int, *tensors: torch.Tensor) -> torch.Tensor:
    """Return tensors one after the other along an axis."""
    return torch.cat(tensors, dim)


def stacked(*tensors: torch.Tensor) -> torch.Tensor:
    """Return tensors of one shape side by side along a new first axis."""
    return torch.stack(tensors)


def folded(tensor: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return the product with a matrix or a vector along the last axis, of all others taken for one.

    `torch.matmul` takes them so only where that is a view, and multiplies one by one otherwise.
    """
    if tensor.is_contiguous():
        return torch.matmul(tensor, matrix)
    return torch.matmul(tensor.flatten(0, -2), matrix).unflatten(0, tensor.shape[:-1])


def _added(emit: Emit, parts: Sequence[Part]) -> Any:
    """Write the largest part, and add the others to it."""
    first, *others = sorted(parts, key=_entries, reverse=True) if len(parts) > 1 else parts
    tensor, labels = first.source
    total = spread(emit, Labelled(times(emit, tensor, first.coefficient), labels), first.axes)
    for part in others:
        total = add_within(emit, total, part.axes, part.source, part.coefficient)
    return total


def _entries(part: Part) -> int:
    return prod(label.size for label in {*labels_of(part.axes)})


def each(labels: Sequence[Label]) -> Axes:
    """Return one whole axis per label."""
    return tuple((full(label),) for label in labels)


def laid_out(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Permute the axes of a tensor, unless they are in order."""
    return tensor if _is_in_order(order) else tensor.permute(order)


@lru_cache(maxsize=1024)
def _is_in_order(order: tuple[int, ...]) -> bool:
    return order == tuple(range(len(order)))
