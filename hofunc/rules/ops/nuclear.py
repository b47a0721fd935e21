"""Sums of singular values: recognised, and differentiated as what is symmetric of a matrix, once it is rotated.

Each singular value alone has terms over its gaps to the others, which cancel in the sum of all; of values that are
nearly equal, nothing but rounding would be left. The sum is the trace of P, in A = Q P with P symmetric and the columns
of Q of length one and at right angles, and the parts of that are divided by sums of singular values only.
"""

import torch
from torch import Tensor

from hofunc.graph.functions import recorded_whole
from hofunc.graph.node import Graph, Node
from hofunc.rules.axes import dims_of
from hofunc.rules.expansion import Operand
from hofunc.rules.kinds import Fused
from hofunc.rules.ops.series import Series, added, convolved, mapped, minus, summed, transposed
from hofunc.rules.ops.spectral import off_diagonal
from hofunc.rules.registry import define_expansion, define_fusion

aten = torch.ops.aten


def _nuclear_norm(a: Tensor) -> Tensor:
    """Return the sums of the singular values of matrices."""
    return torch.linalg.svdvals(a).sum(-1)


nuclear_norm = recorded_whole(_nuclear_norm)


@define_fusion(aten.sum.dim_IntList)
@define_fusion(aten.sum.default)
def _sum(graph: Graph, node: Node) -> Fused | None:
    """Recognise a sum of singular values, over all of each matrix."""
    values = graph.nodes[node.operands[0]]
    if values.op is not aten._linalg_svd.default or values.output != 1 or node.kwargs:
        return None
    if graph.nodes[values.operands[0]].dtype.is_complex:
        return None
    ndim = len(values.shape)
    dims = dims_of(node.args[1], ndim) if len(node.args) > 1 else tuple(range(ndim))
    if ndim - 1 not in dims:
        return None

    def function(a: Tensor, *_: object) -> Tensor:
        norms = nuclear_norm(a)
        rest = [dim for dim in dims if dim != ndim - 1]
        norms = norms.sum(rest) if rest else norms
        return norms.reshape(node.shape)

    return Fused(function, (values.operands[0],))


@define_expansion(_nuclear_norm)
def _change(order: int, outputs: tuple[Tensor], a: Operand) -> Tensor:
    """Return the change of the trace of P: in the coordinates of the vectors, Q is 1 + x above y, and P is s + p.

    The antisymmetric part of each x makes p symmetric, the symmetric one keeps lengths and angles.
    """
    value, change = a.value, a.change
    if value.shape[-2] < value.shape[-1]:
        value, change = value.mT, change.mT
    u, s, vh = torch.linalg.svd(value, full_matrices=False)
    across = change @ vh.mT
    core = u.mT @ across
    is_square = u.shape[-2] == u.shape[-1]
    outside = across - u @ core
    over_sums = off_diagonal(s[..., None, :] + s[..., :, None])
    x: Series = {}
    y: Series = {}
    p: Series = {}
    for degree in range(1, order + 1):
        is_first = degree == 1
        rest = minus(core if is_first else None, convolved(x, p, degree))
        if not is_first:
            shorter = added(*(convolved(mapped(transposed, each), each, degree) for each in (x, y))) * 0.5
            rest = rest + shorter * s.unsqueeze(-2)
        turned = (rest - rest.mT) * over_sums
        p[degree] = rest - turned * s.unsqueeze(-2)
        x[degree] = turned if is_first else turned - shorter
        if not is_square:
            y[degree] = minus(outside if is_first else None, convolved(y, p, degree)) / s.unsqueeze(-2)
    return summed(p).diagonal(0, -2, -1).sum(-1)
