"""Operators on fields: functions of points, whose coordinates are the last axis of an argument.

All axes before the last are rows, which the output has as well, first, whatever comes after: a scalar field takes
(..., n) to (...), a vector field to (..., m). What one row returns is differentiated by that row.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial as bind
from functools import update_wrapper
from typing import Any, Unpack, overload

import torch

from hofunc.arguments import check_aux
from hofunc.contracted import Einsum, SampledEinsum, estimated
from hofunc.dynamo import compilable
from hofunc.given import refuse
from hofunc.internals import tree_map_only
from hofunc.operators.named import Operator, Options, SampleOptions
from hofunc.pattern import Bound, Pattern, Tree, parsed
from hofunc.sampling import Estimate, check_unsampled

Function = Callable[..., Any]


@compilable
def gradient(f: Function, argnums: int = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes the gradient of every row: shape (..., *o, n) for an output (..., *o).

    Args:
        f: Pure function from points (..., n) to a field (..., *o), and of any other arguments. So are those of the
            other operators on fields. Of complex points the coordinates are real and imaginary parts (n, 2).
        argnums: The positional argument that holds the points; one tensor.
        **options: ``wrt``, one name, as for `hofunc.hod`, and ``has_aux``, ``strategy``, ``chunk_size`` and
            ``max_bytes``, as for `hofunc.einsum`.

    Returns:
        Function with f's signature; as from `hofunc.einsum`, with ``.plan``.

    Raises:
        ArgumentError: The argument is not one tensor of rows, the output does not begin with these; or as from
            `hofunc.einsum`, as are the other errors.

    Cost:
        An adjoint pass for each element of (*o), or n tangents, whichever is cheaper.

    Example:
        >>> x = torch.tensor([[1.0, 2.0], [0.0, 3.0]])
        >>> hofunc.gradient(lambda x: x[:, 0] * x[:, 1])(x)
        tensor([[2., 1.],
                [3., 0.]])
    """
    return _Field("gradient", f, "... *o, ... i -> ... *o i", argnums, **options)


@overload
def divergence(f: Function, argnums: int = 0, *, samples: None = None, **options: Unpack[Options]) -> Einsum: ...


@overload
def divergence(f: Function, argnums: int = 0, *, samples: int, **options: Unpack[SampleOptions]) -> Estimate: ...


@compilable
def divergence(f: Function, argnums: int = 0, *, samples: int | None = None, **options: Any) -> Einsum | Estimate:
    """Return a function that computes the divergence of every row: shape (..., *o) for an output (..., *o, n).

    Args:
        f: As for `gradient`; a vector field, or one of tensors, of which the last axis is summed.
        argnums: As for `gradient`.
        samples: As for `laplacian`: along how many random directions to estimate it, the same ones for all rows.
        **options: As for `laplacian`.

    Returns:
        As from `gradient`.

    Raises:
        ArgumentError: As from `gradient`, or the output has not n components.

    Cost:
        n tangents, or as many adjoints; the Jacobian is not kept. With samples, as many.

    Example:
        >>> hofunc.divergence(lambda x: x**2)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([12.])
    """
    pattern = "... *o i, ... i -> ... *o"
    if samples is not None:
        return _sampled("divergence", f, pattern, argnums, samples, **options)
    check_unsampled("divergence", "samples", options)
    return _Field("divergence", f, pattern, argnums, **options)


@compilable
def curl(f: Function, argnums: int = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes the curl of every row, in three dimensions (..., 3), in two a number (...).

    Args:
        f: As for `gradient`; a vector field in three dimensions, or in two.
        argnums: As for `gradient`.
        **options: As for `gradient`.

    Returns:
        As from `gradient`. In two dimensions it is d f_1 / d x_0 - d f_0 / d x_1.

    Raises:
        ArgumentError: As from `divergence`, or there are other than two or three components.

    Cost:
        That of `divergence`: it is the divergence of the product with the Levi-Civita symbol.

    Example:
        >>> hofunc.curl(lambda x: torch.stack([-x[..., 1], x[..., 0]], -1))(torch.zeros(2, 2))
        tensor([2., 2.])
    """
    spun = update_wrapper(bind(_spun, f, options.get("has_aux", False)), f, assigned=("__name__",), updated=())
    return _Curl("curl", spun, "... *o i, ... i -> ... *o", argnums, **options)


@overload
def laplacian(f: Function, argnums: int = 0, *, samples: None = None, **options: Unpack[Options]) -> Einsum: ...


@overload
def laplacian(f: Function, argnums: int = 0, *, samples: int, **options: Unpack[SampleOptions]) -> Estimate: ...


@compilable
def laplacian(f: Function, argnums: int = 0, *, samples: int | None = None, **options: Any) -> Einsum | Estimate:
    """Return a function that computes the Laplacian of every row: shape (..., *o) for an output (..., *o).

    Args:
        f: As for `gradient`.
        argnums: As for `gradient`.
        samples: Along how many random directions to estimate it, for a great many coordinates; None to compute it.
        **options: As for `gradient`; with samples ``directions``, ``generator`` and ``with_error`` as well, as for the
            ``estimate`` of `hofunc.einsum`.

    Returns:
        As from `gradient`, with an optional keyword argument ``weight``, by which second derivatives are weighted:
        a matrix (n, n), as of diffusion, one a row (..., n, n), or the diagonal of one, (n,). An estimate has no
        weight.

    Raises:
        ArgumentError: As from `gradient`, or the weight does not fit, or f has a parameter of that name.

    Cost:
        Each node of f carries n + 2 numbers; with a matrix for a weight as well. With samples, as many and 2.

    Example:
        >>> x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.5], [0.5, 0.0]])
        >>> hofunc.laplacian(lambda x: (x**3).sum(-1))(x)
        tensor([18.])
        >>> hofunc.laplacian(lambda x: (x**3).sum(-1))(x, weight=weight)
        tensor([6.])
    """
    if samples is not None:
        return _sampled("laplacian", f, "... *o, ... i, ... i -> ... *o", argnums, samples, **options)
    check_unsampled("laplacian", "samples", options)
    return _Laplacian("laplacian", f, "... *o, ... i, ... i -> ... *o", argnums, ("weight",), **options)


@overload
def biharmonic(f: Function, argnums: int = 0, *, samples: None = None, **options: Unpack[Options]) -> Einsum: ...


@overload
def biharmonic(f: Function, argnums: int = 0, *, samples: int, **options: Unpack[SampleOptions]) -> Estimate: ...


@compilable
def biharmonic(f: Function, argnums: int = 0, *, samples: int | None = None, **options: Any) -> Einsum | Estimate:
    """Return a function that computes the Laplacian of the Laplacian of every row: shape (..., *o).

    Args:
        f: As for `gradient`.
        argnums: As for `gradient`.
        samples: As for `laplacian`, of pairs of directions.
        **options: As for `laplacian`.

    Returns:
        As from `gradient`.

    Raises:
        ArgumentError: As from `gradient`.

    Cost:
        Each node of f carries about n (n + 5) / 2 + 2 numbers; with samples about seven times as many as these are.

    Example:
        >>> hofunc.biharmonic(lambda x: (x**2).sum(-1) ** 2)(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([120.])
    """
    pattern = "... *o, ... i, ... i, ... j, ... j -> ... *o"
    if samples is not None:
        return _sampled("biharmonic", f, pattern, argnums, samples, **options)
    check_unsampled("biharmonic", "samples", options)
    return _Field("biharmonic", f, pattern, argnums, **options)


@compilable
def hessian_diagonal(f: Function, argnums: int = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes the second derivative of every row along every axis: shape (..., *o, n).

    Args:
        f: As for `gradient`.
        argnums: As for `gradient`.
        **options: As for `gradient`.

    Returns:
        As from `gradient`.

    Raises:
        ArgumentError: As from `gradient`.

    Cost:
        Each node of f carries 2 n + 1 numbers.

    Example:
        >>> hofunc.hessian_diagonal(lambda x: (x**3).sum(-1))(torch.tensor([[1.0, 2.0]]))
        tensor([[ 6., 12.]])
    """
    return _Field("hessian_diagonal", f, "... *o, ... i, ... i -> ... *o i", argnums, **options)


@compilable
def partial(f: Function, coordinates: Sequence[int], argnums: int = 0, **options: Unpack[Options]) -> Einsum:
    """Return a function that computes one partial derivative of every row: shape (..., *o) for an output (..., *o).

    Args:
        f: As for `gradient`.
        coordinates: The coordinates to differentiate by, counted from 0: (0, 0, 1) for u_xxy.
        argnums: As for `gradient`.
        **options: As for `gradient`.

    Returns:
        As from `gradient`.

    Raises:
        ArgumentError: As from `gradient`, or there is no such coordinate.

    Cost:
        Each node of f carries one number for every choice of some of the coordinates: k + 1 for the k-th derivative by
        one of them, up to 2^k for k different ones.

    Example:
        >>> hofunc.partial(lambda x: x[:, 0] ** 3 * x[:, 1], (0, 0, 1))(torch.tensor([[2.0, 5.0]]))
        tensor([12.])
    """
    is_several = isinstance(coordinates, tuple | list) and coordinates
    if not is_several or not all(type(each) is int and each >= 0 for each in coordinates):
        expected = "a tuple of numbers from 0 on"
        refuse("partial", "coordinates", repr(coordinates), expected, "u_xxy is partial(u, (0, 0, 1)).")
    pattern = f"... *o, {', '.join(f'... {each}' for each in coordinates)} -> ... *o"
    return _Field("partial", f, pattern, argnums, **options)


class _Field(Operator):
    """An operator on a field, given by its pattern, by one argument that is a tensor."""

    def __init__(
        self,
        name: str,
        f: Function,
        pattern: str,
        argnums: Any,
        vectors: tuple[str, ...] = (),
        **options: Unpack[Options],
    ):
        for what, given in (("argnums", argnums), ("wrt", options.get("wrt"))):
            if isinstance(given, tuple | list):
                refuse(name, what, repr(given), "the one argument that holds the points", _of_one_tensor(name))
        super().__init__(name, f, pattern, (argnums,) * pattern.count(","), vectors, **options)

    def _bind(self, pattern: Pattern, argnums: Any, operands: Sequence[Any], arguments: Any, output: Tree) -> Bound:
        if True in arguments.are_complex[:1]:
            pattern = _of_parts(pattern, arguments.name_of(0))
        return super()._bind(pattern, argnums, operands, arguments, output)

    def _check_shapes(self, pattern: Pattern, output: Tree, slots: Sequence[Tree], operands: Sequence[Tree]) -> None:  # noqa: ARG002
        shapes = [self._returned(output.given(leaf)) for leaf in range(len(output.shapes))]
        _check_field(self._options.name, pattern, slots[0], shapes)

    def _returned(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of what f returns, given that of what is differentiated."""
        return tuple(shape)


class _Curl(_Field):
    """The curl, as a divergence of the product with the Levi-Civita symbol."""

    def _returned(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape[:-1] if shape[-1] == 3 else shape)


class _SampledField(SampledEinsum):
    """An operator on a scalar field or on any, of which sums over coordinates are estimated."""

    def _bind(self, pattern: Pattern, argnums: Any, operands: Sequence[Any], arguments: Any, output: Tree) -> Bound:
        if True in arguments.are_complex[:1]:
            remedy = "Differentiate by the parts: torch.view_as_real(z).flatten(-2)."
            refuse(self._options.name, arguments.name_of(0), "a complex tensor", "real points, to be sampled", remedy)
        return super()._bind(pattern, argnums, operands, arguments, output)

    def _check_shapes(self, pattern: Pattern, output: Tree, slots: Sequence[Tree], operands: Sequence[Tree]) -> None:  # noqa: ARG002
        _check_field(self._options.name, pattern, slots[0], [*map(output.given, range(len(output.shapes)))])


def _of_parts(pattern: Pattern, name: str) -> Pattern:
    """Return the pattern of an operator for complex points, whose coordinates are real and imaginary parts.

    Raises:
        ArgumentError: It takes coordinates one by one, or as those of a vector field, of which parts are none.
    """
    groups = [pattern.output, *pattern.others]
    tokens = [token for group in groups for token in group.tokens]
    if any(token.is_number for token in tokens) or any(token.text == "i" for token in pattern.output.tokens):
        expected = "real points, as it tells coordinates apart"
        remedy = "Differentiate by torch.view_as_real(z), or write what you mean for einsum."
        refuse(pattern.transform, name, "a complex tensor", expected, remedy)
    return parsed(pattern.transform, re.sub(r"\b([ij])\b", r"\1 \1_", pattern.text))


def _sampled(name: str, f: Function, pattern: str, argnums: Any, samples: Any, **options: Any) -> Estimate:
    """Return an estimate of an operator, whose sums are over the coordinates i and j."""
    if type(samples) is not int or samples < 1:
        refuse(name, "samples", repr(samples), "an int of at least 1, or None", "Leave it out for what is exact.")
    labels = [label for label in ("i", "j") if f"... {label}" in pattern]
    return estimated(name, f, pattern, argnums, dict.fromkeys(labels, samples), kind=_SampledField, **options)


def _check_field(name: str, pattern: Pattern, points: Tree, shapes: Sequence[tuple[int, ...]]) -> None:
    """Check that an argument holds points, and that f returns a field of them, of vectors where the pattern has these.

    Raises:
        ArgumentError: They do not.
    """
    if not points.spec.is_leaf():
        got = f"a pytree of {len(points.numbers)} tensors"
        refuse(name, points.name, got, "one tensor, whose last axis is that of coordinates", _of_one_tensor(name))
    shape = points.given(0)
    if not shape:
        remedy = "The last axis is that of coordinates: x.reshape(1) is a point on a line."
        refuse(name, points.name, "a tensor of shape ()", "points, of shape (..., n)", remedy)
    *rows, size = shape
    places = [token.text for group in pattern.others for token in group.tokens if token.is_number]
    if (largest := max(map(int, places), default=-1)) >= size:
        expected = f"numbers below {size}, as {points.name} has shape {shape}"
        refuse(name, "coordinates", f"{largest}", expected, "Coordinates are counted from 0.")
    components = [size] if len(pattern.output.tokens) > 2 else []
    for found in shapes:
        are_rows, rest = [*found[: len(rows)]] == rows, found[len(rows) :]
        if not are_rows or (components and [*rest[-1:]] != components):
            expected = f"({', '.join(map(str, [*rows, '...', *components]))}), as {points.name} has shape {shape}"
            remedy = "A field has a vector of as many components for each point."
            remedy = remedy if are_rows else f"{_ROWS}{_WHOLE if name == 'gradient' else ''}"
            refuse(name, "the output of f", f"a tensor of shape {found}", expected, remedy)


_ROWS = "All axes of points but the last come first: to sum over coordinates alone, write .sum(-1)."
_WHOLE = " By whole tensors or pytrees, as of a loss by parameters, differentiate with hofunc.jacobian or hofunc.vjp."


def _of_one_tensor(name: str) -> str:
    """Tell what to do where coordinates are not in one tensor."""
    return f"Put all coordinates into one tensor{'.' + _WHOLE if name == 'gradient' else _BY_PATTERN}"


_BY_PATTERN = ", or write a pattern for einsum."


class _Laplacian(_Field):
    """The Laplacian, with a weight or without."""

    _weighted: Mapping[int, Pattern] = {
        1: parsed("laplacian", "... *o, ... i, ... i, i -> ... *o"),
        2: parsed("laplacian", "... *o, ... i, ... j, i j -> ... *o"),
        3: parsed("laplacian", "... *o, ... i, ... j, ... i j -> ... *o"),
    }

    def _given(self, given: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return [[*given.values()]]

    def _bind(self, pattern: Pattern, argnums: Any, operands: Sequence[Any], arguments: Any, output: Tree) -> Bound:
        for weight in operands:
            if not isinstance(weight, int):
                refuse("laplacian", "weight", type(weight).__name__, "a tensor", "Pass one of shape (n, n).")
            points, shape = arguments.leaves[0].shape, arguments.leaves[weight].shape
            shape = shape[:-1] if arguments.are_complex[weight] else shape
            if True in arguments.are_complex[:1]:
                expected, remedy = "none", "Differentiate by the parts: torch.view_as_real(z).flatten(-2)."
                refuse("laplacian", "weight", f"one for {arguments.name_of(0)}, which is complex", expected, remedy)
            _check_weight(shape, points, arguments.name_of(0))
            rank = len(shape)
            pattern = self._weighted[min(rank, 3)]
        return super()._bind(pattern, argnums, operands, arguments, output)


def _check_weight(shape: Sequence[int], points: Sequence[int], name: str) -> None:
    """Check that a weight is one number for each coordinate, or a matrix, for all points or for each.

    Raises:
        ArgumentError: It is not.
    """
    fitting = [points[-1:], (*points[-1:], *points[-1:]), (*points, *points[-1:])]
    if points and tuple(shape) not in [tuple(each) for each in fitting]:
        expected = f"{' or '.join(str(tuple(each)) for each in dict.fromkeys(map(tuple, fitting)))}"
        remedy = "A weight is a matrix, one for each point, or the diagonal of one; multiply the result by a number."
        expected = f"{expected}, as {name} has shape {tuple(points)}"
        refuse("laplacian", "weight", f"a tensor of shape {tuple(shape)}", expected, remedy)


def _spun(f: Function, has_aux: bool, *args: Any, **kwargs: Any) -> Any:
    """Return the product of the Levi-Civita symbol with a vector field: the curl is its divergence."""
    result = f(*args, **kwargs)
    field, *aux = check_aux("curl", result) if has_aux else (result,)
    spun = tree_map_only(torch.Tensor, _times_symbol, field)
    return (spun, *aux) if has_aux else spun


def _times_symbol(field: torch.Tensor) -> torch.Tensor:
    """Return sum_k e_jik F_k, of axes (..., j, i); in two dimensions sum_k e_ik F_k."""
    size = field.shape[-1] if field.dim() else 0
    if size not in _SYMBOLS:
        got = f"a tensor of shape {tuple(field.shape)}"
        expected, remedy = "a vector field, (..., 3) or (..., 2)", "Return one vector of components for each point."
        refuse("curl", "the output of f", got, expected, remedy)
    return torch.tensordot(field, field.new_tensor(_SYMBOLS[size]), ([-1], [-1]))


_SYMBOLS: Mapping[int, list] = {
    2: [[0, 1], [-1, 0]],
    3: [[[0, 0, 0], [0, 0, 1], [0, -1, 0]], [[0, 0, -1], [0, 0, 0], [1, 0, 0]], [[0, 1, 0], [-1, 0, 0], [0, 0, 0]]],
}
