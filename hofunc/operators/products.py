"""Products of derivatives with vectors, which are pytrees like what they stand for, and derivatives along a vector."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from hofunc.contracted import Einsum
from hofunc.dynamo import compilable
from hofunc.given import check_order
from hofunc.operators.named import Operator, Options

Function = Callable[..., Any]
Argnums = int | Sequence[int]


@compilable
def jvp(f: Function, argnums: Argnums = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes the Jacobian of f times a vector.

    Args:
        f: As for `hofunc.hod`: a pure function, whose arguments and output may be pytrees.
        argnums: The positional argument to differentiate by, or a tuple of several.
        **options: ``wrt``, as for `hofunc.hod`, and ``has_aux``, ``strategy``, ``chunk_size`` and ``max_bytes``, as for
            `hofunc.einsum`.

    Returns:
        Function with f's signature and a keyword argument ``vector``, a pytree like the argument, or a tuple of such
        for several; its result is like the output of f. It has ``.plan``, and the vector is differentiable too. That of
        a complex argument stands for real and imaginary part.

    Raises:
        ArgumentError: The vector does not fit, or f has a parameter of that name; or as from `hofunc.einsum`, as are
            the other errors.

    Cost:
        One tangent of every node of f.

    Example:
        >>> hofunc.jvp(torch.sin)(torch.zeros(2), vector=torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    return Operator("jvp", f, "*o, *p, *p -> *o", _slots(argnums, 1), ("vector",), **options)


@compilable
def vjp(f: Function, argnums: Argnums = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes a cotangent times the Jacobian of f.

    Args:
        f: As for `jvp`.
        argnums: As for `jvp`.
        **options: As for `jvp`.

    Returns:
        Function with f's signature and a keyword argument ``cotangent``, a pytree like the output of f; its result is
        like the argument, or a tuple for several; by real and imaginary part of a complex one, as of `hvp` and all
        derivatives. A complex cotangent is a factor as it is, where torch takes its conjugate.

    Raises:
        ArgumentError: As from `jvp`.

    Cost:
        One adjoint of every node of f.

    Example:
        >>> hofunc.vjp(torch.sin)(torch.zeros(2), cotangent=torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    return Operator("vjp", f, "*o, *p, *o -> *p", _slots(argnums, 1), ("cotangent",), **options)


@compilable
def hvp(f: Function, argnums: Argnums = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes the Hessian of f times a vector.

    Args:
        f: As for `jvp`; of a scalar, or of anything, whose every element then has a Hessian.
        argnums: As for `jvp`.
        **options: As for `jvp`.

    Returns:
        Function with f's signature and a keyword argument ``vector``, a pytree like the argument, or a tuple of such
        for several. Its result is like the argument too; of outputs that are no scalars the axes come first.

    Raises:
        ArgumentError: As from `jvp`.

    Cost:
        A tangent and two adjoints of every node of f.

    Example:
        >>> hofunc.hvp(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]), vector=torch.tensor([1.0, -1.0]))
        tensor([  6., -12.])
    """
    return Operator("hvp", f, "*o, *p, *q, *q -> *o *p", _slots(argnums, 2), ("vector",), **options)


@compilable
def vhp(f: Function, argnums: Argnums = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes a vector times the Hessian of f, which is `hvp`, as Hessians are symmetric.

    Args:
        f: As for `hvp`.
        argnums: As for `hvp`.
        **options: As for `hvp`.

    Returns:
        As from `hvp`.

    Raises:
        ArgumentError: As from `jvp`.

    Example:
        >>> hofunc.vhp(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]), vector=torch.tensor([1.0, -1.0]))
        tensor([  6., -12.])
    """
    return Operator("vhp", f, "*o, *p, *q, *p -> *o *q", _slots(argnums, 2), ("vector",), **options)


@compilable
def directional(f: Function, order: int = 1, argnums: Argnums = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes the derivative of f of an order along one vector: that of f(x + t v) by t.

    Args:
        f: As for `jvp`.
        order: The order, at least 1.
        argnums: As for `jvp`.
        **options: As for `jvp`.

    Returns:
        As from `jvp`, of which this is any order.

    Raises:
        ArgumentError: As from `jvp`, or the order is no positive int.

    Cost:
        Each node of f carries order + 1 numbers an element.

    Example:
        >>> hofunc.directional(lambda x: x.prod(), 2)(torch.tensor([1.0, 2.0]), vector=torch.tensor([1.0, 3.0]))
        tensor(6.)
    """
    check_order("directional", order)
    names = ", ".join(f"*p{number}" for number in range(order))
    pattern, vectors = f"*o, {names}, {names} -> *o", ("vector",) * order
    return Operator("directional", f, pattern, _slots(argnums, order), vectors, **options)


def _slots(argnums: Argnums, count: int) -> tuple[Any, ...]:
    """Return argnums in which every slot is one pytree, of several arguments a tuple."""
    return (tuple(argnums) if isinstance(argnums, list) else argnums,) * count
