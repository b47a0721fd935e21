"""Large matrix products by oneDNN, where it is faster than the BLAS that torch has for matrices on a CPU.

Which of the two is faster is a matter of the processor and of sizes, and is measured; oneDNN may take less than half
the time. Inductor chooses it for constant matrices only, and those of a plan are arguments.
"""

import time
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from hofunc.graph.layout import Layout, layout_of
from hofunc.run.fuse import substitute

aten = torch.ops.aten

LARGE_PRODUCT = 1 << 20  # multiplications; below, calling oneDNN takes longer than the product
GAIN = 1.2  # by how much it has to be faster, to make up for results that are allocated anew
ROUNDS = 9

LIBRARY = torch.library.Library("hofunc", "FRAGMENT")
LIBRARY.define("product(Tensor left, Tensor right, Tensor? bias) -> Tensor")


def _product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(left, right.t(), bias, "none", [], "")


def _like_product(left: Tensor, right: Tensor, _: Tensor | None) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


LIBRARY.impl("product", _product, "CPU")
LIBRARY.impl("product", _like_product, "Meta")


def by_onednn(module: GraphModule) -> GraphModule:
    """Return a graph of aten ops with its large products by oneDNN where that is faster, which has no gradients.

    Some products of each size are done both ways, to time them.

    Args:
        module: The graph, which stays as it is.
    """
    result, measured = GraphModule(module, deepcopy(module.graph)), cache(ratio)
    for node in list(result.graph.nodes):
        if _is_for_onednn(node) and measured(*map(_layout, node.args[-2:])) > GAIN:
            substitute(node, _call)
    result.recompile()
    return result


def _call(node: Node) -> Node:
    *bias, left, right = node.args
    return node.graph.call_function(torch.ops.hofunc.product.default, (left, right, bias[0] if bias else None))


def _is_for_onednn(node: Node) -> bool:
    """Tell whether a node is a product that oneDNN can do and that may be large enough."""
    if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return False
    operands: list[Any] = [*node.args]
    *bias, left, right = [operand.meta["val"] for operand in operands]
    return bool(
        left.device.type == "cpu"
        and left.dtype == torch.float32
        and left.numel() * right.shape[1] >= LARGE_PRODUCT
        and all(each.dim() == 1 and each.is_contiguous() for each in bias)
        and torch.backends.mkldnn.is_available()
    )


def _layout(node: Any) -> Layout:
    """Return how what a node stands for lies in memory."""
    return layout_of(node.meta["val"])


def ratio(left: Layout, right: Layout) -> float:
    """Measure the time of a product by BLAS over that by oneDNN, the least of several rounds each.

    Args:
        left: How the left matrix lies in memory.
        right: How the right one does.
    """
    operands = _zeros(left), _zeros(right)
    with torch.no_grad():
        times = [
            (_seconds(torch.mm, *operands), _seconds(torch.ops.hofunc.product.default, *operands, None))
            for _ in range(ROUNDS)
        ]
    return min(blas for blas, _ in times) / min(onednn for _, onednn in times)


def _zeros(layout: Layout) -> Tensor:
    last = layout.offset + sum((n - 1) * step for n, step in zip(layout.size, layout.stride, strict=True))
    return torch.zeros(last + 1).as_strided(*layout)


def _seconds(product: Callable[..., Tensor], *operands: Tensor | None) -> float:
    started = time.perf_counter()
    product(*operands)
    return time.perf_counter() - started
