"""Linear algebra written out in numbers, for torch to differentiate without any of its own formulas for it."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import torch
from torch import Tensor


def determinant(a: Tensor) -> Tensor:
    """Sum the signed products of elements, one of each row and column."""
    size = a.shape[-1]
    total = torch.zeros_like(a[..., 0, 0])
    for chosen in permutations(range(size)):
        inversions = sum(chosen[i] > chosen[j] for j in range(size) for i in range(j))
        product = torch.ones_like(total)
        for row, column in enumerate(chosen):
            product = product * a[..., row, column]
        total = total + (-1) ** inversions * product
    return total


def inverse(a: Tensor) -> Tensor:
    """Divide the cofactors by the determinant."""
    places = range(a.shape[-1])
    rows = [torch.stack([(-1) ** (i + j) * determinant(_without(a, j, i)) for j in places], -1) for i in places]
    return torch.stack(rows, -2) / determinant(a)[..., None, None]


def _without(a: Tensor, row: int, column: int) -> Tensor:
    places = range(a.shape[-1])
    kept = a[..., [i for i in places if i != row], :][..., [j for j in places if j != column]]
    return kept if kept.numel() else a.new_ones(*a.shape[:-2], 1, 1)


def cholesky(a: Tensor) -> Tensor:
    """Take the Cholesky factor of the symmetric part of a matrix of two rows."""
    first = a[0, 0].sqrt()
    below = 0.5 * (a[0, 1] + a[1, 0]) / first
    last = (a[1, 1] - below * below).sqrt()
    return torch.stack([torch.stack([first, torch.zeros_like(first)]), torch.stack([below, last])])


def gram_schmidt(a: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a matrix into orthonormal columns and a triangle, with the signs that Householder's reflections give."""
    columns: list[Tensor] = []
    rows = []
    for column in a.unbind(-1):
        coefficients = torch.stack([q @ column for q in columns]) if columns else column.new_zeros(0)
        rest = column - sum((c * q for c, q in zip(coefficients, columns, strict=True)), torch.zeros_like(column))
        length = -(rest @ rest).sqrt()
        if len(columns) < a.shape[0]:
            columns.append(rest / length)
        rows.append(torch.cat([coefficients, length[None], column.new_zeros(a.shape[-1])])[: a.shape[-1]])
    return torch.stack(columns, -1), torch.stack(rows, -1)


def elimination(a: Tensor) -> Tensor:
    """Return the compact factors of Gauss's elimination, without pivots."""
    rows = list(a.unbind(0))
    for pivot in range(min(a.shape)):
        for row in range(pivot + 1, a.shape[0]):
            factor = rows[row][pivot] / rows[pivot][pivot]
            tail = rows[row][pivot + 1 :] - factor * rows[pivot][pivot + 1 :]
            rows[row] = torch.cat([rows[row][:pivot], factor[None], tail])
    return torch.stack(rows)


def eigenvalues(a: Tensor) -> Tensor:
    """Return those of the symmetric part of matrices of two rows, in ascending order."""
    mean = (a[..., 0, 0] + a[..., 1, 1]) / 2
    half = (a[..., 0, 0] - a[..., 1, 1]) / 2
    other = (a[..., 0, 1] + a[..., 1, 0]) / 2
    root = (half * half + other * other).sqrt()
    return torch.stack([mean - root, mean + root], -1)


def projectors(a: Tensor) -> Tensor:
    """Return the projectors onto the eigenvectors of a symmetric matrix of two rows."""
    low, high = eigenvalues(a).unbind(-1)
    eye = torch.eye(2, dtype=a.dtype, device=a.device)
    return torch.stack([(high * eye - a) / (high - low), (a - low * eye) / (high - low)])


def singular_values(a: Tensor) -> Tensor:
    """Return those of a matrix with two rows or two columns, in descending order."""
    product = a @ a.mT if a.shape[-2] == 2 else a.mT @ a
    return eigenvalues(product).flip(-1).sqrt()


def applied_twice(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a batch of two from one of a single matrix, by calling it for each."""
    return lambda *args: torch.stack([f(*(arg[row] for arg in args)) for row in range(2)])


def root(a: Tensor) -> Tensor:
    """Take the square root of the Hermitian part of a positive matrix of two rows."""
    a = (a + a.mH) / 2
    length = (a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0]).real.sqrt()
    return (a + length * torch.eye(2, dtype=a.dtype, device=a.device)) / (a.diagonal().sum().real + 2 * length).sqrt()


def polar(a: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a matrix of two columns into orthonormal columns and a positive matrix."""
    h = root(a.mH @ a)
    return a @ inverse(h), h
