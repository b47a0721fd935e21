"""Eigenvalues and singular values, by perturbation theory to any order: see NOTE [expansions].

In the coordinates of the vectors the matrix is diagonal, and a change turns the vectors into v (1 + x). The equation
that they solve gives the diagonal of each part for the values, and its other elements, divided by the gap between two
values, for x. A vector is first normalised by keeping its own coefficient one, and scaled to length one at the end.

Eigenvalues by `eigh` are functions of the symmetric, or Hermitian, part of their operand, as a Cholesky factor is.
"""

from typing import Any

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.rules.expansion import Operand
from hofunc.rules.ops.factorisations import undetermined
from hofunc.rules.ops.series import (
    Series,
    added,
    convolved,
    identity_like,
    lengths,
    mapped,
    minus,
    real_part,
    summed,
    times,
    times_one_plus,
)
from hofunc.rules.registry import define_expansion

aten = torch.ops.aten


def off_diagonal(denominators: Tensor) -> Tensor:
    """Return one over each element of matrices, and zero on the diagonal."""
    eye = identity_like(denominators)
    return (denominators + eye).reciprocal() * (1 - eye)


def diagonal(x: Tensor) -> Tensor:
    """Return the diagonal of matrices as a row."""
    return x.diagonal(0, -2, -1).unsqueeze(-2)


def scale_change(order: int, squares: Series) -> Series:
    """Return s of 1 + s = (1 + n)^(-1/2), for the series n of the changes of squares of lengths."""
    result: Series = {}
    for degree in range(min(squares, default=order + 1), order + 1):
        pairs = times(degree, result, result, torch.mul)  # from n + (2 s + s s) (1 + n) = 0
        known = {low: added(2 * part, pairs.get(low)) for low, part in result.items()}
        rest = convolved(squares, known, degree, torch.mul)
        result[degree] = -0.5 * added(squares[degree], pairs.get(degree), rest)
    return result


def perturbed(order: int, core: Tensor, values: Tensor) -> tuple[Series, Series]:
    """Return the changes of vectors, in their own coordinates, and of values, given that of the matrix there."""
    over_gaps = off_diagonal(values[..., None, :] - values[..., :, None])
    x: Series = {}
    shifts: Series = {}
    for degree in range(1, order + 1):
        moved = core if degree == 1 else core @ x[degree - 1]
        shifts[degree] = diagonal(moved)
        x[degree] = minus(moved, convolved(x, shifts, degree, torch.mul)) * over_gaps
    return x, shifts


@define_expansion(aten._linalg_eigh.default)
def _eigh(
    order: int, outputs: tuple[Tensor, Tensor], a: Operand, triangle: str = "L", compute_v: bool = True
) -> tuple[Tensor, Tensor | None]:
    values = outputs[0]
    vectors = outputs[1] if compute_v else torch.linalg.eigh(a.value, triangle)[1]
    x, shifts = perturbed(order, vectors.mH @ ((a.change + a.change.mH) * 0.5) @ vectors, values)
    change = real_part(summed(shifts)).squeeze(-2)
    if not compute_v:
        return change, None
    turned = {0: vectors, **{degree: vectors @ part for degree, part in x.items()}}
    return change, summed(times_one_plus(order, turned, scale_change(order, lengths(order, x)), torch.mul))


# Eigenvalues of any matrix, the vectors of which are not orthogonal. They are complex, and each may be turned by a
# phase: in the coordinates of the vectors, its change has nothing of its own direction but what keeps its length.


@define_expansion(aten.linalg_eig.default)
def _eig(order: int, outputs: tuple[Tensor, Tensor], a: Operand) -> tuple[Tensor, Tensor]:
    values, vectors = outputs
    x, shifts = perturbed(order, torch.linalg.inv(vectors) @ a.change.to(vectors.dtype) @ vectors, values)
    turned = {0: vectors, **{degree: vectors @ part for degree, part in x.items()}}
    squares = mapped(real_part, {degree: part for degree, part in lengths(order, turned).items() if degree})
    change = summed(times_one_plus(order, turned, scale_change(order, squares), torch.mul))
    return summed(shifts).squeeze(-2), change


@define_expansion(aten.linalg_eigvals.default)
def _eigvals(order: int, outputs: tuple[Tensor], a: Operand) -> Tensor:
    values, vectors = torch.linalg.eig(a.value)
    places = (outputs[0][..., None, :] - values[..., :, None]).abs().argmin(-2)  # they may be in another order
    vectors = vectors.gather(-1, places[..., None, :].expand(vectors.shape))
    return _eig(order, (outputs[0], vectors), a)[0]


# Singular values: of a matrix with no fewer rows than columns, or its transpose.


@define_expansion(aten._linalg_svd.default)
def _svd(
    order: int,
    outputs: tuple[Tensor, Tensor, Tensor],
    a: Operand,
    full_matrices: bool = False,
    compute_uv: bool = True,
    **_: Any,
) -> tuple[Tensor | UnsupportedOpError | None, Tensor, Tensor | UnsupportedOpError | None]:
    rows, columns = a.value.shape[-2:]
    size = min(rows, columns)
    u, s, vh = outputs if compute_uv else torch.linalg.svd(a.value, full_matrices=False)
    left, right, change = u[..., :size], vh[..., :size, :].mT, a.change
    if rows < columns:
        left, right, change = right, left, change.mT
    left_change, s_change, right_change = _singular(order, left, s, right, change)
    if not compute_uv:
        return None, s_change, None
    u_change, v_change = (left_change, right_change) if rows >= columns else (right_change, left_change)
    if not full_matrices or rows == columns:
        return u_change, s_change, v_change.mT
    error = undetermined(
        "linalg.svd", "the vectors of full_matrices=True that no singular value has", "full_matrices=False"
    )
    return (error, s_change, v_change.mT) if rows > columns else (u_change, s_change, error)


def _singular(order: int, u: Tensor, s: Tensor, v: Tensor, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the changes of the vectors and values, where every column of v is a vector.

    With u (1 + x) + z and v (1 + y), a v = u (s + d) and a^T u = v (s + e); d and e differ by the squares of lengths.
    Nothing is outside of a square u, and of what rounding would leave there a small value would make much.
    """
    across = change @ v
    core = u.mT @ across
    is_square = u.shape[-2] == u.shape[-1]
    outside = across - u @ core
    over_gaps = off_diagonal(s[..., None, :] - s[..., :, None])
    over_sums = off_diagonal(s[..., None, :] + s[..., :, None])
    x: Series = {}
    y: Series = {}
    z: Series = {}
    d: Series = {}
    e: Series = {}
    for degree in range(1, order + 1):
        below = degree - 1
        first = core @ y[below] if below else core
        second = core.mT @ x[below] if below else core.mT
        second = second + outside.mT @ z[below] if below in z else second
        d[degree], e[degree] = diagonal(first), diagonal(second)
        if not is_square:
            moved = outside @ y[below] if below else outside
            z[degree] = minus(moved, convolved(z, d, degree, torch.mul)) / s.unsqueeze(-2)
        first = minus(first, convolved(x, d, degree, torch.mul))
        second = minus(second, convolved(y, e, degree, torch.mul))
        both, apart = (first + second) * over_gaps * 0.5, (first - second) * over_sums * 0.5
        x[degree], y[degree] = both + apart, both - apart
    squares = lengths(order, x, z)
    u_scale, v_scale = scale_change(order, squares), scale_change(order, lengths(order, y))
    values = {0: s.unsqueeze(-2), **d}
    for factor in (u_scale, squares, v_scale):
        values = times_one_plus(order, values, factor, torch.mul)
    us = {0: u, **{degree: added(u @ x[degree], z.get(degree)) for degree in x}}
    vs = {0: v, **{degree: v @ y[degree] for degree in y}}
    return (
        summed(times_one_plus(order, us, u_scale, torch.mul)),
        summed(values).squeeze(-2),
        summed(times_one_plus(order, vs, v_scale, torch.mul)),
    )
