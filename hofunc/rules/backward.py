"""Custom autograd Functions, and ops of other libraries, by the ops of their backward passes.

NOTE [backward passes]: of a Function or op F only the product of a vector and its first derivative J is given, by its
backward pass. That is linear in the vector, so that its own backward pass by the vector is the product J(x) h. The
change of F from x to x + h is the integral of J(x + t h) h over t from 0 to 1, and up to the power of h that a
derivative of order k depends on it is a sum over k / 2 places t, by Gauss's rule: one of the NOTE [expansions].

That holds for what is the derivative of something, of which second derivatives are symmetric. Another backward pass,
of which derivatives depend on the order in which they are taken, is left to the fallback. So is one that takes what
does not follow from its arguments, which would be a constant of the plan, or what the forward made, of which the
derivative is that of the backward pass again; one that hides something from autograd; and one that torch does not
differentiate rightly.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import combinations_with_replacement
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from hofunc.graph.functions import FunctionOp
from hofunc.graph.node import CONSTANT, Graph, Node, Ref, refs
from hofunc.graph.readings import recorded
from hofunc.internals import temporarily_clear_interpreter_stack
from hofunc.options import beside_backward
from hofunc.rules.expansion import Expansion, Operand
from hofunc.rules.opaque import nested_derivative, warn_once


def by_backward(node: Node, operands: Sequence[Tensor]) -> Expansion | None:
    """Return the rule of what has a backward pass of its own, by its ops; None if these are not all there is to it.

    Args:
        node: A node of a custom Function, or of an op of another library than torch.
        operands: The values of its operands.
    """
    are_plain = all(isinstance(arg, Ref) or not refs((arg,)) for arg in node.args)
    if node.output is not None or node.kwargs or not are_plain or any(operand.is_meta for operand in operands):
        return None
    changes = [torch.zeros_like(operand) for operand in operands]
    ends: list[Tensor] = []
    try:
        tape, (change,) = recorded(partial(_tried, node, ends), [*operands, *changes], [True] * 2 * len(operands))
        graph = tape.graph([change, *ends])
        is_all = _is_all(graph, tape.ledger.values)
        is_right = is_all and _is_symmetric(node, operands)
    except Exception:
        return None
    if is_all and not is_right:
        _tell_of_orders(node.op)
    return Expansion(partial(_changed, node.op)) if is_right else None


def _tell_of_orders(op: Any) -> None:
    """Warn once of a Function that has not one second derivative, of which torch's nestings and hofunc differ."""
    remedy = "If its forward consists of ops, have that recorded: hofunc.options(functions=[...])."
    warn_once(
        f"hofunc: the backward pass of {op} is no derivative: its own derivatives depend on the order in which they "
        "are taken. So those of the whole function are not determined from order two on, and may be others than nested "
        f"torch's. {remedy if isinstance(op, FunctionOp) else ''}".rstrip()
    )


def _tried(node: Node, ends: list[Tensor], *tensors: Tensor) -> Tensor:
    """Return the change of a Function, and add what the forward is given and the vector after it to a list."""
    found = map(Operand, tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :])
    args = [next(found) if isinstance(arg, Ref) else arg for arg in node.args]
    return _changed(node.op, 2, (), *args, ends=ends)


def _changed(op: Any, order: int, _: Any, *args: Any, ends: list[Tensor] | None = None) -> Tensor:
    """Return the change of a Function up to a power of the changes of its arguments; see NOTE [backward passes]."""
    call: Any = op.apply if isinstance(op, FunctionOp) else op
    varied = [arg for arg in args if isinstance(arg, Operand) and arg.value.is_floating_point()]
    changes = [operand.change for operand in varied]
    total: Any = 0
    with torch.enable_grad(), beside_backward(call.__self__) if isinstance(op, FunctionOp) else nullcontext():
        for tensor in (*changes, *(operand.value for operand in varied)):
            _followed(tensor)
        for place, weight in _gauss((order + 1) // 2):
            points = [operand.value + place * operand.change for operand in varied]
            y = call(*_filled(args, points))
            vector = _followed(torch.zeros_like(y))
            products: Any = torch.autograd.grad(y, points, vector, create_graph=True, allow_unused=True)
            pairs = [(product, h) for product, h in zip(products, changes, strict=True) if product is not None]
            results, outer = zip(*pairs, strict=True)
            (along,) = torch.autograd.grad(results, vector, outer, create_graph=True)
            total = total + weight * along
            if ends is not None:
                ends += [*points, vector]
    return total


def _followed(tensor: Tensor) -> Tensor:
    """Have autograd follow a tensor, whatever transforms are running."""
    with temporarily_clear_interpreter_stack():
        return tensor.requires_grad_()


def _filled(args: Sequence[Any], points: Sequence[Tensor]) -> Iterator[Any]:
    """Yield arguments with points in place of what varies, and values of what does not."""
    supply = iter(points)
    for arg in args:
        is_varied = isinstance(arg, Operand) and arg.value.is_floating_point()
        yield next(supply) if is_varied else arg.value if isinstance(arg, Operand) else arg


def _is_all(graph: Graph, values: Sequence[Tensor]) -> bool:
    """Tell whether a change follows from the arguments, by ops that autograd follows, and from nothing in between.

    Args:
        graph: Returns the change, what the forward is given, and the vector that the backward pass is given after it.
        values: The values of its nodes.
    """
    change, *given, vector = graph.outputs
    left, live = [change], {change}
    while left:
        for operand in graph.nodes[left.pop()].operands:
            if operand not in live:
                live.add(operand)
                left.append(operand)
    nodes = [graph.nodes[number] for number in live]
    if any(node.op is CONSTANT for node in nodes) or not live.isdisjoint(range(max(given) + 1, vector + 1)):
        return False
    return all(values[node.number].requires_grad for node in nodes if node.dtype.is_floating_point)


def _is_symmetric(node: Node, operands: Sequence[Tensor]) -> bool:
    """Tell whether the second derivatives of a Function do not depend on the order in which they are taken."""
    values = iter(operands)
    args = tuple(next(values) if isinstance(arg, Ref) else arg for arg in node.args)
    floating = [place for place, operand in enumerate(operands) if operand.is_floating_point()]
    for first, second in combinations_with_replacement(floating, 2):
        one, other = (nested_derivative(node.op, None, each, args, ()) for each in ((first, second), (second, first)))
        start, middle = len(node.shape), len(node.shape) + operands[second].dim()
        turned = other.permute(*range(start), *range(middle, other.dim()), *range(start, middle))
        scale = one.abs().max().item() if one.numel() else 0
        if not torch.allclose(one, turned, rtol=1e-3, atol=torch.finfo(one.dtype).eps ** 0.5 * scale, equal_nan=True):
            return False
    return True


def _gauss(count: int) -> Iterator[tuple[float, float]]:
    """Yield places and weights of Gauss's rule for integrals from 0 to 1."""
    for k in range(count):
        z, step, slope = cos(pi * (k + 0.75) / (count + 0.5)), 1.0, 1.0
        while abs(step) > 1e-15:
            before, value = 0.0, 1.0
            for n in range(count):
                before, value = value, ((2 * n + 1) * z * value - n * before) / (n + 1)
            slope = count * (z * value - before) / (z * z - 1)
            step = value / slope
            z -= step
        yield (1 + z) / 2, 1 / ((1 - z * z) * slope * slope)
