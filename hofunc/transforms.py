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
Argnums = int | Sequence[int]


def hod(
    f: Function,
    order: int = 2,
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    layout: str = "dense",
    strategy: str = "auto",
) -> Function:
    """Return a function that computes the exact derivative of f of the given order.

    f is recorded at every call, so that it may branch on values; the plan made from the recording is kept and used
    again for every recording of the same structure. The result is differentiable by autograd and under torch.func.

    Args:
        f: Pure function of tensors. With an output of shape (*out) and args[argnums] of shape (*in), the derivative
            has shape (*out, *in, *in, ...), with (*in) order times. Outputs and arguments may be pytrees.
        order: How often to differentiate, at least 1.
        argnums: The positional argument to differentiate by, or a tuple of several; other arguments and keyword
            arguments are passed on as they are.
        has_aux: Whether f returns a pair of which only the first is differentiated.
        layout: ``"dense"`` for tensors, or ``"compact"`` for a `hofunc.Derivative` in place of each.
        strategy: The direction in which derivatives are propagated: ``"reverse"`` eliminates nodes from the output to
            the input, ``"forward"`` propagates Taylor polynomials from the input to the output, ``"mixed"`` does so up
            to the order below and takes the highest by one adjoint pass; ``"auto"`` plans all and takes the cheapest.

    Returns:
        Function with f's signature. Its result nests as that of order nested ``torch.func.jacrev`` does: the
        structure of the output, in it that of the arguments for the first slot, in that for the second, and so on;
        a pair with what f returned beside it if has_aux. Blocks that are equal by Schwarz's theorem, up to the order
        of their slots, share memory. Dtype and device are those of the output.

    Raises:
        ArgumentError: An argument is not as described, or f returns anything but real floating-point tensors.
        MutationError: f writes to an input or to a captured tensor.
        BranchError: f branches on a value that an outer vmap batches.
        UntracedError: f uses a custom autograd.Function or torch.autograd.grad.
        UnsupportedOpError: f calls an op that can neither be differentiated by a rule nor by the fallback.

    Cost:
        One call of f with about 10 microseconds more per op, and the steps of the plan. For f from (N, d) to a scalar
        or to (N,) that treats rows independently, the compact result takes O(N d^order) memory.

    Source:
        The composition is Algorithms 1 and 3 of the thesis of THOAD (Montes Lorenzo, 2025), on labelled terms.

    Example:
        >>> hofunc.hod(lambda x: x**3, order=3)(torch.tensor(2.0))
        tensor(6.)
        >>> hofunc.hod(lambda w, x: (w @ x).exp(), argnums=(0, 1))(torch.zeros(2), torch.ones(2))[0][1]
        tensor([[1., 0.],
                [0., 1.]])
    """
    return _Transform("hod", f, order, argnums, has_aux, layout, strategy).function(
        (order,), lambda _, computed: computed[0]
    )


def derivatives(
    f: Function,
    order: int = 2,
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    layout: str = "dense",
    strategy: str = "auto",
) -> Function:
    """Return a function that computes f and its derivatives of every order up to the given one, from one recording.

    Args:
        f: As for `hod`.
        order: The highest order, at least 1.
        argnums: As for `hod`.
        has_aux: As for `hod`.
        layout: As for `hod`.
        strategy: As for `hod`.

    Returns:
        Function with f's signature; its result is the tuple (value, derivative of order 1, ..., of the given order),
        each derivative as from `hod`, or a pair of that tuple and aux.

    Raises:
        ArgumentError: As for `hod`, as are the other errors.

    Cost:
        That of `hod` of the highest order, and what only the lower ones need.

    Example:
        >>> value, slope, curvature = hofunc.derivatives(torch.sin, order=2)(torch.tensor(0.0))
        >>> value, slope, curvature
        (tensor(0.), tensor(1.), tensor(-0.))
    """
    transform = _Transform("derivatives", f, order, argnums, has_aux, layout, strategy)
    return transform.function(tuple(range(1, order + 1)), lambda value, computed: (value, *computed))


def jacobian(
    f: Function, argnums: Argnums = 0, *, has_aux: bool = False, layout: str = "dense", strategy: str = "auto"
) -> Function:
    """Return a function that computes the Jacobian of f: `hod` of order 1, with the same arguments and errors.

    Example:
        >>> hofunc.jacobian(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    return hod(f, 1, argnums, has_aux=has_aux, layout=layout, strategy=strategy)


def hessian(
    f: Function, argnums: Argnums = 0, *, has_aux: bool = False, layout: str = "dense", strategy: str = "auto"
) -> Function:
    """Return a function that computes the Hessian of f: `hod` of order 2, with the same arguments and errors.

    Example:
        >>> hofunc.hessian(lambda x: x.prod())(torch.tensor([1.0, 2.0, 3.0]))
        tensor([[0., 3., 2.],
                [3., 0., 1.],
                [2., 1., 0.]])
    """
    return hod(f, 2, argnums, has_aux=has_aux, layout=layout, strategy=strategy)


class _Transform:
    """What the transforms have in common: a function and checked options."""

    def __init__(self, name: str, f: Function, order: int, argnums: Argnums, has_aux: bool, layout: str, strategy: str):
        check_transform(name, f, order, argnums, layout, strategy)
        self.name, self.f, self.argnums, self.has_aux = name, f, argnums, has_aux
        self.layout, self.strategy = layout, strategy

    def function(self, orders: tuple[int, ...], choose: Callable[[Any, list], Any]) -> Function:
        """Return a function with f's signature that returns choose(value, derivatives of the orders)."""

        def transformed(*args: Any, **kwargs: Any) -> Any:
            return self._evaluated(orders, choose, args, kwargs)

        return update_wrapper(transformed, self.f, assigned=("__module__", "__name__", "__qualname__"), updated=())

    def _evaluated(self, orders: tuple[int, ...], choose: Callable[[Any, list], Any], args: tuple, kwargs: dict) -> Any:
        arguments = split(self.name, args, kwargs, self.argnums)

        def function(leaves: Sequence[torch.Tensor], rest: tuple[tuple, dict]) -> tuple[Any, Any]:
            args, kwargs = arguments.joined(leaves, rest)
            result = self.f(*args, **kwargs)
            output, aux = check_aux(self.name, result) if self.has_aux else (result, None)
            check_outputs(self.name, tree_flatten(output)[0])
            return output, aux

        recording = record(function, arguments.leaves, arguments.rest)
        output, _ = tree_unflatten(recording.leaves, recording.spec)
        spec = tree_flatten(output)[1]
        compact = self.layout == "compact"
        evaluation = evaluate(
            recording, arguments.leaves, spec.num_leaves, orders, compact=compact, strategy=self.strategy
        )
        tensors = iter(evaluation.tensors)
        leaves = [_value(next(tensors)) if isinstance(leaf, torch.Tensor) else leaf for leaf in recording.leaves]
        value, aux = tree_unflatten(leaves, recording.spec)
        block = evaluation.compact if compact else evaluation.dense
        computed = [
            tree_unflatten([_nested(block, k, (), order, arguments.spec) for k in range(spec.num_leaves)], spec)
            for order in orders
        ]
        chosen = choose(value, computed)
        return (chosen, aux) if self.has_aux else chosen


def _value(tensor: torch.Tensor) -> torch.Tensor:
    """Cut the history of a recorded tensor where gradients are off, since recording itself runs with them on."""
    return tensor if torch.is_grad_enabled() else tensor.detach()


def _nested(block: Callable, output: int, inputs: tuple[int, ...], order: int, spec: TreeSpec) -> Any:
    """Nest the blocks of one output by the inputs of each slot, the first slot outermost."""
    if len(inputs) == order:
        return block(output, inputs)
    return tree_unflatten(
        [_nested(block, output, (*inputs, number), order, spec) for number in range(spec.num_leaves)], spec
    )
