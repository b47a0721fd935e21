"""Values that planning goes by: of tensors that nothing differentiates, compared at every call of the plan.

NOTE [likely values]: indices that are likely to change need not be gone by. What they are as a plan is made tells how
many entries meet, and which form a derivative should have; which ones meet is computed as the plan runs, in tables with
some more room. Such a plan goes by facts about the indices, as that there is room for all pairs, which are computed at
every call. So a value is a `Column`: what is known of it, and the register that it will be in where it is not gone by.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.graph.identity import is_fake
from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Call, Graph, Ref, call_of, fill, refs
from hofunc.graph.readings import Reading
from hofunc.graph.reads import Contents
from hofunc.plan.builder import Builder
from hofunc.plan.program import Register
from hofunc.plan.tables import required
from hofunc.rules.lower import INTEGERS, isolated
from hofunc.views import Emit

GONE_BY = Contents("indices that tell which entries meet")
Condition = tuple[Hashable, torch.Tensor | Register]  # the number of a node and its value, or a fact and its check


class Column(NamedTuple):
    """Indices as a plan has them.

    Attributes:
        tensor: What they are, or are likely to be.
        register: Where they will be, if they are not gone by.
    """

    tensor: torch.Tensor
    register: Register | None = None


class Value(NamedTuple):
    """A value that is known as a plan is made, or likely.

    Attributes:
        column: The value, with a register if it was computed from likely ones.
        conditions: The nodes of the lowered graph from whose values it follows, with these, and facts about others.
        is_likely: Whether it follows from values that are likely, and is in no register so far.
        is_taken: Whether it is that of a selection that is not made of others that meet.
        has_spare: Whether there may be spare indices in it.
    """

    column: Column
    conditions: tuple[Condition, ...] = ()
    is_likely: bool = False
    is_taken: bool = False
    has_spare: bool = False


def likely_values(graph: Graph, values: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return those values of the nodes of a recorded graph that tell what indices are like."""
    integers = {node.number: values[node.number] for node in graph.nodes if node.dtype in INTEGERS}
    return {number: value for number, value in integers.items() if not is_fake(value) and not value.is_meta}


def emitting(builder: Builder) -> Emit:
    """Return what runs a function on columns, and has the program run it if one of them is not gone by."""

    def emit(function: Callable, *args: Any) -> Column:
        columns = [arg for arg in args if isinstance(arg, Column)]
        tensor = function(*[arg.tensor if isinstance(arg, Column) else arg for arg in args])
        if all(column.register is None for column in columns):
            return Column(tensor)
        taken = [register_of(builder, arg) if isinstance(arg, Column) else arg for arg in args]
        return Column(tensor, builder.emit(function, *taken))

    return emit


def register_of(builder: Builder, column: Column) -> Register:
    """Return the register of a column, that of a constant if it is gone by."""
    return builder.places(column.tensor) if column.register is None else column.register


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
            with isolated(), torch.no_grad():
                places = torch.arange(size, device=builder.device).expand(*beside, size)
                known = _followed(function(places, *fill(args, (value.column.tensor for value in values))), values)
        builder.known[key] = known
    return builder.known[key]


def go_by(builder: Builder, conditions: Iterable[Condition]) -> None:
    """Take note that a plan is good only for the values that some nodes have, and as long as facts hold."""
    for key, condition in conditions:
        if key not in builder.went_by:
            builder.went_by[key] = condition if isinstance(condition, Register) else _read_of(key, condition)


def _read_of(number: Any, value: torch.Tensor) -> Reading:
    return Reading(Call(GONE_BY, (Ref(number),), ()), (number,), value.detach().clone())


def fact(builder: Builder, column: Column) -> tuple[Condition, ...]:
    """Return the condition that a truth value in a register is true; none if it is gone by."""
    if column.register is None:
        return ()
    return ((column.register, builder.emit(Call(required, (Ref(0),)), column.register)),)


def _value(builder: Builder, number: int) -> Value | None:
    """Return the value of a node of the lowered graph, or of a constant of the program; None if it is not known."""
    lowered = builder.lowered
    nodes = lowered.graph.nodes
    known = _held(builder, number)
    if known is not None or number >= len(nodes):
        return known
    found: list[Value | None] = [None]
    if not nodes[number].active and not nodes[number].is_given:
        found = [_value(builder, operand) for operand in nodes[number].operands]
    values = [value for value in found if value is not None]
    is_known = len(values) == len(found)
    origin = lowered.origins[number]
    likely = lowered.likely.get(origin) if isinstance(origin, int) else None
    if likely is not None and not (is_known and not any(value.is_likely for value in values)):
        return Value(Column(likely), (), is_likely=True)
    if not is_known:
        return None
    call, output = call_of(nodes[number]), nodes[number].output
    with isolated(), torch.no_grad():
        result = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))(*(value.column.tensor for value in values))
    return _followed(result if output is None else result[output], values)


def _followed(result: torch.Tensor, values: Iterable[Value]) -> Value:
    """Return what follows from values."""
    every = [*values]
    conditions = tuple([each for value in every for each in value.conditions])
    return Value(Column(result), conditions, is_likely=any(value.is_likely for value in every))


def _held(builder: Builder, number: int) -> Value | None:
    """Return the value of what need not be computed."""
    lowered = builder.lowered
    constant = number >= len(lowered.graph.nodes)
    origin = builder.constant_of(number) if constant else lowered.origins[number]
    known = origin if isinstance(origin, torch.Tensor) else lowered.values.get(origin) if origin is not None else None
    if known is None or known.is_meta:
        return None
    return Value(Column(known), () if known is origin else ((number, known),))
