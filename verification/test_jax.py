"""hofunc agrees with JAX, where that is installed.

Claim: derivatives of orders 1 to 4 of a function written once in torch and once in JAX are the same.
Source: the definition of a derivative. Falsifier: a wrong rule or composition; JAX has its own formulas for all ops.
Tolerance: 1e-9 of the largest entry, as rounding is 1e-16 of terms that cancel.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import hofunc
from hofunc.arguments import STRATEGIES
from verification.oracles.jaxed import nested_jax
from verification.vectors import assert_close

jax = pytest.importorskip("jax")
jnp, nn, special = jax.numpy, jax.nn, jax.scipy.special

WEIGHT = [[0.3, -0.7, 0.2], [0.9, 0.4, -0.5], [-0.6, 0.1, 0.8]]

# The same function twice, of a matrix of 2 by 3 to one.
BOTH: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (torch.sin, jnp.sin),
    (torch.tanh, jnp.tanh),
    (torch.exp, jnp.exp),
    (torch.atan, jnp.arctan),
    (torch.erf, special.erf),
    (torch.expm1, jnp.expm1),
    (torch.special.log_ndtr, special.log_ndtr),
    (functional.silu, nn.silu),
    (functional.softplus, nn.softplus),
    (functional.gelu, partial(nn.gelu, approximate=False)),
    (functional.logsigmoid, nn.log_sigmoid),
    (lambda x: (x * x + 1).lgamma(), lambda x: special.gammaln(x * x + 1)),
    (lambda x: (x * x + 1).digamma(), lambda x: special.digamma(x * x + 1)),
    (lambda x: (x * x + 1) ** -1.5, lambda x: (x * x + 1) ** -1.5),
    (lambda x: x.softmax(1), lambda x: nn.softmax(x, 1)),
    (lambda x: x.log_softmax(0), lambda x: nn.log_softmax(x, 0)),
    (lambda x: x - x.logsumexp(1, keepdim=True), lambda x: x - special.logsumexp(x, 1, keepdims=True)),
    (lambda x: x.cumsum(1), lambda x: jnp.cumsum(x, 1)),
    (lambda x: x.cumprod(1), lambda x: jnp.cumprod(x, 1)),
    (lambda x: x @ x.new_tensor(WEIGHT), lambda x: x @ jnp.asarray(WEIGHT)),
    (lambda x: x @ x.T @ x, lambda x: x @ x.T @ x),
    (lambda x: x * x.var(1, keepdim=True), lambda x: x * x.var(1, keepdims=True, ddof=1)),
    (
        lambda x: torch.linalg.solve(x.T @ x + torch.eye(3, dtype=x.dtype), x.T).T,
        lambda x: jnp.linalg.solve(x.T @ x + jnp.eye(3), x.T).T,
    ),
    (
        lambda x: x * (x @ x.T + 2 * torch.eye(2, dtype=x.dtype)).logdet(),
        lambda x: x * _logdet(x @ x.T + 2 * jnp.eye(2)),
    ),
    (lambda x: torch.fft.rfft(x).real @ x.new_ones(2, 3), lambda x: jnp.fft.rfft(x).real @ jnp.ones((2, 3))),
]


def _logdet(matrix: Any) -> Any:
    return jnp.linalg.slogdet(matrix)[1]


def _chain(steps: Sequence[tuple[int, str]], library: int, x: Any) -> Any:
    """Apply functions in turn, each to the result before or together with it."""
    for number, join in steps:
        value = BOTH[number][library](x)
        x = {"then": value, "times": 0.5 * x * value, "plus": x - value}[join]
    return (x * x.sum(0)).sum(1)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@given(
    st.lists(
        st.tuples(st.integers(0, len(BOTH) - 1), st.sampled_from(("then", "times", "plus"))), min_size=1, max_size=3
    ),
    st.integers(0, 2**16),
    st.sampled_from(STRATEGIES),
)
def test_functions_of_both(order: int, steps: list[tuple[int, str]], seed: int, strategy: str) -> None:
    x = torch.rand(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 0.4
    got = hofunc.hod(partial(_chain, steps, 0), order, strategy=strategy)(x)
    assert_close(got, nested_jax(partial(_chain, steps, 1), order)(x))
