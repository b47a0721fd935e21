"""Cosines that f itself divides by lengths: recognised, and differentiated as products of vectors of length one.

As a quotient by a root of a product of squares, a cosine is a difference of what is nearly equal in the derivatives
along each vector, as is what `hofunc.rules.ops.normalising` recognises. torch's own loss by cosines and its
correlations are written so.
"""

import torch
from torch import Tensor

from hofunc.graph.node import Graph, Node
from hofunc.rules.axes import dims_of
from hofunc.rules.kinds import Fused
from hofunc.rules.ops.lengths import direction
from hofunc.rules.ops.normalising import Square, square_of
from hofunc.rules.registry import define_fusion

aten = torch.ops.aten


@define_fusion(aten.div.Tensor)
def _of_two(graph: Graph, node: Node) -> Fused | None:
    """Recognise a sum of products over the root of a product, of which one factor is the square of one operand."""
    if len(node.operands) != 2:
        return None
    total, root = (graph.nodes[number] for number in node.operands)
    if root.op is not aten.sqrt.default or total.op is not aten.sum.dim_IntList or len(total.args) != 2:
        return None
    product, radicand = graph.nodes[total.operands[0]], graph.nodes[root.operands[0]]
    if any(inner.op is not aten.mul.Tensor or len(inner.operands) != 2 for inner in (product, radicand)):
        return None
    if len({graph.nodes[number].shape for number in product.operands}) != 1:  # one is repeated along the other
        return None
    dims = dims_of(total.args[1], len(product.shape))
    for a, b in (product.operands, product.operands[::-1]):
        for one, other in (radicand.operands, radicand.operands[::-1]):
            if (of_a := _square_of(graph, one, a, dims)) is not None:
                return _fused(of_a, _square_of(graph, other, b, dims), a, b, other)
    return None


def _square_of(graph: Graph, number: int, vectors: int, dims: tuple[int, ...]) -> Square | None:
    """Read a node as the squared length of vectors along some axes, and no excess that is negative."""
    square = square_of(graph, graph.nodes[number], keepdim=False)
    is_own = square is not None and square[:3] == (vectors, dims, 1.0) and square.excess >= 0
    return square if is_own else None


def _fused(of_a: Square, of_b: Square | None, a: int, b: int, other: int) -> Fused:
    def cosine(x: Tensor, y: Tensor, rest: Tensor, *_: Tensor) -> Tensor:
        x = direction(x, of_a.dims, of_a.excess)
        if of_b is None:
            return (x * y).sum(of_a.dims) / rest.sqrt()
        return (x * direction(y, of_b.dims, of_b.excess)).sum(of_a.dims)

    return Fused(cosine, (a, b, other))


@define_fusion(aten.div.Tensor)
def _of_all(graph: Graph, node: Node) -> Fused | None:
    """Recognise a matrix of products of rows, over the roots of its diagonal along both axes."""
    if len(node.operands) != 2:
        return None
    by_rows = graph.nodes[node.operands[0]]
    if by_rows.op is not aten.div.Tensor or len(by_rows.operands) != 2:
        return None
    matrix, rows = by_rows.operands
    roots = [graph.nodes[number] for number in (rows, node.operands[1])]
    if [root.op for root in roots] != [aten.view.default] * 2 or roots[0].operands != roots[1].operands:
        return None
    if [root.shape for root in roots] != [(node.shape[0], 1), (1, node.shape[-1])]:
        return None
    root = graph.nodes[roots[0].operands[0]]
    if root.op is not aten.sqrt.default or not _is_diagonal(graph, root.operands[0], matrix):
        return None
    vectors = _rows_of(graph, matrix)
    return None if vectors is None else Fused(_correlations, (vectors,))


def _is_diagonal(graph: Graph, number: int, matrix: int) -> bool:
    node = graph.nodes[number]
    return node.op is aten.diagonal.default and node.operands == (matrix,) and not (node.args[1:] or node.kwargs)


def _rows_of(graph: Graph, number: int) -> int | None:
    """Return the node of which a matrix is the product with its own transpose, over a number."""
    node = graph.nodes[number]
    if node.op is aten.squeeze.default and node.shape == graph.nodes[node.operands[0]].shape:
        node = graph.nodes[node.operands[0]]
    if node.op is aten.div.Tensor and (len(node.operands) == 1 or not graph.nodes[node.operands[1]].shape):
        node = graph.nodes[node.operands[0]]
    if node.op is not aten.mm.default:
        return None
    rows, transposed = node.operands
    turned = graph.nodes[transposed]
    return rows if turned.op is aten.t.default and turned.operands == (rows,) else None


def _correlations(rows: Tensor, *_: Tensor) -> Tensor:
    unit = direction(rows, (1,), 0.0)
    return unit @ unit.t()
