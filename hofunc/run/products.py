"""Products of matrices by a kernel that is compiled for their sizes, in place of calls of the BLAS that torch has.

Inductor leaves a product to BLAS, as a call through torch that tells shapes, strides and types anew; and BLAS is not
the fastest on each processor: that of torch makes no use of vectors of 512 bits on AMD's. Measured on one of these in
float32, one thread: 2 to 2.4 times as fast from 64 x 64 to 1024 x 1024, 1.3 to 1.6 times where the call is what takes
the time, and no less exact. Which kernel it is depends on sizes alone, so that results are the same in every process.
"""

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hofunc.run.fuse import KERNEL, substitute, without_factors

aten = torch.ops.aten

# Bytes of a right matrix, which is read again for every few rows of the left one: what a cache beside a processor has.
# A library does more about larger ones than the kernel does.
LARGEST = 1 << 22

LIBRARY = torch.library.Library("hofunc", "FRAGMENT")
LIBRARY.define("product(Tensor left, Tensor right, Tensor? added) -> Tensor")


def _product(left: Tensor, right: Tensor, added: Tensor | None) -> Tensor:
    return left @ right if added is None else added + left @ right


LIBRARY.impl("product", _product, "CompositeExplicitAutograd")

_PRODUCTS: frozenset[Any] = frozenset(
    {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default},
)


def by_own_products() -> dict[str, Any]:
    """Return the options of inductor with which products are by the kernel, in a backward pass too.

    What is added at indices is added in turn there.
    """
    from hofunc import internals_buffers, internals_loops, internals_scatters  # noqa: PLC0415 - import the compiler
    from hofunc.internals_products import has_products, with_products  # noqa: PLC0415 - likewise

    internals_scatters.add_in_turn(has_products)
    sources = [__file__, *(str(each.__file__) for each in (internals_buffers, internals_loops, internals_scatters))]
    return with_products(torch.ops.hofunc.product.default, own_products, sources)


def own_products(graph: Graph) -> None:
    """Replace products of matrices in a graph of aten ops, in place, which has no gradients then."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _PRODUCTS and _is_own(node):
            substitute(node, _call)


def _is_own(node: Node) -> bool:
    """Tell whether a product is one that the kernel is for."""
    operands: list[Any] = [*node.args]
    *added, left, right = [operand.meta["val"] for operand in operands]
    return bool(
        left.device.type == "cpu"
        and left.dtype in KERNEL
        and left.numel() > 0
        and 0 < right.numel() * right.element_size() <= LARGEST * (len(right) if right.dim() > 2 else 1)
        and all(each.dtype == left.dtype for each in added)
    )


def _call(node: Node) -> Node:
    call, product = node.graph.call_function, torch.ops.hofunc.product.default
    *added, left, right = without_factors(node)
    if not added:
        return call(product, (left, right, None))
    shape = node.meta["val"].shape
    (start,) = added
    if start.meta["val"].shape != shape:
        start = call(aten.expand.default, (start, [*shape]))
        start.meta["val"] = added[0].meta["val"].expand(shape)
    return call(product, (left, right, start))
