"""Discrete Fourier transforms, as linear maps between real tensors.

A complex tensor is a real one with an axis of two at its end, the real and the imaginary part. Each map has its
transpose among the transforms as well, so that neither is ever a matrix.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hofunc.algebra.labels import Axes, fresh_axes
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Term
from hofunc.graph.layout import as_complex, as_pairs
from hofunc.rules.in_parts import AT_ONCE
from hofunc.rules.kinds import Site
from hofunc.rules.registry import by_map, define_linear

aten = torch.ops.aten


# The transforms by the axes at dims, with torch's numbers for how they are normalised.


def real_to_complex(x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    """Transform real numbers; onesided keeps those of the last of the dims that are not conjugates of others."""
    return as_pairs(aten._fft_r2c(x, list(dims), normalization, onesided))


def complex_to_real(pairs: Tensor, dims: Sequence[int], normalization: int, size: int) -> Tensor:
    """Transform back what a onesided transform gives; size is that of the last of the dims."""
    return aten._fft_c2r(as_complex(pairs), list(dims), normalization, size)


def complex_to_complex(pairs: Tensor, dims: Sequence[int], normalization: int, forward: bool) -> Tensor:
    """Transform complex numbers."""
    return as_pairs(aten._fft_c2c(as_complex(pairs), list(dims), normalization, forward))


# The same for the last axes, and their transposes.


def _at_end(count: int, rank: int) -> range:
    return range(rank - count, rank)


def _r2c(x: Tensor, count: int, normalization: int, onesided: bool, size: int) -> Tensor:
    return real_to_complex(x, _at_end(count, x.dim()), normalization, onesided)


def _r2c_transposed(pairs: Tensor, count: int, normalization: int, onesided: bool, size: int) -> Tensor:
    whole = torch.nn.functional.pad(pairs, (0, 0, 0, size - pairs.shape[-2]))
    return complex_to_complex(whole, _at_end(count, whole.dim() - 1), normalization, False).select(-1, 0)


def _c2r(pairs: Tensor, count: int, normalization: int, size: int) -> Tensor:
    return complex_to_real(pairs, _at_end(count, pairs.dim() - 1), normalization, size)


def _c2r_transposed(x: Tensor, count: int, normalization: int, size: int) -> Tensor:
    pairs = real_to_complex(x, _at_end(count, x.dim()), normalization, True)
    place = torch.arange(size // 2 + 1, device=x.device)
    alone = (place == 0) | (2 * place == size)  # all others stand for their conjugates too
    return pairs * torch.where(alone, 1, 2).to(x.dtype).unsqueeze(-1)


def _c2c(pairs: Tensor, count: int, normalization: int, forward: bool) -> Tensor:
    return complex_to_complex(pairs, _at_end(count, pairs.dim() - 1), normalization, forward)


def _c2c_transposed(pairs: Tensor, count: int, normalization: int, forward: bool) -> Tensor:
    return complex_to_complex(pairs, _at_end(count, pairs.dim() - 1), normalization, not forward)


def _term(site: Site, x: Axes, dims: Sequence[int], maps: tuple[Callable, Callable], *args: object) -> Term:
    """Return the term of a transform by the axes at dims, and by those of the parts of complex numbers."""
    takes_pairs, gives_pairs = maps[0] is not _r2c, maps[0] is not _c2r
    rank = len(x) - takes_pairs
    places = [dim % rank for dim in dims]
    out = list(x[:rank])
    for place in places:
        (out[place],) = fresh_axes([site.node.shape[place]])
    parts = fresh_axes([2]) if gives_pairs else ()
    ins = (*(x[place] for place in places), *x[rank:])
    outs = (*(out[place] for place in places), *parts)
    separate = tuple(axis for place, axis in enumerate(x[:rank]) if place not in places)
    transform = Map(*maps, (len(dims), *args), outs=len(outs), ins=len(ins), covers=True)
    return by_map(transform, (*out, *parts), x, outs, ins, separate)


Terms = dict[int, list[Term]]


@define_linear(real_to_complex)
def _real_to_complex(site: Site, x: Axes, dims: Sequence[int], normalization: int, onesided: bool) -> Terms:
    return {0: [_term(site, x, dims, (_r2c, _r2c_transposed), normalization, onesided, x[dims[-1]][0].extent)]}


@define_linear(complex_to_real)
def _complex_to_real(site: Site, x: Axes, dims: Sequence[int], normalization: int, size: int) -> Terms:
    return {0: [_term(site, x, dims, (_c2r, _c2r_transposed), normalization, size)]}


@define_linear(complex_to_complex)
def _complex_to_complex(site: Site, x: Axes, dims: Sequence[int], normalization: int, forward: bool) -> Terms:
    return {0: [_term(site, x, dims, (_c2c, _c2c_transposed), normalization, forward)]}


AT_ONCE[aten._fft_r2c.default] = real_to_complex
AT_ONCE[aten._fft_c2r.default] = complex_to_real
AT_ONCE[aten._fft_c2c.default] = complex_to_complex
