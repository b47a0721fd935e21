"""Functions with a singularity behind functions that are constant somewhere, as in ``x.clamp(-1, 1).acos()``.

Where clamp returns a limit the derivative is zero, whatever acos does there. But the chain rule multiplies that zero by
the slope of acos at 1, which is infinite, and gets nan. torch's reverse mode gets zero, since its masks come last and
select; its forward mode gets nan. So what follows is differentiated at a number inside its domain instead: its
derivatives are then finite, and zero times them is zero, by every strategy and at every order. It is the "double where"
that one writes by hand to keep nan out of gradients of torch and JAX.

What follows is a function of one number, of elements that others may have moved, added up or transformed one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hofunc.algebra.operators import Delta
from hofunc.algebra.term import Term
from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Call, Graph, Node, Ref, refs
from hofunc.rules.kinds import Elementwise, Linear, Masked, PiecewiseLinear, Rule, Site, params_of, site_of
from hofunc.rules.registry import REAL

_Template = tuple[Callable, tuple, tuple[tuple[str, Any], ...]]  # a Call as a plain tuple, to be an argument of another


@dataclass(frozen=True, slots=True)
class Settled(Elementwise):
    """A function of one number whose derivatives matter only where its operand is not constant.

    Attributes:
        slopes: What computes tensors of the shape of that operand, which is constant where one of them is zero.
    """

    slopes: tuple[Call, ...]

    def product(self, site: Site, order: int) -> tuple[float, list[Ref | Call]]:
        """See `Elementwise`."""
        inside = sum(self.domain) / 2
        slopes = tuple(tuple(slope) for slope in self.slopes)
        place = site.node.args.index(site.ref(0))
        args = (self.derivative, site.node.op, slopes, inside, site.ref(0), order, params_of(site), place)
        return 1, [Call(settled, args, site.node.kwargs)]


def settled(
    derivative: Callable,
    op: Callable,
    slopes: tuple[_Template, ...],
    inside: float,
    x: Tensor,
    order: int,
    params: tuple,
    place: int,
    **keywords: Any,
) -> Tensor:
    """Return a derivative of an op at x, its argument at place; inside its domain where one of the slopes is zero."""
    for slope in slopes:
        x = torch.where(_is_nonzero(slope), x, inside)
    y = op(*params[:place], x, *params[place:], **keywords)
    return derivative(x, y, order, *params, **keywords)


def gathered(op: Callable, slope: _Template, params: tuple, **keywords: Any) -> Tensor:
    """Return what an op that moves or adds up elements makes of those that are not constant: none of them, or some."""
    return COMPUTED_AGAIN.get(op, op)(_is_nonzero(slope).float(), *params, **keywords)


def _is_nonzero(slope: _Template) -> Tensor:
    function, args, kwargs = slope
    return function(*args, **dict(kwargs)) != 0


def settle(graph: Graph, rules: Mapping[int, Rule]) -> dict[int, Rule]:
    """Return the rules of a lowered graph, with those settled that need it.

    Args:
        graph: The graph.
        rules: The rule of every active node that is not given, in order.
    """
    result = dict(rules)
    slopes: dict[int, tuple[Call, ...]] = {}
    for number, rule in rules.items():
        node = graph.nodes[number]
        places = [place for place, operand in enumerate(node.operands) if graph.nodes[operand].active]
        operands = {node.operands[place] for place in places}
        inherited = slopes.get(min(operands), ()) if len(operands) == 1 else ()
        site = site_of(graph, node)
        if inherited and type(rule) is Elementwise and _has_singularity(rule, site):
            result[number] = Settled(rule.derivative, rule.degree, rule.domain, inherited)
        is_constant_somewhere = isinstance(rule, Masked | PiecewiseLinear) and len(places) == 1
        if inherited or is_constant_somewhere:
            terms = [term for place in places for term in rule.terms(site, (place,))]
            own = tuple(factor.source for term in terms for factor in term.factors) if is_constant_somewhere else ()
            slopes[number] = own + _followed(node, rule, terms, inherited)
    return result


def _has_singularity(rule: Elementwise, site: Site) -> bool:
    is_polynomial = rule.degree(*params_of(site), **dict(site.node.kwargs)) is not None
    return rule.domain != REAL and not is_polynomial


def _followed(node: Node, rule: Rule, terms: Sequence[Term], slopes: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return the slopes of what an op makes of an operand that has some, given the terms of its first derivative."""
    if all(term.slots[0] == term.out for term in terms):
        return slopes
    only_adds = isinstance(rule, Linear) and len({term.coefficient for term in terms}) == 1  # nothing cancels
    has_weights = any(not isinstance(factor.source, Delta) for term in terms for factor in term.factors)
    if not only_adds or has_weights or [*refs(node.args)] != [node.args[0]]:
        return ()
    return tuple(Call(gathered, (node.op, tuple(slope), node.args[1:]), node.kwargs) for slope in slopes)
