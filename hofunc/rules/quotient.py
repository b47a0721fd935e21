"""Quotients, at every order: linear in the numerator, and a power of the denominator.

The quotient itself is a factor of its derivatives by the denominator, as in torch. So where the numerator is the
denominator they cancel as they should, and not down to the rounding of a product with a reciprocal.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from math import factorial

import torch
from torch import Tensor

from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Graph, Node, Ref
from hofunc.rules.axes import broadcast
from hofunc.rules.kinds import Positions, Site


class Quotient:
    """The rule of division, by a tensor or a number, of either."""

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        above, below = self._places(site)
        by_denominator = [below * order] if below else []
        return by_denominator + [above + below * (order - 1)] * (len(above) if below or order == 1 else 0)

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        operands, out = broadcast(*site.shapes)
        above, below = self._places(site)
        count = len(positions) - sum(place in above for place in positions)
        is_linear = count < len(positions)
        slots = tuple(operands[place] for place in positions)
        sign = (-1) ** count * factorial(count)
        if not below:
            return [Term(sign * (1 / torch.as_tensor(site.node.args[1], dtype=torch.float64)).item(), (), out, slots)]
        denominator = site.ref(below[0])
        if is_linear:
            source = Call(reciprocal, (denominator, count + 1))
            if not site.operands[below[0]].dtype.is_floating_point:
                source = Call(reciprocal_in, (Ref(site.node.number), denominator, count + 1))
            return [Term(sign, (Factor(source, operands[below[0]]),), out, slots)]
        return [Term(sign, (Factor(Call(divided, (Ref(site.node.number), denominator, count)), out),), out, slots)]

    def denominator(self, node: Node) -> int | None:
        """Return the node of the denominator, None if it is a number."""
        return node.args[1].node if isinstance(node.args[1], Ref) else None

    def zeros_of(self, graph: Graph, node: Node, factor: Factor) -> Factor | None:
        """Return what is zero where a factor of a first derivative of a node is for good: the numerator, if it is one.

        The slope by the numerator is nowhere zero.
        """
        numerator = node.args[0]
        is_slope = not isinstance(factor.source, Call) or factor.source.op is not divided
        if is_slope or not isinstance(numerator, Ref):
            return None
        shape = graph.nodes[numerator.node].shape
        kept = factor.axes[len(factor.axes) - len(shape) :]
        return Factor(numerator, tuple(axis if size != 1 else () for axis, size in zip(kept, shape, strict=True)))

    def _places(self, site: Site) -> tuple[Positions, Positions]:
        """Return the place of the numerator and that of the denominator among the operands, if they are tensors."""
        above, below = (isinstance(arg, Ref) for arg in site.node.args[:2])
        return (0,) * above, (int(above),) * below


def reciprocal(x: Tensor, power: int) -> Tensor:
    """Return one over a power of numbers."""
    return divided(x.reciprocal(), x, power - 1)


def reciprocal_in(result: Tensor, x: Tensor, power: int) -> Tensor:
    """Return one over a power of whole numbers, in the dtype of a result."""
    return reciprocal(x.to(result.dtype), power)


def divided(x: Tensor, y: Tensor, times: int) -> Tensor:
    """Divide several times, so that no power of y has to be finite."""
    return reduce(torch.div, [y] * times, x)
