"""Taylor series through a function, as jax.experimental.jet has them."""

from collections.abc import Callable, Sequence
from functools import partial, reduce, update_wrapper
from typing import Any, NamedTuple, cast

import torch

from hofunc.arguments import as_input, check_function, described, is_continuous, named_variables
from hofunc.given import refuse
from hofunc.graph.uncompiled import opaque
from hofunc.internals import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten
from hofunc.taps import Tapping, TapsMet
from hofunc.transforms import Names, derivatives

Function = Callable[..., Any]
Leaves = Sequence[torch.Tensor]


@opaque
def jet(f: Function, primals: Sequence[Any], series: Sequence[Sequence[Any]], *, wrt: Names = None) -> tuple[Any, Any]:
    """Return the value of f and its derivatives along a curve, of which those are given: f(x(t)) at t = 0.

    Args:
        f: Pure function, whose arguments and output may be pytrees.
        primals: Its arguments, x(0): floating-point tensors.
        series: For each argument its derivatives by t at 0, of orders 1 to k: the coefficients of Taylor, not divided
            by factorials. Each is like the argument; for all arguments there are as many.
        wrt: Names of parameters of f or of what it taps, as for `hofunc.hod`: these move, each by the series in its
            place, and all other arguments stay as they are and may be anything.

    Returns:
        ``f(*primals)``, and a pytree like it of lists, which are the derivatives of every tensor by t, of orders 1 to
        k. It is differentiable by autograd and under torch.func.

    Raises:
        ArgumentError: The series do not fit the primals. Other errors are those of `hofunc.hod`.

    Cost:
        Each node of f carries k + 1 numbers an element.

    Source:
        The meaning is that of jax.experimental.jet (Bettencourt, Johnson and Duvenaud, Taylor-mode automatic
        differentiation for higher-order derivatives in JAX, 2019).

    Example:
        >>> y, (first, second) = hofunc.jet(torch.exp, (torch.tensor(0.0),), ((torch.tensor(1.0), torch.tensor(0.0)),))
        >>> y, first, second
        (tensor(1.), tensor(1.), tensor(1.))
    """
    check_function("jet", f)
    if not _is_listed(primals):
        got = f"{type(primals).__name__}"
        refuse("jet", "primals", got, "a tuple with the arguments of f", "Pass jet(f, (x,), ((v,),)).")
    moving = _Moving.of(f, tuple(primals), series, wrt)
    leaves, spec = tree_flatten(moving.points)
    points = [*map(as_input, leaves)]
    _check_points(points)
    coefficients = _coefficients(points, spec, moving.series)
    dtype = reduce(torch.promote_types, [point.dtype for point in points]).to_real()
    start = torch.zeros((), dtype=dtype, device=points[0].device)
    on_curve = update_wrapper(partial(_on_curve, f, moving, spec), f, assigned=("__name__",), updated=())
    value, *orders = derivatives(on_curve, len(coefficients[0]))(start, points, coefficients)
    each, output = zip(*map(tree_leaves, orders), strict=True), tree_flatten(value)[1]
    return value, tree_unflatten([*map(list, each)], output)


class _Moving(NamedTuple):
    """What moves along a curve.

    Attributes:
        points: What it starts at: values of arguments, and changes of zeros of what is tapped.
        series: The derivatives of each.
        args: All arguments of the function.
        variables: The positions of the arguments that move, and names of taps.
        parameters: The names of those that are arguments, if they were named.
    """

    points: tuple[Any, ...]
    series: Any
    args: tuple[Any, ...]
    variables: tuple[int | str, ...]
    parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, f: Function, args: tuple[Any, ...], series: Any, wrt: Names) -> "_Moving":
        """Return what moves of a function that is called with some arguments."""
        if wrt is None:
            return cls(args, series, args, tuple(range(len(args))))
        names = (wrt,) if isinstance(wrt, str) else wrt
        variables, parameters = cast("tuple[tuple[int | str, ...], Any]", named_variables("jet", f, names, 0))
        if not isinstance(series, tuple | list) or len(series) != len(variables):
            got = str(len(series)) if isinstance(series, tuple | list) else type(series).__name__
            expected = f"a tuple of {len(variables)} series, one a name in wrt"
            refuse("jet", "series", got, expected, "Pass jet(f, args, ((v,),), wrt=('x',)).")
        for variable in variables:
            if isinstance(variable, int) and variable >= len(args):
                refuse("jet", "primals", f"{len(args)} arguments", f"{variable + 1} at least", "Pass what wrt names.")
        points = [
            args[each] if isinstance(each, int) else _unmoved(own) for each, own in zip(variables, series, strict=True)
        ]
        return cls(tuple(points), series, args, variables, parameters)

    def called(self, f: Function, moved: Sequence[Any]) -> Any:
        """Return what the function returns for what has moved."""
        by_variable = dict(zip(self.variables, moved, strict=True))
        args = [by_variable.get(place, arg) for place, arg in enumerate(self.args)]
        changes = {each: value for each, value in by_variable.items() if isinstance(each, str)}
        if not changes:
            return f(*args)
        try:
            with Tapping("jet", changes, tuple(changes), self.parameters):
                return f(*args)
        except TapsMet:
            got, remedy = (
                "coefficients of another structure, shape or dtype",
                "Make them like what hofunc.tap is given.",
            )
            refuse("jet", f"series for what is tapped as {' or '.join(changes)}", got, "those of the value", remedy)


def _unmoved(series: Any) -> Any:
    """Return the change that a tap starts with, like the first of its coefficients."""
    return tree_map(lambda value: torch.zeros_like(value) * -1, series[0] if _is_listed(series) and series else ())


def _on_curve(
    f: Function, moving: _Moving, spec: TreeSpec, t: torch.Tensor, points: Leaves, coefficients: Sequence[Leaves]
) -> Any:
    """Return f at a point of the curve."""
    moved = []
    for point, own in zip(points, coefficients, strict=True):
        rest = torch.zeros_like(point)
        for order in range(len(own), 0, -1):
            rest = (own[order - 1] + rest) * (t / order)
        moved.append(point + rest)
    return moving.called(f, tree_unflatten(moved, spec))


def _check_points(points: Sequence[Any]) -> None:
    for point in points:
        if not is_continuous(point):
            refuse(
                "jet",
                "a primal",
                described(point),
                "a floating-point tensor",
                "Bind what is none by functools.partial.",
            )
    if not points:
        refuse("jet", "primals", "none", "a tuple with the arguments of f", "Pass jet(f, (x,), ((v,),)).")


def _coefficients(points: Leaves, spec: TreeSpec, series: Any) -> list[list[torch.Tensor]]:
    """Return for every tensor of the primals its coefficients, of all orders."""
    counts = [len(own) for own in series] if isinstance(series, tuple | list) and all(map(_is_listed, series)) else []
    arguments = spec.num_children
    if len(counts) != arguments or len({*counts}) != 1 or not counts[0]:
        expected = f"{arguments} tuples, one a primal, each with as many coefficients, at least one"
        got = f"{len(counts)} of lengths {counts}" if counts else type(series).__name__
        refuse("jet", "series", got, expected, "Pass zeros for coefficients that vanish.")
    forms = [tuple(point.shape) for point in points]
    orders = [tree_flatten(tuple(own[order] for own in series)) for order in range(counts[0])]
    for order, (leaves, structure) in enumerate(orders, 1):
        shapes = [tuple(torch.as_tensor(leaf).shape) for leaf in leaves]
        if structure != spec or shapes != forms:
            what = f"series, at order {order}"
            refuse("jet", what, f"shapes {shapes}", f"the structure of the primals, and shapes {forms}", "Pass zeros.")
    return [[torch.as_tensor(leaves[n]).to(point) for leaves, _ in orders] for n, point in enumerate(points)]


def _is_listed(value: Any) -> bool:
    return isinstance(value, tuple | list)
