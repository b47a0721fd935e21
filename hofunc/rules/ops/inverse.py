"""Inverses and solutions of linear equations, by the series of their change: see NOTE [expansions].

From (A + H) (X + D) = B + K follows D = Y (K - H X) - Y H D, with Y the inverse of A: each part of D follows from
the one below. Y multiplies all changes, and so is made once for all of them.
"""

from typing import Any

import torch
from torch import Tensor

from hofunc.rules.expansion import Operand
from hofunc.rules.ops.series import identity_like
from hofunc.rules.registry import define_composite, define_expansion

aten = torch.ops.aten


def solution_change(order: int, inverse: Tensor, change: Tensor, x: Tensor, right: Tensor | None) -> Tensor:
    """Return the change of the solution x of a x = b.

    Args:
        order: The highest power of changes.
        inverse: That of a.
        change: That of a.
        x: The solution.
        right: The change of b, None if there is none.
    """
    step = -(inverse @ change)
    part = step @ x if right is None else inverse @ right + step @ x
    total = part
    for _ in range(order - 1):
        part = step @ part
        total = total + part
    return total


@define_expansion(aten.linalg_inv_ex.default)
def _inv(order: int, outputs: tuple[Tensor, ...], a: Operand, **_: Any) -> Tensor:
    return solution_change(order, outputs[0], a.change, outputs[0], None)


@define_expansion(aten._linalg_solve_ex.default)
def _solve(order: int, outputs: tuple[Tensor, ...], a: Operand, b: Operand, *, left: bool = True, **_: Any) -> Tensor:
    x, inverse = outputs[0], torch.linalg.inv(a.value)
    if takes_vector(a.value, b.value):
        return solution_change(order, inverse, a.change, x.unsqueeze(-1), b.change.unsqueeze(-1)).squeeze(-1)
    if left:
        return solution_change(order, inverse, a.change, x, b.change)
    return solution_change(order, inverse.mT, a.change.mT, x.mT, b.change.mT).mT


def takes_vector(a: Tensor, b: Tensor) -> bool:
    """Tell whether torch takes b for a vector, or a batch of them, rather than for matrices."""
    return b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])


# Triangular matrices, of which the other triangle does not count, nor the diagonal if it is said to be one.


@define_expansion(aten.linalg_solve_triangular.default)
def _solve_triangular(
    order: int,
    outputs: tuple[Tensor, ...],
    a: Operand,
    b: Operand,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    (x,) = outputs
    eye = identity_like(a.value)
    inverse = torch.linalg.solve_triangular(a.value, eye, upper=upper, unitriangular=unitriangular)
    change = a.change.triu(int(unitriangular)) if upper else a.change.tril(-int(unitriangular))
    if left:
        return solution_change(order, inverse, change, x, b.change)
    return solution_change(order, inverse.mT, change.mT, x.mT, b.change.mT).mT


def _triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    matrix = a.mT if transpose else a
    x = torch.linalg.solve_triangular(matrix, b, upper=upper != transpose, unitriangular=unitriangular)
    return x, a.clone()


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mH if upper else factor
    half = torch.linalg.solve_triangular(lower, b, upper=False)
    return torch.linalg.solve_triangular(lower.mH, half, upper=True)


def _cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    half = torch.linalg.solve_triangular(factor, identity_like(factor), upper=upper)
    return half @ half.mH if upper else half.mH @ half


def _lu_unpack(
    lu: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    permutation, *_ = torch.lu_unpack(
        torch.zeros_like(lu.detach()), pivots, unpack_data=False, unpack_pivots=unpack_pivots
    )
    if not unpack_data:
        return permutation, lu.new_empty(0), lu.new_empty(0)
    size = min(lu.shape[-2:])
    lower = lu[..., :size].tril(-1) + torch.eye(lu.shape[-2], size, dtype=lu.dtype, device=lu.device)
    return permutation, lower, lu[..., :size, :].triu()


def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return _lu_solve(lu, pivots, b.mH, adjoint=not adjoint).mH
    permutation, *_ = torch.lu_unpack(torch.zeros_like(lu.detach()), pivots, unpack_data=False)
    if adjoint:
        half = torch.linalg.solve_triangular(lu.mH, b, upper=False)
        return permutation @ torch.linalg.solve_triangular(lu.mH, half, upper=True, unitriangular=True)
    half = torch.linalg.solve_triangular(lu, permutation.mT @ b, upper=False, unitriangular=True)
    return torch.linalg.solve_triangular(lu, half, upper=True)


define_composite(aten.triangular_solve.default, _triangular_solve)
define_composite(aten.cholesky_solve.default, _cholesky_solve)
define_composite(aten.cholesky_inverse.default, _cholesky_inverse)
define_composite(aten.lu_unpack.default, _lu_unpack)
define_composite(aten.linalg_lu_solve.default, _lu_solve)
