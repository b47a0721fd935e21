"""Chains of selections: what is read at indices of what is read at indices, is read at indices itself."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from hofunc.algebra.labels import Axis, Label, full, labels_of
from hofunc.algebra.operators import Delta, Map, Selection, selection_of
from hofunc.algebra.term import Factor, Term, visible
from hofunc.graph.node import Mask
from hofunc.plan.builder import Builder
from hofunc.plan.relations import At, Known, add_last, composed, known, read_last
from hofunc.plan.selections import entries_of_matrix, indices, read_at
from hofunc.plan.values import Value, emitting
from hofunc.scatter import places_of, positions, size_of
from hofunc.views import Labelled, each, permuted


class _Chain(NamedTuple):
    """Selections that read from an axis which another one gives its indices along.

    Attributes:
        last: The selection whose target the axis is.
        firsts: Those that read along it.
        tensors: The factors of tensors that have it.
        stays: Whether the axis is visible, so that the selection from it stays too.
    """

    last: Selection
    firsts: list[Selection]
    tensors: list[Factor]
    stays: bool = False


def with_chains(builder: Builder, term: Term) -> Term:
    """Return a term in which selections are read through at once that read along an axis which another one reads from.

    The axis is hidden, and could not be summed otherwise but by a matrix: on both sides of it are axes that stay. What
    else has it are tensors, which are read at the same indices if that makes them smaller than the matrix; one that is
    small is multiplied by. Along an axis that is visible the others read at the same indices as well.
    """
    term = _parted(builder, term)
    while (chain := _chain(term, builder.small)) is not None:
        gone = [
            *([] if chain.stays else [chain.last.factor]),
            *(first.factor for first in chain.firsts),
            *chain.tensors,
        ]
        left = [factor for factor in term.factors if not any(factor is other for other in gone)]
        read = [read_at(builder, builder.read(*factor), [chain.last]) for factor in chain.tensors]
        left += [Factor(tensor, each(labels)) for tensor, labels in read]
        through = [_through(builder, first, chain.last) for first in chain.firsts]
        term = term._replace(factors=(*left, *through))
    return term


def _parted(builder: Builder, term: Term) -> Term:
    """Part selections that read from several labels into one for each, where others read along one of them."""
    found = [selection for factor in term.factors if (selection := selection_of(factor)) is not None]
    if len(found) < 2:
        return term
    along = {*labels_of(*(selection.indexed for selection in found))}
    for selection in found:
        targets = labels_of((selection.target,))
        if len(targets) > 1 and not along.isdisjoint(targets) and _is_large(selection, builder.small):
            left = tuple([factor for factor in term.factors if factor is not selection.factor])
            term = term._replace(factors=(*left, *_of_each(builder, selection)))
    return term


def _is_large(selection: Selection, small: int) -> bool:
    """Tell whether a selection has a matrix that is not small, and reads from and along whole labels."""
    return entries_of_matrix(selection) > small and all(
        segment.is_full and segment.extent > 1 for axis in (selection.target, *selection.indexed) for segment in axis
    )


def _of_each(builder: Builder, selection: Selection) -> list[Factor]:
    """Return selections that read from one label each, of which one that reads from all of them is the product."""
    at, relation = indices(builder, selection), known(builder, selection.factor, ())
    found = []
    for label, position in positions([(selection.target, at)]).items():
        index = places_of(builder.emit, builder.like(), {label: position}, at.labels, [(label, 1)])
        part = relation and relation._replace(targets=(label,), indices=relation.places(emitting(builder))[label])
        found.append(_reading(builder, Labelled(index, at.labels), (full(label),), part))
    return found


def _chain(term: Term, small: int) -> _Chain | None:
    found = [selection for factor in term.factors if (selection := selection_of(factor)) is not None]
    if len(found) < 2:
        return None
    shown, targets = visible(term), {*labels_of(tuple([one.target for one in found]))}
    for last in found:
        others = [factor for factor in term.factors if factor is not last.factor]
        label = _whole(last)
        needed = {*shown, *labels_of(*(other.axes for other in others if isinstance(other.source, Map)))}
        if label is None or needed.isdisjoint(labels_of((last.read,))) or not _is_large(last, small):
            continue
        if label in shown:
            firsts = [one for one in found if one is not last and _reads_along(one, label, shown)]
            if firsts and targets.isdisjoint(labels_of(last.indexed)):  # or it would be read through forever
                return _Chain(last, firsts, [], stays=True)
            continue
        bearers = [factor for factor in others if label in labels_of(factor.axes)]
        firsts = [one for one in found if any(one.factor is bearer for bearer in bearers)]
        tensors = [bearer for bearer in bearers if not isinstance(bearer.source, Delta | Map | Mask)]
        is_whole = firsts and len(firsts) + len(tensors) == len(bearers)
        if is_whole and all(_reads_along(one, label, shown) for one in firsts) and _are_small(tensors, last):
            return _Chain(last, firsts, tensors)
    return None


def _are_small(tensors: Sequence[Factor], last: Selection) -> bool:
    """Tell whether tensors that are read by a selection are smaller than its matrix."""
    target = {*labels_of((last.target,))}
    sizes = [size_of({*labels_of(factor.axes), *labels_of(last.indexed)} - target) for factor in tensors]
    return all(size < entries_of_matrix(last) for size in sizes)


def _whole(selection: Selection) -> Label | None:
    """Return the label that the target of a selection is, None if it is none of several."""
    if len(selection.target) != 1:
        return None
    (segment,) = selection.target
    return segment.label if segment.is_full and segment.extent > 1 else None


def _reads_along(selection: Selection, label: Label, shown: Collection[Label]) -> bool:
    """Tell whether a selection reads from a visible axis, at indices along whole labels of which one is given."""
    segments = [segment for axis in selection.indexed for segment in axis]
    along = [segment.label for segment in segments]
    is_along = along.count(label) == 1 and all(segment.is_full for segment in segments)
    return is_along and {*labels_of((selection.target,))} <= {*shown}


def _through(builder: Builder, first: Selection, last: Selection) -> Factor:
    """Return the selection that reads from the target of one what another one reads of it."""
    read = read_at(builder, indices(builder, first), [last])
    known_first, known_last = (known(builder, selection.factor, ()) for selection in (first, last))
    relation = None
    if known_first is not None and known_last is not None:
        emit = emitting(builder)
        conditions = (*known_first.conditions, *known_last.conditions)
        is_taken = known_first.is_taken or known_last.is_taken
        relation = composed(emit, known_first, At.of(emit, known_last))
        relation = relation._replace(conditions=conditions, is_taken=is_taken)
    return _reading(builder, read, first.target, relation)


def _reading(builder: Builder, index: Labelled, target: Axis, relation: Known | None) -> Factor:
    """Return the selection that reads from an axis at indices, given what it is known to be if they are known."""
    size, along = size_of(labels_of((target,))), tuple([full(label) for label in index.labels])
    flat = builder.emit(torch.reshape, index.tensor, (size_of(index.labels),)) if len(along) != 1 else index.tensor
    args = (builder.stand_in(flat), size)
    if relation is not None:
        emit, order = emitting(builder), tuple([relation.read.index(label) for label in index.labels])
        column = emit(torch.reshape, permuted(emit, relation.indices, order), (-1,))
        is_taken = bool(relation.conditions) or relation.is_taken
        value = Value(column, relation.conditions, is_taken=is_taken, has_spare=relation.has_spare)
        builder.known[read_last, size, args, ()] = value
    return Factor(Map(read_last, add_last, args, selects=True), (along, target))
