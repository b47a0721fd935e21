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

from collections.abc import Callable, Iterable, Sequence
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
    """

    x: Ref
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    p: float = 2
    excess: float = 0

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
        factors = [self._factor(_power, 1 - count, axes=self._kept(separate))] if count > 1 else []
        for block in blocks:
            factors += self._moment(separate, [slots[slot] for slot in block])
        return Term(coefficient, tuple(factors), (), tuple(slots))

    def _moment(self, separate: Axes, slots: Sequence[Axes]) -> list[Factor]:
        """Return the factors of one block: its slots less their parts along the vector, if they are several."""
        if len(slots) == 1:
            return [self._factor(_slope, axes=slots[0])]
        *others, end = slots if len(slots) == 2 else (*slots, self._laid(separate))
        weight = [] if self.p == 2 else [self._factor(_weight, len(slots), axes=end)]
        projection = Map(_projected, _projected_back, (self.x, self.order, len(self.dims), self.p, self.excess))
        projection = projection._replace(outs=len(self.dims), ins=len(self.dims))
        return weight + [
            Factor(projection, (*self._own(end), *self._own(slot), *self._kept(separate))) for slot in others
        ]

    def _factor(self, function: Callable, *args: Any, axes: Axes) -> Factor:
        return Factor(Call(function, (self.x, self.dims, self.p, self.excess, *args)), axes)

    def _laid(self, separate: Axes) -> Axes:
        own = fresh_axes(self.shape)
        return tuple(own[dim] if dim in self.dims else separate[dim] for dim in range(len(self.shape)))

    def _own(self, axes: Axes) -> Axes:
        return tuple(axes[dim] for dim in self.dims)

    def _kept(self, axes: Axes) -> Axes:
        return tuple(axis for dim, axis in enumerate(axes) if dim not in self.dims)


def length(x: Tensor, dims: Sequence[int], p: float, excess: float) -> Tensor:
    """Return the lengths of vectors, the axes of which stay with size 1."""
    norm = torch.linalg.vector_norm(x, p, dims, keepdim=True)
    return (norm * norm + excess).sqrt() if excess else norm


def _power(x: Tensor, dims: Sequence[int], p: float, excess: float, exponent: int) -> Tensor:
    """Return a power of the lengths, zero where they are."""
    n = length(x, dims, p, excess).squeeze(tuple(dims))
    return torch.where(n > 0, torch.where(n > 0, n, 1) ** exponent, 0)


def _scaled(x: Tensor, dims: Sequence[int], p: float, excess: float = 0) -> tuple[Tensor, Tensor]:
    """Return vectors over their lengths, and where these are not zero and have slopes, as they have in torch."""
    n = length(x, dims, p, excess)
    usable = (n > 0) & (x != 0) if p < 1 else (n > 0).expand(x.shape)
    return x / torch.where(n > 0, n, 1), usable


def _slope(x: Tensor, dims: Sequence[int], p: float, excess: float) -> Tensor:
    """Return the gradients of lengths."""
    if p == 1:
        return x.sign()
    if isinf(p):
        return x.sign() * extreme(x.abs(), length(x, dims, p, excess), tuple(dims), True)
    z, usable = _scaled(x, dims, p, excess)
    return z if p == 2 else torch.where(usable, z.sign() * torch.where(usable, z, 1).abs() ** (p - 1), 0)


def _weight(x: Tensor, dims: Sequence[int], p: float, excess: float, size: int) -> Tensor:
    """Return the weights of the elements in the moment of a block."""
    z, usable = _scaled(x, dims, p)
    return torch.where(usable, z.sign() ** size * torch.where(usable, z, 1).abs() ** (p - size), 0)


def _projected(tensor: Tensor, x: Tensor, order: tuple[int, ...], count: int, p: float, excess: float) -> Tensor:
    """Take from a tensor its part along vectors, the axes of which are its last ones."""
    rows = x.permute(order)
    z, slope = _along(rows, count, p)
    return _without(tensor, z, slope, count) + _share(tensor, rows, z, count, excess)


def _projected_back(tensor: Tensor, x: Tensor, order: tuple[int, ...], count: int, p: float, excess: float) -> Tensor:
    """Apply the transpose of `_projected`."""
    rows = x.permute(order)
    z, slope = _along(rows, count, p)
    return _without(tensor, slope, z, count) + _share(tensor, rows, z, count, excess)


def _along(rows: Tensor, count: int, p: float) -> tuple[Tensor, Tensor]:
    """Return vectors, along the last axes, of length one, and the gradients of their lengths."""
    dims = tuple(range(-count, 0))
    z, _ = _scaled(rows, dims, p)
    return z, z if p == 2 else _slope(rows, dims, p, 0)


def _without(tensor: Tensor, z: Tensor, slope: Tensor, count: int) -> Tensor:
    """Take away the part along z that slope sees; twice, since rounding leaves some of it that may exceed the rest."""
    dims = tuple(range(-count, 0))
    slope = slope / (z * slope).sum(dims, keepdim=True).clamp_min(0.5)  # by one but for rounding, or zero
    for _ in range(2):
        tensor = tensor - z * (tensor * slope).sum(dims, keepdim=True)
    return tensor


def _share(tensor: Tensor, rows: Tensor, z: Tensor, count: int, excess: float) -> Tensor | float:
    """Return what the excess, which only a Euclidean norm has, leaves of the part along vectors of length one."""
    if not excess:
        return 0.0
    dims = tuple(range(-count, 0))
    n = length(rows, dims, 2, excess)
    return z * (tensor * z).sum(dims, keepdim=True) * (excess / (n * n))


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
        vectors = Vectors(site.ref(0), site.shapes[0], dims, excess=excess)
        terms = vectors.terms(len(positions) + 1)
        return [term._replace(out=term.slots[0], slots=term.slots[1:]) for term in terms]


direction = recorded_whole(_direction)
define(_direction, Direction())
