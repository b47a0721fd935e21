"""Values that planning goes by: of tensors that nothing differentiates, compared at every call of the plan."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Call, Ref, call_of, fill, refs
from hofunc.graph.readings import Reading
from hofunc.graph.reads import Contents
from hofunc.plan.program import Builder
from hofunc.rules.lower import isolated

GONE_BY = Contents("indices that tell which entries meet")


class Value(NamedTuple):
    """A value that is known as a plan is made.

    Attributes:
        tensor: The value.
        nodes: The nodes of the lowered graph from whose values it follows, with these.
    """

    tensor: torch.Tensor
    nodes: tuple[tuple[int, torch.Tensor], ...]


def places_read(
    builder: Builder, function: Callable, size: int, args: tuple, beside: tuple[int, ...] = ()
) -> Value | None:
    """Return what a function of an axis selects of its places, ``function(range, *args)``; None if it is not known.

    Args:
        builder: Keeps what is known.
        function: Takes a tensor, and the arguments.
        size: The size of the axis.
        args: The arguments, in which Refs name nodes.
        beside: The sizes of axes before it, along each of which the places are its own.
    """
    key = (function, size, args, beside)
    if key not in builder.known:
        found = [_value(builder, ref.node) for ref in refs(args)]
        values = [value for value in found if value is not None]
        known = None
        if len(values) == len(found):
            nodes = tuple([node for value in values for node in value.nodes])
            with isolated(), torch.no_grad():
                places = torch.arange(size, device=builder.device).expand(*beside, size)
                known = Value(function(places, *fill(args, (value.tensor for value in values))), nodes)
        builder.known[key] = known
    return builder.known[key]


def go_by(builder: Builder, nodes: Iterable[tuple[int, torch.Tensor]]) -> None:
    """Take note that a plan is good only for the values that some nodes have."""
    for number, value in nodes:
        if number not in builder.went_by:
            builder.went_by[number] = Reading(Call(GONE_BY, (Ref(number),), ()), (number,), value.detach().clone())


def _value(builder: Builder, number: int) -> Value | None:
    """Return the value of a node of the lowered graph, or of a constant of the program; None if it is not known."""
    nodes = builder.lowered.graph.nodes
    known = _held(builder, number)
    if known is not None or number >= len(nodes) or nodes[number].active or nodes[number].is_given:
        return known
    found = [_value(builder, operand) for operand in nodes[number].operands]
    values = [value for value in found if value is not None]
    if len(values) < len(found):
        return None
    call, output = call_of(nodes[number]), nodes[number].output
    with isolated(), torch.no_grad():
        result = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))(*(value.tensor for value in values))
    gone_by = tuple([node for value in values for node in value.nodes])
    return Value(result if output is None else result[output], gone_by)


def _held(builder: Builder, number: int) -> Value | None:
    """Return the value of what need not be computed."""
    lowered = builder.lowered
    constant = number >= len(lowered.graph.nodes)
    origin = builder.constant_of(number) if constant else lowered.origins[number]
    known = origin if isinstance(origin, torch.Tensor) else lowered.values.get(origin) if origin is not None else None
    if known is None or known.is_meta:
        return None
    return Value(known, () if known is origin else ((number, known),))
