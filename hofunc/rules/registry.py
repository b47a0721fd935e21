"""The registry: which op follows which rule, and the functions that enter a rule in one line."""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from hofunc.algebra.labels import Axes, fresh_axes
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
from hofunc.errors import ArgumentError
from hofunc.graph.functions import as_op
from hofunc.graph.node import Call, Graph, Node, Ref, refs
from hofunc.internals import OpOverload
from hofunc.rules.axes import broadcast, subscripted
from hofunc.rules.expansion import Expansion
from hofunc.rules.kinds import (
    Composite,
    Constant,
    Elementwise,
    ElementwisePair,
    Linear,
    Masked,
    Multilinear,
    PiecewiseLinear,
    Rule,
    Site,
)

RULES: dict[Any, Rule | Composite | Expansion | Constant] = {}

# By name, those of ops that torch itself makes only where they are first called.
LATE_COMPOSITES: dict[str, Composite] = {}

# By op, what reads a node and those that it is computed from as a longer formula, if they are one.
FUSIONS: dict[Any, list[Callable[[Graph, Node], Rule | Composite | Constant | None]]] = {}

REAL = (-2.0, 2.0)
POSITIVE = (0.3, 3.0)
UNIT = (-0.8, 0.8)


def define(op: Any, rule: Rule | Composite | Expansion | Constant) -> None:
    """Enter the rule of an op.

    Args:
        op: The op, as ``torch.ops.aten.exp.default``, what ``torch.library.custom_op`` returns, or a subclass of
            ``torch.autograd.Function``, the ``apply`` of which is then recorded as one op.
        rule: Its rule.

    Raises:
        ArgumentError: It is no op, or has a rule already.
    """
    overload = _overload(op)
    if overload in RULES:
        raise ArgumentError(
            f"hofunc.rules: a rule for {overload}",
            got="a second one",
            expected="one rule for each op",
            remedy="Change the rule that there is, or write f with an op of your own.",
        )
    RULES[overload] = rule


def _overload(op: Any) -> Any:
    """Return the overload that recording will see."""
    if isinstance(op, type) and issubclass(op, torch.autograd.Function):
        return as_op(op, has_rule=True)
    overload = getattr(op, "_opoverload", op)  # of a custom op
    is_own = getattr(overload, "__module__", "").partition(".")[0] == "hofunc"  # recorded in place of what writes
    if not isinstance(overload, OpOverload) and not is_own:
        raise ArgumentError(
            "hofunc.rules: op",
            got=f"{op!r} of type {type(op).__name__}",
            expected="an overload of an op, a custom op, or a torch.autograd.Function",
            remedy="Name it as torch.ops.aten.exp.default; a FallbackWarning has the name of what f calls.",
        )
    return overload


def define_constant(op: Any) -> None:
    """Enter an op whose derivative is zero wherever it has one.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::steps", mutates_args=())
        ... def steps(x: torch.Tensor) -> torch.Tensor:
        ...     return x.floor()
        >>> hofunc.rules.define_constant(steps)
        >>> hofunc.jacobian(lambda x: x * steps(x))(torch.tensor(2.5))
        tensor(2.)
    """
    define(op, Constant())


def define_elementwise(
    op: Any,
    derivative: Callable,
    *,
    degree: int | Callable[..., int | None] | None = None,
    domain: tuple[float, float] = REAL,
) -> None:
    """Enter a function of one number, applied to every element of a tensor of any shape.

    Args:
        op: The op.
        derivative: ``derivative(x, y, r, *params)`` is its r-th derivative at x, of the shape of x, y its value.
        degree: The order from which on all derivatives vanish, less one; or a function of params that returns it.
        domain: The numbers between which it is smooth, and tests evaluate it; REAL if it is smooth everywhere.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::cube", mutates_args=())
        ... def cube(x: torch.Tensor) -> torch.Tensor:
        ...     return x**3
        >>> hofunc.rules.define_elementwise(
        ...     cube, lambda x, y, r: [y, 3 * x * x, 6 * x, torch.full_like(x, 6)][r], degree=3
        ... )
        >>> hofunc.hessian(cube)(torch.tensor(2.0))
        tensor(12.)
    """
    define(op, Elementwise(derivative, degree if callable(degree) else lambda *_, **__: degree, domain))


def define_piecewise_linear(op: Any, slope: Callable) -> None:
    """Enter a function of one number that is of straight pieces, and constant wherever its slope is zero.

    What follows is not differentiated where it is constant: ``x.clamp(-1, 1).acos()`` has a derivative of zero at 2,
    and not zero times the infinite slope of acos. The slope of ``abs`` is zero too, at its kink, around which it is not
    constant; it is a function of one number with ``degree=1``.

    Args:
        op: The op.
        slope: ``slope(x, y, *params)`` is its derivative at x, of the shape of x, y its value.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::floored", mutates_args=())
        ... def floored(x: torch.Tensor) -> torch.Tensor:
        ...     return x.clamp(min=0)
        >>> hofunc.rules.define_piecewise_linear(floored, lambda x, y: (x > 0).to(x.dtype))
        >>> hofunc.jacobian(lambda x: floored(x).sqrt())(torch.tensor(-1.0))
        tensor(0.)
    """

    def derivative(x: torch.Tensor, y: torch.Tensor, r: int, *params: Any, **keywords: Any) -> torch.Tensor:
        return slope(x, y, *params, **keywords)

    define(op, PiecewiseLinear(derivative, lambda *_, **__: 1, REAL))


def define_elementwise_pair(
    op: Any, derivative: Callable, *, degree: int | None = None, domain: tuple[float, float] = REAL
) -> None:
    """Enter a function of two numbers, applied to the elements of two tensors that are broadcast.

    Args:
        op: The op.
        derivative: ``derivative(x, z, r, s)`` is its derivative of order r by x and s by z, of their common shape.
        degree: The order by x from which on all derivatives vanish, less one; None if there is no such order.
        domain: The numbers between which tests evaluate it.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::grown", mutates_args=())
        ... def grown(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        ...     return x * z.exp()
        >>> hofunc.rules.define_elementwise_pair(
        ...     grown, lambda x, z, r, s: [x, torch.ones_like(x), torch.zeros_like(x)][min(r, 2)] * z.exp()
        ... )
        >>> hofunc.hessian(grown, argnums=(0, 1))(torch.tensor(3.0), torch.tensor(0.0))
        ((tensor(0.), tensor(1.)), (tensor(1.), tensor(3.)))
    """
    define(op, ElementwisePair(derivative, domain, degree))


def define_multilinear(op: Any, subscripts: str) -> None:
    """Enter a product of all the op's tensors, by its einsum subscripts; ``"...,...->..."`` broadcasts.

    Numbers among the positional arguments are factors too.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::products", mutates_args=())
        ... def products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ...     return x[:, None] * y
        >>> hofunc.rules.define_multilinear(products, "i,j->ij")
        >>> hofunc.hod(lambda x: products(x, x).sum(), order=2)(torch.ones(2))
        tensor([[2., 2.],
                [2., 2.]])
    """

    def scale(site: Site) -> float:
        return prod(arg for arg in site.node.args if isinstance(arg, int | float))

    define(op, Multilinear(lambda site: subscripted(subscripts, site.shapes), scale))


def define_relabelling(
    op: Any, relabel: Callable[..., Axes], *, scale: Callable[..., float] = lambda *_, **__: 1
) -> None:
    """Enter a linear op of one tensor whose elements are those of its input, or sums of them, in other places.

    Args:
        op: The op.
        relabel: Called with the op's arguments, the axes of the input in place of the tensor; returns the axes of
            the result. A label that it drops is summed, one that it adds is a broadcast.
        scale: Called likewise; returns the factor on every element.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::turned", mutates_args=())
        ... def turned(x: torch.Tensor) -> torch.Tensor:
        ...     return 2 * x.t()
        >>> hofunc.rules.define_relabelling(turned, lambda axes: axes[::-1], scale=lambda axes: 2)
        >>> hofunc.jacobian(lambda x: turned(x)[0, 1])(torch.ones(2, 2))
        tensor([[0., 0.],
                [2., 0.]])
    """

    def parts(site: Site) -> dict[int, list[Term]]:
        axes = fresh_axes(site.shapes[0])
        tensors = [axes, *site.operands[1:]]
        return {0: [Term(site.bind(scale, tensors), (), site.bind(relabel, tensors), (axes,))]}

    define(op, Linear(parts))


def define_sum(op: Any, weights: Callable[..., Sequence[float]]) -> None:
    """Enter a weighted sum of broadcast arguments.

    Args:
        op: The op. An argument that is a number rather than a tensor has no derivative.
        weights: Called with the op's arguments; returns the weight of each of the arguments that are added.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::mixed", mutates_args=())
        ... def mixed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ...     return 2 * x - y
        >>> hofunc.rules.define_sum(mixed, lambda x, y: (2, -1))
        >>> hofunc.jacobian(mixed, argnums=(0, 1))(torch.tensor(1.0), torch.tensor(1.0))
        (tensor(2.), tensor(-1.))
    """

    def parts(site: Site) -> dict[int, list[Term]]:
        operands, out = broadcast(*site.shapes)
        added = zip(site.node.args, site.bind(weights, site.operands), strict=False)
        of_tensors = [weight for arg, weight in added if isinstance(arg, Ref)]
        return {
            place: [Term(weight, (), out, (axes,))]
            for place, (axes, weight) in enumerate(zip(operands, of_tensors, strict=True))
        }

    define(op, Linear(parts))


def define_composite(op: Any, function: Callable) -> None:
    """Enter a short function of other ops that computes the same, tensors of any shapes to one or several.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::energy", mutates_args=())
        ... def energy(x: torch.Tensor) -> torch.Tensor:
        ...     return (x * x).sum()
        >>> hofunc.rules.define_composite(energy, lambda x: (x * x).sum())
        >>> hofunc.hessian(energy)(torch.ones(2))
        tensor([[2., 0.],
                [0., 2.]])
    """
    define(op, Composite(function))


def define_expansion(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter an op by the series of its change, as a decorator; see `Expansion`.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> @torch.library.custom_op("docs::squared", mutates_args=())
        ... def squared(x: torch.Tensor) -> torch.Tensor:
        ...     return x @ x
        >>> @hofunc.rules.define_expansion(squared)
        ... def squared_change(order, outputs, x):
        ...     return x.value @ x.change + x.change @ x.value + x.change @ x.change
        >>> hofunc.hod(lambda x: squared(x)[0, 0], order=2)(torch.ones(2, 2))[0, 1]
        tensor([[0., 0.],
                [1., 0.]])
    """

    def decorate(function: Callable[..., Any]) -> Callable:
        define(op, Expansion(function))
        return function

    return decorate


def define_linear(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a trickier linear op, as a decorator.

    The decorated function takes the site and then the op's arguments, with the axes of every operand in place of the
    tensor; it returns the terms by position.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> from hofunc.algebra.term import Term
        >>> @torch.library.custom_op("docs::tripled", mutates_args=())
        ... def tripled(x: torch.Tensor) -> torch.Tensor:
        ...     return 3 * x
        >>> @hofunc.rules.define_linear(tripled)
        ... def tripled_terms(site, x):
        ...     return {0: [Term(3, (), x, (x,))]}  # every label of the result is that of the operand
        >>> hofunc.jacobian(tripled)(torch.ones(2))
        tensor([[3., 0.],
                [0., 3.]])
    """

    def decorate(function: Callable[..., dict[int, list[Term]]]) -> Callable:
        def parts(site: Site) -> dict[int, list[Term]]:
            axes = [fresh_axes(shape) for shape in site.shapes]
            return site.bind(lambda *args, **kwargs: function(site, *args, **kwargs), axes)

        define(op, Linear(parts))
        return function

    return decorate


def define_masked(op: Any, masks: Callable[..., Sequence[Call | None]]) -> None:
    """Enter a linear or piecewise linear op of broadcast tensors that scales every element by a mask of its own.

    Where the mask is zero the result does not depend on the tensor, nor on numbers near those that it has.

    Args:
        op: The op.
        masks: Called with the op's arguments, Refs in place of tensors, and a Ref to the result as ``out``; returns
            the call that computes the mask of each tensor, or None for one without a derivative. The mask is of the
            shape of the result, or of that of the only tensor that the call takes.

    Raises:
        ArgumentError: It is no op, or has a rule already.

    Example:
        >>> from hofunc.graph.node import Call
        >>> @torch.library.custom_op("docs::ramp", mutates_args=())
        ... def ramp(x: torch.Tensor) -> torch.Tensor:
        ...     return x.clamp(min=0)
        >>> def is_positive(x: torch.Tensor) -> torch.Tensor:
        ...     return (x > 0).to(x.dtype)
        >>> hofunc.rules.define_masked(ramp, lambda x, out: [Call(is_positive, (x,))])
        >>> hofunc.jacobian(ramp)(torch.tensor([-1.0, 2.0]))
        tensor([[0., 0.],
                [0., 1.]])
    """

    def parts(site: Site) -> dict[int, list[Term]]:
        operands, out = broadcast(*site.shapes)
        calls = site.bind(partial(masks, out=Ref(site.node.number)), map(site.ref, range(len(operands))))
        numbers = [operand.number for operand in site.operands]

        def axes_of(call: Call) -> Axes:
            taken = {ref.node for ref in refs(call.args)}
            return operands[numbers.index(*taken)] if len(taken) == 1 and taken <= {*numbers} else out

        return {
            place: [Term(1, (Factor(call, axes_of(call)),), out, (axes,))]
            for place, (axes, call) in enumerate(zip(operands, calls, strict=True))
            if call is not None
        }

    define(op, Masked(parts))


def define_fusion(op: Any) -> Callable[[Callable[[Graph, Node], Rule | Composite | Constant | None]], Callable]:
    """Enter what recognises a formula of several ops by the last of them, or a form of one op, as a decorator.

    The decorated function takes a recorded graph and a node of the op, and returns the rule of that form, or what
    computes the same from the node's operands and is differentiated in place; None if it is no such form.
    """

    def decorate(function: Callable[[Graph, Node], Rule | Composite | Constant | None]) -> Callable:
        FUSIONS.setdefault(op, []).append(function)
        return function

    return decorate


def by_map(linear_map: Map, out: Axes, slot: Axes, outs: Axes, ins: Axes, separate: Axes = ()) -> Term:
    """Return the term of a linear map between some axes of its output and some axes of its slot."""
    return Term(1, (Factor(linear_map, (*outs, *ins, *separate)),), out, (slot,))
