"""Power series of tensors: what the expansions of linear algebra are written in.

A series is a sum of changes, by degree: its part of degree d is a product of d changes of operands, so that of the
derivatives each order depends on one part only. Degree 0 is a value.
"""

from collections.abc import Callable
from functools import reduce
from operator import add

import torch
from torch import Tensor

Series = dict[int, Tensor]


def convolved(
    left: Series, right: Series, degree: int, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> Tensor | None:
    """Return the part of a degree of the product of two series, None if they have no parts that make it."""
    parts = _products(left, right, degree, product)
    return reduce(add, parts) if parts else None


def _products(left: Series, right: Series, degree: int, product: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    return [product(left[low], right[degree - low]) for low in sorted(left) if degree - low in right]


def added(*parts: Tensor | None) -> Tensor:
    """Add those parts that there are, one at least."""
    return reduce(add, (part for part in parts if part is not None))


def minus(part: Tensor | None, other: Tensor | None) -> Tensor:
    """Subtract a part from another, where there is one of them at least."""
    return added(part, None if other is None else -other)


def times(
    order: int, left: Series, right: Series, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> Series:
    """Multiply two series."""
    degrees = sorted({low + high for low in left for high in right if low + high <= order})
    return {degree: reduce(add, _products(left, right, degree, product)) for degree in degrees}


def times_one_plus(
    order: int, left: Series, right: Series, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> Series:
    """Return left (1 + right)."""
    return joined(left, times(order, left, right, product))


def joined(*series: Series) -> Series:
    """Add series."""
    degrees = sorted({degree for one in series for degree in one})
    return {degree: reduce(add, (one[degree] for one in series if degree in one)) for degree in degrees}


def mapped(function: Callable[[Tensor], Tensor], series: Series) -> Series:
    """Apply a linear function to every part of a series."""
    return {degree: function(part) for degree, part in series.items()}


def summed(series: Series) -> Tensor:
    """Return the sum of the parts from degree 1 on."""
    return reduce(add, (series[degree] for degree in sorted(series) if degree))


def inverse_change(order: int, m: Series) -> Series:
    """Return (1 + m)^-1 - 1, for a series m of matrices from degree 1 on."""
    result: Series = {}
    for degree in range(1, order + 1):
        result[degree] = -added(m.get(degree), convolved(m, result, degree))
    return result


def cholesky_change(order: int, m: Series) -> Series:
    """Return e, lower triangular, of the Cholesky factor 1 + e of 1 + m, for a Hermitian series m from degree 1 on.

    From (1 + e) (1 + e)^H = 1 + m follows e + e^H = m - e e^H, and e is the lower half of that.
    """
    result: Series = {}
    for degree in range(1, order + 1):
        result[degree] = lower_half(minus(m.get(degree), convolved(result, mapped(adjoint, result), degree)))
    return result


def lengths(order: int, *changes: Series) -> Series:
    """Return the series of the squares of the lengths of columns, over several blocks of rows, as rows."""
    return joined(
        *(mapped(summed_columns, times(order, mapped(torch.conj, change), change, torch.mul)) for change in changes)
    )


def summed_columns(x: Tensor) -> Tensor:
    """Add up the elements of each column."""
    return x.sum(-2, keepdim=True)


def lower_half(x: Tensor) -> Tensor:
    """Return the lower triangle, with half of the diagonal."""
    ones = torch.ones(x.shape[-2:], dtype=x.dtype, device=x.device)
    return x * (ones.tril() - 0.5 * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device))


def transposed(x: Tensor) -> Tensor:
    """Transpose matrices."""
    return x.mT


def adjoint(x: Tensor) -> Tensor:
    """Transpose and conjugate matrices."""
    return x.mH


def real_part(x: Tensor) -> Tensor:
    """Return the real part of what is real up to rounding."""
    return x.real if x.is_complex() else x


def identity_like(x: Tensor) -> Tensor:
    """Return the identity matrix of the size of square matrices, in a batch of one for each."""
    return torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)
