"""Relations: selections by indices whose values are known, as tables of the indices that go together.

A selection is one where the index along what it reads from is what its tensor of indices has, which is where a row of a
table has these indices: a row for every entry that is read, a column for every label that it runs over, and one for
every label that it is read from. It makes no difference how many axes are read from at once, or along how many the
indices are of their own.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch

from hofunc.algebra.labels import Label, full, labels_of
from hofunc.algebra.operators import Map, selection_of
from hofunc.algebra.term import Factor
from hofunc.graph.gathers import add_at, read_at
from hofunc.plan.program import Builder
from hofunc.plan.values import places_read
from hofunc.scatter import ranges, size_of


class Known(NamedTuple):
    """A selection by indices whose values are known.

    Attributes:
        targets: What it reads from, as one axis.
        read: What the indices run over.
        indices: The indices, a dimension for each of these.
        nodes: The nodes from whose values they follow, with these, if they are no constants of the plan.
    """

    targets: tuple[Label, ...]
    read: tuple[Label, ...]
    indices: torch.Tensor
    nodes: tuple[tuple[int, torch.Tensor], ...] = ()

    @property
    def labels(self) -> tuple[Label, ...]:
        """All labels, each once."""
        return (*self.targets, *self.read)

    def places(self) -> dict[Label, torch.Tensor]:
        """Return the index of each label that is read from, a dimension for each label that the indices run over."""
        if len(self.targets) == 1:
            return {self.targets[0]: self.indices}
        found = torch.unravel_index(self.indices, [label.size for label in self.targets])
        return dict(zip(self.targets, found, strict=True))

    def columns(self, rows: torch.Tensor | None = None, without: Collection[Label] = ()) -> dict[Label, torch.Tensor]:
        """Return the indices of all labels but some at rows, places in the tensor of indices; None for all rows."""
        rows = torch.arange(self.indices.numel(), device=self.indices.device) if rows is None else rows
        own = [label.size for label in self.read]
        along = (rows,) if len(own) == 1 else torch.unravel_index(rows, own)
        read = {label: index for label, index in zip(self.read, along, strict=True) if label not in without}
        needed = [label for label in self.targets if label not in without]
        places = self.places() if needed else {}
        return {label: places[label].reshape(-1)[rows] for label in needed} | read


class At(NamedTuple):
    """Labels whose indices follow from those of others.

    Attributes:
        labels: The labels that others are read at.
        places: For each label that is read, its index, a dimension for each of the others.
    """

    labels: tuple[Label, ...]
    places: Mapping[Label, torch.Tensor]


def known(builder: Builder, factor: Factor, borne: Collection[Label]) -> Known | None:
    """Return a selection if its indices are known, None otherwise.

    Args:
        builder: Keeps what is known.
        factor: What may be a selection.
        borne: Labels that what stands beside it has, or that are visible: those along which the indices do not change
            need not be labels of the selection then.
    """
    selection = selection_of(factor)
    if selection is None:
        return None
    segments = (*selection.target, *(segment for axis in selection.indexed for segment in axis))
    labels = labels_of((segments,))
    if len({*labels}) != len(segments) or not all(segment.is_full for segment in segments):
        return None
    if any(label.size < 2 for label in labels):
        return None
    targets, read = labels[: len(selection.target)], labels[len(selection.target) :]
    beside = tuple([size_of(labels_of((axis,))) for axis in selection.beside])
    value = places_read(builder, selection.function, size_of(targets), selection.args, beside)
    if value is None:
        return None
    indices = value.tensor.reshape([label.size for label in read])
    return _narrowed(Known(tuple(targets), tuple(read), indices, value.nodes), borne)


def _narrowed(selection: Known, borne: Collection[Label]) -> Known:
    """Leave out labels along which the indices do not change, but for one."""
    for label in selection.read:
        if label in borne and len(selection.read) > 1:
            dim = selection.read.index(label)
            first = selection.indices.narrow(dim, 0, 1)
            if torch.equal(first.expand_as(selection.indices), selection.indices):
                read = tuple([other for other in selection.read if other is not label])
                selection = selection._replace(read=read, indices=first.squeeze(dim))
    return selection


def as_factor(builder: Builder, selection: Known) -> Factor:
    """Return the factor of a selection by constant indices."""
    index = builder.stand_in(builder.places(selection.indices.reshape(-1)))
    axes = (tuple([full(label) for label in selection.read]), tuple([full(label) for label in selection.targets]))
    return Factor(Map(read_last, add_last, (index, size_of(selection.targets)), selects=True), axes)


def read_last(tensor: torch.Tensor, index: torch.Tensor, _: int) -> torch.Tensor:
    """Return elements of the last axis."""
    return read_at(tensor, index)


def add_last(tensor: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """Return zeros to which elements are added along the last axis: the transpose of `read_last`."""
    return add_at(tensor, index, size)


class Join(NamedTuple):
    """Two relations that have labels in common.

    Attributes:
        one: A relation.
        other: Another one.
        shared: The labels that both have.
    """

    one: Known
    other: Known
    shared: tuple[Label, ...]

    @classmethod
    def of(cls, one: Known, other: Known) -> "Join":
        """Return the join of two relations."""
        return cls(one, other, tuple([label for label in one.labels if label in other.labels]))

    def keys(self) -> list[torch.Tensor]:
        """Return for each of both a number for every row, which tells the indices of the labels that both have."""
        return [_numbers(relation, self.shared) for relation in (self.one, self.other)]

    def bytes(self, count: int) -> int:
        """Return what is held as the indices of so many pairs are made: those of all labels, of rows, and of ranges."""
        return torch.long.itemsize * count * (len({*self.one.labels, *self.other.labels}) + 4)

    def size(self) -> int:
        """Return how many pairs of rows meet."""
        counts = [torch.bincount(key, minlength=size_of(self.shared)) for key in self.keys()]
        return int((counts[0] * counts[1]).sum())

    def pairs(self) -> dict[Label, torch.Tensor]:
        """Return the indices of all labels for all pairs of rows that meet."""
        one, other = self.keys()
        counts = torch.bincount(other, minlength=size_of(self.shared))
        first, within = ranges(counts[one])
        starts = counts.cumsum(0) - counts
        second = other.argsort(stable=True)[starts[one[first]] + within]
        return self.one.columns(first) | self.other.columns(second, self.shared)


def _numbers(relation: Known, labels: tuple[Label, ...]) -> torch.Tensor:
    if labels == relation.targets:
        return relation.indices.reshape(-1)
    columns = relation.columns()
    total = torch.zeros_like(columns[labels[0]])
    for label in labels:
        total = total * label.size + columns[label]
    return total


def composed(selection: Known, at: At) -> Known:
    """Return a selection whose indices are read at those of others."""
    if {*selection.read}.isdisjoint(at.places):
        return selection
    read = placed(selection.read, at)
    return Known(selection.targets, read.labels, selection.indices.permute(read.order)[read.indices(at)])


class Placed(NamedTuple):
    """How a tensor is read: the order of its dimensions, those at indices first, and the labels that it then has."""

    order: tuple[int, ...]
    taken: tuple[Label, ...]
    labels: tuple[Label, ...]

    def indices(self, at: At) -> tuple[torch.Tensor, ...]:
        """Return the indices of the dimensions that are read."""
        shape = [label.size for label in at.labels]
        return tuple([at.places[label] if label in at.places else _along(label, at, shape) for label in self.taken])


def _along(label: Label, at: At, shape: Sequence[int]) -> torch.Tensor:
    device = next(iter(at.places.values())).device
    own = [label.size if label is other else 1 for other in at.labels]
    return torch.arange(label.size, device=device).reshape(own).expand(shape)


def placed(labels: Sequence[Label], at: At) -> Placed:
    """Return how a tensor that runs over labels is read."""
    taken = [label for label in labels if label in at.places or label in at.labels]
    rest = [label for label in labels if label not in taken]
    return Placed(tuple([labels.index(label) for label in (*taken, *rest)]), tuple(taken), (*at.labels, *rest))
