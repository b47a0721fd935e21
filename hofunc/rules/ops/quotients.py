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
from hofunc.graph.node import Call, Ref
from hofunc.rules.axes import broadcast
from hofunc.rules.kinds import Positions, Site
from hofunc.rules.registry import define

aten = torch.ops.aten


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
            return [Term(sign, (Factor(Call(reciprocal, (denominator, count + 1)), operands[below[0]]),), out, slots)]
        return [Term(sign, (Factor(Call(divided, (Ref(site.node.number), denominator, count)), out),), out, slots)]

    def _places(self, site: Site) -> tuple[Positions, Positions]:
        """Return the place of the numerator and that of the denominator among the operands, if they are tensors."""
        above, below = (isinstance(arg, Ref) for arg in site.node.args[:2])
        return (0,) * above, (int(above),) * below


def reciprocal(x: Tensor, power: int) -> Tensor:
    """Return one over a power of numbers."""
    return divided(x.reciprocal(), x, power - 1)


def divided(x: Tensor, y: Tensor, times: int) -> Tensor:
    """Divide several times, so that no power of y has to be finite."""
    return reduce(torch.div, [y] * times, x)


define(aten.div.Tensor, Quotient())
define(aten.div.Scalar, Quotient())
