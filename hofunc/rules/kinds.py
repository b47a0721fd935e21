"""The few kinds of op, each with its exact derivatives of every order as labelled terms.

A rule answers one question: given the positions of the operands that are differentiated by, one position per slot in
ascending order, what are the terms of that derivative? The planner sums over the positions at which a variable
stands, so an op that takes one tensor twice needs nothing of its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations, combinations_with_replacement
from operator import mul
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch

from hofunc.algebra.labels import Axes, fresh_axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Graph, Node, Ref, computed
from hofunc.rules.axes import broadcast

Positions = tuple[int, ...]


class Site(NamedTuple):
    """One use of an op, as a rule sees it: shapes and constants, no values.

    Attributes:
        node: The node that is computed.
        operands: The nodes of the op's tensor arguments, in order of appearance.
    """

    node: Node
    operands: tuple[Node, ...]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the operands."""
        return [operand.shape for operand in self.operands]

    def ref(self, position: int) -> Ref:
        """Return what names the value of an operand in a factor."""
        return Ref(self.operands[position].number)

    def bind(self, function: Callable, tensors: Iterable[Any]) -> Any:
        """Call a function with the op's arguments, but with the given objects in place of its tensors."""
        return Call(function, self.node.args, self.node.kwargs)(*tensors)


def site_of(graph: Graph, node: Node) -> Site:
    """Return the site of a node of a graph."""
    return Site(node, tuple(graph.nodes[index] for index in node.operands))


class Rule(Protocol):
    """What the planner asks of an op that it differentiates itself, and whose result has elements."""

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """Yield the ascending positions at which a derivative of this order may be other than zero."""
        ...

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """Return the terms of the derivative by the operands at these positions, which has a slot for each."""
        ...


class Constant:
    """Does not depend differentiably on anything: sign, floor, comparisons, detach."""


class KeepsZeros:
    """Where a factor of a first derivative is zero it stays so near the operand's value, as a mask does."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Linear(KeepsZeros):
    """Linear in all its operands together, so that only first derivatives are left.

    Attributes:
        parts: Given a site, the terms of the first derivative by each operand, by position.
    """

    parts: Callable[[Site], dict[int, list[Term]]]

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        return [(position,) for position in range(len(site.operands))] if order == 1 else []

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        return self.parts(site).get(positions[0], [])


@dataclass(frozen=True, slots=True)
class Masked(Linear):
    """Scales every element of a broadcast operand by a mask: the first derivative by it is a term with that factor."""


class OfProducts:
    """Sums of products of elements: a factor of a derivative is zero for good where an element that is constant is."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Multilinear(OfProducts):
    """A product, linear in every operand: each derivative leaves the other operands as factors.

    Attributes:
        axes: Given a site, the axes of every operand and of the result.
        scale: Given a site, the factor on the product.
    """

    axes: Callable[[Site], tuple[list[Axes], Axes]]
    scale: Callable[[Site], float]

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        return combinations(range(len(site.operands)), order)

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        operands, out = self.axes(site)
        left = [position for position in range(len(operands)) if position not in positions]
        factors = tuple(Factor(site.ref(position), operands[position]) for position in left)
        return [Term(self.scale(site), factors, out, tuple(operands[position] for position in positions))]


Product = tuple[float, Sequence[Ref | Call]]  # a number, and what computes tensors


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A function of one number, applied to every element: order r lies on the diagonal of all its slots.

    Attributes:
        derivative: ``derivative(x, y, r, *params)`` returns the r-th derivative at x, where the value is y.
        degree: Highest order that does not vanish, given the op's parameters; None if all may be there.
        domain: Interval of inputs at which the function is smooth. Derivatives may be infinite outside, unless it is
            REAL.
        factors: ``factors(x, y, r, *params)`` returns the product that the r-th derivative is, given what names x and
            y, so that what orders have in common is computed once; None, as itself, if `derivative` computes it.
    """

    derivative: Callable
    degree: Callable[..., int | None]
    domain: tuple[float, float]
    factors: Callable[..., Product | None] | None = None

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        degree = self.degree(*params_of(site), **dict(site.node.kwargs))
        return [(0,) * order] if degree is None or order <= degree else []

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        axes = fresh_axes(site.node.shape)
        order = len(positions)
        coefficient, sources = self._product(site, order)
        return [Term(coefficient, tuple(Factor(source, axes) for source in sources), axes, (axes,) * order)]

    def _product(self, site: Site, order: int) -> Product:
        args = (site.ref(0), Ref(site.node.number), order, *params_of(site))
        found = None if self.factors is None else self.factors(*args, **dict(site.node.kwargs))
        found = found or (1, [Call(self.derivative, args, site.node.kwargs)])
        for source in found[1]:
            _note(source)
        return found


_elementwise: WeakSet[Callable] = WeakSet()


def _note(source: Any) -> None:
    """Take note that what a factor calls is applied to every element by itself, as are Calls among its arguments."""
    if isinstance(source, Call):
        _elementwise.add(source.op)
        for arg in source.args:
            _note(arg)


def is_elementwise(function: Callable) -> bool:
    """Tell whether a function is known to be applied to every element by itself, as it is of a rule that was asked."""
    return function in _elementwise


def derivative_of(factors: Callable[..., Product]) -> Callable[..., torch.Tensor]:
    """Return the function of x, y, the order and parameters that multiplies the factors of a derivative."""

    def derivative(x: torch.Tensor, y: torch.Tensor, r: int, *params: Any, **keywords: Any) -> torch.Tensor:
        coefficient, sources = factors(Ref(0), Ref(1), r, *params, **keywords)
        if not sources:
            return torch.full_like(x, coefficient)
        product = reduce(mul, [computed(source, (x, y)) for source in sources])
        return product if coefficient == 1 else coefficient * product

    return derivative


@dataclass(frozen=True, slots=True)
class PiecewiseLinear(Elementwise, KeepsZeros):
    """A function of one number that is of straight pieces, and constant wherever its slope is zero."""


def params_of(site: Site) -> tuple:
    """Return the positional arguments of a site's op that are not tensors."""
    return tuple(arg for arg in site.node.args if not isinstance(arg, Ref))


def promoted(function: Callable, x: torch.Tensor, z: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Call a function of two tensors with both in the dtype of what they have in common."""
    dtype = torch.result_type(x, z)
    return function(x.to(dtype), z.to(dtype), *args, **kwargs)


@dataclass(frozen=True, slots=True)
class ElementwisePair:
    """A function of two numbers, applied to the broadcast of two operands.

    Attributes:
        derivative: ``derivative(x, z, r, s, *params)`` returns the derivative of order r by x and s by z.
        domain: Interval of inputs at which the function is smooth, for tests.
        degree: Highest order by x that does not vanish; None if all may be there.
    """

    derivative: Callable
    domain: tuple[float, float]
    degree: int | None = None

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        every = combinations_with_replacement(range(len(site.operands)), order)
        return [positions for positions in every if self.degree is None or positions.count(0) <= self.degree]

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        operands, out = broadcast(*site.shapes)
        orders = (positions.count(0), positions.count(1))
        args = (site.ref(0), site.ref(1), *orders, *params_of(site))
        source = Call(self.derivative, args, site.node.kwargs)
        _note(source)
        if any(operand.dtype != site.node.dtype for operand in site.operands):  # an integer has a coarse logarithm
            source = Call(promoted, (self.derivative, *args), site.node.kwargs)
        return [Term(1, (Factor(source, out),), out, tuple(operands[position] for position in positions))]


@dataclass(frozen=True, slots=True)
class Composite:
    """A short function of ops of the other kinds, in place of which it is differentiated.

    Attributes:
        function: Takes the op's arguments and returns what the op returns, up to rounding.
    """

    function: Callable


@dataclass(frozen=True, slots=True)
class Fused(Composite):
    """A composite in place of an op and of some before it, which takes what those are computed from.

    Attributes:
        before: The recorded nodes that the function takes as its first arguments, before those of the op.
    """

    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """An op known only as a callable: its local derivative is dense over all elements.

    Attributes:
        derivative: ``derivative(op, output, positions, args, kwargs)``, the derivative tensor at real arguments.
    """

    derivative: Callable

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        floating = [place for place, operand in enumerate(site.operands) if operand.dtype.is_floating_point]
        return combinations_with_replacement(floating, order)

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        node = site.node
        out = fresh_axes(node.shape)
        slots = tuple(fresh_axes(site.operands[position].shape) for position in positions)
        source = Call(self.derivative, (node.op, node.output, positions, node.args, node.kwargs))
        return [Term(1, (Factor(source, sum(slots, out)),), out, slots)]
