"""Signs: nodes whose elements are sure to be positive, told from the ops alone, as in ``(x * x).sum() + 1e-5``.

What has a singularity at zero has none there. A node that is left out costs time, and nothing else.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import cast

import torch

from hofunc.graph.node import NUMBER, Graph, Node, Ref
from hofunc.rules.kinds import Linear, Multilinear, Rule, site_of
from hofunc.rules.quotient import Quotient

aten = torch.ops.aten

SMALLEST = 1e-6  # of numbers that are large enough: a high derivative at a smaller one may overflow

_NEVER_NEGATIVE = {
    aten._softmax.default,
    aten.abs.default,
    aten.exp.default,
    aten.relu.default,
    aten.sigmoid.default,
    aten.sqrt.default,
    aten.square.default,
}
_SUMS = (aten.add.Scalar, aten.add.Tensor)
_DIFFERENCES = (aten.rsub.Scalar, aten.rsub.Tensor, aten.sub.Scalar, aten.sub.Tensor)
_LIMITS = (aten.clamp.default, aten.clamp_min.default)


class Sign(IntEnum):
    """What is known of all elements of a node."""

    ANY = 0
    NEVER_NEGATIVE = 1
    TINY = 2  # positive, but maybe so little that high derivatives overflow
    POSITIVE = 3


def sign_of_number(number: object) -> Sign:
    """Return what is known of a number."""
    if not isinstance(number, int | float) or not number >= 0:
        return Sign.ANY
    if number >= SMALLEST:
        return Sign.POSITIVE
    return Sign.TINY if number else Sign.NEVER_NEGATIVE


def signs_of(graph: Graph, rules: Mapping[int, Rule]) -> list[Sign]:
    """Return what is known of the nodes of a lowered graph, whatever the inputs are."""
    signs: list[Sign] = []
    for node in graph.nodes:
        is_number = node.op is NUMBER
        signs.append(cast(Sign, node.args[0]) if is_number else _sign(graph, node, rules.get(node.number), signs))
    return signs


def _sign(graph: Graph, node: Node, rule: Rule | None, signs: list[Sign]) -> Sign:
    """Return the sign of a node from those of the nodes before it."""
    known = [signs[arg.node] if isinstance(arg, Ref) else sign_of_number(arg) for arg in node.args]
    if node.op in _LIMITS:
        return max(known[:2])
    if node.op in _SUMS and not node.kwargs:
        return Sign.ANY if Sign.ANY in known[:2] else max(known[:2])
    if isinstance(rule, Quotient):
        of_result = Sign.NEVER_NEGATIVE if rule.denominator(node) is not None else known[0]
        return Sign.ANY if Sign.ANY in known[:2] else of_result
    if node.op in _NEVER_NEGATIVE or _is_even(graph, node, rule) or _is_product(graph, node, rule, signs):
        return Sign.NEVER_NEGATIVE
    if rule is not None and node.op not in _DIFFERENCES and _only_adds(graph, node, rule):
        return min(signs[operand] for operand in node.operands)
    return Sign.ANY


def _is_even(graph: Graph, node: Node, rule: Rule | None) -> bool:
    """Tell whether a node is an even power, or a sum of squares."""
    if node.op is aten.pow.Tensor_Scalar:
        return isinstance(node.args[1], int | float) and node.args[1] % 2 == 0
    if not isinstance(rule, Multilinear) or len(node.operands) != 2 or len({*node.operands}) != 1:
        return False
    (first, second), _ = rule.axes(site_of(graph, node))
    return [axis[0].label for axis in first] == [axis[0].label for axis in second]


def _is_product(graph: Graph, node: Node, rule: Rule | None, signs: list[Sign]) -> bool:
    """Tell whether a node is a product of several that are never negative."""
    if not isinstance(rule, Multilinear) or len(node.operands) < 2:
        return False
    return all(signs[operand] for operand in node.operands) and rule.scale(site_of(graph, node)) > 0


def _only_adds(graph: Graph, node: Node, rule: Rule) -> bool:
    """Tell whether every element of a linear op is a sum of multiples of some of its operands, none negative."""
    if not isinstance(rule, Linear) and not (isinstance(rule, Multilinear) and len(node.operands) == 1):
        return False
    site = site_of(graph, node)
    terms = [term for place, _ in enumerate(node.operands) for term in rule.terms(site, (place,))]
    segments = [segment for term in terms for axis in term.out for segment in axis]
    is_whole = all(segment.is_full for segment in segments) and len({*segments}) == len(segments)
    return bool(terms) and is_whole and all(term.coefficient > 0 and not term.factors for term in terms)
