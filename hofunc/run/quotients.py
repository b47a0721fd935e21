"""Hyperbolic tangents in single precision as quotients of polynomials, which a compiler fuses with what is around them.

The function that inductor calls for them takes several times as long. Measured on a CPU, one thread, whole compiled
plans of networks of few inputs: 3 to 16 % of the time.

NOTE [Accuracy]: x P(x^2) / Q(x^2), with P and Q of degree 4, differs from tanh(x) by a tenth of an eps in real
numbers: the coefficients make the largest relative difference for x up to BOUND the least. Computed in single precision
it is off by 4 eps at most, by 2 for x below 1, and by nothing near zero, where P and Q are 1. From BOUND on it is 1, as
tanh(x) is but for one eps. It never is more than 1, so that nobody takes the square root of a negative 1 - tanh(x)^2.
tests/run/test_quotients.py has all of this. Gradients are not taken through it: their last digits would be those of
other polynomials.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from hofunc.run.fuse import substitute

aten = torch.ops.aten

BOUND = 8.5
P = (1.4271872740002394e-08, 2.12529758950388e-05, 0.00353414596954226, 0.13413348020732715, 1.0)
Q = (8.146211349738057e-07, 0.0003349058236445405, 0.02602320685093486, 0.4674667085343768, 1.0)


# What has more ops than so many, and is used more than once, is kept rather than computed again. For a CPU inductor has
# 50, and a quotient has 36: it was computed in every sum that it is a factor of.
KEPT: dict[str, Any] = {"realize_opcount_threshold": 30}


def put_quotients(module: GraphModule) -> dict[str, Any]:
    """Replace the hyperbolic tangents in single precision of a graph of aten ops, in place.

    Returns:
        What the compiler is to be told of it.
    """
    found = [node for node in module.graph.nodes if node.target is aten.tanh.default and _is_single(node.meta["val"])]
    for node in found:
        substitute(node, _quotient)
    module.graph.lint()
    module.recompile()
    return KEPT if found else {}


def _is_single(value: torch.Tensor) -> bool:
    """Tell whether a tensor is what was measured: numbers in single precision on a CPU."""
    return value.device.type == "cpu" and value.dtype == torch.float32


def _quotient(node: Node) -> Node:
    """Write a hyperbolic tangent as a quotient."""
    call = node.graph.call_function
    bounded = call(aten.clamp.default, (node.args[0], -BOUND, BOUND))
    square = call(aten.mul.Tensor, (bounded, bounded))

    def polynomial(first: float, second: float, *others: float) -> Node:
        value = call(aten.add.Tensor, (call(aten.mul.Tensor, (square, first)), second))
        for coefficient in others:
            value = call(aten.add.Tensor, (call(aten.mul.Tensor, (value, square)), coefficient))
        return value

    above = call(aten.mul.Tensor, (bounded, polynomial(*P)))
    return call(aten.clamp.default, (call(aten.div.Tensor, (above, polynomial(*Q))), -1.0, 1.0))
