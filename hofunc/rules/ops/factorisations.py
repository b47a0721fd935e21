"""Triangular factorisations, by the series of their change: see NOTE [expansions].

What a change does is written in the coordinates of the factors themselves, in which the matrix is the identity; there
each part follows from those below by taking triangles.
"""

from typing import Any

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.internals import CHOLESKY
from hofunc.rules.expansion import Operand
from hofunc.rules.ops.series import (
    Series,
    adjoint,
    cholesky_change,
    convolved,
    identity_like,
    inverse_change,
    mapped,
    minus,
    summed,
    times,
    times_one_plus,
    transposed,
)
from hofunc.rules.registry import define_expansion

aten = torch.ops.aten


def inverse_of_triangle(x: Tensor, *, upper: bool, unitriangular: bool = False) -> Tensor:
    """Invert triangular matrices."""
    return torch.linalg.solve_triangular(x, identity_like(x), upper=upper, unitriangular=unitriangular)


# Cholesky. As for torch, it is a function of the symmetric, or Hermitian, part of its operand.


def _cholesky(order: int, outputs: tuple[Tensor, ...], a: Operand, upper: bool = False, **_: Any) -> Tensor:
    lower = outputs[0].mH if upper else outputs[0]
    inverse = inverse_of_triangle(lower, upper=False)
    change = inverse @ ((a.change + a.change.mH) * 0.5) @ inverse.mH
    result = lower @ summed(cholesky_change(order, {1: change}))
    return result.mH if upper else result


for _op in (aten.linalg_cholesky_ex.default, *CHOLESKY):
    define_expansion(_op)(_cholesky)


# QR: in the coordinates of R, A is Q and its Cholesky factor is the change of R.


@define_expansion(aten.linalg_qr.default)
def _qr(
    order: int, outputs: tuple[Tensor, ...], a: Operand, mode: str = "reduced"
) -> tuple[Tensor | UnsupportedOpError | None, Tensor]:
    rows, columns = a.value.shape[-2:]
    size = min(rows, columns)
    triangle = outputs[1][..., :size, :size]
    inverse = inverse_of_triangle(triangle, upper=True)
    q = a.value[..., :size] @ inverse if mode == "r" else outputs[0][..., :size]
    moved = a.change[..., :size] @ inverse
    both = q.mH @ moved
    lower = cholesky_change(order, {1: both + both.mH, 2: moved.mH @ moved})
    q_series = times_one_plus(order, {0: q, 1: moved}, mapped(adjoint, inverse_change(order, lower)))
    r_change = summed(lower).mH @ triangle
    if columns > size:
        others = {0: a.value[..., size:], 1: a.change[..., size:]}
        r_change = torch.cat([r_change, summed(times(order, mapped(adjoint, q_series), others))], -1)
    if mode != "complete" or rows == size:
        return None if mode == "r" else summed(q_series), r_change
    below = torch.zeros(*r_change.shape[:-2], rows - size, columns, dtype=q.dtype, device=q.device)
    return undetermined("linalg.qr", "Q with mode='complete' of more rows than columns", "mode='reduced'"), torch.cat(
        [r_change, below], -2
    )


def undetermined(op: str, what: str, remedy: str) -> UnsupportedOpError:
    """Return the error for a factor that the matrix leaves open."""
    return UnsupportedOpError(
        f"hofunc: a derivative of {op}",
        got=what,
        expected="a factor that the matrix determines",
        remedy=f"Take {remedy}.",
    )


# LU: in the coordinates of both factors, A is the identity, whose factors change by x + y + x y = m.


@define_expansion(aten.linalg_lu_factor_ex.default)
def _lu_factor(order: int, outputs: tuple[Tensor, ...], a: Operand, **_: Any) -> Tensor:
    permutation, lower, upper = torch.lu_unpack(outputs[0], outputs[1])
    lower_change, upper_change = _lu_changes(order, permutation, lower, upper, a.change)
    rows, columns = a.value.shape[-2:]
    if rows > columns:
        return torch.cat([lower_change[..., :columns, :] + upper_change, lower_change[..., columns:, :]], -2)
    return torch.cat([lower_change + upper_change[..., :rows], upper_change[..., rows:]], -1)


@define_expansion(aten.linalg_lu.default)
def _lu(order: int, outputs: tuple[Tensor, Tensor, Tensor], a: Operand, **_: Any) -> tuple[None, Tensor, Tensor]:
    return None, *_lu_changes(order, *outputs, a.change)


def _lu_changes(order: int, permutation: Tensor, lower: Tensor, upper: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """Return the changes of the factors of which one is square, the other may be longer."""
    size = lower.shape[-1]
    first, second = lower[..., :size, :], upper[..., :size]
    left = inverse_of_triangle(first, upper=False, unitriangular=True)
    right = inverse_of_triangle(second, upper=True)
    change = permutation.mT @ change if permutation.numel() else change
    x: Series = {}
    y: Series = {}
    for degree in range(1, order + 1):
        core = left @ change[..., :size, :size] @ right if degree == 1 else minus(None, convolved(x, y, degree))
        x[degree], y[degree] = core.tril(-1), core.triu()
    lower_change, upper_change = first @ summed(x), summed(y) @ second
    if lower.shape[-2] > size:
        below = {0: lower[..., size:, :], 1: change[..., size:, :] @ right}
        rest = summed(times_one_plus(order, below, inverse_change(order, y)))
        lower_change = torch.cat([lower_change, rest], -2)
    if upper.shape[-1] > size:
        beside = mapped(transposed, {0: upper[..., size:], 1: left @ change[..., size:]})
        rest = summed(times_one_plus(order, beside, mapped(transposed, inverse_change(order, x)))).mT
        upper_change = torch.cat([upper_change, rest], -1)
    return lower_change, upper_change
