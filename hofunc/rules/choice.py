"""The choice of a rule: that of the op, torch's decomposition of it, or the opaque fallback."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch

from hofunc.graph.identity import is_fake
from hofunc.graph.node import Call, Node, call_of
from hofunc.graph.readings import recorded
from hofunc.internals import Definition, OpOverload, decomposition_table, has_definition
from hofunc.rules.backward import by_backward
from hofunc.rules.expansion import Expansion
from hofunc.rules.kinds import Composite, Constant, Rule
from hofunc.rules.opaque import Complex, check_linear, is_custom, opaque_rule
from hofunc.rules.registry import LATE_COMPOSITES, RULES


def rule_of(node: Node, values: Sequence[torch.Tensor]) -> Rule | Composite | Expansion | Constant:
    """Find the rule of a node: its own, torch's decomposition of the op, or the opaque fallback.

    Args:
        node: A node of a recorded graph.
        values: The values of the graph's nodes.
    """
    rule = RULES.get(node.op)
    if rule is None and isinstance(node.op, OpOverload):
        rule = LATE_COMPOSITES.get(node.op.name())
    if node.dtype.is_complex and not isinstance(rule, Constant):
        return Complex(node)
    if not node.dtype.is_floating_point:
        return Constant()
    if rule is not None:
        return rule
    for decomposition in decompositions(node.op):
        if is_usable(decomposition, node, values):
            return Composite(decomposition)
    operands = [values[operand] for operand in node.operands]
    if not is_custom(node.op):
        return opaque_rule(node, operands)
    looked_at = _sampled(node, operands)[0] if any(map(is_fake, operands)) else operands
    check_linear(node, looked_at)
    return by_backward(node, looked_at) or opaque_rule(node, operands)


def decompositions(op: Any) -> list[Callable]:
    """Return torch's own definitions of an op by other ops."""
    if not isinstance(op, OpOverload):
        return []
    found = (decomposition_table.get(op), Definition(op) if has_definition(op) else None)
    return [function for function in found if function is not None]


def is_usable(function: Callable, node: Node, values: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]) -> bool:
    """Tell whether a decomposition of torch consists of aten ops and computes the recorded value.

    Some draw random numbers, are meant for other devices or decline with NotImplemented, and some go by internal ops
    without derivatives.
    """
    operands, value = [values[operand] for operand in node.operands], values[node.number].detach()
    if is_fake(value):
        operands, value = _sampled(node, operands)
    tape, outputs = recorded(Call(function, node.args, node.kwargs).__call__, operands, [True] * len(operands))
    if node.output is not None and node.output >= len(outputs):
        return False
    part = outputs[node.output or 0]
    return (
        all(getattr(inner.op, "namespace", "aten") == "aten" for inner in tape.graph(()).nodes)
        and isinstance(part, torch.Tensor)
        and part.shape == value.shape
        and (
            value.is_meta  # as there is nothing to compare on that device
            or _is_close(part.detach(), value)
            or _is_rounding(part.detach(), value, node, operands)
        )
    )


def _is_close(part: torch.Tensor, value: torch.Tensor) -> bool:
    tolerance, finite = torch.finfo(value.dtype).eps ** 0.5, value[value.isfinite()]
    scale = finite.abs().max().item() if finite.numel() else 0
    return torch.allclose(part, value, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _is_rounding(part: torch.Tensor, value: torch.Tensor, node: Node, operands: Sequence[torch.Tensor]) -> bool:
    """Tell whether values differ by what the op makes of the last digits of its operands, as where these cancel."""
    eps = torch.finfo(value.dtype).eps
    changed = [
        operand.detach() * (1 + eps * _drawn(operand, number)) if operand.is_floating_point() else operand
        for number, operand in enumerate(operands)
    ]
    outputs = call_of(node)(*changed)
    spread = ((outputs if node.output is None else outputs[node.output]) - value).abs().max()
    sizes = [operand.abs().max().item() for operand in operands if operand.is_floating_point() and operand.numel()]
    if not spread <= eps**0.5 * max([prod(sizes), *sizes]):  # as of what draws random numbers
        return False
    return bool(((part - value).abs() <= spread / eps**0.25).all())


def _sampled(node: Node, operands: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return operands with elements in the place of those without, as torch traces with, and what an op makes of them.

    Floating-point numbers are normal ones, all others zero.
    """
    sampled = [_drawn(operand, number) for number, operand in enumerate(operands)]
    value = call_of(node)(*sampled)
    return sampled, value if node.output is None else value[node.output]


def _drawn(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Return normal numbers, or zeros of a dtype that is not of floating point, in the shape of a tensor."""
    drawn = torch.zeros(tuple(like.shape), dtype=like.dtype, device=like.device)
    return (
        drawn.normal_(generator=torch.Generator(drawn.device).manual_seed(seed)) if like.is_floating_point() else drawn
    )
