"""Terms as sparse tensors: their entries with the indices of these, never through a dense tensor."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple
from warnings import catch_warnings, simplefilter

import torch

from hofunc.algebra.labels import Axis, Label, shape_of
from hofunc.algebra.term import Term, visible
from hofunc.errors import ArgumentError
from hofunc.scatter import Entries, core_of, entries_of, flattened, places_of, size_of, values
from hofunc.views import Labelled, run_now

_MOST = 2**63 - 1  # elements of a tensor of which torch can number all


class Coordinates(NamedTuple):
    """Entries, of which those of the same indices are to be added.

    Attributes:
        indices: Of shape (axes, entries).
        values: Of shape (entries).
    """

    indices: torch.Tensor
    values: torch.Tensor


class Matrix(NamedTuple):
    """The entries of a matrix, of which those of the same row and column are to be added.

    Attributes:
        row: Their rows.
        column: Their columns.
        values: The entries.
        shape: That of the matrix.
    """

    row: torch.Tensor
    column: torch.Tensor
    values: torch.Tensor
    shape: tuple[int, int]


def coordinates(terms: Sequence[Term], groups: int, like: torch.Tensor) -> Coordinates:
    """Return all entries of terms.

    Args:
        terms: The terms, with tensors for sources.
        groups: How many axes there are, those of the output and of all slots.
        like: A tensor of the dtype and device of the entries.
    """
    one = Labelled(like.new_ones(()), ())
    nowhere = torch.zeros(groups, 0, dtype=torch.long, device=like.device)
    found = [Coordinates(nowhere, like.new_zeros(0))]
    for term in terms:
        if all(map(prod, map(shape_of, (term.out, *term.slots)))) and _reaches(term):
            found.append(_coordinates(term, entries_of(term, one), like))
        elif (core := core_of(term)) is not None:  # it has no entries, but may have a history
            found.append(Coordinates(nowhere, core.tensor.flatten()[:0]))
    return Coordinates(torch.cat([each.indices for each in found], 1), torch.cat([each.values for each in found]))


def _reaches(term: Term) -> bool:
    """Tell whether a term reaches any index."""
    return all(label.size for label in visible(term))


def _coordinates(term: Term, entries: Entries, like: torch.Tensor) -> Coordinates:
    runs = entries.labels(visible(term))
    axes = (term.out, *term.slots)
    places = [_index(axis, entries, runs, like) for group in axes for axis in group]
    count = size_of(runs)
    indices = torch.stack(places) if places else torch.zeros(0, count, dtype=torch.long, device=like.device)
    return Coordinates(indices, torch.reshape(values(run_now, entries, runs), (count,)))


def _index(axis: Axis, entries: Entries, runs: Sequence[Label], like: torch.Tensor) -> torch.Tensor:
    """Return the index of every entry along an axis."""
    strides, stride, start = [], 1, 0
    for segment in reversed(axis):
        start += segment.start * stride
        if segment.label is not None and segment.label.size > 1:
            strides.append((segment.label, stride))
        stride *= segment.extent
    return places_of(run_now, like, entries.positions, runs, strides) + start


def as_coo(terms: Sequence[Term], shapes: Sequence[tuple[int, ...]], like: torch.Tensor) -> torch.Tensor:
    """Return the sum of terms as a coalesced tensor of layout torch.sparse_coo; for arguments see `as_matrix`.

    Raises:
        ArgumentError: It has more elements than torch can number.
    """
    shape = tuple([size for each in shapes for size in each])
    if prod(shape) > _MOST:
        raise ArgumentError(
            "hofunc.Derivative.to_sparse",
            got=f"shape {shape}, of {prod(shape):.1e} elements",
            expected="at most 2**63 - 1 elements, which is all that torch can number",
            remedy="Use .terms, .contract(...) or .block(...), which number none.",
        )
    found = coordinates(terms, len(shape), like)
    return torch.sparse_coo_tensor(found.indices, found.values, shape, check_invariants=False).coalesce()


def as_matrix(terms: Sequence[Term], shapes: Sequence[tuple[int, ...]], like: torch.Tensor) -> Matrix:
    """Return the sum of terms as a matrix: a Jacobian, or the Hessian of one element.

    Args:
        terms: The terms.
        shapes: Those of the output and of all slots.
        like: A tensor of their dtype and device.

    Raises:
        ArgumentError: It is of another order.
    """
    output, *slots = shapes
    if len(slots) > 2 or (len(slots) == 2 and prod(output) != 1):
        raise ArgumentError(
            "hofunc.Derivative: as a sparse matrix",
            got=f"order {len(slots)} of an output of shape {output}",
            expected="order 1, or order 2 of an output of one element",
            remedy="Use .to_sparse(), which takes any order.",
        )
    rows = sum(map(len, shapes[: len(slots)]))
    shape = tuple([size for each in shapes for size in each])
    found = coordinates(terms, len(shape), like)
    row, column = flattened(found.indices[:rows], shape[:rows]), flattened(found.indices[rows:], shape[rows:])
    return Matrix(row, column, found.values, (prod(shape[:rows]), prod(shape[rows:])))


def put_together(grid: Sequence[Sequence[Matrix]]) -> Matrix:
    """Return a matrix of blocks, those of a row side by side."""
    rows = [0, *accumulate(first.shape[0] for first, *_ in grid)]
    columns = [0, *accumulate(block.shape[1] for block in grid[0])]
    placed = [
        Matrix(block.row + top, block.column + left, block.values, block.shape)
        for top, blocks in zip(rows, grid, strict=False)
        for left, block in zip(columns, blocks, strict=False)
    ]
    row, column, values, _ = zip(*placed, strict=True)
    return Matrix(torch.cat(row), torch.cat(column), torch.cat(values), (rows[-1], columns[-1]))


def as_csr(matrix: Matrix) -> torch.Tensor:
    """Return a matrix as a tensor of layout torch.sparse_csr."""
    indices = torch.stack([matrix.row, matrix.column])
    coalesced = torch.sparse_coo_tensor(indices, matrix.values, matrix.shape, check_invariants=False).coalesce()
    with catch_warnings():
        simplefilter("ignore", UserWarning)  # torch's, once a process, that its support of this layout is in beta
        return coalesced.to_sparse_csr()


def as_scipy(matrix: Matrix) -> Any:
    """Return a matrix as a scipy.sparse.csr_array on the CPU.

    Raises:
        ArgumentError: There is no scipy.
    """
    try:
        from scipy.sparse import coo_array  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ArgumentError(
            "hofunc.Derivative.to_scipy",
            got="no scipy",
            expected="scipy, which hofunc does not need otherwise",
            remedy="pip install scipy",
        ) from error
    row, column, values = (each.detach().cpu().numpy() for each in matrix[:3])
    return coo_array((values, (row, column)), shape=matrix.shape).tocsr()
