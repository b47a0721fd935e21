"""Products of several matrices with one, which torch repeats for each where they lie otherwise in memory.

So do linear layers of transposed inputs, as those of `torch.nn.MultiheadAttention`. Taken as it is the product would
have a derivative by the matrix for each place at which it stands, of which only the sum is wanted.
"""

from math import prod

import torch
from torch import Tensor

from hofunc.graph.node import Graph, Node
from hofunc.rules.kinds import Fused
from hofunc.rules.registry import define_fusion

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default)


@define_fusion(aten.bmm.default)
def _by_one_matrix(graph: Graph, node: Node) -> Fused | None:
    """Recognise a product of matrices of which one operand is one matrix, repeated."""
    left, right = node.operands
    for other, number, product in ((left, right, _times_one), (right, left, _one_times)):
        matrix = _repeated(graph, number)
        if matrix is not None and _repeated(graph, other) is None:
            return Fused(product, (matrix,))
    return None


def _repeated(graph: Graph, number: int) -> int | None:
    """Return the matrix that a node is at all places of its first axis, None if it is none."""
    node, shape = graph.nodes[number], graph.nodes[number].shape
    if node.op in _VIEWS and graph.nodes[node.operands[0]].shape[-2:] == shape[-2:]:
        node = graph.nodes[node.operands[0]]
    if node.op is not aten.expand.default or shape[0] < 2 or node.shape[-2:] != shape[-2:]:
        return None
    (matrix,) = node.operands
    own = graph.nodes[matrix].shape
    return matrix if own[-2:] == shape[-2:] and len(own) > 1 and prod(own[:-2]) == 1 else None


def _times_one(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    count, rows, size = left.shape
    return (left.reshape(count * rows, size) @ matrix.reshape(right.shape[1:])).reshape(count, rows, right.shape[2])


def _one_times(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    turned = matrix.reshape(left.shape[1:]).t()
    return _times_one(turned, right.transpose(1, 2), left.transpose(1, 2)).transpose(1, 2)
