"""Vectors that f itself divides by their length: recognised, and differentiated as what scales to length one.

The derivative of x / |x| along x is zero, and by the rule of the quotient it is a difference of what is nearly equal.
So where a graph divides a vector by its own norm, or multiplies it by the inverse root of its mean square, as
normalize, cosine_similarity and rms_norm do, the quotient is lowered to `direction`.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from hofunc.graph.layout import unseen
from hofunc.graph.node import Graph, Node
from hofunc.rules.axes import dims_of
from hofunc.rules.kinds import Composite
from hofunc.rules.ops.lengths import direction
from hofunc.rules.registry import define_composite, define_fusion

aten = torch.ops.aten

FLOOR = 1 + 1e-5  # a denominator that is larger than the norm by more than this is a limit, and no norm


class Square(NamedTuple):
    """A multiple of the squared length of the vectors along some axes of a node, and a number.

    Attributes:
        number: The node.
        dims: The axes.
        scale: What the squared length is multiplied by.
        excess: What is added.
    """

    number: int
    dims: tuple[int, ...]
    scale: float
    excess: float


def square_of(graph: Graph, node: Node, *, keepdim: bool = True) -> Square | None:
    """Read a node as a squared length, or a mean of squares, with a number added to it or without.

    Args:
        graph: The graph.
        node: The node.
        keepdim: Whether the axes have to stay, with size 1, or to be gone.
    """
    if node.op in (aten.add.Scalar, aten.add.Tensor) and not node.kwargs and isinstance(node.args[1], int | float):
        inner = square_of(graph, graph.nodes[node.operands[0]], keepdim=keepdim)
        return inner and inner._replace(excess=inner.excess + node.args[1])
    if node.op not in (aten.mean.dim, aten.sum.dim_IntList) or (*node.args, False)[2] is not keepdim or node.kwargs:
        return None
    squared = graph.nodes[node.operands[0]]
    is_power = squared.op is aten.pow.Tensor_Scalar and squared.args[1] == 2
    is_product = squared.op is aten.mul.Tensor and len(squared.operands) == 2 and len({*squared.operands}) == 1
    if not (is_power or is_product or squared.op is aten.square.default):
        return None
    dims = dims_of(node.args[1], len(squared.shape))
    count = prod(squared.shape[dim] for dim in dims) if node.op is aten.mean.dim else 1
    return Square(squared.operands[0], dims, 1 / max(1, count), 0.0)


def _as_passed_on(graph: Graph, node: Node) -> Node:
    """Go back from a denominator to the node of which it has the elements, or larger ones as limits."""
    passing = (aten.expand.default, aten.clone.default, aten.clamp_min.default, unseen)
    while node.op in passing and node.operands:
        node = graph.nodes[node.operands[0]]
    return node


@define_fusion(aten.div.Tensor)
def _divided(graph: Graph, node: Node) -> Composite | None:
    if len(node.operands) != 2:
        return None
    x, denominator = node.operands[0], graph.nodes[node.operands[1]]
    if denominator.op is aten.sqrt.default:
        return _by_square(square_of(graph, graph.nodes[denominator.operands[0]]), x, 0)
    norm = _as_passed_on(graph, denominator)
    if norm.op is not aten.linalg_vector_norm.default or norm.operands != (x,):
        return None
    p, dims, keepdim = (*norm.args[1:], 2, None, False)[:3] if len(norm.args) > 3 else (0, None, False)
    return Composite(_over_limit(dims_of(dims, len(node.shape)))) if p == 2 and keepdim else None


def _over_limit(dims: tuple[int, ...]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what divides vectors by their lengths, or by a limit that is larger."""

    def normalised(x: Tensor, length: Tensor) -> Tensor:
        limit = length.detach()
        is_limit = limit > torch.linalg.vector_norm(x.detach(), 2, dims, keepdim=True) * FLOOR
        return torch.where(is_limit, x / limit, direction(x, dims, 0.0))

    return normalised


@define_fusion(aten.mul.Tensor)
def _multiplied(graph: Graph, node: Node) -> Composite | None:
    if len(node.operands) != 2:
        return None
    for place, factor in enumerate(node.operands[::-1]):
        root = graph.nodes[factor]
        if root.op is aten.rsqrt.default:
            return _by_square(square_of(graph, graph.nodes[root.operands[0]]), node.operands[place], place)
    return None


def _by_square(square: Square | None, x: int, place: int) -> Composite | None:
    """Return what divides the operand at a place by the root of a square, if it is the square of its own length."""
    if square is None or square.number != x or square.excess < 0:
        return None

    def normalised(*operands: Tensor) -> Tensor:
        return direction(operands[place], square.dims, square.excess / square.scale) * square.scale**-0.5

    return Composite(normalised)


RENORM_EXCESS = 1e-7  # which torch adds to the norms that it divides by


def _renorm(x: Tensor, p: float, dim: int, limit: float) -> Tensor:
    """Return slices of a tensor scaled to a norm of about the limit, where theirs is larger."""
    dims = tuple(other for other in range(x.dim()) if other != dim % x.dim())
    is_over = torch.linalg.vector_norm(x.detach(), p, dims, keepdim=True) > limit
    norm = torch.linalg.vector_norm(x, p, dims, keepdim=True)
    if p == 2:
        factor = limit - limit * RENORM_EXCESS / (norm + RENORM_EXCESS)  # of what already has length one
        return torch.where(is_over, direction(x, dims, 0.0) * factor, x)
    return torch.where(is_over, x * (limit / (norm + RENORM_EXCESS)), x)


define_composite(aten.renorm.default, _renorm)
