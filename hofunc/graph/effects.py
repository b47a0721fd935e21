"""What an op does beside computing, as its schema says: what it writes to, and whether what it returns is a view."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from hofunc.graph.layout import in_memory_order, restrided
from hofunc.graph.parts import in_parts
from hofunc.internals import OpOverload, schema_of


class Effects(NamedTuple):
    """What the schema of an op says.

    Attributes:
        op: The op.
        writes: The names of the arguments that it writes, in the order in which its functional form returns what is
            written to them: those for results first.
        aliases: Whether what it returns is a view.
        places: The places of the arguments that it writes.
        makes: Whether it makes a tensor of numbers or of a shape. Torch gives the caller of such an op another tensor
            with the same memory, which takes one more op, if somebody holds the one that the op returned.
        in_parts: What computes it by the ops that it consists of, if it is recorded as these.
    """

    op: OpOverload
    writes: tuple[str, ...]
    aliases: bool
    places: tuple[int, ...]
    makes: bool
    in_parts: Callable[..., Any] | None


def effects(op: OpOverload) -> Effects:
    """Read the effects of an op from its schema."""
    known = _EFFECTS.get(id(op))
    if known is None:
        arguments, returns = schema_of(op).arguments, schema_of(op).returns
        written = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        writes = tuple(a.name for a in sorted(written, key=lambda a: not a.kwarg_only))
        names = [argument.name for argument in arguments]
        places = tuple(map(names.index, writes))
        aliases = any(r.alias_info is not None for r in returns) or "unsafe_" in schema_of(op).name
        makes = "pin_memory" in names and "non_blocking" not in names
        known = _EFFECTS[id(op)] = Effects(op, writes, aliases, places, makes, in_parts(op))
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


class InPlace(NamedTuple):
    """How an op that writes is recorded.

    Attributes:
        op: The op.
        form: The op that computes what it writes.
        several: Whether that returns more than one tensor, or a list of them.
        draws: Whether what it writes are random numbers.
        defaults: The arguments of the op that have to be given to its form, with their places and defaults.
        beside: The places of the new tensors that the op returns beside those that it writes to, as batch_norm does.
    """

    op: OpOverload
    form: OpOverload
    several: bool
    draws: bool
    defaults: tuple[tuple[int, str, Any], ...]
    beside: tuple[int, ...]

    def options(self, args: tuple, kwargs: dict) -> dict:
        """Return the keyword arguments of a call of its form, of those of a call of the op."""
        left_out = {name: value for place, name, value in self.defaults if place >= len(args)}
        given = {**left_out, **kwargs}
        return {name: value for name, value in given.items() if name not in effects(self.op).writes} if given else given

    def returned_beside(self, out: Any) -> list[torch.Tensor]:
        """Return the new tensors among what the op returned; its form returns them first."""
        outputs = out if isinstance(out, list | tuple) else (out,)
        return [outputs[place] for place in self.beside]


def in_place(op: OpOverload) -> InPlace | None:
    """Return how an op that writes is recorded; None if no op computes what it writes."""
    known = _IN_PLACE.get(id(op))
    if known is None and (form := functional_form(op)) is not None:
        needed = {argument.name for argument in schema_of(form).arguments if not argument.has_default_value()}
        arguments, returns = enumerate(schema_of(op).arguments), enumerate(schema_of(op).returns)
        known = _IN_PLACE[id(op)] = InPlace(
            op,
            form,
            len(schema_of(form).returns) > 1 or isinstance(schema_of(form).returns[0].type, torch.ListType),
            torch.Tag.nondeterministic_seeded in op.tags and schema_of(op).name.endswith("_"),
            tuple((place, a.name, a.default_value) for place, a in arguments if a.name in needed),
            tuple(place for place, value in returns if value.alias_info is None),
        )
    return known


_IN_PLACE: dict[int, InPlace] = {}  # by id likewise


def is_view(op: Any) -> bool:
    """Tell whether an op returns a tensor that shares the storage of the one it takes."""
    return effects(op).aliases if isinstance(op, OpOverload) else op in (in_memory_order, restrided)


def _returns_lists(form: OpOverload) -> bool:
    """Tell whether an op returns a list of tensors beside other results, so that these cannot be counted."""
    returns = schema_of(form).returns
    return len(returns) > 1 and any(isinstance(value.type, torch.ListType) for value in returns)
