"""Ops whose rule for real numbers holds for complex ones, see `hofunc.rules.holomorphic`, and some that need others."""

from typing import Any

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.internals import CHOLESKY, POLAR, SQUARE_ROOT
from hofunc.rules.complex_choice import COMPLEX_COMPOSITES, EXPANDED
from hofunc.rules.holomorphic import HOLOMORPHIC
from hofunc.rules.ops.factorisations import undetermined

aten = torch.ops.aten

HOLOMORPHIC |= {
    aten.acos.default,
    aten.acosh.default,
    aten.asin.default,
    aten.asinh.default,
    aten.atan.default,
    aten.atanh.default,
    aten.cumprod.default,
    aten.exp2.default,
    aten.expm1.default,
    aten.log10.default,
    aten.log1p.default,
    aten.log2.default,
    aten.logaddexp.default,
    aten.pow.Scalar,
    aten.pow.Tensor_Tensor,
    aten.prod.default,
    aten.prod.dim_int,
    aten.rsqrt.default,
    aten.silu.default,
}

# In these, what is transposed of a complex matrix is conjugated where that is meant.
EXPANDED |= {
    aten._linalg_eigh.default,
    aten._linalg_slogdet.default,
    aten.linalg_eig.default,
    aten.linalg_eigvals.default,
    aten.linalg_lstsq.default,
    aten.linalg_pinv.atol_rtol_tensor,
    aten.linalg_cholesky_ex.default,
    aten.linalg_lu.default,
    aten.linalg_lu_factor_ex.default,
    aten.linalg_qr.default,
    aten.linalg_solve_triangular.default,
    *CHOLESKY,
    *POLAR,
    *SQUARE_ROOT,
}


LARGE = 8  # from this size on, a determinant is taken from its logarithm, which a singular matrix has none of


def _determinant(a: Tensor) -> tuple[Tensor]:
    """Multiply out, without a division, so that it holds for every matrix.

    Source: Bird, A simple division-free algorithm for computing determinants, Inf. Process. Lett. 111 (2011).
    """
    size = a.shape[-1]
    if size >= LARGE:
        sign, logarithm = torch.linalg.slogdet(a)
        return (sign * logarithm.exp(),)
    if not size:
        return (torch.ones(a.shape[:-2], dtype=a.dtype, device=a.device),)
    x = a
    for _ in range(size - 1):
        below = x.diagonal(0, -2, -1).flip(-1).cumsum(-1).flip(-1)  # the sum of each diagonal element and those below
        rest = torch.nn.functional.pad(below[..., 1:], (0, 1))
        x = (x.triu(1) - torch.diag_embed(rest)) @ a
    return (x[..., 0, 0] * (-1) ** (size - 1),)


def _singular_values(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, **_: Any
) -> tuple[UnsupportedOpError, Tensor, UnsupportedOpError]:
    """Return the positive ones of the eigenvalues of a Hermitian matrix that has them twice, with both signs.

    Each pair of vectors may be turned by a phase, of which nothing is known here.
    """
    error = undetermined("linalg.svd", "U and V of complex numbers", "its singular values, or eigh of a.mH @ a")
    size = min(a.shape[-2:])
    if a.shape[-2] != a.shape[-1]:
        a = torch.linalg.qr(a if a.shape[-1] == size else a.mH, mode="r")[1]
    zeros = torch.zeros_like(a)
    both = torch.cat([torch.cat([zeros, a], -1), torch.cat([a.mH, zeros], -1)], -2)
    return error, torch.linalg.eigvalsh(both)[..., size:].flip(-1), error


COMPLEX_COMPOSITES |= {
    aten._linalg_det.default: _determinant,
    aten._linalg_svd.default: _singular_values,
}
