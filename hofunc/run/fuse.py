"""Small matrix products as a multiplication and a sum, which a compiler fuses with what is around them.

Inductor leaves a matrix product to the library as a call of its own, whose operands and result go through memory. For
products of a few numbers the call costs more than the product.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Node

aten = torch.ops.aten

# Measured on a CPU in float32, one thread, whole plans: the library wins from an inner dimension of 32 on.
SMALL_PRODUCT = 16384  # multiplications in all
SMALL_ITEM = 8192  # multiplications of one product of a batch ...
SMALL_INNER = 16  # ... over an inner dimension of at most this size

# Likewise where the kernel of `hofunc.run.products` takes the place of the library: it wins from an inner dimension of
# 8 on, and of 4 it does not. Fused, a graph convolution took 39 ms, of which the kernel takes 12.
KERNEL_INNER = 4
KERNEL = (torch.float32, torch.float64)  # the dtypes that it is for

# Inductor shares out a loop among threads that has so many steps for each, by itself from 512 on. Measured on two
# threads, on networks of small layers: 2 to 12 times as fast at 16384, and one of them 1.7 times as fast again at this.
STEPS_OF_A_THREAD = 65536

# What is compiled checks no shapes and strides of its own: a plan has, or the guards of torch.compile. It is a tenth of
# the time of small plans. Nor does inductor look for parts that a GPU may replay, at a twentieth of its time for a CPU.
INDUCTOR: dict[str, Any] = {"cpp.min_chunk_size": STEPS_OF_A_THREAD, "size_asserts": False, "graph_partition": False}


def fuse_products(module: GraphModule, is_fused: Callable[[Node], bool]) -> None:
    """Replace the products of matrices that are told in a graph of aten ops, in place, by multiplications and sums."""
    for node in list(module.graph.nodes):
        if node.op == "call_function" and node.target in _OPERANDS and is_fused(node):
            substitute(node, _fused)
    module.graph.lint()
    module.recompile()


_OPERANDS: dict[Any, slice] = {
    aten.mm.default: slice(0, 2),
    aten.bmm.default: slice(0, 2),
    aten.addmm.default: slice(1, 3),
}


def _operands(node: Node) -> list[Any]:
    """Return the nodes that a product multiplies."""
    return list(node.args[_OPERANDS[node.target]])


def is_tiny(node: Node) -> bool:
    """Tell whether a product is better fused than by the kernel."""
    left = _operands(node)[0].meta["val"]
    return is_small(node) and (left.shape[-1] <= KERNEL_INNER or left.dtype not in KERNEL)


def is_small(node: Node) -> bool:
    """Tell whether a product is better fused than by the library; it is where that was measured, on a CPU.

    As a loop that threads would share it is not: the library knows better when to do that.
    """
    left, right = (operand.meta["val"] for operand in _operands(node))
    inner, threads = left.shape[-1], torch.get_num_threads()
    item = left.shape[-2] * inner * right.shape[-1]
    steps = item * prod(left.shape[:-2])
    is_little = steps <= SMALL_PRODUCT or (item <= SMALL_ITEM and inner <= SMALL_INNER)
    is_shared = threads > 1 and steps // threads >= STEPS_OF_A_THREAD
    on_cpu = left.device.type == "cpu" and left.dtype.is_floating_point
    return bool(on_cpu and is_little and not is_shared)


def _fused(node: Node) -> Node:
    """Write a product as a multiplication and a sum."""
    *added, left, right = without_factors(node)
    call = node.graph.call_function
    factors = call(aten.unsqueeze.default, (left, -1)), call(aten.unsqueeze.default, (right, -3))
    result = call(aten.sum.dim_IntList, (call(aten.mul.Tensor, factors), [-2]))
    return call(aten.add.Tensor, (added[0], result)) if added else result


def without_factors(node: Node) -> list[Node]:
    """Return what a product takes, its factors `alpha` and `beta` multiplied into the smaller matrix and what is added.

    They are numbers, and what computes the matrices has those multiplications fused into it.
    """
    taken: list[Any] = [*node.args]
    sizes = [operand.meta["val"].numel() for operand in taken]
    places = {"alpha": len(taken) - (2 if sizes[-2] <= sizes[-1] else 1), "beta": 0}
    for name, factor in node.kwargs.items():
        if factor != 1:
            place = places[name]
            made = node.graph.call_function(aten.mul.Tensor, (taken[place], factor))
            made.meta["val"] = taken[place].meta["val"]
            taken[place] = made
    return taken


def substitute(node: Node, written: Callable[[Node], Node]) -> None:
    """Put in place of a node what a function writes, which is given the node and returns the new one."""
    with node.graph.inserting_before(node):
        result = written(node)
    result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
