"""The fallback: the local derivative of one op by nested torch.func."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from hofunc.errors import FallbackWarning, UnsupportedOpError, warn
from hofunc.graph.node import Call, Node, Ref, call_of
from hofunc.rules.kinds import Opaque, Positions

_WARNED: set[str] = set()


def opaque_rule(node: Node, operands: Sequence[torch.Tensor]) -> Opaque:
    """Return the fallback rule of the op of a node, warning once for each op.

    Raises:
        UnsupportedOpError: torch takes the op for a constant, so that its derivatives would silently be zero.
    """
    op = node.op
    if not _has_gradient(node, operands):
        raise UnsupportedOpError(
            f"hofunc: no rule for {op}",
            got="a result without a gradient",
            expected="an op that torch can differentiate",
            remedy="Detach its input if it is to be a constant, or add a rule (docs/adding-an-op.md).",
        )
    if str(op) not in _WARNED:
        _WARNED.add(str(op))
        warn(
            f"hofunc: no rule for {op}; its derivatives are taken by nested torch.func, which is exact but slow. "
            "See docs/adding-an-op.md for how to add a rule.",
            FallbackWarning,
        )
    return Opaque(nested_derivative)


def _has_gradient(node: Node, operands: Sequence[torch.Tensor]) -> bool:
    """Tell whether torch takes the result of a node for a function of its floating-point operands."""
    with temporarily_clear_interpreter_stack(), torch.inference_mode(False), torch.enable_grad():
        # a clone, since what was made in inference mode cannot require gradients
        inputs = [value.detach().clone().requires_grad_(value.is_floating_point()) for value in operands]
        outputs = call_of(node)(*inputs)
    return (outputs if node.output is None else outputs[node.output]).requires_grad


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
    tensors: list[torch.Tensor] = []
    call = Call(op, _emptied(args, tensors), _emptied(kwargs, tensors))

    def function(*operands: torch.Tensor) -> torch.Tensor:
        result = call(*operands)
        return result if output is None else result[output]

    derivative = function
    for position in positions:  # the slot of the first comes first
        derivative = torch.func.jacrev(derivative, argnums=position)
    try:
        return derivative(*tensors)
    except (RuntimeError, NotImplementedError) as error:
        raise UnsupportedOpError(
            f"hofunc: no rule for {op}",
            got=f"a failure of torch.func at order {len(positions)} ({str(error).splitlines()[0]})",
            expected="an op that torch can differentiate that often",
            remedy="Write f with other ops, or add a rule (docs/adding-an-op.md).",
        ) from error


def _emptied(template: Any, tensors: list[torch.Tensor]) -> Any:
    """Move the tensors of nested tuples into a list, leaving Refs."""
    if isinstance(template, torch.Tensor):
        tensors.append(template)
        return Ref(len(tensors) - 1)
    if type(template) is tuple:
        return tuple(_emptied(item, tensors) for item in template)
    return template
