"""Derivatives of a composition are those of Faa di Bruno.

Claim: D^k (g o u) is the sum, over all partitions of the slots, of D^p g, p being the number of blocks, contracted with
the derivatives of u by the slots of every block.
Source: Faa di Bruno's formula over set partitions, written out here on dense tensors. hofunc uses it too, on labelled
terms of single ops: here it is about whole programs, whose derivatives are composed from outside.
Falsifier: a partition that is missing or counted twice, blocks contracted with the wrong slots, a node eliminated
early.
Tolerance: that of `verification.vectors`.
"""

from collections.abc import Iterator

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from verification.programs import Program, programs
from verification.vectors import assert_close, fitting, mixed, mixture, vector

SLOTS, INNER = "abcdefgh", "stuvwxyz"


@given(
    programs(max_ops=4, max_elements=6),
    programs(max_ops=4, max_elements=6),
    st.integers(1, 4),
    st.sampled_from(STRATEGIES),
)
def test_composition_of_two_programs(first: Program, second: Program, order: int, strategy: str) -> None:
    f, x = mixed(vector(first))
    g, y = mixed(vector(second))
    into, value = 0.5 * mixture(y.numel(), 2), f(x)

    def u(x: Tensor) -> Tensor:  # whose value at x is where the second program is smooth
        return y + into @ (f(x) - value)

    order = fitting(order, f, x)
    composed = hofunc.hod(lambda x: g(u(x)), order, strategy=strategy)(x)
    assert_close(composed, faa_di_bruno(hofunc.derivatives(g, order)(y), hofunc.derivatives(u, order)(x), order))


def faa_di_bruno(of_g: tuple[Tensor, ...], of_u: tuple[Tensor, ...], order: int) -> Tensor:
    """Return the derivative of a composition, given those of its parts of all orders."""
    slots = SLOTS[:order]
    terms = []
    for blocks in partitions(slots):
        inner = INNER[: len(blocks)]
        factors = [name + block for name, block in zip(inner, blocks, strict=True)]
        subscripts = f"o{inner},{','.join(factors)}->o{slots}"
        terms.append(torch.einsum(subscripts, of_g[len(blocks)], *(of_u[len(block)] for block in blocks)))
    return torch.stack(terms).sum(0)


def partitions(slots: str) -> Iterator[list[str]]:
    """Yield all partitions of slots into blocks."""
    if not slots:
        yield []
        return
    for smaller in partitions(slots[1:]):
        yield [slots[0], *smaller]
        for place, block in enumerate(smaller):
            yield [*smaller[:place], slots[0] + block, *smaller[place + 1 :]]
