"""Derivatives of a product are those of Leibniz.

Claim: D^k (f g) is the sum, over all sets S of slots, of D^|S| f in the slots of S times D^(k - |S|) g in the others.
Source: Leibniz's rule, written out here over subsets.
Falsifier: a subset that is missing or counted twice where two graphs meet in a product; orders of derivatives mixed up.
Tolerance: that of `verification.vectors`.
"""

from itertools import combinations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from verification.programs import Program, programs
from verification.vectors import assert_close, fitting, mixed, moved, vector

SLOTS = "abcdefgh"


@given(
    programs(max_ops=5, max_elements=8),
    programs(max_ops=5, max_elements=8),
    st.integers(1, 4),
    st.sampled_from(STRATEGIES),
)
def test_product_of_two_programs(first: Program, second: Program, order: int, strategy: str) -> None:
    f, x = mixed(vector(first))
    g, _ = moved(mixed(vector(second)), x)
    order = fitting(order, f, x)
    product = hofunc.hod(lambda x: f(x) * g(x), order, strategy=strategy)(x)
    of_f, of_g = hofunc.derivatives(f, order)(x), hofunc.derivatives(g, order)(x)
    assert_close(product, leibniz(of_f, of_g, order))


def leibniz(of_f: tuple[Tensor, ...], of_g: tuple[Tensor, ...], order: int) -> Tensor:
    """Return the derivative of a product, given those of its factors of all orders."""
    slots = SLOTS[:order]
    terms = []
    for size in range(order + 1):
        for chosen in map("".join, combinations(slots, size)):
            rest = "".join(slot for slot in slots if slot not in chosen)
            terms.append(torch.einsum(f"y{chosen},y{rest}->y{slots}", of_f[size], of_g[order - size]))
    return torch.stack(terms).sum(0)
