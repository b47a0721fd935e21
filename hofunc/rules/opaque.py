"""The fallback: the local derivative of one op by nested torch.func."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, NoReturn

import torch

from hofunc.algebra.term import Term
from hofunc.errors import FallbackWarning, UnsupportedOpError, warn
from hofunc.graph.draws import draws
from hofunc.graph.functions import FunctionOp, recorded_whole
from hofunc.graph.node import Call, Node, Ref, call_of
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import Tape
from hofunc.internals import OpOverload, current_dispatch_mode, temporarily_clear_interpreter_stack
from hofunc.options import fallback
from hofunc.rules.kinds import Opaque, Positions, Site

_WARNED: set[str] = set()
_FAR = 1e3  # times as large as a gradient another one is, which a backward pass may clip


def opaque_rule(node: Node, operands: Sequence[torch.Tensor]) -> Opaque:
    """Return the fallback rule of the op of a node, warning once for each op unless options say otherwise.

    Raises:
        UnsupportedOpError: Options rule the fallback out; torch takes the op for a constant, so that its derivatives
            would silently be zero; or it draws random numbers, of which its derivative would see others than its value.
    """
    op = node.op
    if fallback() == "error":
        raise UnsupportedOpError(
            f"hofunc: no rule for {op}",
            got="an op that only nested torch.func could differentiate, with the option fallback='error'",
            expected="an op with a rule",
            remedy="Write f with other ops, add a rule (docs/how-to/adding-an-op.md), or allow the fallback.",
        )
    if draws(node):
        raise UnsupportedOpError(
            f"hofunc: no rule for {op}",
            got="an op that draws random numbers at every call, of which its result is a function",
            expected="an op that returns the same at every call",
            remedy="Draw the numbers by an op that takes no tensor to differentiate by, and compute with them.",
        )
    if not _has_gradient(node, operands):
        raise UnsupportedOpError(
            f"hofunc: no rule for {op}",
            got="a result without a gradient",
            expected="an op that torch can differentiate",
            remedy="Detach its input if it is to be a constant, or add a rule (docs/how-to/adding-an-op.md).",
        )
    by = "torch.func" if is_transformed(op) else "torch.autograd"
    warn_once(
        f"hofunc: no rule for {op}; its derivatives are taken by nested {by}, which is exact but slow. "
        "See docs/how-to/adding-an-op.md for how to add a rule."
    )
    return Opaque(nested_derivative)


def warn_once(message: str) -> None:
    """Issue a warning of how an op is differentiated, if options have it and it did not come before."""
    if fallback() == "warn" and message not in _WARNED:
        _WARNED.add(message)
        warn(message, FallbackWarning)


def is_custom(op: Any) -> bool:
    """Tell whether the backward pass of an op is somebody else's than torch's."""
    return isinstance(op, FunctionOp) or (isinstance(op, OpOverload) and op.namespace not in _OF_TORCH)


_OF_TORCH = ("aten", "prims", "mkldnn", "quantized")


def is_transformed(op: Any) -> bool:
    """Tell whether torch.func's transforms take an op, as all but those of libraries and Functions of the old form."""
    return op.is_transformed if isinstance(op, FunctionOp) else not is_custom(op)


def _has_gradient(node: Node, operands: Sequence[torch.Tensor]) -> bool:
    """Tell whether torch takes the result of a node for a function of its floating-point operands."""
    try:
        _, y = _called(node, operands)
    except RuntimeError:  # some kernels are meant for inputs without a gradient only
        return False
    return y.requires_grad


def _called(node: Node, operands: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Compute a node once more; returns the operands that autograd follows, and what it makes of them."""
    with temporarily_clear_interpreter_stack(), torch.inference_mode(False), torch.enable_grad():
        # a clone, since what was made in inference mode cannot require gradients
        inputs = [value.detach().clone().requires_grad_(value.is_floating_point()) for value in operands]
        outputs = call_of(node)(*inputs)
    y = outputs if node.output is None else outputs[node.output]
    return [value for value in inputs if value.requires_grad], y


def check_linear(node: Node, operands: Sequence[torch.Tensor]) -> None:
    """Check that the backward pass of a custom Function is linear in the gradient that it is given.

    Of one that is not, which clips gradients or scales them to a length, nothing is the derivative.

    Raises:
        UnsupportedOpError: It is not.
    """
    if in_transform() or any(operand.is_meta for operand in operands):
        return
    with temporarily_clear_interpreter_stack(), torch.inference_mode(False), torch.enable_grad():
        try:
            followed, y = _called(node, operands)
            one, other = _vector(y, 0), _vector(y, 1)
            gradients = [
                torch.autograd.grad(y, followed, vector, retain_graph=True, materialize_grads=True)
                for vector in (one, other, -_FAR * one + other / _FAR)
            ]
        except Exception:  # of the Function, which whoever differentiates it meets again
            return
    for first, second, both in zip(*gradients, strict=True):
        expected = -_FAR * first + second / _FAR
        if not _are_close(both, expected, expected):
            raise _unsupported(
                node.op,
                got="a backward pass that is not linear in the gradient it is given",
                expected="the product of that gradient and a derivative",
            )


def nested_derivative(op: Any, output: int | None, positions: Positions, args: tuple, kwargs: tuple) -> torch.Tensor:
    """Differentiate op once by the tensor argument at each of the positions in turn.

    Args:
        op: The op.
        output: Which of its outputs.
        positions: Numbers of its tensor arguments, in order of appearance.
        args: Its positional arguments.
        kwargs: Its keyword arguments, as pairs.

    Returns:
        Tensor of shape (*output, *argument of each position in turn).

    Raises:
        UnsupportedOpError: torch cannot differentiate the op that often.
    """
    if isinstance(op, FunctionOp) and isinstance(current_dispatch_mode(), Tape):
        return recorded_whole(_derivative_op(op, output, positions))(*args)
    tensors: list[torch.Tensor] = []
    call = Call(op, _emptied(args, tensors), _emptied(kwargs, tensors))

    def function(*operands: torch.Tensor) -> torch.Tensor:
        result = call(*operands)
        return result if output is None else result[output]

    nested = _nested if is_transformed(op) else _nested_by_autograd
    try:
        # NOTE [loops]: jacrev maps a backward pass over all its rows, and some of torch's batching rules are wrong
        # (that of cdist). So the result is checked by one pass that maps nothing. Where it fails, or where it cannot be
        # looked at because the values are batches themselves, jacrev loops over the rows.
        derivative = None if in_transform() else nested(function, positions, None)(*tensors)
        detached = [tensor.detach() for tensor in tensors]
        is_mapped = nested is _nested and derivative is not None and not derivative.is_meta
        if derivative is None or (is_mapped and not _agrees(derivative.detach(), function, positions, detached)):
            derivative = nested(function, positions, 1)(*tensors)
        is_looked_at = is_custom(op) and not (in_transform() or derivative.is_meta)
        follows = not is_looked_at or _follows(derivative.detach(), function, positions, detached, nested)
    except (RuntimeError, NotImplementedError) as error:
        raise _unsupported(
            op,
            got=f"a failure of torch at order {len(positions)} ({str(error).splitlines()[0]})",
            expected="an op that torch can differentiate that often",
        ) from error
    if not (in_transform() or derivative.is_meta) and _is_undefined(derivative.detach(), function, detached):
        raise _unsupported(
            op,
            got=f"nan from torch's own derivative of order {len(positions)}, where the op and its inputs have none",
            expected="a derivative of torch that is defined at these inputs",
        )
    if not follows:
        raise _unsupported(
            op,
            got=f"a backward pass of which autograd does not see all that it depends on, at order {len(positions)}",
            expected="one that can be differentiated again, without detach() and the like",
        )
    return derivative


def _unsupported(op: Any, got: str, expected: str) -> UnsupportedOpError:
    remedy = "Write f with other ops, or add a rule (docs/how-to/adding-an-op.md)."
    if isinstance(op, FunctionOp):
        remedy += " Or, if its forward consists of ops of torch, have that recorded: hofunc.options(functions=[...])."
    return UnsupportedOpError(f"hofunc: no rule for {op}", got=got, expected=expected, remedy=remedy)


def _is_undefined(derivative: torch.Tensor, function: Callable, tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether a derivative has a nan although neither the tensors nor the function of them have any."""
    return bool(derivative.isnan().any()) and not any(t.isnan().any() for t in (*tensors, function(*tensors)))


def _nested(function: Callable, positions: Positions, chunk_size: int | None) -> Callable:
    for position in positions:  # the slot of the first comes first
        function = torch.func.jacrev(function, argnums=position, chunk_size=chunk_size)
    return function


def _nested_by_autograd(function: Callable, positions: Positions, _: int | None) -> Callable:
    """Return the derivative by torch.autograd, which takes custom Functions that torch.func does not; row by row."""
    for position in positions:
        function = _by_rows(function, position)
    return lambda *tensors: _with_history_of(tensors, function(*tensors))


def _by_rows(function: Callable, position: int) -> Callable:
    def derivative(*tensors: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            followed = [*map(_followed, tensors)]  # a backward pass may count on all of its parameters
            x = followed[position] = followed[position].view_as(followed[position])
            y = function(*followed)
            shape = (*y.shape, *x.shape)
            if not y.requires_grad or not y.numel():
                return x.new_zeros(shape)
            units = torch.eye(y.numel(), dtype=y.dtype, device=y.device).reshape(-1, *y.shape)
            rows = [torch.autograd.grad(y, x, u, create_graph=True, materialize_grads=True)[0] for u in units]
            return torch.stack(rows).reshape(shape)

    return derivative


def _followed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as one that autograd follows, if it has derivatives."""
    if tensor.requires_grad or not tensor.is_floating_point():
        return tensor
    return tensor.detach().requires_grad_()


def _with_history_of(tensors: Sequence[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
    """Return a result without history, if it has none by some tensors."""
    return result if any(tensor.requires_grad for tensor in tensors) else result.detach()


@cache
def _derivative_op(op: FunctionOp, output: int | None, positions: Positions) -> FunctionOp:
    """Return a derivative of a custom Function as an op of its own, for a function that takes derivatives of one."""

    def apply(*args: Any) -> torch.Tensor:
        return nested_derivative(op, output, positions, args, ())

    return FunctionOp(apply, op.is_transformed, f"derivative of order {len(positions)} of {op}")


def _agrees(
    derivative: torch.Tensor, function: Callable, positions: Positions, tensors: Sequence[torch.Tensor]
) -> bool:
    """Compare a derivative, contracted with a vector in all slots but the last, with as many plain backward passes."""
    expected = derivative
    for position in (None, *positions[:-1]):
        shape = function(*tensors).shape if position is None else tensors[position].shape
        vector = torch.arange(1, prod(shape) + 1, device=derivative.device).to(derivative.dtype).cos().reshape(shape)
        expected = torch.tensordot(vector, expected, len(shape))
        function = _contracted(function, position, vector)
    got = torch.func.grad(function, argnums=positions[-1])(*tensors)
    return _are_close(got, expected, derivative)


def _are_close(got: torch.Tensor, expected: torch.Tensor, of: torch.Tensor) -> bool:
    """Tell whether tensors agree to half of the digits of the largest finite entry of what they were computed of."""
    tolerance, finite = torch.finfo(of.dtype).eps ** 0.5, of[of.isfinite()]
    scale = finite.abs().max().item() if finite.numel() else 0
    return torch.allclose(got, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _follows(
    derivative: torch.Tensor,
    function: Callable,
    positions: Positions,
    tensors: Sequence[torch.Tensor],
    nested: Callable,
) -> bool:
    """Tell whether all derivatives of order two and more agree with differences of those an order lower.

    They do not where a custom backward pass hides from autograd what it depends on. Each is compared contracted with a
    vector in the result and in all slots but one, which takes few backward passes where the whole takes one a row.
    """
    contracted = derivative
    vectors = [_vector(function(*tensors), 0), *(_vector(tensors[p], slot) for slot, p in enumerate(positions, 1))]
    for vector in vectors[: len(positions) - 1]:
        contracted = torch.tensordot(vector, contracted, vector.dim())
    inner, last = function, len(positions) - 1
    for slot, (position, following) in enumerate(pairwise(positions)):
        inner = _slope(inner, vectors[slot], position, nested)
        got = contracted if slot + 1 == last else nested(inner, (following,), None)(*tensors)
        if not _agrees_with_differences(got, inner, following, tensors, vectors[slot + 2]):
            return False
    return True


def _vector(like: torch.Tensor, slot: int) -> torch.Tensor:
    """Return a vector in the space of a tensor, another one for every slot, of which no entry is small."""
    places = torch.arange(1, like.numel() + 1, device=like.device).to(like.dtype)
    return (1.25 + (places * (1 + slot) ** 0.5).cos()).reshape(like.shape)


def _slope(function: Callable, vector: torch.Tensor, position: int, nested: Callable) -> Callable:
    """Return the gradient of the inner product of a vector and a function by the argument at a position."""
    return nested(lambda *tensors: (function(*tensors) * vector).sum(), (position,), None)


def _agrees_with_differences(
    got: torch.Tensor, function: Callable, position: int, tensors: Sequence[torch.Tensor], vector: torch.Tensor
) -> bool:
    """Compare a derivative of a function by the argument at a position, times a vector, with a central difference."""
    point = tensors[position]
    if not point.numel():
        return True
    eps = torch.finfo(point.dtype).eps
    step = eps ** (1 / 3) * max(1.0, point.abs().max().item())
    ends = [[*tensors[:position], point + sign * step * vector, *tensors[position + 1 :]] for sign in (1, -1)]
    above, below = (function(*end) for end in ends)
    got = torch.tensordot(got, vector, point.dim())
    expected = (above - below) / (2 * step)
    sizes = torch.maximum(got.abs(), expected.abs())
    allowed = 0.02 * sizes + 1e-3 * sizes.max() + 100 * eps / step * above.abs().max()
    return bool(((got - expected).abs() <= allowed).all())


def _contracted(function: Callable, position: int | None, vector: torch.Tensor) -> Callable:
    """Return the inner product of a vector and the function, or its gradient by the argument at a position."""
    inner = function if position is None else torch.func.grad(function, argnums=position)
    return lambda *tensors: (inner(*tensors) * vector).sum()


def _emptied(template: Any, tensors: list[torch.Tensor]) -> Any:
    """Move the tensors of nested tuples into a list, leaving Refs."""
    if isinstance(template, torch.Tensor):
        tensors.append(template)
        return Ref(len(tensors) - 1)
    if type(template) is tuple:
        return tuple(_emptied(item, tensors) for item in template)
    return template


@dataclass(frozen=True, slots=True)
class Complex:
    """An op with a complex result or operand, which raises when a derivative is to go through it.

    Attributes:
        node: The node of the op, which later ones may have the rule of.
    """

    node: Node

    def positions(self, site: Site, order: int) -> NoReturn:
        """Refuse.

        Raises:
            UnsupportedOpError: Always.
        """
        dtype = self.node.dtype
        taken = f"with a result of {dtype}" if dtype.is_complex else "of complex numbers"
        raise UnsupportedOpError(
            "hofunc: f computes its output by way of complex numbers",
            got=f"{self.node.op} {taken}",
            expected="real numbers, or complex ones by transforms, arithmetic and views",
            remedy="Write the real and the imaginary part out.",
        )

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """Return nothing, since there are no positions."""
        return []
