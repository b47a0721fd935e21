"""The matrix exponential, and products of Householder's reflections."""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import permutations
from operator import add

import torch
from torch import Tensor

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call
from hofunc.rules.kinds import Positions, Site
from hofunc.rules.registry import define, define_composite

aten = torch.ops.aten

MOST = 1 << 18  # entries of matrices whose exponentials are computed at once, for one matrix of a batch


class MatrixExponential:
    """The rule of the exponential of every matrix of a batch: dense in a matrix, diagonal in the batch."""

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        return [(0,) * order]

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        *batch, rows, columns = site.shapes[0]
        out = fresh_axes(batch)
        matrices = [fresh_axes([rows, columns]) for _ in range(len(positions) + 1)]
        core = Factor(Call(exponential, (site.ref(0), len(positions))), sum(matrices, out))
        first, *slots = ((*out, *matrix) for matrix in matrices)
        return [Term(1, (core,), first, tuple(slots))]


def exponential(x: Tensor, order: int) -> Tensor:
    """Return a derivative of the exponential of matrices, of shape (*x, *matrix, ... order times).

    The corner of the exponential of a matrix of blocks, with x on the diagonal and directions h above it, is the part
    of exp(x + h) in which the directions stand in that order (Van Loan, 1978); the derivative is the sum of all orders.
    """
    *batch, size, _ = x.shape
    basis = torch.eye(size * size, dtype=x.dtype, device=x.device).reshape(size * size, size, size)
    entries = size ** (2 * order) * (order + 1) ** 2  # of the matrices of blocks that have one first direction
    corner = torch.cat(
        [_corner(x, part, basis, order) for part in basis.split(max(1, MOST // max(1, entries)))], len(batch)
    )
    front = len(batch)
    places = list(range(front, front + order))
    orders = (
        torch.movedim(corner, places, [places[place] for place in chosen]) for chosen in permutations(range(order))
    )
    total = torch.movedim(reduce(add, orders), (-2, -1), (front, front + 1))
    return total.reshape(*batch, size, size, *[size] * (2 * order))


def _corner(x: Tensor, first: Tensor, basis: Tensor, order: int) -> Tensor:
    """Return the corners for some first directions and all others, of shape (*batch, directions, ..., *matrix)."""
    *batch, size, _ = x.shape
    directions = [first, *[basis] * (order - 1)]
    shape = (*batch, *map(len, directions), size, size)
    diagonal = x.reshape(*batch, *[1] * order, size, size).expand(shape)
    zeros = torch.zeros((), dtype=x.dtype, device=x.device).expand(shape)
    rows = []
    for place in range(order + 1):
        row = [zeros] * place + [diagonal]
        if place < order:
            direction = directions[place].reshape(
                *[1] * place, shape[len(batch) + place], *[1] * (order - 1 - place), size, size
            )
            row += [direction.expand(shape)] + [zeros] * (order - 1 - place)
        rows.append(torch.cat(row, -1))
    return torch.matrix_exp(torch.cat(rows, -2))[..., :size, order * size :].clone()


def _householder_product(vectors: Tensor, scales: Tensor) -> Tensor:
    size, columns = vectors.shape[-2:]
    eye = torch.eye(size, columns, dtype=vectors.dtype, device=vectors.device)
    return _reflected(vectors, scales, eye.expand(vectors.shape))


def _ormqr(vectors: Tensor, scales: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    if left:
        return _reflected(vectors, scales, other, transpose=transpose)
    return _reflected(vectors, scales, other.mH, transpose=not transpose).mH


def _reflected(vectors: Tensor, scales: Tensor, x: Tensor, *, transpose: bool = False) -> Tensor:
    """Multiply from the left by the product of Householder's reflections, or by its transpose, conjugated if complex.

    Args:
        vectors: Those of the reflections, as columns below the diagonal, on which there is a one.
        scales: How much of each is taken away, twice for a reflection of a vector of length one.
        x: What is multiplied.
        transpose: Whether by the transpose: the reflections in the opposite order.
    """
    below = vectors.tril(-1) + torch.eye(*vectors.shape[-2:], dtype=vectors.dtype, device=vectors.device)
    places = range(scales.shape[-1])
    for place in places if transpose else reversed(places):
        vector = below[..., place : place + 1]
        scale = scales[..., place, None, None]
        x = x - (scale.conj() if transpose else scale) * (vector @ (vector.mH @ x))
    return x


define(aten.linalg_matrix_exp.default, MatrixExponential())
define_composite(aten.linalg_householder_product.default, _householder_product)
define_composite(aten.ormqr.default, _ormqr)
