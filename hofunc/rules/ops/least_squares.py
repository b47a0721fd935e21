"""Pseudo-inverses and least squares, by the series of their change: see NOTE [expansions]."""

from typing import Any

import torch
from torch import Tensor

from hofunc.rules.expansion import Operand
from hofunc.rules.ops.inverse import takes_vector
from hofunc.rules.ops.series import (
    Series,
    adjoint,
    inverse_change,
    joined,
    lengths,
    mapped,
    real_part,
    summed,
    times,
    times_one_plus,
)
from hofunc.rules.ops.truncation import kept_values, over_kept, truncated_inverse
from hofunc.rules.registry import define_expansion

aten = torch.ops.aten


def pseudo_inverse(order: int, result: Tensor, a: Operand) -> Series:
    """Return the series of the pseudo-inverse of a matrix that keeps its rank.

    Of that rank is a = c k^-1 r with c = a v / s, k = u^T a v / s^2 and r = u^T a / s, of the singular vectors that the
    result has not taken for zero; r and c have full rank, and so the pseudo-inverse is that of r times k times that of
    c. In these coordinates c^T c and r r^T are identities, whatever the condition of a.

    Args:
        order: The highest degree.
        result: The pseudo-inverse.
        a: The matrix.
    """
    u, s, vh = torch.linalg.svd(a.value, full_matrices=False)
    kept = kept_values(result, u, s, vh)
    over = over_kept(s, kept)
    u, v = u * kept.unsqueeze(-2), vh.mH * kept.unsqueeze(-2)
    columns, rows = {0: u, 1: a.change @ (v * over)}, {0: v, 1: a.change.mH @ (u * over)}
    core = {0: torch.diag_embed(over.squeeze(-2)).to(u.dtype), 1: (u * over).mH @ columns[1]}
    left, right = _orthonormal(order, rows), _orthonormal(order, columns)
    return times(order, times(order, left, core), mapped(adjoint, right))


def _orthonormal(order: int, columns: Series) -> Series:
    """Return c (c^T c)^-1 for a series c of degree 1 that starts with orthonormal columns, or zeros."""
    both = columns[0].mH @ columns[1]
    change = {1: both + both.mH, 2: columns[1].mH @ columns[1]}
    return times_one_plus(order, columns, inverse_change(order, change))


def hermitian_part(a: Operand) -> Operand:
    """Return the Hermitian part of a matrix of which torch reads the lower triangle, as what `eigh` is a function of.

    The value is what is read, and its derivative that of the part.
    """
    value, change = ((x + x.mH) * 0.5 for x in a)
    below = a.value.tril(-1)
    read = below + below.mH + torch.diag_embed(value.diagonal(0, -2, -1))
    return Operand(value + (read - value).detach(), change)


@define_expansion(aten.linalg_pinv.atol_rtol_tensor)
def _pinv(
    order: int,
    outputs: tuple[Tensor, ...],
    a: Operand,
    *,
    atol: Operand | None = None,
    rtol: Operand | None = None,
    hermitian: bool = False,
    **_: Any,
) -> Tensor:
    a = hermitian_part(a) if hermitian else a
    is_kept_whole = atol is None and rtol is None  # but for rounding
    series = pseudo_inverse if is_kept_whole else truncated_inverse
    return summed(series(order, outputs[0], a))


# By a condition, least squares are those of what is kept of a matrix by its singular values. The driver gelsy, which is
# the default on a CPU, leaves out what is short of columns instead, of which nothing is known here.


def _inverse_of_kept(order: int, rank: Tensor, a: Operand, rcond: float | None, driver: str | None) -> Series:
    driver = driver or ("gelsy" if a.value.device.type == "cpu" else "gels")
    if rcond is not None and driver in ("gelsd", "gelss"):
        return truncated_inverse(order, torch.linalg.pinv(a.value, rtol=rcond), a)
    inverse = pseudo_inverse(order, torch.linalg.pinv(a.value), a)
    if rcond is None or driver == "gels":
        return inverse
    known = torch.where(rank == torch.linalg.matrix_rank(a.value), 1, torch.nan)[..., None, None]
    return mapped(lambda part: part * known.to(part.dtype), inverse)


@define_expansion(aten.linalg_lstsq.default)
def _lstsq(
    order: int,
    outputs: tuple[Tensor, ...],
    a: Operand,
    b: Operand,
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    is_vector = takes_vector(a.value, b.value)
    right = {0: b.value, 1: b.change}
    right = mapped(as_column, right) if is_vector else right
    x = times(order, _inverse_of_kept(order, outputs[2], a, rcond, driver), right)
    change = summed(x).squeeze(-1) if is_vector else summed(x)
    if not outputs[1].numel():
        return change, None
    missed = joined(times(order, {0: a.value, 1: a.change}, x), mapped(torch.neg, right))
    return change, real_part(summed(lengths(order, missed))).squeeze(-2)


def as_column(x: Tensor) -> Tensor:
    """Turn vectors into matrices of one column."""
    return x.unsqueeze(-1)
