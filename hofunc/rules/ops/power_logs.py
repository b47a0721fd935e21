"""Products of powers of a number and polynomials of its logarithm: recognised, and differentiated as one function.

By the rule of products, x log(x) has x times -1 / x^2 in its second derivative, which overflows below 1e-154 where the
derivative does not. As one function of x, the derivatives of x^p Q(l) are of the same form if l is a logarithm of x,
whose slope is k / x: the next of x^p Q_r(l) is x^(p - 1) times (p Q_r + k Q_r')(l). Such a logarithm may be that of a
multiple of x, and what is added to it does not matter: entropies are written so, and divergences, as p log(p / q).
"""

import math
from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from hofunc.graph.functions import recorded_whole
from hofunc.graph.node import Graph, Node, Ref
from hofunc.rules.kinds import Fused
from hofunc.rules.ops.calculus import Polynomial, differentiated, evaluated, plus, scaled, times
from hofunc.rules.registry import FUSIONS, POSITIVE, define_constant, define_elementwise_pair, define_fusion

aten = torch.ops.aten
DEPTH = 3  # of ops before a product that are read; products within products would take time that doubles with each

Part = tuple[float, int, bool]  # a multiple of a node, or of the logarithm of one


class Logarithm(NamedTuple):
    """A node that is a multiple of the logarithm of another one, and a sum of others.

    Attributes:
        number: The node.
        slope: The multiple.
        others: What else it is the sum of, less constants.
        where: What tells where it is that and no constant: a condition, or a node and the least number that is not
            replaced; None if it is so everywhere.
    """

    number: int
    slope: float
    others: tuple[Part, ...] = ()
    where: tuple[int, float | None] | None = None


class Reading(NamedTuple):
    """A node as a power of another one, times a polynomial of a logarithm of that, times others.

    Attributes:
        number: The other node.
        exponent: Of the power.
        logarithm: Its logarithm, if there is one.
        polynomial: That of the logarithm; a number if there is none.
        least: The lowest exponent of a factor; one that is negative makes the product undefined at zero.
        others: Nodes that are factors.
    """

    number: int
    exponent: float = 1.0
    logarithm: Logarithm | None = None
    polynomial: Polynomial = (1.0,)
    least: float = 0.0
    others: tuple[int, ...] = ()


_EXPONENTS = {aten.square.default: 2.0, aten.sqrt.default: 0.5, aten.rsqrt.default: -0.5}
_LOGARITHMS = {aten.log.default: 1.0, aten.log2.default: 1 / math.log(2), aten.log10.default: 1 / math.log(10)}
_CHOICES = {aten.where.self, aten.where.ScalarOther}
_FLOORS = {aten.clamp.default, aten.clamp_min.default}
_ARITHMETIC = {
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.neg.default,
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.rsub.Scalar,
}
_SUMS = {aten.add.Tensor: 1.0, aten.sub.Tensor: -1.0}


def _power_of_log(x: Tensor, z: Tensor, exponent: float, slope: float, polynomial: Polynomial) -> Tensor:
    """Return x ** exponent times a polynomial of z, a logarithm of x that has a slope over x."""
    return x**exponent * evaluated(polynomial, z)


def derivative(x: Tensor, z: Tensor, r: int, s: int, exponent: float, slope: float, polynomial: Polynomial) -> Tensor:
    """Differentiate that: by what z is a sum of besides, the polynomial alone."""
    for k in range(r):
        polynomial = plus(scaled(polynomial, exponent - k), scaled(differentiated(polynomial), slope))
    polynomial = differentiated(polynomial, s)
    return x ** (exponent - r) * evaluated(polynomial, z) if any(polynomial) else torch.zeros_like(x * z)


def _without_derivatives(x: Tensor) -> Tensor:
    """Return a tensor, by which nothing is differentiated but what autograd follows."""
    return x.clone()


power_of_log = recorded_whole(_power_of_log)
fixed = recorded_whole(_without_derivatives)
define_elementwise_pair(_power_of_log, derivative, domain=POSITIVE)
define_constant(_without_derivatives)


@define_fusion(aten.mul.Tensor)
def _product(graph: Graph, node: Node) -> Fused | None:
    """Recognise a product with a logarithm, or of roots with powers."""
    if not (node.dtype.is_floating_point and _meets_one(graph, node, DEPTH)):
        return None
    for found in _products(graph, node, DEPTH):
        is_worth_it = found.logarithm or (found.exponent != int(found.exponent) and found.least >= 0)
        if is_worth_it:  # a polynomial overflows nowhere else, and where the product is not defined a power may be
            return _fused(graph, found)
    return None


def _meets_one(graph: Graph, node: Node, depth: int) -> bool:
    """Tell whether a logarithm or a root is among what would be read, which few products have."""
    if node.op in _LOGARITHMS or node.op in _EXPONENTS or node.op is aten.pow.Tensor_Scalar:
        return True
    through = {*node.operands} if depth >= 0 and (node.op in _ARITHMETIC) else ()
    return any(_meets_one(graph, graph.nodes[number], depth - 1) for number in through)


def _fused(graph: Graph, found: Reading) -> Fused:
    """Return the function of what a product is read as."""
    logarithm = found.logarithm or Logarithm(found.number, 0.0)
    active = [part for part in logarithm.others if graph.nodes[part[1]].active]
    selects, bound = logarithm.where or (found.number, None)
    before = (found.number, logarithm.number, selects, *(number for _, number, _ in active), *found.others)

    def function(x: Tensor, value: Tensor, selected: Tensor, *given: Tensor) -> Tensor:
        parts, others = given[: len(active)], given[len(active) : len(before) - 3]
        z = fixed(value)
        for (scale, _, is_logarithm), part in zip(active, parts, strict=True):
            part = part.abs().log() if is_logarithm else part  # noqa: PLW2901
            z = z + scale * (part - fixed(part))
        if found.logarithm is None:
            result = x**found.exponent * found.polynomial[0]
        else:
            result = power_of_log(x, z, found.exponent, logarithm.slope, found.polynomial)
        if logarithm.where is not None:
            still = power_of_log(x, z, found.exponent, 0.0, found.polynomial)
            result = torch.where(selected if bound is None else selected >= bound, result, still)
        return reduce(torch.mul, others, result)

    return Fused(function, before)


def _read(graph: Graph, number: int, depth: int) -> list[Reading]:
    """Return what a node may be read as, from what is farthest back on."""
    node = graph.nodes[number]
    readings = [Reading(number)]
    if depth and not node.kwargs and node.dtype.is_floating_point and not node.is_given:
        readings += [reading for reading in _by_op(graph, node, depth - 1) if reading.number != number]
    return readings[::-1]


def _by_op(graph: Graph, node: Node, depth: int) -> Iterator[Reading]:
    """Yield what a node may be read as by its op."""
    if (exponent := _exponent(node)) is not None:
        yield Reading(node.operands[0], exponent)
        if exponent == int(exponent) > 0:
            inner = filter(_is_polynomial, _read(graph, node.operands[0], depth))
            yield from (r._replace(polynomial=reduce(times, [r.polynomial] * int(exponent))) for r in inner)
    elif node.op in _LOGARITHMS and not any(recognise(graph, node) for recognise in FUSIONS.get(node.op, ())):
        yield from _logarithms(graph, node)
    elif (factor := _factor(node)) is not None:
        for reading in _read(graph, node.operands[0], depth):
            yield reading._replace(polynomial=scaled(reading.polynomial, factor))
    elif (line := _line(node)) is not None:
        for reading in filter(_is_polynomial, _read(graph, node.operands[0], depth)):
            yield reading._replace(polynomial=plus((line[0],), scaled(reading.polynomial, line[1])))
    elif node.op is aten.mul.Tensor and len(node.operands) == 2:
        for one, other in (node.operands, node.operands[::-1]):
            yield from (r._replace(others=(*r.others, other)) for r in _read(graph, one, depth) if r.number != other)
        yield from _products(graph, node, depth)
    elif node.op in _SUMS and len(node.operands) == 2:
        yield from _sums(graph, node, depth)


def _exponent(node: Node) -> float | None:
    """Return the number to the power of which a node takes its only operand."""
    if node.op is aten.pow.Tensor_Scalar and isinstance(node.args[1], int | float) and math.isfinite(node.args[1]):
        return float(node.args[1])
    return _EXPONENTS.get(node.op)


def _factor(node: Node) -> float | None:
    """Return the number by which a node multiplies its only operand."""
    if node.op is aten.neg.default:
        return -1.0
    if node.op not in {aten.mul.Tensor, aten.div.Tensor} or len(node.operands) != 1:
        return None
    other = node.args[1]
    if not (isinstance(other, int | float) and math.isfinite(other) and other):
        return None
    return float(other) if node.op is aten.mul.Tensor else 1 / other


def _line(node: Node) -> tuple[float, float] | None:
    """Return the number that a node adds to its only operand, and the sign of that."""
    if node.op not in {*_SUMS, aten.rsub.Scalar} or len(node.operands) != 1 or len(node.args) != 2:
        return None
    other = node.args[1]
    if not isinstance(other, int | float):
        return None
    return (float(other), -1.0) if node.op is aten.rsub.Scalar else (_SUMS[node.op] * other, 1.0)


def _is_polynomial(reading: Reading) -> bool:
    """Tell whether a reading is of a polynomial of a logarithm alone."""
    return reading.logarithm is not None and reading.exponent == 0 and not reading.others


def _logarithms(graph: Graph, node: Node) -> Iterator[Reading]:
    """Yield readings of a logarithm, which may be that of a multiple or a quotient."""
    slope = _LOGARITHMS[node.op]
    inner = graph.nodes[node.operands[0]]
    parts: list[tuple[float, int]] = [(slope, inner.number)]
    yield _logarithm(node, parts, 0)
    if _factor(inner) is not None:
        yield _logarithm(node, [(slope, inner.operands[0])], 0)
    elif (chosen := _chosen(graph, inner)) is not None:
        number, where = chosen
        yield Reading(number, 0.0, Logarithm(node.number, slope, where=where), (0.0, 1.0))
    elif inner.op in {aten.mul.Tensor, aten.div.Tensor} and len(inner.operands) == 2 and not inner.kwargs:
        one, other = inner.operands
        parts = [(slope, one), (slope if inner.op is aten.mul.Tensor else -slope, other)]
        yield from (_logarithm(node, parts, place) for place in (0, 1) if one != other)


def _chosen(graph: Graph, node: Node) -> tuple[int, tuple[int, float | None]] | None:
    """Return the node that another one is in places and a constant elsewhere, and what tells where."""
    if node.op in _CHOICES and isinstance(node.args[1], Ref):
        other = node.args[2]
        is_constant = not (isinstance(other, Ref) and graph.nodes[other.node].active)
        return (node.args[1].node, (node.args[0].node, None)) if is_constant else None
    if node.op in _FLOORS and len(node.args) == 2 and isinstance(node.args[1], int | float):
        return node.operands[0], (node.operands[0], float(node.args[1]))
    return None


def _logarithm(node: Node, parts: list[tuple[float, int]], place: int) -> Reading:
    """Return the reading of a sum of logarithms as one of the numbers at a place."""
    slope, number = parts[place]
    others = tuple((scale, other, True) for at, (scale, other) in enumerate(parts) if at != place)
    return Reading(number, 0.0, Logarithm(node.number, slope, others), (0.0, 1.0))


def _sums(graph: Graph, node: Node, depth: int) -> Iterator[Reading]:
    """Yield readings of a sum of a logarithm and another node, which may be a logarithm of the same number."""
    sign = _SUMS[node.op]
    (one, two), signs = node.operands, (1.0, sign)
    sides = [[*filter(_is_line, _read(graph, number, depth))] for number in (one, two)]
    for place, other in ((0, two), (1, one)):
        for side in sides[place]:
            slope, others = _scaled(side, signs[place])
            rest = (*others, (signs[1 - place], other, False))
            yield Reading(side.number, 0.0, Logarithm(node.number, slope, rest), (0.0, 1.0))
    for a, b in [(a, b) for a in sides[0] for b in sides[1] if a.number == b.number]:
        (slope, others), (added, more) = (_scaled(side, sign) for side, sign in zip((a, b), signs, strict=True))
        yield Reading(a.number, 0.0, Logarithm(node.number, slope + added, others + more), (0.0, 1.0))


def _is_line(reading: Reading) -> bool:
    """Tell whether a reading is of a multiple of a logarithm and a number."""
    is_line = _is_polynomial(reading) and len(reading.polynomial) == 2
    return is_line and reading.logarithm is not None and reading.logarithm.where is None


def _scaled(reading: Reading, sign: float) -> tuple[float, tuple[Part, ...]]:
    """Return the slope of a multiple of a logarithm, and what else it is the sum of."""
    factor = sign * reading.polynomial[1]
    _, slope, others, _ = reading.logarithm or Logarithm(reading.number, 0.0)
    return factor * slope, tuple((factor * scale, number, is_logarithm) for scale, number, is_logarithm in others)


def _products(graph: Graph, node: Node, depth: int) -> Iterator[Reading]:
    """Yield readings of a product of two factors, of one number."""
    if len(node.operands) != 2 or node.kwargs:
        return
    sides = [_read(graph, number, depth) for number in node.operands]
    for a, b in [(a, b) for a in sides[0] for b in sides[1]]:
        of_one = a.number == b.number != node.number
        if of_one and (a.logarithm is None or b.logarithm is None or _are_one(graph, a.logarithm, b.logarithm)):
            yield Reading(
                a.number,
                a.exponent + b.exponent,
                a.logarithm or b.logarithm,
                times(a.polynomial, b.polynomial),
                min(a.least, b.least, a.exponent, b.exponent),
                a.others + b.others,
            )


def _are_one(graph: Graph, a: Logarithm, b: Logarithm) -> bool:
    """Tell whether two logarithms are the same, which may be computed twice."""
    one, other = graph.nodes[a.number], graph.nodes[b.number]
    return a == b or (one.op in _LOGARITHMS and (one.op, one.operands, a[1:]) == (other.op, other.operands, b[1:]))
