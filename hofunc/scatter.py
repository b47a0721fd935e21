"""Entries at places that indices tell: of terms that read axes through tensors of indices, and how they are added up.

Each function takes `emit`, as in `hofunc.views`; ``like`` is a tensor on the device of the entries.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.algebra.labels import Axis, Label, labels_of
from hofunc.algebra.operators import Indices
from hofunc.algebra.term import Term
from hofunc.graph.followed import is_followed
from hofunc.views import Emit, Labelled, aligned, run_now, times


class Position(NamedTuple):
    """The index of a label: ``where // step % extent``, or without the remainder where the extent is zero."""

    where: Labelled
    step: int = 1
    extent: int = 0


class Entries(NamedTuple):
    """What a term has entries of.

    Attributes:
        coefficient: What they are multiplied by.
        core: The entries.
        positions: For every label that is read through indices, where its index is; the core does not bear it.
    """

    coefficient: float
    core: Labelled
    positions: Mapping[Label, Position]

    def runs(self) -> list[Label]:
        """Return the labels that the indices run over."""
        labels = (label for position in self.positions.values() for label in position.where.labels)
        return [*dict.fromkeys(labels)]

    def labels(self, shown: Iterable[Label]) -> list[Label]:
        """Return the labels of which there is an entry for all their indices, given those that are visible."""
        own = (label for label in shown if label not in self.positions)
        return [label for label in dict.fromkeys((*self.core.labels, *self.runs(), *own)) if label.size > 1]


def positions(reads: Iterable[tuple[Axis, Labelled]]) -> dict[Label, Position]:
    """Return the positions of the labels of axes, each of which is read at indices."""
    found = {}
    for axis, where in reads:
        labels = [label for label in labels_of((axis,)) if label.size > 1]
        step = 1
        for label in reversed(labels):
            found[label] = Position(where, step, label.size if len(labels) > 1 else 0)
            step *= label.size
    return found


def core_of(term: Term) -> Labelled | None:
    """Return the core of a term, None if it has none, which is one everywhere."""
    for source, axes in term.factors:
        if not isinstance(source, Indices):
            return Labelled(source, tuple(labels_of(axes)))
    return None


def reads_of(term: Term) -> list[tuple[Axis, Labelled]]:
    """Return the axes of a term that are read through indices, and these."""
    reads = [(axes, source.tensor) for source, axes in term.factors if isinstance(source, Indices)]
    return [(target, Labelled(tensor, tuple(labels_of(tuple(own))))) for (target, *own), tensor in reads]


def entries_of(term: Term, one: Labelled) -> Entries:
    """Return the entries of a term, and where they are; one stands for a core where there is none."""
    return Entries(term.coefficient, core_of(term) or one, positions(reads_of(term)))


def solid(emit: Emit, like: Any, terms: Sequence[Entries], shown: Sequence[Label]) -> Labelled:
    """Return the sum of terms as a tensor that runs over some labels, adding all entries to their places in it."""
    marked = {label for term in terms for label in (*term.positions, *term.runs())}
    placed = [label for label in shown if label in marked and label.size > 1]
    rows = [label for label in shown if label not in marked and label.size > 1]
    strides = [(label, size_of(placed[place + 1 :])) for place, label in enumerate(placed)]
    places, vectors = [], []
    for term in terms:
        runs = [label for label in placed if label not in term.positions]
        runs += [label for label in term.runs() if label not in runs]
        places.append(places_of(emit, like, term.positions, runs, strides))
        vectors.append(laid_out(emit, term.core, [*runs, *rows]))
    total = emit(added, size_of(placed), size_of(rows), tuple([term.coefficient for term in terms]), *places, *vectors)
    sizes = tuple(label.size for label in (*placed, *rows))
    return Labelled(emit(torch.reshape, total, sizes), (*placed, *rows))


def places_of(
    emit: Emit, like: Any, known: Mapping[Label, Position], runs: Sequence[Label], strides: Iterable[tuple[Label, int]]
) -> Any:
    """Return the sum of the indices of labels, each times its stride, for all entries, which run over some labels."""
    tensors, numbers = [], []
    for label, stride in strides:
        position = known.get(label)
        if position is None:
            position = Position(Labelled(emit(range_like, like, label.size), (label,)))
        tensors.append(aligned(emit, position.where, runs))
        numbers += [position.step, position.extent, stride]
    return emit(flat_places, tuple(label.size for label in runs), tuple(numbers), like, *tensors)


def values(emit: Emit, term: Entries, labels: Sequence[Label]) -> Any:
    """Return the entries of a term as a tensor that runs over labels, which are all that it has."""
    return times(emit, laid_out(emit, term.core, labels), term.coefficient)


def laid_out(emit: Emit, core: Labelled, labels: Sequence[Label]) -> Any:
    """View a tensor as one that runs over labels, which are all that it has."""
    tensor = aligned(emit, core, labels)
    if len(core.labels) == len(labels):
        return tensor
    return emit(torch.Tensor.expand, tensor, tuple(label.size for label in labels))


def size_of(labels: Iterable[Label]) -> int:
    """Return how many entries a tensor has that runs over labels."""
    return prod(label.size for label in labels)


def range_like(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return the indices of an axis of some size, on a tensor's device."""
    return torch.arange(size, device=tensor.device)


def ranges(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for all elements of ranges that follow each other, of which range they are and their place in it.

    Example:
        >>> [each.tolist() for each in ranges(torch.tensor([2, 0, 3]))]
        [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    number = range_like(lengths, len(lengths)).repeat_interleave(lengths)
    starts = lengths.cumsum(0) - lengths
    return number, range_like(lengths, len(number)) - starts[number]


def flat_places(
    shape: tuple[int, ...], numbers: tuple[int, ...], like: torch.Tensor, *indices: torch.Tensor
) -> torch.Tensor:
    """Return places in the memory of a tensor, of indices along its axes.

    Args:
        shape: What the indices broadcast to.
        numbers: For every tensor of indices three numbers: the index is that number of steps, modulo the second one
            unless that is zero; each skips as many entries as the third says.
        like: A tensor of the device of the places.
        indices: The tensors.
    """
    total: torch.Tensor | None = None
    for place, index in enumerate(indices):
        step, extent, stride = numbers[3 * place : 3 * place + 3]
        steps = index if step == 1 else index.div(step, rounding_mode="floor")
        steps = steps.remainder(extent) if extent else steps
        steps = steps if stride == 1 else steps * stride
        total = steps if total is None else total + steps
    if total is None:
        total = torch.zeros((), dtype=torch.long, device=like.device)
    return total.expand(shape).reshape(-1)


def flattened(indices: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the places in row-major order of elements of axes, given their indices along each.

    Args:
        indices: Of shape (axes, elements).
        sizes: Those of the axes.
    """
    strides = indices.new_tensor([prod(sizes[place + 1 :]) for place in range(len(sizes))])
    return (indices * strides[:, None]).sum(0)


def added(size: int, width: int, coefficients: tuple[float, ...], *tensors: torch.Tensor) -> torch.Tensor:
    """Return zeros to which multiples of rows are added at places, one tensor after the other.

    Args:
        size: The number of places.
        width: That of rows.
        coefficients: What each tensor of rows is multiplied by.
        tensors: As many tensors of places, and after them those of rows, of any shape of as many elements.
    """
    places, given = tensors[: len(coefficients)], tensors[len(coefficients) :]
    zeros = given[0].new_zeros(size, width)
    if not given[0].is_cpu or is_followed(given):
        rows = [
            times(run_now, each, weight).reshape(-1, width) for each, weight in zip(given, coefficients, strict=True)
        ]
        return torch.index_add(zeros, 0, torch.cat(places), torch.cat(rows))
    for where, each, weight in zip(places, given, coefficients, strict=True):
        zeros.index_add_(0, where, _multiple(each, weight).reshape(-1, width))  # in the same order at every call
    return zeros


def _multiple(tensor: torch.Tensor, weight: float) -> torch.Tensor:
    """Return a multiple of a tensor, laid out one element after the other unless it is the tensor itself."""
    return tensor if weight == 1 else torch.mul(tensor, weight, out=tensor.new_empty(tensor.shape))


def scratch(coefficients: tuple[float, ...], *tensors: torch.Tensor) -> int:
    """Return the bytes that `added` holds beside its result: what it lays out anew of one tensor."""
    laid = [
        0 if rows.is_contiguous() and weight == 1 else rows.numel() * rows.element_size()
        for weight, rows in zip(coefficients, tensors[len(coefficients) :], strict=True)
    ]
    return max(laid)
