"""Additions of what is made for some entries of an axis at a time: what a step does that `hofunc.plan.pieces` makes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.graph.followed import is_followed, is_kept
from hofunc.graph.node import Ref
from hofunc.plan.lookups import Total, start_of


class Made(NamedTuple):
    """A step that makes something of a piece.

    Attributes:
        function: What it calls.
        args: What with: Refs name the tensors of the piece, and after these what steps before made.
        frees: The numbers of what is not read after it.
    """

    function: Callable[..., Any]
    args: tuple
    frees: tuple[int, ...] = ()


class Summed(NamedTuple):
    """A step that adds rows of a piece to the total.

    Attributes:
        weight: What they are multiplied by.
        where: What names the places of the rows.
        rows: What names the rows, whatever axes these have.
        frees: The numbers of what is not read after it.
    """

    weight: float
    where: int
    rows: int
    frees: tuple[int, ...] = ()


Body = tuple[Made | Summed, ...]


class Work(NamedTuple):
    """What all pieces do.

    Attributes:
        flops: Operations.
        bytes: Bytes that are written.
        calls: How many functions are called for each piece that compute something.
        held: Bytes that are held at once for each entry.
    """

    flops: int = 0
    bytes: int = 0
    calls: int = 0
    held: int = 0


def added_in_pieces(
    total: Total, entries: int, size: int, dims: Sequence[int | None], body: Body, work: Work, *tensors: torch.Tensor
) -> torch.Tensor:
    """Return a matrix to whose rows others are added, which are made for some entries of an axis at a time.

    Args:
        total: The matrix, or the shape of one of zeros.
        entries: How many entries the axis has.
        size: How many of them are taken at a time.
        dims: The axis of each tensor, None if it has none.
        body: What is computed of the tensors, and added.
        work: What all of it takes.
        tensors: The tensors.
    """
    matrix = start_of(total, tensors)
    if not is_followed((matrix, *tensors)):
        matrix = matrix.clone() if matrix is total else matrix
        return add_in_pieces(matrix, entries, size, dims, body, work, *tensors)
    size = entries if is_kept((matrix, *tensors)) else size
    pieces = _pieces(entries, size, dims, tensors)
    matrix = _run(matrix, body, next(pieces), _index_add)
    for piece in pieces:  # the total is mapped as they are now
        _run(matrix, body, piece, _add_rows)
    return matrix


def add_in_pieces(
    total: torch.Tensor,
    entries: int,
    size: int,
    dims: Sequence[int | None],
    body: Body,
    work: Work,  # noqa: ARG001 - of the whole
    *tensors: torch.Tensor,
) -> torch.Tensor:
    """Add to the matrix itself what `added_in_pieces` adds."""
    for piece in _pieces(entries, size, dims, tensors):
        _run(total, body, piece, _add_rows)
    return total


def _pieces(
    entries: int, size: int, dims: Sequence[int | None], tensors: Sequence[torch.Tensor]
) -> Iterator[list[torch.Tensor]]:
    """Yield tensors for so many entries after the others."""
    for start in range(0, entries, size):
        count = min(size, entries - start)
        pairs = zip(tensors, dims, strict=True)
        yield [each if dim is None else each.narrow(dim, start, count) for each, dim in pairs]


def _run(
    total: torch.Tensor, body: Body, held: list[Any], add: Callable[[torch.Tensor, Any, Any, float], torch.Tensor]
) -> torch.Tensor:
    """Return a total to which the steps of a body have added what they make of a piece."""
    for step in body:
        if isinstance(step, Made):
            held.append(step.function(*[held[arg.node] if type(arg) is Ref else arg for arg in step.args]))
        else:
            total = add(total, held[step.where], held[step.rows], step.weight)
        for number in step.frees:
            held[number] = None
    return total


def _index_add(total: torch.Tensor, where: torch.Tensor, rows: torch.Tensor, weight: float) -> torch.Tensor:
    return torch.index_add(total, 0, where, rows.reshape(-1, total.shape[1]), alpha=weight)


def _add_rows(total: torch.Tensor, where: torch.Tensor, rows: torch.Tensor, weight: float) -> torch.Tensor:
    part = rows if weight == 1 else rows * weight  # torch takes longer by a weight of its own
    return total.index_add_(0, where, part.reshape(-1, total.shape[1]))


def scratch(entries: int, size: int, work: Work) -> int:
    """Return the bytes that are held for a piece."""
    return min(size, entries) * work.held
