"""Square roots of Hermitian matrices and polar decompositions, by the series of their change: see NOTE [expansions].

In the coordinates of its vectors a root is diagonal, and the part of a degree of its change is what of the matrix its
lower parts do not make, divided by the sum of two of its values. As for torch, the root is a function of the symmetric,
or Hermitian, part of its operand. Of A = U H, with H the root of A^H A, U is no function of A where a value of H is 0.
"""

import torch
from torch import Tensor

from hofunc.internals import POLAR, SQUARE_ROOT
from hofunc.rules.expansion import Operand
from hofunc.rules.ops.series import Series, adjoint, convolved, minus, summed
from hofunc.rules.registry import define_expansion


def root_change(order: int, roots: Tensor, m: Series) -> Series:
    """Return x of diag(roots) + x, the square root of diag(roots)^2 + m, for a Hermitian series m from degree 1 on."""
    sums = roots[..., None, :] + roots[..., :, None]
    result: Series = {}
    for degree in range(1, order + 1):
        result[degree] = minus(m.get(degree), convolved(result, result, degree)) / sums
    return result


def root(order: int, outputs: tuple[Tensor, ...], a: Operand) -> Tensor:
    """Expand the square root of matrices."""
    roots, vectors = torch.linalg.eigh(outputs[0])
    change = adjoint(vectors) @ ((a.change + adjoint(a.change)) * 0.5) @ vectors
    return vectors @ summed(root_change(order, roots, {1: change})) @ adjoint(vectors)


def polar(order: int, outputs: tuple[Tensor, ...], a: Operand) -> tuple[Tensor, Tensor]:
    """Expand both factors of matrices, the first in the coordinates of the second on its right."""
    roots, vectors = torch.linalg.eigh(outputs[1])
    first, moved = outputs[0] @ vectors, a.change @ vectors
    across = adjoint(first * roots.unsqueeze(-2)) @ moved
    x = root_change(order, roots, {1: across + adjoint(across), 2: adjoint(moved) @ moved})
    y: Series = {0: first}
    for degree in range(1, order + 1):
        y[degree] = minus(moved if degree == 1 else None, convolved(y, x, degree)) / roots.unsqueeze(-2)
    return summed(y) @ adjoint(vectors), vectors @ summed(x) @ adjoint(vectors)


for _op in SQUARE_ROOT:
    define_expansion(_op)(root)
for _op in POLAR:
    define_expansion(_op)(polar)
