"""Relations: selections by indices whose values are known or likely, as tables of the indices that go together.

A selection is one where the index along what it reads from is what its tensor of indices has, which is where a row of a
table has these indices: a row for every entry that is read, a column for every label that it runs over, and one for
every label that it is read from. It makes no difference how many axes are read from at once, or along how many the
indices are of their own. Where values are likely only, see NOTE [likely values], tables are made as a plan runs.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch

from hofunc.algebra.labels import Label, full, labels_of
from hofunc.algebra.operators import Map, selection_of
from hofunc.algebra.term import Factor
from hofunc.graph.gathers import add_at, read_at
from hofunc.plan.builder import Builder
from hofunc.plan.lookups import elements
from hofunc.plan.program import Register
from hofunc.plan.selections import indices
from hofunc.plan.tables import (
    counted,
    elements_or_zero,
    filled,
    index_of,
    inside,
    is_same_along,
    pairs_fit,
    pairs_of,
    place_among,
    room_for,
    rows_of,
)
from hofunc.plan.values import Column, Condition, Value, emitting, fact, places_read, register_of
from hofunc.scatter import ranges, size_of
from hofunc.views import Emit, Labelled, aligned, permuted


class Known(NamedTuple):
    """A selection by indices whose values are known or likely.

    Attributes:
        targets: What it reads from, as one axis.
        read: What the indices run over.
        indices: The indices, a dimension for each of these.
        conditions: The nodes from whose values they follow, with these, if they are no constants of the plan; and facts
            about them, if they are likely.
        is_taken: Whether they are those of a selection that is not made of others that meet.
        has_spare: Whether some may be spare, at which nothing is read.
    """

    targets: tuple[Label, ...]
    read: tuple[Label, ...]
    indices: Column
    conditions: tuple[Condition, ...] = ()
    is_taken: bool = False
    has_spare: bool = False

    @property
    def labels(self) -> tuple[Label, ...]:
        """All labels, each once."""
        return (*self.targets, *self.read)

    def places(self, emit: Emit) -> dict[Label, Column]:
        """Return the index of each label that is read from, a dimension for each label that the indices run over."""
        return _taken_apart(emit, self.indices, self.targets)

    def columns(self, emit: Emit) -> dict[Label, Column]:
        """Return the indices of all labels for every row, of which there is one for each element that is read."""
        places = {label: emit(torch.reshape, index, (-1,)) for label, index in self.places(emit).items()}
        return places | _taken_apart(emit, self._range(), self.read)

    def at_rows(self, emit: Emit, rows: Column, without: Collection[Label] = ()) -> dict[Label, Column]:
        """Return the indices of all labels but some at rows, which may be spare if their values are likely."""
        read = _taken_apart(emit, rows, self.read)
        found = {label: index for label, index in read.items() if label not in without}
        if all(label in without for label in self.targets):
            return found
        flat = emit(torch.reshape, self.indices, (-1,))
        spare = size_of(self.targets)
        flat = emit(elements, flat, rows) if rows.register is None else emit(rows_of, flat, spare, rows)
        places = _taken_apart(emit, flat, self.targets)
        return {label: index for label, index in places.items() if label not in without} | found

    def _range(self) -> Column:
        return Column(torch.arange(size_of(self.read), device=self.indices.tensor.device))


def _taken_apart(emit: Emit, flat: Column, labels: Sequence[Label]) -> dict[Label, Column]:
    """Return the index along each of some labels, given places among the elements of all."""
    if len(labels) == 1:
        return {labels[0]: flat}
    total = size_of(labels)
    steps = [size_of(labels[place + 1 :]) for place in range(len(labels))]
    return {label: emit(index_of, flat, total, step, label.size) for label, step in zip(labels, steps, strict=True)}


class At(NamedTuple):
    """Labels whose indices follow from those of others.

    Attributes:
        labels: The labels that others are read at.
        places: For each label that is read, its index, a dimension for each of the others.
        has_spare: Whether indices may be spare, all at once, where everything reads zero.
    """

    labels: tuple[Label, ...]
    places: Mapping[Label, Column]
    has_spare: bool = False

    @classmethod
    def of(cls, emit: Emit, selection: Known) -> "At":
        """Return what reads at the indices of a selection."""
        return cls(selection.read, selection.places(emit), selection.has_spare)


def known(builder: Builder, factor: Factor, borne: Collection[Label]) -> Known | None:
    """Return a selection if its indices are known or likely, None otherwise.

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
    tensor = value.column.tensor.reshape([label.size for label in read])
    register = value.column.register
    if value.is_likely:
        found = indices(builder, selection)
        register = permuted(builder.emit, found.tensor, tuple([found.labels.index(label) for label in read]))
    elif register is not None and len(read) > 1:
        register = builder.emit(torch.reshape, register, tuple([label.size for label in read]))
    is_taken = value.is_likely or value.is_taken or bool(value.conditions)
    column = Column(tensor, register)
    result = Known(tuple(targets), tuple(read), column, value.conditions, is_taken, value.has_spare)
    return _narrowed(builder, result, borne)


def _narrowed(builder: Builder, selection: Known, borne: Collection[Label]) -> Known:
    """Leave out labels along which the indices do not change, but for one."""
    if selection.indices.register is not None and not selection.is_taken:
        return selection
    emit = emitting(builder)
    for label in selection.read:
        if label in borne and len(selection.read) > 1:
            dim = selection.read.index(label)
            if is_same_along(selection.indices.tensor, dim):
                read = tuple([other for other in selection.read if other is not label])
                found = emit(torch.select, selection.indices, dim, 0)
                same = fact(builder, emit(is_same_along, selection.indices, dim))
                conditions = (*selection.conditions, *same)
                selection = selection._replace(read=read, indices=found, conditions=conditions)
    return selection


def as_factor(builder: Builder, selection: Known) -> Factor:
    """Return the factor of a selection by indices in a register, or constant ones."""
    emit, size = emitting(builder), size_of(selection.targets)
    flat = emit(torch.reshape, selection.indices, (-1,))
    index = emit(inside, flat, size) if selection.has_spare else flat
    args = (builder.stand_in(register_of(builder, index)), size)
    if flat.register is not None:
        builder.known[read_last, size, args, ()] = Value(flat, has_spare=selection.has_spare)
    axes = (tuple([full(label) for label in selection.read]), tuple([full(label) for label in selection.targets]))
    return Factor(Map(read_last, add_last, args, selects=True), axes)


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
        rows: How many pairs of rows meet, or how many there is room for where values are likely.
    """

    one: Known
    other: Known
    shared: tuple[Label, ...]
    rows: int

    @classmethod
    def of(cls, builder: Builder, one: Known, other: Known) -> "Join":
        """Return the join of two relations."""
        shared = tuple([label for label in one.labels if label in other.labels])
        keys, size = [_keys(emitting(builder), each, shared) for each in (one, other)], size_of(shared)
        counts = [counted(key.tensor, size) for key in keys]
        count = int((counts[0] * counts[1]).sum())
        is_likely = any(key.register is not None for key in keys)
        return cls(one, other, shared, room_for(builder.lowered.room * count) if is_likely and count else count)

    def bytes(self) -> int:
        """Return what is held as the indices of pairs are made: those of all labels, of rows, and of ranges."""
        return torch.long.itemsize * self.rows * (len({*self.one.labels, *self.other.labels}) + 4)

    def pairs(self, builder: Builder) -> tuple[At, tuple[Condition, ...]]:
        """Return the indices of all labels for all pairs of rows that meet, and the facts that these rely on."""
        emit = emitting(builder)
        one, other = (_keys(emit, each, self.shared) for each in (self.one, self.other))
        is_likely, label = one.register is not None or other.register is not None, Label(self.rows)
        if is_likely:
            args = one, other, size_of(self.shared), self.rows
            facts, rows = fact(builder, emit(pairs_fit, *args)), emit(pairs_of, *args)
            first, second = (emit(torch.select, rows, 0, place) for place in (0, 1))
        else:
            facts, (first, second) = (), map(Column, _pairs(one.tensor, other.tensor, size_of(self.shared)))
        found = self.one.at_rows(emit, first) | self.other.at_rows(emit, second, self.shared)
        return At((label,), found, is_likely), facts


def _pairs(one: torch.Tensor, other: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of two tables that meet, given the key of each row, below a size."""
    counts = torch.bincount(other, minlength=size)
    first, within = ranges(counts[one])
    starts = counts.cumsum(0) - counts
    return first, other.argsort(stable=True)[starts[one[first]] + within]


def _keys(emit: Emit, relation: Known, labels: tuple[Label, ...]) -> Column:
    """Return for every row a number that tells the indices of some labels, or is spare."""
    if labels == relation.targets:
        return emit(torch.reshape, relation.indices, (-1,))
    columns = relation.columns(emit)
    return emit(place_among, tuple([label.size for label in labels]), *[columns[label] for label in labels])


def composed(emit: Emit, selection: Known, at: At) -> Known:
    """Return a selection whose indices are read at those of others."""
    if {*selection.read}.isdisjoint(at.places):
        return selection
    read = placed(selection.read, at)
    table, found = permuted(emit, selection.indices, read.order), read.indices(at)
    spare = size_of(selection.targets)
    column = emit(rows_of, table, spare, *found) if at.has_spare else emit(elements, table, *found)
    has_spare = at.has_spare or selection.has_spare
    return Known(selection.targets, read.labels, column, has_spare=has_spare)


class Placed(NamedTuple):
    """How a tensor is read: the order of its dimensions, those at indices first, and the labels that it then has."""

    order: tuple[int, ...]
    taken: tuple[Label, ...]
    labels: tuple[Label, ...]

    def indices(self, at: At) -> tuple[Column, ...]:
        """Return the indices of the dimensions that are read; the first may be spare."""
        shape = [label.size for label in at.labels]
        return tuple([at.places[label] if label in at.places else _along(label, at, shape) for label in self.taken])


def _along(label: Label, at: At, shape: Sequence[int]) -> Column:
    device = next(iter(at.places.values())).tensor.device
    own = [label.size if label is other else 1 for other in at.labels]
    return Column(torch.arange(label.size, device=device).reshape(own).expand(shape))


def placed(labels: Sequence[Label], at: At) -> Placed:
    """Return how a tensor that runs over labels is read."""
    found = [label for label in labels if label in at.places]
    taken = [*found, *(label for label in labels if label in at.labels and label not in found)]
    rest = [label for label in labels if label not in taken]
    return Placed(tuple([labels.index(label) for label in (*taken, *rest)]), tuple(taken), (*at.labels, *rest))


def read_where(builder: Builder, operand: Labelled, at: At) -> Labelled:
    """Read a tensor at the indices that some of its labels have, as zero where they are spare."""
    if {*operand.labels}.isdisjoint(at.places):
        return operand
    read = placed(operand.labels, at)
    tensor = aligned(builder.emit, operand, (*read.taken, *read.labels[len(at.labels) :]))
    first, *rest = read.indices(at)
    if at.has_spare:
        tensor, emit = builder.emit(elements_or_zero, tensor), emitting(builder)
        rest = [emit(inside, index, label.size) for index, label in zip(rest, read.taken[1:], strict=True)]
    found = [register_of(builder, index) for index in (first, *rest)]
    return Labelled(builder.emit(elements, tensor, *found), read.labels)


def spare_left_out(builder: Builder, operands: Sequence[Labelled], at: At) -> list[Labelled]:
    """Return operands, one of which is zero where indices are spare."""
    if not at.has_spare or any(not {*at.labels}.isdisjoint(operand.labels) for operand in operands):
        return [*operands]
    label, index = next(iter(at.places.items()))
    ones: Register = builder.emit(filled, builder.like(), register_of(builder, index), label.size)
    return [*operands, Labelled(ones, at.labels)]
