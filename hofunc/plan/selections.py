"""Axes that are read through indices: selections that stay factors of contracted terms, and how they end.

What reads elements at indices is sparse: of `x[i] - x[j]`, for many pairs of few points, the derivative by the points
is one block for every pair. So a selection whose target is visible stays beside the tensor of a term, which runs over
what is read and not over what could have been. Where a dense tensor is asked for, the entries are added to their places
in it, by all their indices at once.
"""

from collections.abc import Collection, Iterable, Sequence
from math import prod

import torch

from hofunc.algebra.labels import Label, labels_of, shape_of
from hofunc.algebra.operators import Selection, selection_of, selections_of
from hofunc.algebra.term import Term, visible
from hofunc.plan.operators import one_like, transformed
from hofunc.plan.program import Builder, Register
from hofunc.views import Labelled, aligned, read, times

SMALL = 4096  # entries of a matrix that is multiplied by in no longer than it takes to read through indices


def is_small(selection: Selection) -> bool:
    """Tell whether the matrix of a selection has few entries."""
    return _size(dict.fromkeys(labels_of(selection.factor.axes))) <= SMALL


def can_stay(selection: Selection, shown: Collection[Label]) -> bool:
    """Tell whether a selection can be a factor of a contracted term, of which some labels are visible.

    Its target has to be visible as a whole.
    """
    labels = {*labels_of((selection.target,))}
    return bool(labels) and all(segment.is_full for segment in selection.target) and labels <= {*shown}


def without_selections(term: Term) -> Term:
    """Return a term without those of its factors that are selections."""
    return term._replace(factors=tuple(factor for factor in term.factors if selection_of(factor) is None))


def tensor_of(term: Term) -> Labelled | None:
    """Return the tensor of a contracted term, which may run over what its selections read; None if it has none."""
    for source, axes in without_selections(term).factors:
        return Labelled(source, tuple(labels_of(axes)))
    return None


def entries(term: Term) -> list[Label]:
    """Return the labels of which a contracted term has an entry for all their indices: its own, and what it reads."""
    found = selections_of(term)
    if not found:
        return [*visible(term)]
    targets = {*labels_of(tuple([selection.target for selection in found]))}
    own = labels_of(*(factor.axes for factor in without_selections(term).factors))
    shown = [label for label in visible(term) if label not in targets or label in own]
    return [*dict.fromkeys((*shown, *labels_of(*(selection.indexed for selection in found))))]


def read_through(builder: Builder, operands: Sequence[Labelled], selections: Sequence[Selection]) -> list[Labelled]:
    """Read operands at the indices of selections beside them, if all of them together have fewer entries then."""
    result = [*operands]
    for group in _connected(selections):
        targets = {*labels_of(tuple([selection.target for selection in group]))}
        before = dict.fromkeys(label for operand in result for label in operand.labels)
        taken = [selection for selection in group if not before.keys().isdisjoint(labels_of((selection.target,)))]
        indexed = labels_of(*(selection.indexed for selection in taken))
        after = dict.fromkeys((*(label for label in before if label not in targets), *indexed))
        if taken and _size(after) < _size(before):
            for selection in taken:
                result = [_read(builder, operand, selection) for operand in result]
    return result


def _connected(selections: Sequence[Selection]) -> list[list[Selection]]:
    """Group selections that have labels of their indices in common, be it through others."""
    groups: list[list[Selection]] = []
    for selection in selections:
        own = {*labels_of(selection.indexed)}
        near = [group for group in groups if any(own & {*labels_of(other.indexed)} for other in group)]
        groups = [group for group in groups if not any(group is other for other in near)]
        groups.append([*(other for group in near for other in group), selection])
    return groups


def _read(builder: Builder, operand: Labelled, selection: Selection) -> Labelled:
    if {*operand.labels}.isdisjoint(labels_of((selection.target,))):
        return operand
    return transformed(builder, selection.factor, operand, transposed=selection.factor.source.adds)


def solid(builder: Builder, terms: Sequence[Term], shown: Sequence[Label]) -> Labelled:
    """Return the sum of contracted terms as a tensor, adding what they read to the places that it is read from.

    Args:
        builder: Takes the steps.
        terms: Terms of which each has selections, or has all the labels.
        shown: The labels of the result, which are visible in all terms.
    """
    found = [selections_of(term) for term in terms]
    marked = {*labels_of(*((selection.target, *selection.indexed) for group in found for selection in group))}
    placed = [label for label in shown if label in marked and label.size > 1]
    rows = [label for label in shown if label not in marked and label.size > 1]
    places, vectors = [], []
    for term, selections in zip(terms, found, strict=True):
        runs, place = _places(builder, selections, placed)
        places.append(place)
        vectors.append(_vectors(builder, term, selections, runs, rows))
    total = builder.emit(added, prod(label.size for label in placed), len(places), *places, *vectors)
    sizes = tuple(label.size for label in (*placed, *rows))
    return Labelled(builder.emit(torch.reshape, total, sizes), (*placed, *rows))


def _places(builder: Builder, selections: Sequence[Selection], placed: Sequence[Label]) -> tuple[list[Label], Register]:
    """Return what entries run over, and the places of all entries among those of some labels."""
    owners = {label: selection for selection in selections for label in labels_of((selection.target,))}
    runs = [label for label in placed if label not in owners]
    runs += [x for x in dict.fromkeys(labels_of(*(s.indexed for s in selections))) if x not in runs and x.size > 1]
    parts = []
    left = [*placed]
    while left:
        if left[0] in owners:
            selection = owners[left[0]]
            taken = [label for label in labels_of((selection.target,)) if label.size > 1]
            index, stride = indices(builder, selection), 1
            for label in reversed(taken):
                extent, where = label.size, placed.index(label)
                whole = len(taken) == 1
                parts.append((index, stride, 0 if whole else extent, _size(placed[where + 1 :])))
                stride *= extent
            left = [label for label in left if label not in taken]
        else:
            label = left.pop(0)
            range_ = Labelled(builder.emit(range_like, builder.like(), label.size), (label,))
            parts.append((range_, 1, 0, _size(placed[placed.index(label) + 1 :])))
    tensors = [aligned(builder.emit, index, runs) for index, *_ in parts]
    numbers = tuple(number for _, *numbers in parts for number in numbers)
    shape = tuple(label.size for label in runs)
    return runs, builder.emit(flat_places, shape, numbers, *tensors)


def indices(builder: Builder, selection: Selection) -> Labelled:
    """Return the indices of what a selection reads, along the axes that it reads."""
    size = shape_of((selection.target,))[0]
    beside = shape_of(selection.beside)
    every = builder.emit(range_like, builder.like(), size)
    every = builder.emit(torch.Tensor.expand, every, (*beside, size)) if beside else every
    shape = shape_of(selection.indexed)
    tensor = builder.apply(selection.function, every, selection.args, shape, torch.long)
    return read(builder.emit, tensor, selection.indexed)


def _vectors(
    builder: Builder, term: Term, selections: Sequence[Selection], runs: Sequence[Label], rows: Sequence[Label]
) -> Register:
    """Return the entries of a term, those of the rows along the last axis."""
    given = tensor_of(term) or Labelled(builder.emit(one_like, builder.like()), ())
    for selection in selections:
        given = _read(builder, given, selection)
    labels = (*runs, *rows)
    tensor = aligned(builder.emit, given, labels)
    if len(given.labels) < len(labels):
        tensor = builder.emit(torch.Tensor.expand, tensor, tuple(label.size for label in labels))
    tensor = builder.emit(torch.reshape, tensor, (_size(runs), _size(rows)))
    return times(builder.emit, tensor, term.coefficient)


def _size(labels: Iterable[Label]) -> int:
    return prod(label.size for label in labels)


def range_like(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return the indices of an axis of some size, on a tensor's device."""
    return torch.arange(size, device=tensor.device)


def flat_places(shape: tuple[int, ...], numbers: tuple[int, ...], *indices: torch.Tensor) -> torch.Tensor:
    """Return places in the memory of a tensor, of indices along its axes.

    Args:
        shape: What the indices broadcast to.
        numbers: For every tensor of indices three numbers: the index is that number of steps, modulo the second one
            unless that is zero; each skips as many entries as the third says.
        indices: The tensors.
    """
    total: torch.Tensor | None = None
    for place, index in enumerate(indices):
        step, extent, stride = numbers[3 * place : 3 * place + 3]
        steps = index.div(step, rounding_mode="floor").remainder(extent) if extent else index
        total = steps * stride if total is None else total + steps * stride
    return torch.zeros(1, dtype=torch.long) if total is None else total.expand(shape).reshape(-1)


def added(size: int, count: int, *tensors: torch.Tensor) -> torch.Tensor:
    """Return zeros to which rows are added at places.

    Args:
        size: The number of places.
        count: How many tensors of places there are.
        tensors: Those, and after them as many tensors of rows.
    """
    places, rows = (torch.cat(part) if count > 1 else part[0] for part in (tensors[:count], tensors[count:]))
    return torch.index_add(rows.new_zeros(size, rows.shape[1]), 0, places, rows)


def scratch(count: int, *tensors: torch.Tensor) -> int:
    """Return the bytes that `added` holds beside zeros and its result: what it lays together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) if count > 1 else 0


def meeting(outers: Sequence[Term], inners: Sequence[Sequence[Term | None]]) -> tuple[bool, list[bool]]:
    """Tell what of some terms and of those to be put into their slots has to be without selections.

    Where two selections read from one axis that is summed, entries of one meet many of the other, which ones only their
    indices tell: those terms are to be dense there.

    Returns:
        Whether the outer terms are among them, and whether those of each slot are.
    """
    reading = [
        [[_is_read(inner, place) for inner in terms if inner is not None] for place in range(len(axes))]
        for terms, axes in zip(inners, outers[0].slots, strict=True)
    ]
    is_outer, are_inner = False, [False] * len(inners)
    for outer in outers:
        at: dict[Label, set[int]] = {}
        for number, axes in enumerate(outer.slots):
            for place, axis in enumerate(axes):
                for label in labels_of((axis,)) if any(reading[number][place]) else []:
                    at.setdefault(label, set()).add(number)
        own = _targets(outer)
        for label, numbers in at.items():
            if label in own or len(numbers) > 1:
                is_outer = is_outer or label in own
                are_inner = [found or number in numbers for number, found in enumerate(are_inner)]
    return is_outer, are_inner


def _is_read(term: Term, place: int) -> bool:
    """Tell whether an axis of the output of a term is what a selection of it reads from."""
    return not _targets(term).isdisjoint(labels_of((term.out[place],)))


def _targets(term: Term) -> set[Label]:
    return {*labels_of(tuple([selection.target for selection in selections_of(term)]))}
