"""The functions that are differentiated, written once for torch and JAX: ops, constants, then the arguments.

None of them has a degenerate derivative: where the thesis of THOAD sums a softmax, which is constant, its sum is
weighted here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

Array = Any  # a torch tensor, or one of JAX


class Ops(NamedTuple):
    """What torch and JAX name differently; all else is methods and operators of arrays."""

    relu: Callable[[Array], Array]
    tanh: Callable[[Array], Array]
    silu: Callable[[Array], Array]
    sin: Callable[[Array], Array]
    softmax: Callable[[Array], Array]
    cross_entropy: Callable[[Array, Array], Array]
    convolve: Callable[[Array, Array], Array]
    exp: Callable[[Array], Array]
    add_at: Callable[[int, Array, Array], Array]  # rows of the last are added where the indices say, among so many


TORCH = Ops(
    torch.relu,
    torch.tanh,
    functional.silu,
    torch.sin,
    lambda x: torch.softmax(x, -1),
    functional.cross_entropy,
    partial(functional.conv2d, padding="same"),
    torch.exp,
    lambda count, index, values: values.new_zeros(count, *values.shape[1:]).index_add(0, index, values),
)


def thesis(ops: Ops, constants: tuple[Array, tuple[str, ...]], x: Array, *layers: Array) -> Array:
    """Return the thesis's network of x (..., n): layers (n, n), activations between, softmax, weighted sum (n,)."""
    weights, activations = constants
    for layer, activation in zip(layers, activations, strict=False):
        x = getattr(ops, activation)(x @ layer)
    return (ops.softmax(x @ layers[-1]) * weights).sum()


def thesis_by_input(ops: Ops, constants: tuple[Array, tuple[str, ...], tuple[Array, ...]], x: Array) -> Array:
    """Return the thesis's network with its layers among the constants."""
    *constants_of_all, layers = constants
    return thesis(ops, tuple(constants_of_all), x, *layers)


def flow(ops: Ops, constants: tuple[str, tuple[tuple[Array, Array], ...]], x: Array) -> Array:
    """Return the outputs (..., o) of a network of x (..., d), of layers with bias and one activation between."""
    activation, (*hidden, (weight, bias)) = constants
    for inner_weight, inner_bias in hidden:
        x = getattr(ops, activation)(x @ inner_weight + inner_bias)
    return x @ weight + bias


def perceptron(ops: Ops, constants: tuple[str, tuple[tuple[Array, Array], ...]], x: Array) -> Array:
    """Return the only output (...) of such a network."""
    return flow(ops, constants, x).squeeze(-1)


def attention(ops: Ops, constants: tuple[Array, Array, Array, Array], x: Array) -> Array:
    """Return the weighted sum of softmax attention among the rows of x (T, d)."""
    query, key, value, weights = constants
    scores = (x @ query) @ (x @ key).T / x.shape[-1] ** 0.5
    return ((ops.softmax(scores) @ (x @ value)) * weights).sum()


def classifier(ops: Ops, constants: tuple[Array, Array], parameters: dict[str, Array]) -> Array:
    """Return the mean cross-entropy of a tanh network with one hidden layer, on inputs (N, d) and targets (N,)."""
    inputs, targets = constants
    hidden = ops.tanh(inputs @ parameters["weight1"] + parameters["bias1"])
    return ops.cross_entropy(hidden @ parameters["weight2"] + parameters["bias2"], targets)


def convolutional(ops: Ops, constants: Array, x: Array, parameters: dict[str, Array]) -> Array:
    """Return the weighted sum of a tanh network of two convolutions of x (N, channels, height, width)."""
    inner = ops.tanh(ops.convolve(x, parameters["weight1"]) + parameters["bias1"])
    return (ops.tanh(ops.convolve(inner, parameters["weight2"]) + parameters["bias2"]) * constants).sum()


def convolutional_by_input(ops: Ops, constants: tuple[Array, dict[str, Array]], x: Array) -> Array:
    """Return the network of convolutions with its parameters among the constants."""
    weights, parameters = constants
    return convolutional(ops, weights, x, parameters)


def convolutional_by_parameters(ops: Ops, constants: tuple[Array, Array], parameters: dict[str, Array]) -> Array:
    """Return the network of convolutions with its input among the constants."""
    weights, x = constants
    return convolutional(ops, weights, x, parameters)
