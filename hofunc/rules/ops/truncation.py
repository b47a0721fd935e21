"""Pseudo-inverses of what a tolerance keeps of a matrix, by the series of their change: see NOTE [expansions].

What is kept of a leads the right singular vectors v of the values that are kept to the left ones u. A change h turns
both towards those of values that are cut, and towards o, which is outside of u: a + h leads z = v (1 + x) to columns of
w = u (1 + y) + o, and its adjoint leads w to z n. The pseudo-inverse of what a + h keeps is z (w^H (a + h) z)^-1 w^H,
where w^H (a + h) z is n^H z^H z.

In the coordinates of the vectors a is diagonal. The elements of x and y between a value s that is kept and one that is
cut, c, follow from s y - c x = r and s x - c y = t, where r and t are of parts of lower degree. So nothing is divided
by a gap between two values that are both kept, or both cut, whatever is repeated among them.
"""

import torch
from torch import Tensor

from hofunc.rules.expansion import Operand
from hofunc.rules.ops.series import (
    Series,
    added,
    adjoint,
    convolved,
    inverse_change,
    joined,
    mapped,
    minus,
    real_part,
    times,
    times_one_plus,
)


def kept_values(result: Tensor, u: Tensor, s: Tensor, vh: Tensor) -> Tensor:
    """Tell which singular values of a matrix its pseudo-inverse has not taken for zero."""
    return real_part((vh @ result @ u).diagonal(0, -2, -1)) * s > 0.5


def over_kept(s: Tensor, kept: Tensor) -> Tensor:
    """Return one over each singular value that is kept, and zero for the others, as a row."""
    return (torch.where(kept, s, 1).reciprocal() * kept).unsqueeze(-2)


def truncated_inverse(order: int, result: Tensor, a: Operand) -> Series:
    """Return the series of the pseudo-inverse of what is kept of a matrix, of which no value crosses the tolerance.

    Args:
        order: The highest degree.
        result: The pseudo-inverse.
        a: The matrix.
    """
    if a.value.shape[-2] < a.value.shape[-1]:
        return mapped(adjoint, truncated_inverse(order, result.mH, Operand(a.value.mH, a.change.mH)))
    u, s, vh = torch.linalg.svd(a.value, full_matrices=False)
    v, kept = vh.mH, kept_values(result, u, s, vh)
    over, columns, rows = over_kept(s, kept), kept.unsqueeze(-2), kept.unsqueeze(-1)
    ratio = (s * ~kept).unsqueeze(-1) * over
    same = over * ~rows / (1 - ratio * ratio)  # s / (s s - c c), of which y takes that part of r, and x of t
    other = same * ratio
    across = a.change @ v
    core = u.mH @ across
    x: Series = {}
    y: Series = {}
    o: Series = {}
    m: Series = {}
    n: Series = {}
    moved, back = core * columns, core.mH * columns
    is_square = u.shape[-2] == u.shape[-1]
    if not is_square:
        outside = across - u @ core
        left = outside * columns
    for degree in range(1, order + 1):
        m[degree], n[degree] = moved * rows, back * rows
        r = minus(moved, convolved(y, m, degree))
        t = minus(back, convolved(x, n, degree))
        x[degree], y[degree] = same * t + other * r, same * r + other * t
        moved, back = core @ x[degree], core.mH @ y[degree]
        if not is_square:
            o[degree] = minus(left, convolved(o, m, degree)) * over
            left, back = outside @ x[degree], added(back, outside.mH @ o[degree])
    turned = mapped(lambda part: (part * over).mH, n)
    longer = times(order, mapped(adjoint, x), x)
    change = inverse_change(order, joined(longer, times_one_plus(order, turned, longer)))
    z = {0: v, **mapped(lambda part: v @ part, x)}
    w = joined({0: u}, mapped(lambda part: u @ part, y), o)
    return times(order, times_one_plus(order, z, change), mapped(lambda part: (part * over).mH, w))
