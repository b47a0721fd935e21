"""Tables of indices that go together, made as a program runs: steps of plans that are good for any indices.

How many entries meet follows from the indices, and the size of a tensor in a plan does not. So a table has room for
some more rows than there were as it was planned, and what is left of it is spare: there the index of every label is the
size of the label, one more than there are, at which everything reads zero.
"""

from collections.abc import Sequence
from math import isqrt, prod

import torch

from hofunc.errors import PlanMismatchError
from hofunc.graph.standin import is_wrapper
from hofunc.internals import get_unwrapped


def index_of(flat: torch.Tensor, total: int, step: int, extent: int) -> torch.Tensor:
    """Return the index along one of several axes, given places among all of their elements.

    Args:
        flat: The places; those that are no less than the total are spare.
        total: How many elements there are.
        step: How many of them one index is apart from the next.
        extent: The size of the axis.
    """
    return torch.where(flat < total, flat.div(step, rounding_mode="floor") % extent, extent)


def place_among(shape: tuple[int, ...], *indices: torch.Tensor) -> torch.Tensor:
    """Return places in row-major order, given the indices along all axes; one that is spare makes the place so."""
    place, is_spare = indices[0], indices[0] >= shape[0]
    for index, size in zip(indices[1:], shape[1:], strict=True):
        place, is_spare = place * size + index, is_spare | (index >= size)
    return torch.where(is_spare, prod(shape), place)


def counted(keys: torch.Tensor, size: int) -> torch.Tensor:
    """Return how many of some keys are each number below a size, and zero for the size itself."""
    counts = torch.zeros(size + 1, dtype=keys.dtype, device=keys.device)
    return counts.scatter_add(0, keys, (keys < size).to(keys.dtype))


def pairs_fit(one: torch.Tensor, other: torch.Tensor, size: int, room: int) -> torch.Tensor:
    """Tell whether so few rows of two tables meet, given the key of each row, that there is room for all pairs."""
    return (counted(one, size) * counted(other, size)).sum() <= room


def pairs_of(one: torch.Tensor, other: torch.Tensor, size: int, room: int) -> torch.Tensor:
    """Return the numbers of the rows of two tables that meet; those of spare pairs are one more than there are.

    Args:
        one: For each row of the first table its key, below a size; those of spare rows are the size.
        other: Likewise of the second table.
        size: The size.
        room: How many pairs there is room for.
    """
    counts = counted(other, size)
    lengths = counts[one]
    ends = lengths.cumsum(0)
    starts = ends - lengths
    marks = torch.zeros(room + 1, dtype=one.dtype, device=one.device)
    first = marks.scatter_add(0, starts.clamp(max=room), torch.ones_like(one))[:room].cumsum(0) - 1
    number = torch.arange(room, device=one.device)
    places = (counts.cumsum(0) - counts)[one[first]] + number - starts[first]
    second = other.argsort(stable=True)[places.clamp(0, len(other) - 1)]
    is_spare = number >= ends[-1]
    return torch.stack([torch.where(is_spare, len(one), first), torch.where(is_spare, len(other), second)])


def ranked(size: int, *places: torch.Tensor) -> torch.Tensor:
    """Return for all places, one tensor after the other, which of the different ones it is, in order.

    Those that are the size or more are spare, and rank after all others. Where there are not many more places than
    entries, it takes less to mark each place than to sort the entries.
    """
    if size <= _MARKED * sum(len(each) for each in places):
        flat = torch.cat(places).clamp(max=size)
        marks = torch.zeros(size + 1, dtype=flat.dtype, device=flat.device).scatter(0, flat, 1)
        return (marks.cumsum(0) - 1)[flat]
    ordered, order = torch.cat(places).clamp(max=size).sort(stable=True)
    changes = torch.cat([torch.zeros_like(ordered[:1]), (ordered[1:] != ordered[:-1]).to(order.dtype)])
    return torch.zeros_like(order).scatter(0, order, changes.cumsum(0))


def ranks_fit(ranks: torch.Tensor, size: int, room: int, *places: torch.Tensor) -> torch.Tensor:
    """Tell whether there is room for all different places below a size."""
    return (torch.where(torch.cat(places) < size, ranks, -1) < room).all()


def different(ranks: torch.Tensor, size: int, room: int, *places: torch.Tensor) -> torch.Tensor:
    """Return the different places below a size, given their ranks, and the size where there are no more."""
    flat = torch.cat(places).clamp(max=size)
    found = torch.full((room + 1,), size, dtype=flat.dtype, device=flat.device)
    return found.scatter(0, ranks.clamp(max=room), flat)[:room]


def rows_of(table: torch.Tensor, spare: int, *indices: torch.Tensor) -> torch.Tensor:
    """Return what a table of indices has at others along its first axes, and the spare one where the first is so."""
    return _with(table, spare)[_inside(table, indices)]


def elements_or_zero(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with zeros after its last row, which is what is read at spare indices along it."""
    return _with(tensor, 0)


def _with(tensor: torch.Tensor, value: float) -> torch.Tensor:
    return torch.cat([tensor, torch.full_like(tensor[:1], value)])


def _inside(table: torch.Tensor, indices: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    first, *rest = indices
    return first, *[index.clamp(max=size - 1) for index, size in zip(rest, table.shape[1:], strict=False)]


def inside(index: torch.Tensor, size: int) -> torch.Tensor:
    """Return an index along an axis of some size, with the first in place of those that are spare.

    What is added there is zero, and one is at that place anyway, unless all are spare.
    """
    first = index.reshape(-1)[:1].clamp(max=size - 1).reshape([1] * index.ndim)
    return torch.where(index < size, index, first)


def filled(like: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    """Return one where an index is not spare, and zero where it is, in the dtype of another tensor."""
    return (index < size).to(like.dtype)


def is_same_along(index: torch.Tensor, dim: int) -> torch.Tensor:
    """Tell whether indices do not change along an axis."""
    return (index == index.narrow(dim, 0, 1)).all()


class UnfitError(PlanMismatchError):
    """Indices are such that a fact does not hold that a plan goes by."""


def required(fact: torch.Tensor) -> None:
    """Check a fact, of every member of a batch.

    Raises:
        UnfitError: It does not hold, or nobody may ask, as torch traces.
    """
    while is_wrapper(fact):
        fact = get_unwrapped(fact)
    try:
        holds = bool(fact.all())
    except RuntimeError:
        holds = False
    if not holds:
        raise UnfitError(
            "hofunc: a plan that goes by facts about indices",
            got="indices of which more entries meet, or that change along another axis",
            expected="as many entries that meet as there is room for",
            remedy="Make another plan for these indices, or call the transform itself.",
        )


def room_for(count: int) -> int:
    """Return how many rows to make room for where there were so many: an eighth more, and what chance makes of few."""
    return count + count // 8 + 2 * isqrt(count) + 4


def scratch_of_pairs(one: int, other: int, room: int) -> int:
    """Return the bytes that `pairs_of` holds beside its result, of tables of so many rows."""
    return torch.long.itemsize * (7 * room + 4 * one + 2 * other)


def scratch_of_ranks(size: int, count: int) -> int:
    """Return the bytes that `ranked` holds beside its result, of so many entries."""
    return torch.long.itemsize * (max(3 * size, count) if size <= _MARKED * count else 5 * count)


_MARKED = 8  # places for each entry
