"""Products of matrices by a kernel that is compiled for their sizes, in place of calls of the BLAS that torch has.

Inductor leaves a product to BLAS, as a call through torch that tells shapes, strides and types anew; and BLAS is not
the fastest on each processor: that of torch makes no use of vectors of 512 bits on AMD's. Measured on one of these in
float32, one thread: 2 to 2.4 times as fast from 64 x 64 to 1024 x 1024, 1.3 to 1.6 times where the call is what takes
the time, and no less exact. Which kernel it is depends on sizes alone, so that results are the same in every process.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, Node

from hofunc.run.fuse import KERNEL, substitute, without_factors

aten = torch.ops.aten

# Bytes of a right matrix, which is read again for every few rows of the left one: what a cache beside a processor has.
# A library does more about larger ones than the kernel does.
LARGEST = 1 << 22
AXES = 3  # of what is scaled: directions, rows, and what is summed
SCALED = 1 << 20  # bytes of it, from which on it takes long to write and read: what a cache beside a processor has

LIBRARY = torch.library.Library("hofunc", "FRAGMENT")
LIBRARY.define("product(Tensor left, Tensor right, Tensor? added) -> Tensor")
LIBRARY.define("scaled_product(Tensor left, Tensor scale, Tensor right) -> Tensor")


def _product(left: Tensor, right: Tensor, added: Tensor | None) -> Tensor:
    return left @ right if added is None else added + left @ right


def _scaled_product(left: Tensor, scale: Tensor, right: Tensor) -> Tensor:
    return (left * scale) @ right


LIBRARY.impl("product", _product, "CompositeExplicitAutograd")
LIBRARY.impl("scaled_product", _scaled_product, "CompositeExplicitAutograd")

_PRODUCTS: frozenset[Any] = frozenset(
    {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default},
)
_VIEWS: frozenset[Any] = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default})


def by_own_products() -> dict[str, Any]:
    """Return the options of inductor with which products are by the kernel, in a backward pass too.

    What is added at indices is added in turn there.
    """
    from hofunc import internals_buffers, internals_loops, internals_scatters  # noqa: PLC0415 - import the compiler
    from hofunc.internals_products import has_products, with_products  # noqa: PLC0415 - likewise

    internals_scatters.add_in_turn(has_products)
    sources = [__file__, *(str(each.__file__) for each in (internals_buffers, internals_loops, internals_scatters))]
    ops = torch.ops.hofunc.product.default, torch.ops.hofunc.scaled_product.default
    return with_products(*ops, own_products, sources)


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
    factors = _factors(node)
    if factors is not None:
        return _scaled(node, *factors)
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


def _factors(node: Node) -> tuple[Node, Node] | None:
    """Return two tensors whose product, entry by entry, is the left matrix of a product, and is read there alone.

    One of them is smaller, as slopes of rows are that multiply several directions of each row.
    """
    taken: list[Any] = [*node.args]
    if node.target is not aten.mm.default or taken[0].op != "call_function" or taken[0].target not in _VIEWS:
        return None
    scaled, inner = cast(Any, taken[0].args[0]), taken[0].meta["val"].shape[-1]
    if (
        scaled.op != "call_function"
        or scaled.target is not aten.mul.Tensor
        or len(taken[0].users) + len(scaled.users) > 2
    ):
        return None
    made = scaled.meta["val"]
    if made.dim() != AXES or made.shape[-1] != inner or made.nbytes < SCALED:
        return None
    if not all(isinstance(each, Node) for each in scaled.args):
        return None
    one, other = scaled.args
    kinds = [each.meta["val"] for each in (one, other)]
    is_smaller = any(2 * kind.numel() <= made.numel() for kind in kinds)
    return (one, other) if is_smaller and all(kind.dtype == made.dtype for kind in kinds) else None


def _scaled(node: Node, *factors: Node) -> Node:
    """Write a product of a matrix that is itself a product entry by entry."""
    call, taken = node.graph.call_function, cast(Any, node.args)
    left, right = taken
    shape = left.args[0].meta["val"].shape
    operands = []
    for factor in factors:
        expanded = call(aten.expand.default, (factor, [*shape]))
        expanded.meta["val"] = factor.meta["val"].expand(shape)
        operands.append(expanded)
    product = call(torch.ops.hofunc.scaled_product.default, (*operands, right))
    product.meta["val"] = node.meta["val"].reshape(*shape[:-1], -1)
    return call(aten.reshape.default, (product, [*node.meta["val"].shape]))
