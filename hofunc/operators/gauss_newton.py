"""Products with the generalised Gauss-Newton matrix, by those with a Jacobian and with the Hessian of a loss."""

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from hofunc.arguments import check_argnums, check_aux, check_function, named_variables
from hofunc.complex_tensors import is_complex, taken_apart
from hofunc.contracted import Einsum
from hofunc.dynamo import compilable
from hofunc.given import check_flag, refuse
from hofunc.internals import tree_leaves
from hofunc.operators.named import check_vector
from hofunc.operators.products import hvp
from hofunc.pattern import Pattern, Tree
from hofunc.plan.blueprint import Limits
from hofunc.spelling import spelt
from hofunc.transforms import Names

Function = Callable[..., Any]
Argnums = int | Sequence[int]


@spelt
def ggnvp(model: Function, loss: Function, argnums: Argnums = 0, *, wrt: Names = None, has_aux: bool = False) -> Einsum:
    """Return a function that computes the generalised Gauss-Newton matrix of loss(model(...)) times a vector.

    The matrix is J^T H J, with J the Jacobian of the model by its parameters, and H the Hessian of the loss by what the
    model returns: the Hessian of both, without what the curvature of the model adds to it.

    Args:
        model: Pure function of parameters, and of any other arguments; parameters and output may be pytrees.
        loss: Pure function of what the model returns, and of targets if these are given; a scalar.
        argnums: Which argument of the model holds its parameters, or a tuple of several.
        wrt: In place of argnums, names of parameters of the model or of what it taps, as for `hofunc.hod`.
        has_aux: Whether the model returns a pair of which the loss takes the first.

    Returns:
        Function with the signature of the model, a keyword argument ``vector``, a pytree like the parameters, or a
        tuple of such for several, and an optional one ``targets``, which is passed on to the loss. Its result is like
        the vector, or a pair with what the model returned beside. It has ``.plan``, and is differentiable.

    Raises:
        ArgumentError: The vector does not fit, the loss is no scalar, or the model has a parameter of such a name; or
            as from `hofunc.einsum`, as are the other errors.

    Cost:
        A call of the model, with a tangent and an adjoint; two where it writes in place, has complex outputs, or taps.

    Source:
        Schraudolph, Fast curvature matrix-vector products for second-order gradient descent (2002).

    Example:
        >>> w, x, y = torch.tensor([1.0, 2.0]), torch.eye(2), torch.zeros(2)
        >>> product = hofunc.ggnvp(lambda w, x: x @ w, lambda z, y: ((z - y) ** 2).sum())
        >>> product(w, x, vector=torch.tensor([1.0, 3.0]), targets=y)
        tensor([2., 6.])
    """
    if is_dynamo_compiling():
        return partial(_product, *_parts(model, loss, argnums, wrt, has_aux), has_aux)  # type: ignore[return-value]
    check_flag("ggnvp", "has_aux", has_aux)
    check_function("ggnvp", model)
    check_function("ggnvp", loss)
    if wrt is None:
        check_argnums("ggnvp", argnums)
    else:
        named_variables("ggnvp", model, wrt, argnums)
    return _GaussNewton(model, loss, argnums, wrt, has_aux)


def _parts(model: Function, loss: Function, argnums: Argnums, wrt: Names, has_aux: bool) -> tuple[Any, ...]:
    """Return the transforms for the output and its tangent, for H times one, and for an adjoint, also by parts."""
    variables: Any = argnums if wrt is None else wrt
    first, entry = (variables, variables) if isinstance(variables, int | str) else (variables[0], tuple(variables))
    forwards = _tangent(model, ("*o -> *o", "*o, *p, *p -> *o"), (first, (entry,)), wrt is None, has_aux)
    given = model, "*o, *p, *o -> *p", (entry,), wrt is None, has_aux
    return forwards, _curvature(loss), _adjoint(*given, by_parts=False), _adjoint(*given, by_parts=True)


@compilable
def _curvature(loss: Function) -> Einsum:
    return hvp(update_wrapper(partial(_number, loss), loss, assigned=("__name__",), updated=()))


def _number(loss: Function, *args: Any) -> torch.Tensor:
    """Return what a loss returns, which is to be one number."""
    result = loss(*args)
    if not isinstance(result, torch.Tensor) or result.dim():
        is_tensor = isinstance(result, torch.Tensor)
        got = f"a tensor of shape {tuple(result.shape)}" if is_tensor else type(result).__name__
        refuse("ggnvp", "the result of the loss", got, "a tensor of shape ()", "Return one number, as by .sum().")
    return result


def _by_parts(model: Function, has_aux: bool, *args: Any, **kwargs: Any) -> Any:
    """Return what a model returns, complex tensors by parts, as H times a tangent has them."""
    result = model(*args, **kwargs)
    output, *aux = check_aux("ggnvp", result) if has_aux else (result,)
    return (taken_apart(output), *aux) if has_aux else taken_apart(output)


class _Tangent(Einsum):
    """The output of the model and its tangent along the vector."""

    def _check_shapes(self, pattern: Pattern, output: Tree, slots: Sequence[Tree], operands: Sequence[Tree]) -> None:  # noqa: ARG002
        for vector in operands:
            check_vector("ggnvp", "vector", vector, slots[0])


@compilable
def _tangent(model: Function, pattern: Any, variables: Any, by_number: bool, has_aux: bool) -> Einsum:
    argnums, wrt = (variables, None) if by_number else (0, variables)
    return _Tangent("ggnvp", model, pattern, argnums, has_aux, "auto", Limits(), wrt)


@compilable
def _adjoint(
    model: Function, pattern: Any, variables: Any, by_number: bool, has_aux: bool, *, by_parts: bool
) -> Einsum:
    argnums, wrt = (variables, None) if by_number else (0, variables)
    if by_parts:
        model = update_wrapper(partial(_by_parts, model, has_aux), model, assigned=("__name__",), updated=())
    return Einsum("ggnvp", model, pattern, argnums, has_aux, "auto", Limits(), wrt)


class _GaussNewton(Einsum):
    """The product as a function of its own, which a plan records whole, and a call need not."""

    _keywords: tuple[str, ...] = ("vector", "targets")

    def __init__(self, model: Function, loss: Function, argnums: Argnums, wrt: Names, has_aux: bool):
        first: Any = argnums if isinstance(argnums, int) else argnums[0]
        product = partial(_product, *_parts(model, loss, argnums, wrt, has_aux), has_aux)
        self._product = update_wrapper(product, model, assigned=("__name__",), updated=())
        super().__init__("ggnvp", self._product, "*o -> *o", first if wrt is None else (), has_aux, "auto", Limits())
        self._keywords = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._product(*args, **kwargs)


def _product(
    forwards: Einsum, curvature: Einsum, backwards: Einsum, by_parts: Einsum, has_aux: bool, *args: Any, **kwargs: Any
) -> Any:
    """Return the product, given the transforms of which it consists, see above."""
    if "vector" not in kwargs:
        expected = "vector=..., beside the arguments of the model"
        refuse("ggnvp", "vector", "none", expected, "Pass a pytree like the parameters.")
    vector, targets = kwargs.pop("vector"), [kwargs.pop("targets")] if "targets" in kwargs else []

    def given(found: Any) -> tuple[Einsum, dict[str, Any]]:
        output, tangent = found[0] if has_aux else found
        transform = by_parts if any(map(is_complex, tree_leaves(output))) else backwards
        return transform, {**kwargs, "operands": (curvature(output, *targets, vector=tangent),)}

    return forwards.followed_by(args, {**kwargs, "operands": ((), (vector,))}, given)
