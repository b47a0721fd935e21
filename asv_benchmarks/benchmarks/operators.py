"""Contractions of derivatives by jvp, grad and vmap, as an expert writes them for torch.func and for JAX alike.

Rows are taken together: the gradient of the sum over rows is that of every row. Directions are mapped by vmap.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from .contractions import Contraction, Way
from .functions import Array

Field = Callable[[Array], Array]


class Library(NamedTuple):
    """A library with functional transforms.

    Attributes:
        transforms: The module that has jvp, grad, vmap, jacrev and hessian.
        eye: Returns a unit matrix.
        spread: Repeats a vector (d,) for every row of an array (N, d).
        convert: Makes an array of a tensor, or of each of those of a dict.
    """

    transforms: Any
    eye: Callable[[int], Array]
    spread: Callable[[Array, Array], Array]
    convert: Callable[[Any], Any]


TORCH_FUNC = Library(torch.func, torch.eye, lambda vector, x: vector.expand(x.shape), lambda tensors: tensors)


def ways(library: Library, contraction: Contraction) -> dict[str, Way]:
    """Return the ways to a contraction, by name."""
    kind, order = contraction.kind, contraction.order
    operand = library.convert(contraction.operands[0]) if contraction.operands else None
    if kind == "product":
        products = {"jvp(grad)": forward_product, "grad(grad)": reverse_product}
        return {name: partial(each, library, operand) for name, each in products.items()}
    if kind == "divergence":
        traces = {"vmap(jvp)": divergence, "vmap(jacrev), sum": traced_jacobian}
        return {name: partial(each, library) for name, each in traces.items()}
    if kind == "partial":
        nests = [["jvp"] * order, [*(["jvp"] * (order - 1)), "grad"]]
        return {"(".join(nest) + ")" * (order - 1): partial(_nested, library, nest) for nest in nests}
    weight = library.eye(contraction.args[0].shape[1]) if operand is None else operand
    forward, mixed = (partial(each, library, weight) for each in (forward_laplacian, mixed_laplacian))
    if kind == "biharmonic":
        return {
            "vmap(jvp(jvp)) twice": lambda f: forward(forward(f)),
            "vmap(jvp(grad)) of vmap(jvp(jvp))": lambda f: mixed(forward(f)),
            "vmap(jvp(grad)) twice": lambda f: mixed(mixed(f)),
        }
    whole = partial(traced_hessian, library, weight)
    return {"vmap(jvp(jvp))": forward, "vmap(jvp(grad))": mixed, "vmap(hessian), sum": whole}


def along(library: Library, f: Field, vector: Array) -> Field:
    """Return the derivative of a function along a vector, the same for every row."""
    return lambda x: library.transforms.jvp(f, (x,), (library.spread(vector, x),))[1]


def gradient(library: Library, f: Field) -> Field:
    """Return the gradient of every row."""
    found: Field = library.transforms.grad(lambda x: f(x).sum())
    return found


def _summed(library: Library, one: Callable[..., Array], *matrices: Array) -> Field:
    """Return the sum, over the rows of matrices, of a function of x and of a row of each."""
    mapped = library.transforms.vmap(one, (None, *(0 for _ in matrices)))
    return lambda x: mapped(x, *matrices).sum(0)


def forward_laplacian(library: Library, weight: Array, f: Field) -> Field:
    """Forward over forward along pairs of a unit vector and a row of the weight."""
    one = lambda x, a, b: along(library, along(library, f, a), b)(x)  # noqa: E731
    return _summed(library, one, library.eye(len(weight)), weight)


def mixed_laplacian(library: Library, weight: Array, f: Field) -> Field:
    """Forward over reverse along the rows of the weight, of which an entry is taken each."""
    one = lambda x, a, b: (along(library, gradient(library, f), b)(x) * a).sum(-1)  # noqa: E731
    return _summed(library, one, library.eye(len(weight)), weight)


def traced_hessian(library: Library, weight: Array, f: Field) -> Field:
    """Every row's Hessian, of which the weighted sum is taken."""
    hessians = library.transforms.vmap(library.transforms.hessian(f))
    return lambda x: (hessians(x) * weight).sum((1, 2))


def _nested(library: Library, nest: list[str], f: Field) -> Field:
    """Return the derivative of an order by the first number of every row, the last of the nest innermost."""

    def first(inner: Field) -> Field:
        return lambda x: along(library, inner, library.eye(x.shape[1])[0])(x)

    for name in reversed(nest):
        f = first(f) if name == "jvp" else gradient(library, f)
    return f if "grad" not in nest else lambda x: f(x)[:, 0]


def forward_product(library: Library, vector: Any, f: Field) -> Field:
    """Forward over reverse."""
    return lambda x: library.transforms.jvp(library.transforms.grad(f), (x,), (vector,))[1]


def reverse_product(library: Library, vector: Any, f: Field) -> Field:
    """Reverse over reverse."""

    def along_vector(x: Any) -> Array:
        found = library.transforms.grad(f)(x)
        pairs = [(found[key], vector[key]) for key in found] if isinstance(found, dict) else [(found, vector)]
        return sum((one * other).sum() for one, other in pairs)

    product: Field = library.transforms.grad(along_vector)
    return product


def divergence(library: Library, f: Field) -> Field:
    """Forward along every unit vector, of which an entry is taken each."""

    def of_rows(x: Array) -> Array:
        one = lambda x, a: (along(library, f, a)(x) * a).sum(-1)  # noqa: E731
        return _summed(library, one, library.eye(x.shape[1]))(x)

    return of_rows


def traced_jacobian(library: Library, f: Field) -> Field:
    """Every row's Jacobian, of which the trace is taken."""
    jacobians = library.transforms.vmap(library.transforms.jacrev(f))
    return lambda x: (jacobians(x) * library.eye(x.shape[1])).sum((1, 2))
