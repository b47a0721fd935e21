"""Arithmetic and functions of complex numbers, as those of their parts. See `hofunc.rules.in_parts`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hofunc.graph.layout import in_memory_order, overwritten, restrided
from hofunc.rules.axes import dims_of
from hofunc.rules.in_parts import IN_PARTS, Pair, linear, parts
from hofunc.rules.ops.norms import root

aten = torch.ops.aten

# Ops that are linear with real coefficients, applied to both parts.


for _op in (
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten.repeat.default),
    *(aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.clone.default),
    *(aten.contiguous.default, aten.select.int, aten.slice.Tensor, aten.diagonal.default, aten.unbind.int),
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.cat.default, aten.stack.default, aten.flip.default),
    *(aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default),
    *(aten.roll.default, aten.tril.default, aten.triu.default, aten.diag_embed.default, aten.cumsum.default),
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.neg.default, aten.trace.default),
    *(aten.unfold.default, aten.copy.default, aten.slice_scatter.default, aten.select_scatter.default),
    *(in_memory_order, restrided, overwritten),
):
    IN_PARTS[_op] = linear(_op)

for _op, _place in (
    (aten.where.self, 0),
    (aten.index.Tensor, 1),
    (aten.index_select.default, 2),
    (aten.gather.default, 2),
    (aten.index_put.default, 1),
    (aten.scatter.src, 2),
    (aten.scatter_add.default, 2),
):
    IN_PARTS[_op] = linear(_op, but=_place)


# Products.


def _define_bilinear(op: Any, conjugate: bool = False) -> None:
    """Enter a product of two tensors, or of the conjugate of the first and the second."""

    def function(x: Any, y: Any) -> Pair:
        (a, b), (c, d) = parts(x), parts(y)
        b = -b if conjugate else b
        if not isinstance(y, Pair | complex):
            return Pair(op(a, c), op(b, c))
        if not isinstance(x, Pair | complex):
            return Pair(op(a, c), op(a, d))
        return Pair(op(a, c) - op(b, d), op(a, d) + op(b, c))

    IN_PARTS[op] = function


for _op in (aten.mul.Tensor, aten.mul.Scalar, aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default):
    _define_bilinear(_op)
_define_bilinear(aten.vdot.default, conjugate=True)

_times: Callable[[Any, Any], Pair] = IN_PARTS[aten.mul.Tensor]


def _sum(x: Any, y: Any, alpha: complex = 1) -> Pair:
    """Add a multiple; a number, or real numbers, have an imaginary part of zero."""
    (a, b), (c, d) = parts(x), parts(y if alpha == 1 else _times(y, alpha))
    return Pair(a + c, b + d)


def _difference(x: Any, y: Any, alpha: complex = 1) -> Pair:
    return _sum(x, y, -alpha)


def _reciprocal(z: Any) -> Pair:
    a, b = parts(z)
    share = 1 / (a * a + b * b)
    return Pair(a * share, -b * share)


def _quotient(x: Any, y: Any) -> Pair:
    if isinstance(y, Pair | complex):
        return _times(x, _reciprocal(y))
    a, b = parts(x)
    return Pair(a / y, b / y)


def _interpolated(x: Any, y: Any, weight: Any) -> Pair:
    return _sum(x, _times(_difference(y, x), weight))


def _define_added_product(op: Any, product: Any) -> None:
    """Enter an op that adds a product of matrices to a tensor, both times a number."""

    def function(x: Any, y: Any, z: Any, *, beta: complex = 1, alpha: complex = 1) -> Pair:
        return _sum(x if beta == 1 else _times(x, beta), IN_PARTS[product](y, z), alpha)

    IN_PARTS[op] = function


_define_added_product(aten.addmm.default, aten.mm.default)
_define_added_product(aten.addmv.default, aten.mv.default)
_define_added_product(aten.baddbmm.default, aten.bmm.default)


def _power(x: Any, exponent: Any) -> Pair:
    """Multiply a small whole power out; any other is that of the absolute value, at a multiple of the angle."""
    z = Pair(*parts(x))
    if exponent == 0:
        return Pair(torch.ones_like(z.real), torch.zeros_like(z.imag))
    if exponent in range(1, 9):
        result = z
        for _ in range(int(exponent.real) - 1):
            result = _times(result, z)
        return result
    if isinstance(exponent, complex):
        return _exponential(_times(exponent, _logarithm(z)))
    return _polar(_absolute(z) ** exponent, exponent * torch.atan2(z.imag, z.real))


# Parts, angles and what goes by them.


def _absolute(z: Pair) -> Tensor:
    return root(z.real * z.real + z.imag * z.imag)


def _polar(radius: Tensor, angle: Tensor) -> Pair:
    return Pair(radius * angle.cos(), radius * angle.sin())


def _sign(z: Pair) -> Pair:
    radius = _absolute(z)
    share = torch.where(radius > 0, 1 / torch.where(radius > 0, radius, 1), 0)
    return Pair(z.real * share, z.imag * share)


def _exponential(z: Pair) -> Pair:
    return _polar(z.real.exp(), z.imag)


def _logarithm(z: Pair) -> Pair:
    return Pair(_absolute(z).log(), torch.atan2(z.imag, z.real))


def _hyperbolic_tangent(z: Pair) -> Pair:
    """Compute it from tanh of the real part, so that nothing overflows."""
    tangent, cosine, sine = z.real.tanh(), z.imag.cos(), z.imag.sin()
    share = 1 / (cosine * cosine + tangent * tangent * (sine * sine))
    return Pair(tangent * share, sine * cosine * (1 - tangent * tangent) * share)


def _hyperbolic_cosine(z: Pair) -> Pair:
    return Pair(z.real.cosh() * z.imag.cos(), z.real.sinh() * z.imag.sin())


def _hyperbolic_sine(z: Pair) -> Pair:
    return Pair(z.real.sinh() * z.imag.cos(), z.real.cosh() * z.imag.sin())


def _turned(z: Pair) -> Pair:
    """Multiply by the imaginary unit."""
    return Pair(-z.imag, z.real)


def _turned_back(z: Pair) -> Pair:
    return Pair(z.imag, -z.real)


# Norms and linear systems.


def _norm(z: Any, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    """Return the norm of the absolute values; one by squares is smooth where only some of them are zero."""
    if order != 2:
        return torch.linalg.vector_norm(_absolute(z), order, dim, keepdim)
    dims = [place + 1 for place in dims_of(dim, z.real.dim())]
    norm = torch.linalg.vector_norm(torch.stack(z), 2, [0, *dims], keepdim)
    return norm.squeeze(0) if keepdim else norm


def _variance(z: Pair, *args: Any, **kwargs: Any) -> Tensor:
    return aten.var.correction(z.real, *args, **kwargs) + aten.var.correction(z.imag, *args, **kwargs)


def _mean(z: Pair, dim: Any = None, keepdim: bool = False, **_: Any) -> Pair:
    return Pair(*(part.mean(dims_of(dim, part.dim()), keepdim) for part in z))


def _as_real_matrix(z: Any) -> Tensor:
    """Return the matrix that does to real and imaginary parts, one below the other, what a complex one does."""
    a, b = parts(z)
    return torch.cat([torch.cat([a, -b], -1), torch.cat([b, a], -1)], -2)


def _inverse(z: Pair, **_: Any) -> list[Pair]:
    size = z.real.shape[-1]
    columns = torch.linalg.inv(_as_real_matrix(z))[..., :size]
    return [Pair(*columns.split(size, -2))]


def _solution(matrix: Any, right: Any, *, left: bool = True, **_: Any) -> list[Pair]:
    matrix, columns = Pair(*parts(matrix)), parts(right)
    shape = columns[0].shape
    is_vector = len(shape) == 1 or shape == matrix.real.shape[:-1]
    if not is_vector:  # nor taken for some once it is twice as high
        axes = [1] * (matrix.real.dim() - len(shape))
        columns = tuple(column.reshape(*axes, *shape) for column in columns)
    dim = -2 if left and not is_vector else -1
    whole = _as_real_matrix(matrix if left else _conjugate(matrix))
    solution = torch.linalg.solve(whole, torch.cat(columns, dim), left=left)
    return [Pair(*solution.split(shape[dim], dim))]


# What is converted, filled and taken apart.


def _converted(x: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    real, imag = parts(x)
    if dtype is None:
        dtype = real.dtype.to_complex()
    if not dtype.is_complex:
        return aten._to_copy(real, dtype=dtype, **options)
    return Pair(*(aten._to_copy(part, dtype=dtype.to_real(), **options) for part in (real, imag)))


def _define_filled(op: Any) -> None:
    """Enter an op that writes a number into some places."""

    def function(z: Pair, places: Any, value: Any = 0) -> Pair:
        return Pair(*(op(part, places, number) for part, number in zip(z, parts(value), strict=True)))

    IN_PARTS[op] = function


_define_filled(aten.constant_pad_nd.default)
_define_filled(aten.masked_fill.Scalar)
_define_filled(aten.masked_fill.Tensor)


def _conjugate(z: Pair) -> Pair:
    return Pair(z.real, -z.imag)


IN_PARTS |= {
    aten.add.Tensor: _sum,
    aten.add.Scalar: _sum,
    aten.sub.Tensor: _difference,
    aten.sub.Scalar: _difference,
    aten.rsub.Scalar: lambda x, y, alpha=1: _difference(y, x, alpha),
    aten.rsub.Tensor: lambda x, y, alpha=1: _difference(y, x, alpha),
    aten.addcmul.default: lambda x, y, z, *, value=1: _sum(x, _times(y, z), value),
    aten.addcdiv.default: lambda x, y, z, *, value=1: _sum(x, _quotient(y, z), value),
    aten.lerp.Scalar: _interpolated,
    aten.lerp.Tensor: _interpolated,
    aten.div.Tensor: _quotient,
    aten.div.Scalar: _quotient,
    aten.reciprocal.default: _reciprocal,
    aten.pow.Tensor_Scalar: _power,
    aten.square.default: lambda z: _times(z, z),
    aten.linalg_vector_norm.default: _norm,
    aten.dist.default: lambda x, y, order=2: _norm(_difference(x, y), order),
    aten.var.correction: _variance,
    aten.var_mean.correction: lambda z, *args, **kwargs: [_variance(z, *args, **kwargs), _mean(z, *args, **kwargs)],
    aten.std_mean.correction: lambda z, *args, **kwargs: [
        root(_variance(z, *args, **kwargs)),
        _mean(z, *args, **kwargs),
    ],
    aten.std.correction: lambda *args, **kwargs: root(_variance(*args, **kwargs)),
    aten.linalg_inv_ex.default: _inverse,
    aten._linalg_solve_ex.default: _solution,
    aten.abs.default: _absolute,
    aten.angle.default: lambda z: torch.atan2(z.imag, z.real),
    aten.sgn.default: _sign,
    aten.exp.default: _exponential,
    aten.log.default: _logarithm,
    aten.sinh.default: _hyperbolic_sine,
    aten.cosh.default: _hyperbolic_cosine,
    aten.tanh.default: _hyperbolic_tangent,
    aten.sin.default: lambda z: _turned_back(_hyperbolic_sine(_turned(z))),
    aten.cos.default: lambda z: _hyperbolic_cosine(_turned(z)),
    aten.tan.default: lambda z: _turned_back(_hyperbolic_tangent(_turned(z))),
    aten.sigmoid.default: lambda z: _sum(_times(_hyperbolic_tangent(_times(z, 0.5)), 0.5), 0.5),
    aten.sqrt.default: lambda z: _power(z, 0.5),
    aten.polar.default: _polar,
    aten.complex.default: lambda real, imaginary: Pair(*torch.broadcast_tensors(real, imaginary)),
    aten._conj.default: _conjugate,
    aten.conj_physical.default: _conjugate,
    aten._conj_physical.default: _conjugate,
    aten.resolve_conj.default: lambda z: z,
    aten.view_as_real.default: lambda z: torch.stack(z, -1),
    aten.view_as_complex.default: lambda x: Pair(x.select(-1, 0), x.select(-1, 1)),
    aten.real.default: lambda z: z.real,
    aten.imag.default: lambda z: z.imag,
    aten._to_copy.default: _converted,
}
