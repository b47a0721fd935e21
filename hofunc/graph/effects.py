"""What an op does beside computing, as its schema says: what it writes to, and whether what it returns is a view."""

from functools import cache
from typing import Any, NamedTuple

import torch

from hofunc.graph.layout import in_memory_order, restrided
from hofunc.internals import OpOverload, schema_of


class Effects(NamedTuple):
    """What the schema of an op says: the names of the arguments it writes, and whether what it returns is a view.

    The former are in the order in which its functional form returns what is written to them: those for results first;
    beside them stand their places among the arguments.
    """

    op: OpOverload
    writes: tuple[str, ...]
    aliases: bool
    places: tuple[int, ...]


def effects(op: OpOverload) -> Effects:
    """Read the effects of an op from its schema."""
    known = _EFFECTS.get(id(op))
    if known is None:
        arguments, returns = schema_of(op).arguments, schema_of(op).returns
        written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        writes = tuple(a.name for a in sorted(written, key=lambda a: not a.kwarg_only))
        places = tuple(map([argument.name for argument in arguments].index, writes))
        aliases = any(r.alias_info is not None for r in returns) or "unsafe_" in schema_of(op).name
        known = _EFFECTS[id(op)] = Effects(op, writes, aliases, places)
    return known


_EFFECTS: dict[int, Effects] = {}  # by id, since the hash of an op is slow; an op lives as long as its entry


@cache
def functional_form(op: OpOverload) -> OpOverload | None:
    """Return the op that computes what an in-place or out-variant op writes; None if there is none."""
    wanted = [a.name for a in schema_of(op).arguments if not (a.kwarg_only and a.name in effects(op).writes)]
    name = schema_of(op).name.split("::")[1]
    for candidate in (name.removesuffix("_"), f"{name.removesuffix('_')}_functional"):
        packet = getattr(getattr(torch.ops, op.namespace), candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            form = getattr(packet, overload)
            names = [argument.name for argument in schema_of(form).arguments]
            types = [str(argument.type) for argument in schema_of(form).arguments]
            expected = [str(a.type) for a in schema_of(op).arguments if a.name in wanted]
            if not effects(form).writes and names == wanted and types == expected and not _returns_lists(form):
                return form
    return None


def completed(op: OpOverload, form: OpOverload, args: tuple, kwargs: dict) -> dict:
    """Return the keyword arguments with the defaults of an in-place op that its functional form does not have."""
    left_out = {name: value for place, name, value in _defaults(op, form) if place >= len(args)}
    return {**left_out, **kwargs}


@cache
def _defaults(op: OpOverload, form: OpOverload) -> list[tuple[int, str, Any]]:
    """Return the arguments of an op that have to be given to its functional form, with their places and defaults."""
    needed = {argument.name for argument in schema_of(form).arguments if not argument.has_default_value()}
    arguments = enumerate(schema_of(op).arguments)
    return [(place, a.name, a.default_value) for place, a in arguments if a.name in needed]


def is_view(op: Any) -> bool:
    """Tell whether an op returns a tensor that shares the storage of the one it takes."""
    return effects(op).aliases if isinstance(op, OpOverload) else op in (in_memory_order, restrided)


def returned_beside(op: OpOverload, out: Any) -> list[torch.Tensor]:
    """Return the new tensors that an op returned beside those that it wrote to: batch_norm writes to its statistics."""
    if not schema_of(op).returns:
        return []
    outputs = out if isinstance(out, list | tuple) else (out,)
    return [value for value, returns in zip(outputs, schema_of(op).returns, strict=True) if returns.alias_info is None]


def returns_several(form: OpOverload) -> bool:
    """Tell whether an op returns more than one tensor, or a list of them."""
    returns = schema_of(form).returns
    return len(returns) > 1 or isinstance(returns[0].type, torch.ListType)


def _returns_lists(form: OpOverload) -> bool:
    """Tell whether an op returns a list of tensors beside other results, so that these cannot be counted."""
    returns = schema_of(form).returns
    return len(returns) > 1 and any(isinstance(value.type, torch.ListType) for value in returns)
