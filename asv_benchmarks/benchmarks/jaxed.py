"""Peers in JAX, jitted, where it is installed (`pip install .[peers]`): nests, and Taylor mode with polarisation.

Of contractions, what is by jvp, grad and vmap, jets along directions, and the forward Laplacian of folx, where that is
installed.
"""

from collections.abc import Callable
from functools import partial, reduce
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch.utils._pytree import tree_map

from . import operators
from .contractions import Contraction, Way, mean_square
from .functions import Array, Ops
from .jets import directions
from .nests import Call
from .symmetric import positions
from .ways import Peer
from .workloads import Workload

AVAILABLE = find_spec("jax") is not None


def _ops(jax: Any) -> Ops:
    def cross_entropy(logits: Array, targets: Array) -> Array:
        return -jax.nn.log_softmax(logits)[jax.numpy.arange(len(targets)), targets].mean()

    def add_at(count: int, index: Array, values: Array) -> Array:
        return jax.numpy.zeros((count, *values.shape[1:]), values.dtype).at[index].add(values)

    numpy, neural = jax.numpy, jax.nn
    convolve = partial(jax.lax.conv, window_strides=(1, 1), padding="SAME")
    same = neural.relu, numpy.tanh, neural.silu, numpy.sin, neural.softmax
    return Ops(*same, cross_entropy, convolve, numpy.exp, add_at)


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


# Contractions.


def contractions(contraction: Contraction) -> list[Peer]:
    """Return the ways to a contraction."""
    jax = import_module("jax")
    library = operators.Library(
        jax, jax.numpy.eye, lambda vector, x: jax.numpy.broadcast_to(vector, x.shape), partial(_arrays, jax)
    )
    ways = operators.ways(library, contraction)
    if contraction.kind in {"Laplacian", "biharmonic", "partial"}:
        ways["jet"] = partial(_along_directions, jax, contraction)
    if contraction.kind in {"Laplacian", "biharmonic"} and not contraction.operands and find_spec("folx") is not None:
        ways["folx"] = partial(_folx, contraction.order // 2)
    return [
        Peer(f"jitted JAX {name}", "compiled", partial(_contraction, jax, contraction, way))
        for name, way in ways.items()
    ]


def _arrays(jax: Any, tensors: Any) -> Any:
    return tree_map(lambda tensor: jax.numpy.asarray(tensor.detach().numpy()), tensors)


def _contraction(jax: Any, contraction: Contraction, way: Way) -> Call:
    """Return a way to a contraction, or the training step through it."""
    (x,), learned = _arrays(jax, contraction.args), _arrays(jax, contraction.learned)

    def contracted(learned: Any, x: Any) -> Any:
        return way(contraction.with_learned(learned, _ops(jax), partial(_arrays, jax)))(x)

    if not contraction.is_step:
        return _call(jax, contracted, (learned, x))
    by = 1 if contraction.by_args else 0
    return _call(jax, jax.grad(lambda learned, x: mean_square(contracted(learned, x)), by), (learned, x))


def _along_directions(jax: Any, contraction: Contraction, f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the weighted sum of derivatives along directions, each a jet of its own, mapped by vmap."""
    taylor = import_module("jax.experimental.jet").jet
    vectors, weights = _arrays(jax, contraction.directions())

    def one(x: Array, direction: Array) -> Array:
        spread = jax.numpy.broadcast_to(direction, x.shape)
        series = [spread] + [jax.numpy.zeros_like(x)] * (contraction.order - 1)
        return taylor(f, (x,), (series,))[1][-1]

    mapped = jax.vmap(one, (None, 0))
    return lambda x: weights @ mapped(x, vectors)


def _folx(times: int, f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the forward Laplacian of every row, taken so many times."""
    jax, forward_laplacian = import_module("jax"), import_module("folx").forward_laplacian

    def laplacian(inner: Callable[[Array], Array], _: int) -> Callable[[Array], Array]:
        return lambda row: forward_laplacian(inner)(row).laplacian

    mapped: Callable[[Array], Array] = jax.vmap(reduce(laplacian, range(times), f))
    return mapped
