"""The matrix exponential, and products of Householder's reflections."""

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import permutations
from math import factorial
from operator import add

import torch
from torch import Tensor

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Graph, Node
from hofunc.rules.complex_choice import COMPLEX_COMPOSITES
from hofunc.rules.kinds import Composite, Positions, Site
from hofunc.rules.registry import define, define_composite, define_fusion

aten = torch.ops.aten

LARGE = 4  # from this size on, a matrix is not differentiated by all of its entries at once, see `_exponential`
SMALL = 0.25  # norm up to which the polynomial is the exponential, but for rounding, to derivatives of order nine
SQUARINGS = 20  # for a norm of 262144 at most, from which on hardly any digit of an exponential is right
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


def _exponential(x: Tensor) -> Tensor:
    """Return the exponential of matrices: that of a fraction, a Taylor polynomial, squared as often as it was halved.

    All matrices go through as many squarings, of which those that are too many for one are products with the identity,
    so that the steps do not depend on values: under vmap, and in what is compiled, there is no one number of them.
    """
    norm = x.detach().abs().sum(-2).amax(-1)[..., None, None]
    halvings = (norm / SMALL).clamp(min=1).log2().ceil()
    fits = torch.where(halvings <= SQUARINGS, 1.0, torch.nan)
    x = x * (fits * (-halvings).exp2()).to(x.dtype)
    square = x @ x
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    cube, powers = square @ x, (eye, x, square)
    parts = [
        reduce(add, (power * (1 / factorial(first + place)) for place, power in enumerate(powers)))
        for first in range(18, -1, -3)
    ]
    y = reduce(lambda y, part: part + cube @ y, parts)
    for step in range(SQUARINGS):
        y = y @ torch.where(step < halvings, y, eye)
    return y


@define_fusion(aten.linalg_matrix_exp.default)
def _of_powers(_: Graph, node: Node) -> Composite | None:
    """Recognise the exponential of a matrix that has more directions than are worth an exponential for each."""
    return Composite(_exponential) if node.dtype.is_floating_point and node.shape[-1] >= LARGE else None


def _exponential_of_complex(x: Tensor) -> Tensor:
    """Return the exponential of complex matrices by that of real ones, which multiply as they do."""
    size, rows = x.shape[-1], [torch.cat([x.real, -x.imag], -1), torch.cat([x.imag, x.real], -1)]
    y = torch.linalg.matrix_exp(torch.cat(rows, -2))
    return torch.complex(y[..., :size, :size], y[..., size:, :size])


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
COMPLEX_COMPOSITES[aten.linalg_matrix_exp.default] = _exponential_of_complex
define_composite(aten.linalg_householder_product.default, _householder_product)
define_composite(aten.ormqr.default, _ormqr)
