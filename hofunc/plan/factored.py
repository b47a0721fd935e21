"""What factorisations and solutions of linear systems return for meta tensors, told by shapes, see `shaped`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

Tensors = tuple[torch.Tensor, ...]


def factored(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | Tensors | None:
    """Return what an op of linear algebra returns for square meta tensors; None for other ops, or what does not fit."""
    made = _MADE.get(op)
    if made is None:
        return None
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    first, matrices = tensors[0], [each for each in tensors if each.dtype != torch.int32]  # which are rows exchanged
    alike = all(each.device.type == "meta" for each in tensors) and {each.dtype for each in matrices} == {first.dtype}
    if not alike or not first.dtype.is_floating_point or first.dim() < 2 or 0 in first.shape:
        return None
    if first.shape[-1] != first.shape[-2] or any(each.shape[:-1] != first.shape[:-1] for each in matrices):
        return None
    return made(*args, **kwargs)


def _by_columns(like: torch.Tensor) -> torch.Tensor:
    """Return matrices of which columns lie in memory one after the other, as LAPACK has them."""
    return torch.empty_like(like.mT, memory_format=torch.contiguous_format).mT


def _places(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.shape[:-1], dtype=torch.int32, device="meta")


def _outcome(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.shape[:-2], dtype=torch.int32, device="meta")


def _number(like: torch.Tensor) -> torch.Tensor:
    return torch.empty(like.shape[:-2], dtype=like.dtype, device="meta")


def _inverse(matrix: torch.Tensor, **_: Any) -> Tensors:
    return _by_columns(matrix), _outcome(matrix)


def _solved(_: torch.Tensor, right: torch.Tensor, *, left: bool = True, **__: Any) -> torch.Tensor | None:
    return _by_columns(right) if left else None


def _determinant(matrix: torch.Tensor) -> Tensors:
    return _number(matrix), _by_columns(matrix), _places(matrix)


def _log_determinant(matrix: torch.Tensor) -> Tensors:
    return _number(matrix), _number(matrix), _by_columns(matrix), _places(matrix)


def _eigenvalues(matrix: torch.Tensor, _: str = "L", vectors: bool = True) -> Tensors | None:
    values = torch.empty(matrix.shape[:-1], dtype=matrix.dtype, device="meta")
    return (values, _by_columns(matrix)) if vectors else None


def _solved_by_lu(_: torch.Tensor, __: torch.Tensor, right: torch.Tensor, *, left: bool = True) -> torch.Tensor | None:
    return _by_columns(right) if left else None


def _lu(matrix: torch.Tensor, **_: Any) -> Tensors:
    return _by_columns(matrix), _places(matrix), _outcome(matrix)


_MADE: dict[Any, Callable[..., torch.Tensor | Tensors | None]] = {
    aten.linalg_inv_ex.default: _inverse,
    aten.linalg_cholesky_ex.default: _inverse,
    aten.linalg_solve_triangular.default: _solved,
    aten._linalg_det.default: _determinant,
    aten._linalg_slogdet.default: _log_determinant,
    aten._linalg_eigh.default: _eigenvalues,
    aten.linalg_lu_factor_ex.default: _lu,
    aten.linalg_lu_solve.default: _solved_by_lu,
}
