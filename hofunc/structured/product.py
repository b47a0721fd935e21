"""Products of tensors and of indices: the factors of a term made one, summed over the labels that nothing bears.

A term here has tensors as the sources of its factors. What it comes to has one core at most, of the labels that are
visible or that visible ones are read through, and beside it the indices of these. Nothing larger is allocated than the
largest of the factors and of the result, and no index of a Kronecker delta is run over twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch

from hofunc.algebra.labels import Axis, Label, extent, full, labels_of
from hofunc.algebra.operators import DELTA, Indices
from hofunc.algebra.term import Factor, Term, visible
from hofunc.views import Labelled, aligned, each, permuted, read, run_now

Reads = dict[Label, Labelled]


class _Reading(NamedTuple):
    """What factors of indices come to.

    Attributes:
        reads: For every label that is read through indices these, of which each is one of the label.
        masks: Where what is read is zero, since indices are not those that an axis or another factor asks for.
    """

    reads: Reads
    masks: tuple[Labelled, ...]


def multiplied(term: Term, one: torch.Tensor, before: Iterable[Label] = ()) -> Term:
    """Return a term with one core at most, and with indices for visible labels only.

    Args:
        term: The term; factors may bear any labels.
        one: The number one, of the dtype and on the device of the cores.
        before: The labels that were visible and that are summed if nothing bears them any more.
    """
    term = term._replace(factors=tuple(other for factor in term.factors for other in _without_delta(factor, one)))
    reading = _reading(term)
    tensors = [factor for factor in term.factors if not isinstance(factor.source, Indices)]
    given = [read(run_now, source, axes) for source, axes in tensors]
    cores = _masked([_gathered(core, reading.reads) for core in given], reading.masks, one)
    shown = visible(term)
    kept = {label: where for label, where in reading.reads.items() if label in shown}
    stays = {*shown, *(label for where in kept.values() for label in where.labels)}
    borne = {*stays, *reading.reads, *(label for core in (*given, *cores) for label in core.labels)}
    lost = {*before, *labels_of(*(factor.axes for factor in term.factors))} - borne
    factors = [Factor(product.tensor, each(product.labels)) for product in _product(cores, stays)]
    return term._replace(
        coefficient=term.coefficient * prod(label.size for label in lost),
        factors=(*factors, *_indices(term, kept)),
    )


def _without_delta(factor: Factor, one: torch.Tensor) -> tuple[Factor, ...]:
    """Return a Kronecker delta of two axes as both of them read at one index."""
    if factor.source is not DELTA:
        return (factor,)
    label = Label(extent(factor.axes[0]))
    every = Indices(torch.arange(label.size, device=one.device))
    return tuple(Factor(every, (axis, (full(label),))) for axis in factor.axes)


def _reading(term: Term) -> _Reading:
    """Return where labels are read, each in one place, and what is zero beside it."""
    reads: Reads = {}
    masks: list[Labelled] = []
    for label, place in _places(term, masks):
        where = _gathered(place, reads)
        if label in where.labels or label in reads:
            every = Labelled(torch.arange(label.size, device=where.tensor.device), (label,))
            masks.append(_equal(reads.get(label, every), where))
        else:
            reads = {other: _gathered(one, {label: where}) for other, one in reads.items()} | {label: where}
    return _Reading(reads, tuple(_gathered(mask, reads) for mask in masks))


def _places(term: Term, masks: list[Labelled]) -> Iterator[tuple[Label, Labelled]]:
    """Yield the labels of axes that are read, and where each is; notes what lies in no label."""
    for factor in term.factors:
        if isinstance(factor.source, Indices):
            target, *own = factor.axes
            index = read(run_now, factor.source.tensor, tuple(own))
            for label, place, mask in along(target, index.tensor):
                if mask is not None:
                    masks.append(index._replace(tensor=mask))
                if label is not None and label.size > 1:
                    yield label, index._replace(tensor=place)


def along(axis: Axis, index: torch.Tensor) -> Iterator[tuple[Label | None, torch.Tensor, torch.Tensor | None]]:
    """Yield, for an index along a merged axis, that of the label of each segment, and where there is one if not always.

    The last segment, which varies fastest, comes first.
    """
    for number, segment in reversed([*enumerate(axis)]):
        place, mask = index, None
        if number > 0:
            place, index = index.remainder(segment.extent), index.div(segment.extent, rounding_mode="floor")
        size = 1 if segment.label is None else segment.label.size
        if size < segment.extent:
            place = place - segment.start
            mask = (place >= 0) & (place < size)
            place = place.clamp(0, max(size - 1, 0))
        yield segment.label, place, mask


def _equal(left: Labelled, right: Labelled) -> Labelled:
    labels = tuple(dict.fromkeys((*left.labels, *right.labels)))
    return Labelled(aligned(run_now, left, labels) == aligned(run_now, right, labels), labels)


def _gathered(core: Labelled, reads: Mapping[Label, Labelled]) -> Labelled:
    """Read a tensor at indices, wherever it has a label that is read through some."""
    targets = [label for label in core.labels if label in reads]
    if not targets:
        return core
    runs = tuple(dict.fromkeys(label for target in targets for label in reads[target].labels))
    places = {label: reads[label] for label in targets}
    for label in core.labels:
        if label in runs and label not in places:
            places[label] = Labelled(torch.arange(label.size, device=core.tensor.device), (label,))
    rest = tuple(label for label in core.labels if label not in places)
    tensor = permuted(run_now, core.tensor, tuple(core.labels.index(label) for label in (*places, *rest)))
    index = tuple(aligned(run_now, where, runs) for where in places.values())
    return Labelled(tensor[index], (*runs, *rest))


def _masked(cores: list[Labelled], masks: Sequence[Labelled], one: torch.Tensor) -> list[Labelled]:
    """Make zero what masks say, of the first of some tensors."""
    for mask in masks:
        core = cores[0] if cores else Labelled(one, ())
        labels = tuple(dict.fromkeys((*core.labels, *mask.labels)))
        tensor = torch.where(aligned(run_now, mask, labels), aligned(run_now, core, labels), torch.zeros_like(one))
        cores = [Labelled(tensor, labels), *cores[1:]]
    return cores


def _product(cores: Sequence[Labelled], stays: Iterable[Label]) -> list[Labelled]:
    """Return the product of tensors, summed over all labels but some; an empty list if there is none."""
    if not cores:
        return []
    every = list(dict.fromkeys(label for core in cores for label in core.labels))
    left = tuple(label for label in every if label in {*stays})
    if len(cores) == 1 and len(left) == len(every):
        return [*cores]
    numbers = {label: number for number, label in enumerate(every)}
    operands = [item for core in cores for item in (core.tensor, [numbers[label] for label in core.labels])]
    return [Labelled(torch.einsum(*operands, [numbers[label] for label in left]), left)]


def _indices(term: Term, kept: Reads) -> list[Factor]:
    """Return the factors of indices for the labels that stay visible: those of a term, where they serve as they are."""
    found = []
    left = dict(kept)
    for factor in term.factors:
        if isinstance(factor.source, Indices):
            target, *own = factor.axes
            labels = [segment.label for segment in target if segment.extent > 1]
            is_whole = all(segment.is_full for segment in target if segment.extent > 1)
            if is_whole and labels and all(x in left and tuple(own) == each(left[x].labels) for x in labels):
                found.append(factor)
                left = {label: where for label, where in left.items() if label not in labels}
    return found + [
        Factor(Indices(where.tensor), ((full(label),), *each(where.labels))) for label, where in left.items()
    ]
