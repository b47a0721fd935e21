"""Products of a logarithm, or a root, and powers of the same number: recognised, and differentiated as one function.

By the rule of products, x log(x) has x times -1 / x^2 in its second derivative, which overflows below 1e-154 where the
derivative does not. As one function, the r-th derivative of x^p log(x) is x^(p - r) times a multiple of the logarithm
and a number.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.graph.functions import recorded_whole
from hofunc.graph.node import Graph, Node
from hofunc.rules.kinds import Fused
from hofunc.rules.ops.calculus import falling
from hofunc.rules.registry import FUSIONS, POSITIVE, define_elementwise, define_fusion

aten = torch.ops.aten


class Monomial(NamedTuple):
    """A power of a node, times a multiple of its logarithm or not.

    Attributes:
        number: The node.
        exponent: Of the power.
        logarithms: How many logarithms there are.
        scale: What they are multiplied by.
        least: The lowest exponent of a factor; one that is negative makes the product undefined at zero.
    """

    number: int
    exponent: float
    logarithms: int = 0
    scale: float = 1.0
    least: float = 0.0


_EXPONENTS = {aten.square.default: 2.0, aten.sqrt.default: 0.5, aten.rsqrt.default: -0.5}
_LOGARITHMS = {aten.log.default: 1.0, aten.log2.default: 1 / math.log(2), aten.log10.default: 1 / math.log(10)}


def _power_log(x: Tensor, exponent: float) -> Tensor:
    """Return x ** exponent times the logarithm of x."""
    return x**exponent * x.log()


def derivative(x: Tensor, y: Tensor, r: int, exponent: float) -> Tensor:
    """Differentiate that: the slope by the exponent of the derivatives of a power."""
    multiple = falling(exponent, r)
    rest = sum(math.prod(exponent - k for k in range(r) if k != left) for left in range(r))
    factor = multiple * x.log() + rest if multiple else rest
    return x ** (exponent - r) * factor


power_log = recorded_whole(_power_log)
define_elementwise(_power_log, derivative, domain=POSITIVE)


@define_fusion(aten.mul.Tensor)
def _product(graph: Graph, node: Node) -> Fused | None:
    """Recognise a product with one logarithm, or of roots with powers."""
    found = _monomial(graph, node)
    if found is None or found.number == node.number or found.logarithms > 1:
        return None
    if not found.logarithms and (found.exponent == int(found.exponent) or found.least < 0):
        return None  # a polynomial overflows nowhere else, and where the product is not defined a power may be

    def function(x: Tensor, *_: Tensor) -> Tensor:
        return power_log(x, found.exponent) * found.scale if found.logarithms else x**found.exponent

    return Fused(function, (found.number,))


def _monomial(graph: Graph, node: Node, depth: int = 1) -> Monomial | None:
    """Read a product of two factors, which may be products to some depth, as a monomial of the number that both are of.

    Products within products, as those of a running product, would take time that doubles with each.
    """
    if len(node.operands) != 2 or node.kwargs:
        return None
    first, second = (_factor(graph, graph.nodes[number], depth) for number in node.operands)
    pairs = [(a, b) for a in first for b in second if a.number == b.number]
    if not pairs:
        return None
    a, b = pairs[0]
    least = min(a.least, b.least, a.exponent, b.exponent)
    return Monomial(a.number, a.exponent + b.exponent, a.logarithms + b.logarithms, a.scale * b.scale, least)


def _factor(graph: Graph, node: Node, depth: int) -> list[Monomial]:
    """Return what a factor of a product may be read as, from what is farthest back on."""
    readings = [Monomial(node.number, 1.0)]
    operands: tuple[Any, ...] = node.operands
    if node.op in _EXPONENTS:
        readings.append(Monomial(operands[0], _EXPONENTS[node.op]))
    elif node.op is aten.pow.Tensor_Scalar and isinstance(node.args[1], int | float):
        readings.append(Monomial(operands[0], float(node.args[1])))
    elif node.op in _LOGARITHMS and not any(recognise(graph, node) for recognise in FUSIONS.get(node.op, ())):
        readings.append(Monomial(operands[0], 0.0, 1, _LOGARITHMS[node.op]))
    elif depth and node.op is aten.mul.Tensor and (inner := _monomial(graph, node, depth - 1)) is not None:
        readings.append(inner)
    return readings[::-1]
