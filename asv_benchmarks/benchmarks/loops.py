"""Contractions of derivatives by torch.autograd.grad in loops over coordinates, as networks for equations are trained.

Where gradients are on, what is returned can be differentiated further.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .contractions import Contraction, Way
from .workloads import Function


def way(contraction: Contraction) -> Way:
    """Return the way to a contraction."""
    if contraction.kind == "product":
        return partial(_product, tree_flatten(contraction.operands[0])[0])
    if contraction.kind == "divergence":
        return lambda f: _tracked(lambda x, more: _trace(f(x), x, more))
    if contraction.kind == "partial":
        return partial(_partial, contraction.order)
    weight = contraction.operands[0] if contraction.operands else None
    laplacian = partial(_laplacian, weight)
    return laplacian if contraction.kind == "Laplacian" else lambda f: laplacian(laplacian(f))


def _tracked(inside: Callable[[Tensor, bool], Tensor]) -> Function:
    """Return a function of x that is followed by autograd, and of whether what it returns is."""

    def function(x: Tensor) -> Tensor:
        more = torch.is_grad_enabled()
        with torch.enable_grad():
            return inside(x if x.requires_grad else x.detach().requires_grad_(), more)

    return function


def _gradient(y: Tensor, x: Tensor, more: bool) -> Tensor:
    return torch.autograd.grad(y.sum(), x, create_graph=more, retain_graph=True)[0]


def _trace(y: Tensor, x: Tensor, more: bool) -> Tensor:
    columns = [_gradient(y[:, place], x, more)[:, place] for place in range(x.shape[1])]
    return torch.stack(columns).sum(0)


def _laplacian(weight: Tensor | None, f: Function) -> Function:
    def laplacian(x: Tensor, more: bool) -> Tensor:
        slope = _gradient(f(x), x, more=True)
        return _trace(slope if weight is None else slope @ weight, x, more)

    return _tracked(laplacian)


def _partial(order: int, f: Function) -> Function:
    def derivative(x: Tensor, more: bool) -> Tensor:
        y = f(x)
        for number in range(order):
            y = _gradient(y, x, more or number < order - 1)[:, 0]
        return y

    return _tracked(derivative)


def _product(vectors: list[Tensor], f: Function) -> Function:
    def product(x: Any) -> Any:
        more = torch.is_grad_enabled()
        leaves, spec = tree_flatten(x)
        with torch.enable_grad():
            inputs = [leaf if leaf.requires_grad else leaf.detach().requires_grad_() for leaf in leaves]
            slope = torch.autograd.grad(f(tree_unflatten(inputs, spec)), inputs, create_graph=True)
            return tree_unflatten([*torch.autograd.grad(slope, inputs, vectors, create_graph=more)], spec)

    return product
