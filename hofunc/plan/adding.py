"""Additions of what is made for some entries of an axis at a time: what a step does that `hofunc.plan.pieces` makes."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from hofunc.graph.followed import is_followed, is_kept
from hofunc.graph.node import Ref
from hofunc.plan.lookups import Total, start_of

Sums = tuple[tuple[float, int, int], ...]  # a weight, where the places are, where the rows are
Body = tuple[tuple[Any, tuple], ...]  # functions and what they take, in which Refs name what there is


def added_in_pieces(
    total: Total,
    entries: int,
    size: int,
    dims: Sequence[int | None],
    body: Body,
    sums: Sums,
    work: tuple[int, int],
    *tensors: torch.Tensor,
) -> torch.Tensor:
    """Return a matrix to whose rows others are added, which are made for some entries of an axis at a time.

    Args:
        total: The matrix, or the shape of one of zeros.
        entries: How many entries the axis has.
        size: How many of them are taken at a time.
        dims: The axis of each tensor, None if it has none.
        body: What is computed of the tensors.
        sums: What is added.
        work: How many operations all of it takes, and how many bytes are written.
        tensors: The tensors.
    """
    matrix = start_of(total, tensors)
    if not is_followed((matrix, *tensors)):
        matrix = matrix.clone() if matrix is total else matrix
        return add_in_pieces(matrix, entries, size, dims, body, sums, work, *tensors)
    size = entries if is_kept((matrix, *tensors)) else size
    pieces = _pieces(entries, size, dims, tensors)
    matrix = _with_piece(matrix, body, sums, next(pieces))
    for piece in pieces:  # the total is mapped as they are now
        _add_piece(matrix, body, sums, piece)
    return matrix


def add_in_pieces(
    total: torch.Tensor,
    entries: int,
    size: int,
    dims: Sequence[int | None],
    body: Body,
    sums: Sums,
    work: tuple[int, int],  # noqa: ARG001 - of the whole
    *tensors: torch.Tensor,
) -> torch.Tensor:
    """Add to the matrix itself what `added_in_pieces` adds."""
    for piece in _pieces(entries, size, dims, tensors):
        _add_piece(total, body, sums, piece)
    return total


def _pieces(
    entries: int, size: int, dims: Sequence[int | None], tensors: Sequence[torch.Tensor]
) -> Iterator[Sequence[torch.Tensor]]:
    """Yield tensors for so many entries after the others."""
    for start in range(0, entries, size):
        count = min(size, entries - start)
        pairs = zip(tensors, dims, strict=True)
        yield [each if dim is None else each.narrow(dim, start, count) for each, dim in pairs]


def _with_piece(total: torch.Tensor, body: Body, sums: Sums, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    made = _made(body, tensors)
    for weight, where, rows in sums:
        total = torch.index_add(total, 0, made[where], made[rows].reshape(-1, total.shape[1]), alpha=weight)
    return total


def _add_piece(total: torch.Tensor, body: Body, sums: Sums, tensors: Sequence[torch.Tensor]) -> None:
    made = _made(body, tensors)
    for weight, where, rows in sums:
        part = made[rows] if weight == 1 else made[rows] * weight  # torch takes longer by a weight of its own
        total.index_add_(0, made[where], part.reshape(-1, total.shape[1]))


def _made(body: Body, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors and what steps make of them."""
    made = [*tensors]
    for function, args in body:
        made.append(function(*[made[arg.node] if type(arg) is Ref else arg for arg in args]))
    return made


def scratch(result: torch.Tensor, entries: int, size: int, work: tuple[int, int]) -> int:
    """Return the bytes that are held for a piece: all that steps make, rows laid out anew, and places in order."""
    row = result.shape[1] * result.element_size()
    return min(size, entries) * (work[1] // max(1, entries) + 2 * row + 2 * torch.long.itemsize)
