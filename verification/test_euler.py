"""Derivatives of homogeneous functions are those of Euler.

Claim: if f(t x) = t^p f(x) for all t > 0, then D^k f(x) x = (p - k + 1) D^(k-1) f(x), in any slot.
Source: Euler's theorem, applied to the derivatives of f, which are homogeneous of degree p - k + 1.
Falsifier: a derivative of an op that is wrong by a factor that depends on the order, which no symmetry shows.
Tolerance: that of `verification.vectors`. The functions are chains of ops that are homogeneous each; one that was made
homogeneous by division by a norm would fulfil the claim by the chain rule alone, whatever the rules of its ops are.
"""

from functools import reduce
from math import prod

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from hofunc.arguments import STRATEGIES
from verification.vectors import assert_close, mixture

SIZE = 3
# Functions from a vector to one of its size, with their degrees; all are smooth where entries and sums are not zero.
MAPS = [
    (lambda x: mixture(x.numel(), x.numel()) @ x, 1.0),
    (lambda x: x * x.roll(1), 2.0),
    (lambda x: x * x.sum(), 2.0),
    (lambda x: x**3, 3.0),
    (lambda x: x.square(), 2.0),
    (lambda x: x.abs().sqrt(), 0.5),
    (lambda x: x.abs() ** 1.5, 1.5),
    (lambda x: x.reciprocal(), -1.0),
    (lambda x: x / x.norm(), 0.0),
    (lambda x: x / x.flip(0), 0.0),
    (lambda x: x * x.square().sum().rsqrt(), 0.0),
    (lambda x: F.normalize(x, dim=0) + x / x.abs().sum(), 0.0),
    (lambda x: F.layer_norm(x, x.shape, eps=0.0), 0.0),
    (lambda x: x - x.mean(), 1.0),
    (lambda x: x.std() * x.cumsum(0), 2.0),
    (lambda x: x.var() / x, 1.0),
    (lambda x: torch.hypot(x, x.flip(0)), 1.0),
    (lambda x: torch.atan2(x, x.flip(0).abs()), 0.0),
    (lambda x: torch.maximum(x, x.roll(1)) + F.leaky_relu(x, 0.3), 1.0),
    (lambda x: torch.linalg.vector_norm(x, 3) * x.sign(), 1.0),
    (lambda x: torch.outer(x, x).sum(0), 2.0),
    (lambda x: torch.outer(x, x).cumsum(0).prod(0), 2.0 * SIZE),
    (lambda x: x.amax() * x.flip(0), 2.0),
]
chains = st.lists(st.sampled_from(MAPS), min_size=1, max_size=3)


@given(chains, chains, st.integers(0, 99), st.integers(1, 4), st.sampled_from(STRATEGIES))
def test_contraction_with_the_point(one: list, other: list, seed: int, order: int, strategy: str) -> None:
    degrees = [prod(degree for _, degree in chain) for chain in (one, other)]
    x = 0.4 + mixture(100, SIZE)[seed].abs() + torch.tensor([0.0, 0.7, 1.3], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:  # of the sum of both degrees
        first, second = (reduce(lambda y, step: step[0](y), chain, x) for chain in (one, other))
        return first * second.flip(0)

    below, derivative = hofunc.derivatives(f, order, strategy=strategy)(x)[-2:]
    assume(bool(derivative.isfinite().all()) and 1e-6 < float(derivative.abs().max()) < 1e6)
    for slot in range(order):
        assert_close(derivative.movedim(slot + 1, -1) @ x, (sum(degrees) - order + 1) * below, 1e-7)
