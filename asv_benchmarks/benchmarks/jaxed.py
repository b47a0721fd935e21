"""Peers in JAX, jitted, where it is installed (`pip install .[peers]`): nests, and Taylor mode with polarisation."""

from collections.abc import Callable
from functools import partial, reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .functions import Array, Ops
from .jets import directions
from .nests import Call
from .symmetric import positions
from .workloads import Workload

AVAILABLE = find_spec("jax") is not None


def _ops(jax: Any) -> Ops:
    def cross_entropy(logits: Array, targets: Array) -> Array:
        return -jax.nn.log_softmax(logits)[jax.numpy.arange(len(targets)), targets].mean()

    numpy, neural = jax.numpy, jax.nn
    convolve = partial(jax.lax.conv, window_strides=(1, 1), padding="SAME")
    return Ops(neural.relu, numpy.tanh, neural.silu, numpy.sin, neural.softmax, cross_entropy, convolve)


def _call(jax: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> Call:
    jitted = jax.jit(function)
    return lambda: jax.block_until_ready(jitted(*args))


def nest(workload: Workload, names: tuple[str, ...]) -> Call:
    """Return a nest of jax.jacfwd and jax.jacrev, mapped over rows where these are independent."""
    jax = import_module("jax")
    f, args = workload.with_ops(_ops(jax), lambda tensor: jax.numpy.asarray(tensor.numpy()))
    return _call(jax, _nested(jax, workload, f, names), args)


def _nested(jax: Any, workload: Workload, f: Callable[..., Array], names: tuple[str, ...]) -> Callable[..., Any]:
    transform = reduce(lambda inner, name: getattr(jax, name)(inner, argnums=workload.argnums), reversed(names), f)
    if not workload.independent:
        return transform
    mapped = jax.vmap(transform)
    if workload.rows:
        return mapped

    def scattered(x: Array) -> Array:
        diagonal = jax.numpy.arange(len(x))
        zeros = jax.numpy.zeros((len(x), len(x), x.shape[1], x.shape[1]))
        return zeros.at[diagonal, diagonal].set(mapped(x)).transpose(0, 2, 1, 3)

    return scattered


def jet(workload: Workload) -> Call:
    """Return Taylor mode along one direction for each different entry, from which these are interpolated."""
    jax = import_module("jax")
    taylor = import_module("jax.experimental.jet").jet
    f, (x,) = workload.with_ops(_ops(jax), lambda tensor: jax.numpy.asarray(tensor.numpy()))
    order, width = workload.order, x.shape[1]
    along, inverse = (jax.numpy.asarray(tensor.numpy()) for tensor in directions(width, order))
    index = jax.numpy.asarray(positions(width, order).numpy())

    def one(row: Array, direction: Array) -> Array:
        series = [direction] + [jax.numpy.zeros_like(direction)] * (order - 1)
        return taylor(f, (row,), (series,))[1][-1]

    def derivative(x: Array) -> Array:
        values = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(x, along)  # (N, entries)
        return (values @ inverse.T)[:, index]

    return _call(jax, derivative, (x,))
