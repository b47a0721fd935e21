"""Lengths of vectors, and vectors scaled to length one: every order, with no difference of what is nearly equal.

Let n be the p-norm of x, z = x / n, and g its gradient. A change h = n (a z + q), where a is that of the norm to first
order and q leaves it as it is, makes it

    n ((1 + a) ** p + sum over j from 2 on of binomial(p, j) m[j] (1 + a) ** (p - j)) ** (1 / p)

where m[j] is the sum of |z| ** (p - j) sign(z) ** j q ** j. So a derivative is a sum over set partitions of its slots:
each of those alone is multiplied by g, and each block of j makes a moment m[j] of its slots less their parts along z.
The Euclidean norm has blocks of two only; its Hessian is the projection (1 - u u) / n, where u is z. The vector of
length one is its gradient, so that the derivatives of that are those of the norm with the output as one more slot.

As roots of sums of powers they are differences of which only rounding is left where one element is far above others.
"""

from collections.abc import Iterable, Sequence
from math import inf, isinf, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.algebra.labels import Axes, fresh_axes
from hofunc.algebra.operators import Map
from hofunc.algebra.partitions import set_partitions
from hofunc.algebra.term import Factor, Term
from hofunc.graph.functions import recorded_whole
from hofunc.graph.node import Call, Ref
from hofunc.rules.axes import dims_of
from hofunc.rules.kinds import Positions, Site
from hofunc.rules.ops.calculus import falling
from hofunc.rules.ops.linear import extreme, reduced
from hofunc.rules.registry import define
from hofunc.views import laid_out

aten = torch.ops.aten

Dims = int | Sequence[int] | None


class Vectors(NamedTuple):
    """The vectors along some axes of a tensor, and their lengths.

    Attributes:
        x: What names the tensor.
        shape: Its shape.
        dims: The axes.
        p: Which norm it is.
        excess: What is added to the square of a Euclidean norm.
        slope: What names the gradients of the lengths, if that is known.
    """

    x: Ref
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    p: float = 2
    excess: float = 0
    slope: Ref | None = None

    @property
    def order(self) -> tuple[int, ...]:
        """The axes of the tensor, those of the vectors last."""
        return (*(dim for dim in range(len(self.shape)) if dim not in self.dims), *self.dims)

    def terms(self, count: int) -> list[Term]:
        """Return the terms of a derivative of the lengths, the output of which is left empty.

        Args:
            count: How many slots it has, at least one.
        """
        separate = fresh_axes(self.shape)
        return [
            self._term(separate, blocks, coefficient)
            for blocks in set_partitions(count)
            if (coefficient := self._coefficient(count, [len(block) for block in blocks]))
        ]

    def _coefficient(self, count: int, sizes: Sequence[int]) -> float:
        moments = [size for size in sizes if size > 1]
        product = prod(falling(self.p, size) for size in moments) if moments else 1.0
        bound = sum(moments)
        return falling(1 / self.p, len(moments)) * product * falling(1 - bound, count - bound) if product else 0.0

    def _term(self, separate: Axes, blocks: Sequence[Sequence[int]], coefficient: float) -> Term:
        count = sum(map(len, blocks))
        slots = [self._laid(separate) for _ in range(count)]
        inverse = Call(_inverse, (self._lengths, self.excess))
        power = inverse if count == 2 else Call(torch.pow, (inverse, count - 1))
        factors = [Factor(power, reduced(separate, self.dims, True))] if count > 1 else []
        for block in blocks:
            factors += self._moment(separate, [slots[slot] for slot in block])
        return Term(coefficient, tuple(factors), (), tuple(slots))

    def _moment(self, separate: Axes, slots: Sequence[Axes]) -> list[Factor]:
        """Return the factors of one block: its slots less their parts along the vector, if they are several."""
        if len(slots) == 1:
            return [Factor(self.slope or self._slope, slots[0])]
        *others, end = slots if len(slots) == 2 else (*slots, self._laid(separate))
        weight = Call(_weight, (self.x, self._lengths, self.p, len(slots)))
        z = Call(_over, (self.x, self._lengths))
        share = Call(_shared, (Call(_inverse, (self._lengths, self.excess)), self.excess)) if self.excess else None
        along = (z, Call(_dual, (z, self._slope, self.dims)), share)
        back = _projected if self.p == 2 else _projected_back  # it is symmetric then, and as exact both ways
        projection = Map(_projected, back, (*along, self.order, len(self.dims)))
        projection = projection._replace(outs=len(self.dims), ins=len(self.dims))
        return [Factor(weight, end)] * (self.p != 2) + [
            Factor(projection, (*self._own(end), *self._own(slot), *self._kept(separate))) for slot in others
        ]

    @property
    def _lengths(self) -> Call:
        return Call(_length, (self.x, self.dims, self.p))

    @property
    def _slope(self) -> Call:
        """What computes the gradients of lengths, of which no square has an excess."""
        if self.p == 1:
            return Call(torch.sign, (self.x,))
        if self.p == 2:
            return Call(_over, (self.x, self._lengths))
        return Call(_slope, (self.x, self._lengths, self.dims, self.p))

    def _laid(self, separate: Axes) -> Axes:
        own = fresh_axes(self.shape)
        return tuple(own[dim] if dim in self.dims else separate[dim] for dim in range(len(self.shape)))

    def _own(self, axes: Axes) -> Axes:
        return tuple(axes[dim] for dim in self.dims)

    def _kept(self, axes: Axes) -> Axes:
        return tuple(axis for dim, axis in enumerate(axes) if dim not in self.dims)


def _length(x: Tensor, dims: Sequence[int], p: float) -> Tensor:
    """Return the lengths of vectors, the axes of which stay with size 1."""
    return torch.linalg.vector_norm(x, p, dims, keepdim=True)


def _inverse(n: Tensor, excess: float) -> Tensor:
    """Return one over the roots of squared lengths and an excess, zero where these are."""
    return (n * n + excess).rsqrt() if excess else torch.where(n > 0, 1 / torch.where(n > 0, n, 1), 0)


def _over(x: Tensor, n: Tensor) -> Tensor:
    """Return vectors over their lengths, or as they are where these are zero."""
    return x / torch.where(n > 0, n, 1)


def _usable(x: Tensor, n: Tensor, p: float) -> Tensor:
    """Tell where vectors over their lengths are not zero and have slopes, as they have in torch."""
    return (n > 0) & (x != 0) if p < 1 else (n > 0).expand(x.shape)


def _slope(x: Tensor, n: Tensor, dims: Sequence[int], p: float) -> Tensor:
    """Return the gradients of lengths that are neither the sum of moduli nor Euclidean."""
    if isinf(p):
        return x.sign() * extreme(x.abs(), n, tuple(dims), True)
    return _powers(x, n, p, p - 1, 1)


def _weight(x: Tensor, n: Tensor, p: float, size: int) -> Tensor:
    """Return the weights of the elements in the moment of a block."""
    return _powers(x, n, p, p - size, size)


def _powers(x: Tensor, n: Tensor, p: float, exponent: float, times: int) -> Tensor:
    """Return powers of the elements of vectors over their lengths, times so many signs of these."""
    z, usable = _over(x, n), _usable(x, n, p)
    return torch.where(usable, z.sign() ** times * torch.where(usable, z, 1).abs() ** exponent, 0)


def _dual(z: Tensor, slope: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return gradients of lengths over what they see of z, which is one but for rounding, or zero."""
    return slope / (z * slope).sum(dims, keepdim=True).clamp_min(0.5)


def _shared(inverse: Tensor, excess: float) -> Tensor:
    return inverse * inverse * excess


def _projected(
    tensor: Tensor, z: Tensor, dual: Tensor, share: Tensor | None, order: tuple[int, ...], count: int
) -> Tensor:
    """Take from a tensor its part along vectors, but for the share of it that an excess leaves.

    Args:
        tensor: The tensor, the last axes of which are those of the vectors.
        z: The vectors, of length one.
        dual: What sees the part along them.
        share: The share, if there is an excess, which only a Euclidean norm has.
        order: The axes of the vectors, laid out as those of the tensor are.
        count: How many of them are along the vectors.
    """
    z, dual = laid_out(z, order), laid_out(dual, order)
    dims = tuple(range(-count, 0))
    part = (tensor * dual).sum(dims, keepdim=True)
    tensor = torch.addcmul(tensor, z, part, value=-1)
    rest = (tensor * dual).sum(dims, keepdim=True)  # which rounding leaves, and which may exceed all else
    if share is not None:
        rest = torch.addcmul(rest, part, laid_out(share, order), value=-1)
    return torch.addcmul(tensor, z, rest, value=-1)


def _projected_back(
    tensor: Tensor, z: Tensor, dual: Tensor, share: Tensor | None, order: tuple[int, ...], count: int
) -> Tensor:
    """Apply the transpose of `_projected`."""
    return _projected(tensor, dual, z, share, order, count)


class Norm:
    """The rule of the norm of vectors."""

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        vectors, _ = _vectors(site)
        highest = {0: 0, 1: 1, inf: 1, -inf: 1}.get(vectors.p, inf)
        return [(0,) * order] if order <= highest else []

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        vectors, keepdim = _vectors(site)
        terms = vectors.terms(len(positions))
        return [term._replace(out=reduced(term.slots[0], vectors.dims, keepdim)) for term in terms]


def _vectors(site: Site) -> tuple[Vectors, bool]:
    """Return what a norm is taken of, and whether the axes stay; any norm of a number is its modulus."""
    shape = site.shapes[0]

    def read(_: None, p: float | None = 2, dim: Dims = None, keepdim: bool = False, **__: Any) -> tuple[Vectors, bool]:
        dims = dims_of(dim, len(shape))
        of_numbers = p != 0 and prod(shape[place] for place in dims) == 1
        return Vectors(site.ref(0), shape, dims, 1 if of_numbers else 2 if p is None else p), keepdim

    return site.bind(read, [None])


for _op in (aten.linalg_vector_norm.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim):
    define(_op, Norm())


def _direction(x: Tensor, dims: tuple[int, ...], excess: float) -> Tensor:
    """Return vectors over the roots of their squared lengths and an excess."""
    return x * (x.square().sum(dims, keepdim=True) + excess).rsqrt()


class Direction:
    """The rule of `direction`."""

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        return [(0,) * order]

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        _, dims, excess = site.node.args
        slope = Ref(site.node.number) if excess else None  # which is nan where the length is zero
        vectors = Vectors(site.ref(0), site.shapes[0], dims, excess=excess, slope=slope)
        terms = vectors.terms(len(positions) + 1)
        return [term._replace(out=term.slots[0], slots=term.slots[1:]) for term in terms]


direction = recorded_whole(_direction)
define(_direction, Direction())
