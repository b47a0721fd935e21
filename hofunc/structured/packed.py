"""Packing: the different entries of a symmetric derivative, one for every multiset of indices, and back."""

from collections.abc import Sequence
from itertools import permutations
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.algebra.labels import Axes, Label, extent, shape_of
from hofunc.algebra.packed import count
from hofunc.algebra.term import Term
from hofunc.errors import ArgumentError
from hofunc.scatter import ranges
from hofunc.structured.product import along
from hofunc.structured.slots import without_indices
from hofunc.structured.sums import core_or_one


def multisets(n: int, order: int, device: torch.device) -> list[torch.Tensor]:
    """Return all non-decreasing choices of indices below n in lexicographic order, one tensor for every place.

    Example:
        >>> [*zip(*(place.tolist() for place in multisets(3, 2, torch.device("cpu"))))]
        [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    """
    places = [torch.arange(n, device=device)]
    for _ in range(order - 1):
        last = places[-1]
        number, step = ranges(n - last)
        places = [*(place[number] for place in places), last[number] + step]
    return places


def packed(terms: tuple[Term, ...], shapes: tuple[tuple[int, ...], ...], one: torch.Tensor) -> torch.Tensor:
    """Return the entries at all multisets of the indices of slots, along the last axis, after those of the output.

    Args:
        terms: The terms.
        shapes: The shape of the output, then that of every slot, which are equal.
        one: The number one.
    """
    out, slot, *_ = shapes
    size = torch.Size(slot).numel()
    places = multisets(size, len(shapes) - 1, one.device)
    total = one.new_zeros((*out, places[0].numel()))
    for term in terms:
        total = total + _entries(without_indices(term, one), places, one)
    return total


class _Found(NamedTuple):
    """What is known of the labels of a term at some places: their indices, and where the term is zero if anywhere."""

    indices: dict[Label, torch.Tensor]
    masks: list[torch.Tensor]

    def note(self, axes: Axes, index: torch.Tensor) -> None:
        """Take note of the index along axes that are one after the other, flat, at all places."""
        for label, place, mask in along(tuple([segment for axis in axes for segment in axis]), index):
            if mask is not None:
                self.masks.append(mask)
            if label is None or label.size == 1:
                continue
            if label in self.indices:
                self.masks.append(self.indices[label] == place)
            else:
                self.indices[label] = place


def _entries(term: Term, places: list[torch.Tensor], one: torch.Tensor) -> torch.Tensor:
    """Return the entries of a term, of whose slots the flat indices are given, for all indices of the output."""
    found = _Found({}, [])
    for slot, index in zip(term.slots, places, strict=True):
        found.note(slot, index)
    rank = len(term.out)
    for number, axis in enumerate(term.out):
        every = torch.arange(extent(axis), device=one.device)
        found.note((axis,), every.reshape(-1, *[1] * (rank - number)))
    core, shape = core_or_one(term, one), (*shape_of(term.out), places[0].numel())
    if 0 in core.tensor.shape:  # it is there for what autograd follows it to
        return core.tensor.sum().expand(shape)
    value = core.tensor[tuple(found.indices[label] for label in core.labels)] if core.labels else core.tensor
    for mask in found.masks:
        value = torch.where(mask, value, torch.zeros_like(one))
    return (value * term.coefficient).expand(shape)


def unpack(entries: torch.Tensor, shape: Sequence[int], order: int) -> torch.Tensor:
    """Return the symmetric tensor whose different entries are given: the inverse of `hofunc.Derivative.packed`.

    Args:
        entries: Tensor of shape (*out, C(n + order - 1, order)), for n elements of a tensor of the given shape.
        shape: Shape of the input of the derivative; with keep_batch, what is left of it beside the batch.
        order: The order of the derivative.

    Returns:
        Tensor of shape (*out, *shape, *shape, ...), with shape order times.

    Raises:
        ArgumentError: There are not as many entries.

    Cost:
        One reading of the entries, and as many integers as the result has entries for one index of the output.

    Example:
        >>> hofunc.unpack(torch.tensor([1.0, 2.0, 3.0]), (2,), 2)
        tensor([[1., 2.],
                [2., 3.]])
    """
    n = _checked_size(entries, shape, order)
    return _unpacked(entries, n, order).reshape([*entries.shape[:-1], *[*shape] * order])


def _checked_size(entries: Any, shape: Any, order: Any) -> int:
    """Return the number of elements of a shape, given entries that fit it."""
    if type(order) is not int or order < 1:
        raise _misfit("order", repr(order), "an int of at least 1")
    if not isinstance(shape, Sequence) or not all(isinstance(size, int | torch.SymInt) for size in shape):
        raise _misfit("shape", repr(shape), "a tuple of sizes")
    n = prod(shape)
    if not isinstance(entries, torch.Tensor) or entries.dim() == 0 or entries.shape[-1] != count(n, order):
        got = f"shape {tuple(entries.shape)}" if isinstance(entries, torch.Tensor) else type(entries).__name__
        raise _misfit("entries", got, f"a last axis of {count(n, order)} entries, for {n} elements at order {order}")
    return n


def _misfit(what: str, got: str, expected: str) -> ArgumentError:
    remedy = "Pass what .packed() gave, the shape of the input and the order."
    return ArgumentError(f"hofunc.unpack: {what}", got=got, expected=expected, remedy=remedy)


def _unpacked(entries: torch.Tensor, n: int, order: int) -> torch.Tensor:
    """Return entries of a symmetric tensor in row-major order, given those that are different."""
    device = entries.device
    places = torch.empty(n**order, dtype=torch.long, device=device)
    numbers = torch.arange(count(n, order), device=device)
    sets = multisets(n, order, device)
    for turned in permutations(sets):
        flat = torch.zeros_like(numbers)
        for index in turned:
            flat = flat * n + index
        places[flat] = numbers
    return entries.index_select(-1, places)
