"""Values that planning goes by: of tensors that nothing differentiates, compared at every call of the plan."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Call, Ref, call_of, fill, refs
from hofunc.graph.readings import Reading
from hofunc.plan.program import Builder
from hofunc.rules.expansion import itself
from hofunc.rules.lower import isolated


class Value(NamedTuple):
    """A value that is known as a plan is made.

    Attributes:
        tensor: The value.
        nodes: The nodes of the lowered graph from whose values it follows.
    """

    tensor: torch.Tensor
    nodes: frozenset[int]


def places_read(builder: Builder, function: Callable, size: int, args: tuple) -> Value | None:
    """Return what a function of an axis selects of its places, ``function(range, *args)``; None if it is not known.

    Args:
        builder: Keeps what is known.
        function: Takes a tensor, and the arguments.
        size: The size of the axis.
        args: The arguments, in which Refs name nodes.
    """
    key = (function, size, args)
    if key not in builder.known:
        found = [_value(builder, ref.node) for ref in refs(args)]
        values = [value for value in found if value is not None]
        known = None
        if len(values) == len(found):
            nodes = frozenset().union(*(value.nodes for value in values))
            with isolated(), torch.no_grad():
                places = torch.arange(size, device=builder.device)
                known = Value(function(places, *fill(args, (value.tensor for value in values))), nodes)
        builder.known[key] = known
    return builder.known[key]


def go_by(builder: Builder, nodes: Iterable[int]) -> None:
    """Take note that a plan is good only for the values that some nodes have."""
    for number in nodes:
        if number not in builder.went_by:
            value = builder.lowered.values[builder.lowered.origins[number]]
            builder.went_by[number] = Reading(Call(itself, (Ref(number),), ()), (number,), value.detach().clone())


def _value(builder: Builder, number: int) -> Value | None:
    """Return the value of a node of the lowered graph, or of a constant of the program; None if it is not known."""
    lowered = builder.lowered
    if number >= len(lowered.graph.nodes):
        constant = builder.constant_of(number)
        return None if constant is None else Value(constant, frozenset())
    origin, node = lowered.origins[number], lowered.graph.nodes[number]
    if node.active:
        return None
    if isinstance(origin, torch.Tensor):
        return Value(origin, frozenset())
    if origin is not None:
        known = lowered.values.get(origin)
        return None if known is None else Value(known, frozenset({number}))
    found = [_value(builder, operand) for operand in node.operands]
    values = [value for value in found if value is not None]
    if len(values) < len(found):
        return None
    call = call_of(node)
    with isolated(), torch.no_grad():
        result = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))(*(value.tensor for value in values))
    result = result if node.output is None else result[node.output]
    return Value(result, frozenset().union(*(value.nodes for value in values)))
