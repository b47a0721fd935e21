import torch

from hofunc.rules.registry import *

aten = torch.ops.aten
define_elementwise(aten.exp.default, lambda x, y, r: y)
define_elementwise(
    aten.log.default, lambda x, y, r: (-1) ** (r - 1) * __import__("math").factorial(r - 1) * x ** (-r), domain=POSITIVE
)
define_elementwise(aten.sin.default, lambda x, y, r: (torch.cos(x), -y, -torch.cos(x), y)[(r - 1) % 4])
define_elementwise(aten.relu.default, lambda x, y, r: y.sign(), degree=1)


def tanh(x, y, r):
    if r == 1:
        return 1 - y * y
    if r == 2:
        return -2 * y * (1 - y * y)
    if r == 3:
        return (1 - y * y) * (6 * y * y - 2)
    if r == 4:
        return (1 - y * y) * (16 * y - 24 * y**3)


define_elementwise(aten.tanh.default, tanh)
define_constant(aten.detach.default)
define_elementwise(
    aten.reciprocal.default, lambda x, y, r: (-1) ** r * __import__("math").factorial(r) * y ** (r + 1), domain=POSITIVE
)
define_elementwise(
    aten.sqrt.default, lambda x, y, r: [None, 0.5, -0.25, 0.375, -0.9375][r] * y ** (1 - 2 * r), domain=POSITIVE
)
define_elementwise(
    aten.rsqrt.default, lambda x, y, r: [None, -0.5, 0.75, -1.875, 6.5625][r] * y ** (1 + 2 * r), domain=POSITIVE
)


def _sig(x, y, r):
    u = y * (1 - y)
    return [None, u, u * (1 - 2 * y), u * (1 - 6 * y + 6 * y * y), u * (1 - 2 * y) * (1 - 12 * y + 12 * y * y)][r]


define_elementwise(aten.sigmoid.default, _sig)
define_elementwise(
    aten.pow.Tensor_Scalar,
    lambda x, y, r, p: __import__("math").prod(p - i for i in range(r)) * x ** (p - r),
    degree=lambda p: p if isinstance(p, int) and p >= 0 else None,
)
define_elementwise(aten.abs.default, lambda x, y, r: x.sign(), degree=1)
for o in (
    aten.eq.Tensor,
    aten.eq.Scalar,
    aten.ne.Scalar,
    aten.gt.Scalar,
    aten.gt.Tensor,
    aten.lt.Scalar,
    aten.le.Scalar,
    aten.ge.Scalar,
    aten.lt.Tensor,
    aten.le.Tensor,
    aten.isfinite.default,
    aten.sign.default,
    aten.ones_like.default,
    aten.zeros_like.default,
):
    define_constant(o)
