"""Complex numbers on the way from real inputs to real outputs, as pairs of real ones.

A function here computes what an op does, with a `Pair` in place of every complex tensor. It is made of real ops, and
those have derivatives.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.graph.layout import in_memory_order, overwritten, read_strided, restrided, write_strided
from hofunc.rules.fourier import complex_to_complex, complex_to_real, real_to_complex
from hofunc.rules.norms import root

aten = torch.ops.aten


class Pair(NamedTuple):
    """A complex tensor by its parts."""

    real: Tensor
    imag: Tensor


# What computes the same as an op in one step, from a tensor that has the parts of complex numbers along its last axis.
AT_ONCE: dict[Any, Callable] = {
    aten._fft_r2c.default: real_to_complex,
    aten._fft_c2r.default: complex_to_real,
    aten._fft_c2c.default: complex_to_complex,
}

IN_PARTS: dict[Any, Callable] = {}


def in_parts(op: Any, are_complex: Sequence[bool], gives_complex: bool) -> Callable | None:
    """Return what computes the same as an op from tensors in which complex numbers are pairs along the last axis.

    Args:
        op: The op.
        are_complex: Whether each of its tensors, in order of appearance, is complex.
        gives_complex: Whether its result is.

    Returns:
        Function of the op's arguments; None if there is none for the op.
    """
    function = IN_PARTS.get(op)
    if function is None:
        return None

    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        flags = iter(are_complex)
        args, values = _paired((args, tuple(kwargs.values())), flags)
        result = function(*args, **dict(zip(kwargs, values, strict=True)))
        first = result[0] if isinstance(result, list) else result
        if isinstance(first, Pair) is not gives_complex:
            raise UnsupportedOpError(
                f"hofunc: {op} of real and complex numbers",
                got=f"a {'complex' if gives_complex else 'real'} result",
                expected="one that is complex because an argument is",
                remedy="Convert the arguments to complex numbers, or the result to real ones, by an op of its own.",
            )
        return _joined(result)

    return on_tensors


def _paired(template: Any, flags: Any) -> Any:
    """Split the tensors of nested tuples that are pairs into Pairs."""
    if isinstance(template, Tensor):
        return Pair(template.select(-1, 0), template.select(-1, 1)) if next(flags) else template
    return tuple(_paired(item, flags) for item in template) if type(template) is tuple else template


def _joined(result: Any) -> Any:
    if isinstance(result, Pair):
        return torch.stack(result, -1)
    return [_joined(item) for item in result] if isinstance(result, list) else result


def _parts(x: Any) -> tuple[Any, Any]:
    """Return the real and the imaginary part of a number or tensor."""
    if isinstance(x, Pair | complex):
        return x.real, x.imag
    return x, 0 if isinstance(x, int | float) else torch.zeros_like(x)


# Ops that are linear with real coefficients, applied to both parts.


def _define_linear(op: Any, but: int | None = None) -> None:
    """Enter an op that is linear in all its tensors, but for what stands at one place."""

    def function(*args: Any, **kwargs: Any) -> Any:
        results = [
            op(
                *(arg if at == but else _part(arg, place) for at, arg in enumerate(args)),
                **{name: _part(value, place) for name, value in kwargs.items()},
            )
            for place in (0, 1)
        ]
        if isinstance(results[0], list | tuple):
            return [Pair(*parts) for parts in zip(*results, strict=True)]
        return Pair(*results)

    IN_PARTS[op] = function


def _part(template: Any, place: int) -> Any:
    """Replace every tensor by one of its parts."""
    if isinstance(template, Pair | Tensor):
        return _parts(template)[place]
    if isinstance(template, torch.dtype) and template.is_complex:
        return template.to_real()
    return tuple(_part(item, place) for item in template) if type(template) is tuple else template


for _op in (
    *(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default, aten.repeat.default),
    *(aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.clone.default),
    *(aten.contiguous.default, aten.select.int, aten.slice.Tensor, aten.diagonal.default, aten.unbind.int),
    *(aten.split.Tensor, aten.split_with_sizes.default, aten.cat.default, aten.stack.default, aten.flip.default),
    *(aten.roll.default, aten.tril.default, aten.triu.default, aten.diag_embed.default, aten.cumsum.default),
    *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.neg.default),
    *(aten.unfold.default, aten.copy.default),
    *(in_memory_order, read_strided, restrided, write_strided, overwritten),
):
    _define_linear(_op)

for _op, _place in (
    (aten.where.self, 0),
    (aten.index.Tensor, 1),
    (aten.index_select.default, 2),
    (aten.gather.default, 2),
):
    _define_linear(_op, but=_place)


# Products.


def _define_bilinear(op: Any, conjugate: bool = False) -> None:
    """Enter a product of two tensors, or of the conjugate of the first and the second."""

    def function(x: Any, y: Any) -> Pair:
        (a, b), (c, d) = _parts(x), _parts(y)
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
    (a, b), (c, d) = _parts(x), _parts(y if alpha == 1 else _times(y, alpha))
    return Pair(a + c, b + d)


def _difference(x: Any, y: Any, alpha: complex = 1) -> Pair:
    return _sum(x, y, -alpha)


def _reciprocal(z: Any) -> Pair:
    a, b = _parts(z)
    share = 1 / (a * a + b * b)
    return Pair(a * share, -b * share)


def _quotient(x: Any, y: Any) -> Pair:
    if isinstance(y, Pair | complex):
        return _times(x, _reciprocal(y))
    return Pair(x.real / y, x.imag / y)


def _power(z: Pair, exponent: Any) -> Pair:
    """Multiply a small whole power out; any other is that of the absolute value, at a multiple of the angle."""
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


def _converted(x: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    real, imag = _parts(x)
    if dtype is None:
        dtype = real.dtype.to_complex()
    if not dtype.is_complex:
        return aten._to_copy(real, dtype=dtype, **options)
    return Pair(*(aten._to_copy(part, dtype=dtype.to_real(), **options) for part in (real, imag)))


def _padded(z: Pair, pad: Sequence[int], value: complex = 0) -> Pair:
    return Pair(*(aten.constant_pad_nd(part, pad, number) for part, number in zip(z, _parts(value), strict=True)))


def _conjugate(z: Pair) -> Pair:
    return Pair(z.real, -z.imag)


IN_PARTS |= {
    aten.add.Tensor: _sum,
    aten.add.Scalar: _sum,
    aten.sub.Tensor: _difference,
    aten.sub.Scalar: _difference,
    aten.rsub.Scalar: lambda x, y, alpha=1: _difference(y, x, alpha),
    aten.rsub.Tensor: lambda x, y, alpha=1: _difference(y, x, alpha),
    aten.div.Tensor: _quotient,
    aten.div.Scalar: _quotient,
    aten.reciprocal.default: _reciprocal,
    aten.pow.Tensor_Scalar: _power,
    aten.square.default: lambda z: _times(z, z),
    aten.constant_pad_nd.default: _padded,
    aten.abs.default: _absolute,
    aten.angle.default: lambda z: torch.atan2(z.imag, z.real),
    aten.sgn.default: _sign,
    aten.exp.default: _exponential,
    aten.log.default: _logarithm,
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
