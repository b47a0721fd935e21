"""Chains of selections: what is read at indices of what is read at indices, is read at indices itself."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hofunc.algebra.labels import Label, extent, labels_of, shape_of
from hofunc.algebra.operators import Delta, Map, Selection, selection_of
from hofunc.algebra.term import Factor, Term, visible
from hofunc.graph.node import Mask
from hofunc.plan.program import Builder
from hofunc.plan.relations import add_last, read_last
from hofunc.plan.selections import entries_of_matrix, indices, read_at
from hofunc.plan.values import Value, places_read
from hofunc.scatter import size_of
from hofunc.views import each


class _Chain(NamedTuple):
    """Selections that read from an axis which another one gives its indices along.

    Attributes:
        last: The selection whose target the axis is.
        firsts: Those that read along it.
        tensors: The factors of tensors that have it.
    """

    last: Selection
    firsts: list[Selection]
    tensors: list[Factor]


def with_chains(builder: Builder, term: Term) -> Term:
    """Return a term in which selections are read through at once that read along an axis which another one reads from.

    The axis is hidden, and could not be summed otherwise but by a matrix: on both sides of it are axes that stay. What
    else has it are tensors, which are read at the same indices if that makes them smaller than the matrix; one that is
    small is multiplied by.
    """
    while (chain := _chain(term, builder.small)) is not None:
        gone = [chain.last.factor, *(first.factor for first in chain.firsts), *chain.tensors]
        left = [factor for factor in term.factors if not any(factor is other for other in gone)]
        read = [read_at(builder, builder.read(*factor), [chain.last]) for factor in chain.tensors]
        left += [Factor(tensor, each(labels)) for tensor, labels in read]
        through = [_through(builder, first, chain.last) for first in chain.firsts]
        term = term._replace(factors=(*left, *through))
    return term


def _chain(term: Term, small: int) -> _Chain | None:
    found = [selection for factor in term.factors if (selection := selection_of(factor)) is not None]
    if len(found) < 2:
        return None
    shown = visible(term)
    for last in found:
        others = [factor for factor in term.factors if factor is not last.factor]
        label = _whole(last)
        needed = {*shown, *labels_of(*(other.axes for other in others if isinstance(other.source, Map)))}
        if label is None or label in shown or needed.isdisjoint(labels_of((last.read,))):
            continue
        if entries_of_matrix(last) <= small:
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
    sizes = [size_of({*labels_of(factor.axes), *labels_of((last.read,))} - target) for factor in tensors]
    return all(size < entries_of_matrix(last) for size in sizes)


def _whole(selection: Selection) -> Label | None:
    """Return the label that the target of a selection is, None if it is none of several, or indices are several."""
    if len(selection.target) != 1 or selection.beside:
        return None
    (segment,) = selection.target
    return segment.label if segment.is_full and segment.extent > 1 else None


def _reads_along(selection: Selection, label: Label, shown: Sequence[Label] | dict[Label, None]) -> bool:
    """Tell whether a selection reads from a visible axis, at indices along a whole label."""
    read, target = selection.read, {*labels_of((selection.target,))}
    is_along = len(read) == 1 and read[0].label is label and read[0].is_full
    return is_along and not selection.beside and target <= {*shown}


def _through(builder: Builder, first: Selection, last: Selection) -> Factor:
    """Return the selection that reads from the target of one what another one reads of it."""
    size = int(extent(first.target))
    along = indices(builder, first).tensor
    index = builder.apply(last.function, along, last.args, shape_of((last.read,)), torch.long)
    args = (builder.stand_in(index), size)
    known = places_read(builder, first.function, size, first.args)
    at = places_read(builder, last.function, int(extent(last.target)), last.args)
    if known is not None and at is not None:
        places = known.tensor[at.tensor]
        builder.known[read_last, size, args, ()] = Value(places, (*known.nodes, *at.nodes))
    return Factor(Map(read_last, add_last, args, selects=True), (last.read, first.target))
