"""Arithmetic and softmax: ops in place of which a short function of other ops is differentiated.

The function computes what the op computes, up to rounding, from ops whose derivatives are known at every order.
"""

import torch
from torch import Tensor

from hofunc.rules.registry import define_composite

aten = torch.ops.aten


# Arithmetic.


def _weighted(y: Tensor, product: Tensor, beta: Tensor | float, alpha: Tensor | float) -> Tensor:
    """Return beta * y + alpha * product; y does not count where beta is zero, as in BLAS."""
    product = product if _is(alpha, 1) else product * alpha
    return product if _is(beta, 0) else (y if _is(beta, 1) else y * beta) + product


def _is(factor: Tensor | float, number: int) -> bool:
    """Compare a factor with a number, which a tensor that stands for any factor but 0 is not."""
    return not isinstance(factor, Tensor) and factor == number


define_composite(aten.addmm.default, lambda c, a, b, *, beta=1, alpha=1: _weighted(c, a.mm(b), beta, alpha))
define_composite(aten.addmv.default, lambda c, a, b, *, beta=1, alpha=1: _weighted(c, a.mv(b), beta, alpha))
define_composite(aten.baddbmm.default, lambda c, a, b, *, beta=1, alpha=1: _weighted(c, a.bmm(b), beta, alpha))
define_composite(aten.addbmm.default, lambda c, a, b, *, beta=1, alpha=1: _weighted(c, a.bmm(b).sum(0), beta, alpha))
define_composite(aten.addr.default, lambda c, a, b, *, beta=1, alpha=1: _weighted(c, a[:, None] * b, beta, alpha))
define_composite(aten.addcmul.default, lambda c, a, b, *, value=1: c + a * b * value)
define_composite(aten.addcdiv.default, lambda c, a, b, *, value=1: c + a / b * value)
define_composite(aten.lerp.Tensor, lambda x, y, weight: x + weight * (y - x))
define_composite(
    aten.linalg_cross.default,
    lambda a, b, *, dim=-1: a.roll(2, dim) * b.roll(1, dim) - a.roll(1, dim) * b.roll(2, dim),
)
define_composite(aten.angle.default, lambda x: x.detach().angle())


def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, new_a: list[int], new_b: list[int], new_c: list[int], summed: list[int], *_: int
) -> Tensor:
    for dims, place in ((new_a, 0), (new_b, 1), (new_c, 2)):
        for dim in dims:
            a, b, c = (x.unsqueeze(dim) if which == place else x for which, x in enumerate((a, b, c)))
    return (a * b * c).sum(tuple(summed))


define_composite(aten._trilinear.default, _trilinear)


# Softmax: what torch's own backward passes call.

define_composite(
    aten._softmax_backward_data.default,
    lambda grad, y, dim, dtype: (grad - (grad * y).sum(dim, keepdim=True)) * y,
)
define_composite(
    aten._log_softmax_backward_data.default,
    lambda grad, y, dim, dtype: grad - y.exp() * grad.sum(dim, keepdim=True),
)
