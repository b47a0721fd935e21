"""The transforms: validate, record, plan, run, assemble."""

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from hofunc.arguments import check_aux, check_outputs, check_transform, split
from hofunc.graph.record import record
from hofunc.run.evaluate import evaluate

Function = Callable[..., Any]


def hod(
    f: Function, order: int = 2, argnums: int | Sequence[int] = 0, *, has_aux: bool = False, layout: str = "dense"
) -> Function:
    """Return a function that computes the exact order-th derivative of f."""
    transform = _Transform("hod", f, order, argnums, has_aux, layout)
    return transform.returning((order,), lambda value, derivatives: derivatives[0])


def derivatives(
    f: Function, order: int = 2, argnums: int | Sequence[int] = 0, *, has_aux: bool = False, layout: str = "dense"
) -> Function:
    """Return a function that computes f and its derivatives of every order up to the given one, in one pass."""
    transform = _Transform("derivatives", f, order, argnums, has_aux, layout)
    return transform.returning(tuple(range(1, order + 1)), lambda value, derivatives: (value, *derivatives))


def jacobian(f: Function, argnums: int | Sequence[int] = 0, *, has_aux: bool = False, layout: str = "dense") -> Function:
    """Return a function that computes the Jacobian of f: `hod` of order 1."""
    return hod(f, 1, argnums, has_aux=has_aux, layout=layout)


def hessian(f: Function, argnums: int | Sequence[int] = 0, *, has_aux: bool = False, layout: str = "dense") -> Function:
    """Return a function that computes the Hessian of f: `hod` of order 2."""
    return hod(f, 2, argnums, has_aux=has_aux, layout=layout)


class _Transform:
    """What all transforms of one function have in common: its checked options."""

    def __init__(
        self, name: str, f: Function, order: int, argnums: int | Sequence[int], has_aux: bool, layout: str
    ) -> None:
        check_transform(name, f, order, argnums, layout)
        self.name, self.f, self.argnums, self.has_aux, self.layout = name, f, argnums, has_aux, layout

    def returning(self, orders: tuple[int, ...], choose: Callable[[Any, list], Any]) -> Function:
        """Return a function with f's signature that returns choose(value, derivatives of the orders)."""

        def transformed(*args: Any, **kwargs: Any) -> Any:
            return self._evaluate(orders, choose, args, kwargs)

        return update_wrapper(transformed, self.f, assigned=("__module__", "__name__", "__qualname__"), updated=())

    def _evaluate(self, orders: tuple[int, ...], choose: Callable[[Any, list], Any], args: tuple, kwargs: dict) -> Any:
        arguments = split(self.name, args, kwargs, self.argnums)

        def function(leaves: Sequence[torch.Tensor], rest: tuple[tuple, dict]) -> tuple[Any, Any]:
            args, kwargs = arguments.joined(leaves, rest)
            result = self.f(*args, **kwargs)
            output, aux = check_aux(self.name, result) if self.has_aux else (result, None)
            check_outputs(self.name, tree_flatten(output)[0])
            return output, aux

        recording = record(function, arguments.leaves, arguments.rest)
        output, _ = tree_unflatten(recording.leaves, recording.spec)
        count, spec = tree_flatten(output)[1].num_leaves, tree_flatten(output)[1]
        evaluation = evaluate(recording, arguments.leaves, count, orders, compact=self.layout == "compact")
        supply = iter(evaluation.tensors)
        real = [next(supply) if isinstance(leaf, torch.Tensor) else leaf for leaf in recording.leaves]
        value, aux = tree_unflatten([_detached(leaf) for leaf in real], recording.spec)
        block = evaluation.compact if self.layout == "compact" else evaluation.dense
        nested = [
            tree_unflatten([_nested(block, k, (), order, arguments.spec) for k in range(count)], spec)
            for order in orders
        ]
        chosen = choose(value, nested)
        return (chosen, aux) if self.has_aux else chosen


def _detached(leaf: Any) -> Any:
    """Cut the history of a recorded tensor where gradients are off, since recording itself runs with them on."""
    return leaf.detach() if isinstance(leaf, torch.Tensor) and not torch.is_grad_enabled() else leaf


def _nested(block: Callable, output: int, inputs: tuple[int, ...], order: int, spec: TreeSpec) -> Any:
    """Nest the blocks of one output as order-fold nested torch.func.jacrev does: the first slot outermost."""
    if len(inputs) == order:
        return block(output, inputs)
    return tree_unflatten(
        [_nested(block, output, (*inputs, number), order, spec) for number in range(spec.num_leaves)], spec
    )


