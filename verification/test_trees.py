"""Derivatives by pytrees are exact, and nested as they are, whatever shapes leaves have and however many there are.

Claim: products with vectors, derivatives along a vector, contractions with operands that are pytrees, and all blocks of
derivatives of orders one to three, by functions of one to ten leaves, some of them numbers, some without elements, are
those of torch.func, and have the structure that these have.
Source: a product with a vector is the sum over all leaves, each times its own part of the vector.
Falsifier: an operand that multiplies more than its own leaf; a leaf without axes, or without elements, that is taken
with others; a pytree of one leaf that is taken for a tensor; a result that is nested by what is summed over.
Tolerance: that of `verification.vectors`.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.contracted import STRATEGIES as OF_CONTRACTIONS
from verification.trees import Function, functions
from verification.vectors import assert_close, dense

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")

of_contractions = st.sampled_from(OF_CONTRACTIONS)


def along(f: Callable[[Any], Any], vector: Any) -> Callable[[Any], Any]:
    """Return the derivative along a vector."""
    return lambda point: torch.func.jvp(f, (point,), (vector,))[1]


def weighted(f: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
    """Return the sum of all that a function returns, with weights."""

    def loss(point: Any) -> Tensor:
        flat = torch.cat([y.reshape(-1) for y in tree_leaves(f(point))])
        return (flat * torch.linspace(0.5, 1.5, flat.numel(), dtype=flat.dtype)).sum()

    return loss


@given(functions(), of_contractions)
def test_products_with_vectors(f: Function, strategy: str) -> None:
    x, v = f.argument, f.like(1)
    slope = along(f, v)(x)
    assert_close(hofunc.jvp(f, strategy=strategy)(x, vector=v), slope)
    assert_close(hofunc.vjp(f, strategy=strategy)(x, cotangent=slope), torch.func.vjp(f, x)[1](slope)[0])
    products = torch.func.jacrev(along(f, v))(x)
    assert_close(hofunc.hvp(f, strategy=strategy)(x, vector=v), products)
    assert_close(hofunc.vhp(f, strategy=strategy).plan(x, vector=v)(x, vector=v), products)


@given(functions(), st.integers(1, 3), of_contractions)
def test_derivatives_along_a_vector(f: Function, order: int, strategy: str) -> None:
    x, v = f.argument, f.like(1)
    given: Callable[[Any], Any] = f
    value, *slopes = (reduce(along, [v] * k, given)(x) for k in range(order + 1))
    directional = hofunc.directional(f, order, strategy=strategy)
    assert_close(directional(x, vector=v), slopes[-1])
    assert_close(hofunc.jit(directional)(x, vector=v), slopes[-1])
    series = [v, *[tree_map(torch.zeros_like, v)] * (order - 1)]
    assert_close(hofunc.jet(f, (x,), (series,)), (value, tree_map(lambda *orders: [*orders], *slopes)))


@given(functions(), of_contractions)
def test_contractions_with_pytrees(f: Function, strategy: str) -> None:
    """The gradient of a loss of a third order: by a pytree of two vectors for each leaf, and a vector, summed over."""
    loss, x, v = weighted(f), f.argument, f.like(1)
    pair = tree_map(lambda *both: torch.stack(both, -1), f.like(2), f.like(3))
    contracted = hofunc.einsum(loss, ", *p, *q, *r, *q k, *r -> *p k", strategy=strategy)
    expected = [torch.func.grad(along(along(loss, v), f.like(seed)))(x) for seed in (2, 3)]
    assert_close(contracted(x, operands=(pair, v)), tree_map(lambda *both: torch.stack(both, -1), *expected))


@given(functions(), st.integers(1, 3), st.sampled_from(STRATEGIES), st.sampled_from(["dense", "compact"]))
def test_all_blocks(f: Function, order: int, strategy: str, layout: str) -> None:
    """All blocks times vectors are the gradient of a derivative along these."""
    loss, x = weighted(f), f.argument
    elements = sum(leaf.numel() for leaf in tree_leaves(x))
    while elements**order > 20_000:
        order -= 1
    vectors = [f.like(seed) for seed in range(1, order)]
    found = dense(hofunc.hod(loss, order, strategy=strategy, layout=layout)(x))
    if layout == "compact" and isinstance(found, hofunc.Blocks):
        found = found.dense()
    expected = torch.func.grad(reduce(along, vectors, loss))(x)
    assert_close([*_contracted(tree_leaves(found), x, vectors)], tree_leaves(expected))


def _contracted(blocks: list[Tensor], x: Any, vectors: list[Any]) -> list[Tensor]:
    """Return blocks times a vector in each slot but the first, summed."""
    shapes = [leaf.shape for leaf in tree_leaves(x)]
    for vector in reversed(vectors):
        parts, count = tree_leaves(vector), len(shapes)
        each = [
            torch.tensordot(block, part, part.dim()) for block, part in zip(blocks, parts * len(blocks), strict=False)
        ]
        blocks = [sum(each[start : start + count], torch.zeros(())) for start in range(0, len(each), count)]
    return blocks
