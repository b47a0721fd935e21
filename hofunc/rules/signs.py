"""Signs: nodes whose elements are sure to be positive, told from the ops alone, as in ``(x * x).sum() + 1e-5``.

What has a singularity at zero has none there. A node that is left out costs time, and nothing else.
"""

from collections.abc import Iterable, Iterator, Mapping
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

# Places of the condition, of what is taken where it holds, and of what is taken elsewhere.
_CHOICES = {
    aten.where.self: (0, 1, 2),
    aten.masked_fill.Scalar: (1, 2, 0),
    aten.masked_fill.Tensor: (1, 2, 0),
}
_COMPARISONS = {
    aten.gt.Scalar: "gt",
    aten.gt.Tensor: "gt",
    aten.ge.Scalar: "ge",
    aten.ge.Tensor: "ge",
    aten.ne.Scalar: "ne",
    aten.ne.Tensor: "ne",
}
_OPPOSITES = {
    aten.le.Scalar: "gt",
    aten.le.Tensor: "gt",
    aten.lt.Scalar: "ge",
    aten.lt.Tensor: "ge",
    aten.eq.Scalar: "ne",
    aten.eq.Tensor: "ne",
}
_BOTH = {aten.bitwise_and.Tensor, aten.logical_and.default}
_EITHER = {aten.bitwise_or.Tensor, aten.logical_or.default}
_NOT = {aten.bitwise_not.default, aten.logical_not.default}
_GO_BY_OPERANDS = {*_SUMS, *_LIMITS, *_CHOICES, *_COMPARISONS, *_OPPOSITES, *_BOTH, *_EITHER, *_NOT}


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


def signs_of(graph: Graph, rules: Mapping[int, Rule], wanted: Iterable[int]) -> dict[int, Sign]:
    """Return what is known of some nodes of a lowered graph and of what that follows from, whatever the inputs are."""
    needed, signs, others = {*wanted}, dict[int, Sign](), list[tuple[Node, Rule | None]]()
    for node in reversed(graph.nodes):
        if node.number not in needed:
            continue
        rule = rules.get(node.number)
        if node.op is NUMBER:
            signs[node.number] = cast(Sign, node.args[0])
        elif node.op in _NEVER_NEGATIVE or _is_even(graph, node, rule):
            signs[node.number] = Sign.NEVER_NEGATIVE
        elif _goes_by_operands(node, rule):
            others.append((node, rule))
            needed.update(node.operands)
        else:
            signs[node.number] = Sign.ANY
    for node, rule in reversed(others):
        signs[node.number] = _sign(graph, node, rule, signs)
    return signs


def _goes_by_operands(node: Node, rule: Rule | None) -> bool:
    """Tell whether what is known of a node, or told by it as a condition, may follow from the signs of its operands."""
    is_linear = isinstance(rule, Linear | Multilinear | Quotient) and node.op not in _DIFFERENCES
    return is_linear or node.op in _GO_BY_OPERANDS


def sign_where_it_varies(graph: Graph, number: int, signs: Mapping[int, Sign]) -> Sign:
    """Return what is known of the elements of a node that depend on an input, as in ``torch.where(x > 0, x, 1)``.

    It is at most that they are positive: what the others are, which are constant, nobody knows.

    Args:
        graph: A lowered graph.
        number: The node.
        signs: What `signs_of` returns for it.
    """
    node = graph.nodes[number]
    if node.op is aten.relu.default:
        return Sign.TINY
    if node.op not in _CHOICES:
        return signs[number]
    condition, *sides = [node.args[place] for place in _CHOICES[node.op]]
    varying = [
        max([signs[side.node], *_implied(graph, condition, side.node, signs, holds=holds)])
        for side, holds in zip(sides, (True, False), strict=True)
        if isinstance(side, Ref) and graph.nodes[side.node].active
    ]
    return min([Sign.TINY, *varying])


def _implied(graph: Graph, condition: object, number: int, signs: Mapping[int, Sign], *, holds: bool) -> Iterator[Sign]:
    """Yield what is known of a node where a condition holds, or where it does not."""
    if not isinstance(condition, Ref):
        return
    node = graph.nodes[condition.node]
    if node.op in _NOT or node.op in (_BOTH if holds else _EITHER):
        for part in node.args:
            yield from _implied(graph, part, number, signs, holds=holds != (node.op in _NOT))
    comparison = (_COMPARISONS if holds else _OPPOSITES).get(node.op)
    if comparison is None or not isinstance(node.args[0], Ref) or not _is_same(graph, node.args[0].node, number):
        return
    limit = _sign_of(node.args[1], signs)
    if comparison == "ge":
        yield limit
    elif comparison == "gt":
        yield Sign.TINY if limit else Sign.ANY
    elif node.args[1] == 0:
        yield Sign.TINY if signs[number] else Sign.ANY


def _is_same(graph: Graph, one: int, other: int) -> bool:
    """Tell whether two nodes are the same op of the same operands."""
    first, second = graph.nodes[one], graph.nodes[other]
    return one == other or (not first.is_given and first._replace(number=other) == second)


def _sign_of(arg: object, signs: Mapping[int, Sign]) -> Sign:
    return signs[arg.node] if isinstance(arg, Ref) else sign_of_number(arg)


def _sign(graph: Graph, node: Node, rule: Rule | None, signs: Mapping[int, Sign]) -> Sign:
    """Return the sign of a node from those of its operands."""
    known = [_sign_of(arg, signs) for arg in node.args[:2]]
    if node.op in _LIMITS:
        return max(known)
    if node.op in _SUMS and not node.kwargs:
        return Sign.ANY if Sign.ANY in known else max(known)
    if isinstance(rule, Quotient):
        of_result = Sign.NEVER_NEGATIVE if rule.denominator(node) is not None else known[0]
        return Sign.ANY if Sign.ANY in known else of_result
    if _is_product(graph, node, rule, signs):
        return Sign.NEVER_NEGATIVE
    is_sum = rule is not None and _only_adds(graph, node, rule)
    return min(signs[operand] for operand in node.operands) if is_sum else Sign.ANY


def _is_even(graph: Graph, node: Node, rule: Rule | None) -> bool:
    """Tell whether a node is an even power, or a sum of squares."""
    if node.op is aten.pow.Tensor_Scalar:
        return isinstance(node.args[1], int | float) and node.args[1] % 2 == 0
    if not isinstance(rule, Multilinear) or len(node.operands) != 2 or len({*node.operands}) != 1:
        return False
    (first, second), _ = rule.axes(site_of(graph, node))
    return [axis[0].label for axis in first] == [axis[0].label for axis in second]


def _is_product(graph: Graph, node: Node, rule: Rule | None, signs: Mapping[int, Sign]) -> bool:
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
