"""Rows: labels that all slots share, read at some of their indices, as if the function had been given these rows."""

from collections.abc import Sequence
from typing import Any

import torch

from hofunc.algebra.labels import Axes, Axis, Label, extent, full, labels_of
from hofunc.algebra.operators import Indices
from hofunc.algebra.term import Factor, Term
from hofunc.structured.slots import without_indices
from hofunc.views import Labelled, each, read, run_now

Index = int | slice | torch.Tensor


def at_rows(term: Term, labels: Sequence[Label], indices: Sequence[Index], one: torch.Tensor) -> Term:
    """Return a term whose labels are read at indices each; one at a single index is left out."""
    if any(isinstance(f.source, Indices) and not {*labels_of(f.axes[:1])}.isdisjoint(labels) for f in term.factors):
        term = without_indices(term, one)
    for label, index in zip(labels, indices, strict=True):
        term = _at(term, label, index)
    return term


def _at(term: Term, label: Label, index: Index) -> Term:
    other = None if isinstance(index, int) else Label(size_at(label.size, index))

    def replaced(axes: Axes) -> Axes:
        found = [_replaced(axis, label, other) for axis in axes]
        return tuple([axis for axis in found if axis is not None])

    def factor(source: Any, axes: Axes) -> Factor:
        if isinstance(source, Indices):
            target, *own = axes
            tensor, axes = factor(source.tensor, tuple(own))
            return Factor(Indices(tensor), (target, *axes))
        taken = _taken(read(run_now, source, axes), label, index, other)
        return Factor(taken.tensor, each(taken.labels))

    return Term(
        term.coefficient,
        tuple([factor(*each_factor) for each_factor in term.factors]),
        replaced(term.out),
        tuple([replaced(slot) for slot in term.slots]),
    )


def _taken(given: Labelled, label: Label, index: Index, other: Label | None) -> Labelled:
    """Read a tensor at indices of a label, in place of which it then has another, if that has several indices."""
    if label not in given.labels:
        return given
    dim = given.labels.index(label)
    tensor = given.tensor[(*[slice(None)] * dim, index)]
    if other is not None and other.size == 1:
        tensor = tensor.select(dim, 0)
    new = () if other is None or other.size == 1 else (other,)
    return Labelled(tensor, (*given.labels[:dim], *new, *given.labels[dim + 1 :]))


def _replaced(axis: Axis, label: Label, other: Label | None) -> Axis | None:
    """Return an axis with another label in place of one, or without it; None if nothing is left then."""
    if label not in labels_of((axis,)):
        return axis
    if other is not None:
        return tuple([full(other) if segment.label is label else segment for segment in axis])
    left = tuple([segment for segment in axis if segment.label is not label])
    return left if extent(left) > 1 else None


def size_at(size: int, index: Index) -> int:
    """Return how many rows of some an index takes."""
    return len(range(size)[index]) if isinstance(index, slice) else len(index) if isinstance(index, torch.Tensor) else 1
