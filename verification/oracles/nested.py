"""First-order differentiation of torch, nested."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Function = Callable[..., Any]
Argnums = int | tuple[int, ...]


def nested_reverse(f: Function, order: int, argnums: Argnums = 0) -> Function:
    """Nest ``torch.func.jacrev``.

    Cannot judge: norms and other ops whose backward formula is itself differentiated wrongly; order 3 and more at
    points where a lower derivative is infinite; ops without a batching rule are slow and warn. Memory grows with the
    product of the sizes of all lower derivatives.
    """
    for _ in range(order):
        f = torch.func.jacrev(f, argnums=argnums)
    return f


def nested_forward(f: Function, order: int, argnums: Argnums = 0) -> Function:
    """Nest ``torch.func.jacfwd``.

    Cannot judge: ops without a forward-mode formula. It shares formulas with `nested_reverse` in part.
    """
    for _ in range(order):
        f = torch.func.jacfwd(f, argnums=argnums)
    return f


def nested_forward_over_reverse(f: Function, order: int, argnums: Argnums = 0) -> Function:
    """Nest ``torch.func.jacfwd`` over one ``torch.func.jacrev``.

    Cannot judge: what neither of the two can, and ops whose backward formula has no forward-mode formula.
    """
    return nested_forward(torch.func.jacrev(f, argnums=argnums), order - 1, argnums)


def nested_autograd(f: Function, order: int, argnums: Argnums = 0) -> Function:
    """Nest ``torch.autograd.grad``, with a call for every element and no batching rules.

    Cannot judge: what `nested_reverse` cannot, but for wrong batching rules; it takes a call for every element of the
    derivative of the order below.
    """
    places = (argnums,) if isinstance(argnums, int) else argnums
    for _ in range(order):
        f = partial(_jacobian, f, places, isinstance(argnums, int))
    return lambda *args: tree_map(Tensor.detach, f(*args))


def _jacobian(f: Function, places: Sequence[int], single: bool, *args: Tensor) -> Any:
    """Differentiate f once, row by row, so that the result can be differentiated again."""
    inputs = list(args)
    with torch.enable_grad():
        for place in places:
            x = args[place]
            inputs[place] = x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
        variables = [inputs[place] for place in places]

        def of_one(y: Tensor) -> Any:
            rows = [_gradient(element, variables) for element in y.reshape(-1)]
            blocks = [
                torch.stack(column).reshape((*y.shape, *x.shape))
                for column, x in zip(zip(*rows, strict=True), variables, strict=True)
            ]
            return blocks[0] if single else tuple(blocks)

        return tree_map(of_one, f(*inputs))


def _gradient(y: Tensor, variables: Sequence[Tensor]) -> Sequence[Tensor]:
    if not y.requires_grad:
        return [torch.zeros_like(x) for x in variables]
    return torch.autograd.grad(y, variables, create_graph=True, allow_unused=True, materialize_grads=True)
