"""Diagonals of zeros as what is written into these, in graphs that are compiled.

Inductor makes of `diag_embed` a loop over all entries of the result, which asks of each whether it is on the diagonal:
of 100 rows of 10 numbers, whose second derivatives are 1 of 100 entries, it took 3 times as long as the zeros, which
`diagonal_scatter` makes and writes into. Measured on a CPU, from 4 rows of 4 numbers on it never took longer.
"""

from typing import Any

import torch
from torch.fx import GraphModule, Node

from hofunc.run.fuse import substitute

aten: Any = torch.ops.aten


def write_diagonals(module: GraphModule) -> None:
    """Replace what puts a tensor on a diagonal, in a graph of aten ops, in place, by zeros that it is written into."""
    for node in list(module.graph.nodes):
        if node.target is aten.diag_embed.default and node.meta["val"].device.type == "cpu":
            substitute(node, _written)
    module.graph.lint()
    module.recompile()


def _written(node: Node) -> Node:
    call, value = node.graph.call_function, node.meta["val"]
    given: Any = node.args[0]
    zeros = call(aten.full.default, ([*value.shape], 0), {"dtype": value.dtype, "device": value.device})
    zeros.meta["val"] = value
    where: tuple[Any, ...] = (*node.args[1:], *(0, -2, -1)[len(node.args) - 1 :])
    return call(aten.diagonal_scatter.default, (zeros, given, *where))
