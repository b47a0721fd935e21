"""What a plan holds in memory: constants and index vectors, and its steps."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

from hofunc.graph.holding import held_by
from hofunc.graph.identity import innermost
from hofunc.graph.node import Call, Ref
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.memory import memory_of
from hofunc.plan.program import Program, Register

_NUMBERS = (int, float, complex, bool, str, bytes, type(None))
_LEAVES = (*_NUMBERS, torch.dtype, torch.device, torch.Size, Register, Ref, type)
_KINDS = frozenset(_LEAVES)
STEP_BYTES = 1200  # of a step and its place in the text of the program, and likewise of a node, as measured


def bytes_held(made: Blueprint) -> int:
    """Return how many bytes a plan holds: those of its tensors, and of steps and nodes by estimate."""
    programs = [made.program]
    if made.chunks is not None:
        programs += made.chunks.programs
    storages: dict[int, int] = {}
    for tensor in _tensors([made.lowered.origins, [_held(program) for program in programs]]):
        storages |= memory_of(innermost(tensor))
    count = len(made.lowered.graph.nodes) + sum(len(program.steps) for program in programs)
    return sum(storages.values()) + STEP_BYTES * count


def _held(program: Program) -> list[Any]:
    """Return what a program holds, of calls what they are of: there is one of each for a step, of few functions."""
    held: dict[int, Any] = {}
    for step in program.steps:
        call, given = step.function, step.args
        if type(call) is Call:
            held[id(call.op)] = call.op
            given = (*call.args, call.kwargs, *given)
        else:
            held[id(call)] = call
        held |= {id(x): x for x in given if type(x) not in _KINDS}
    return [[given.origin for given in program.given.values()], [*held.values()]]


def _tensors(start: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that objects hold, directly or by others: in containers, dataclasses, functions, and Maps."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        item = waiting.pop()
        if isinstance(item, _LEAVES) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, torch.Tensor):
            yield item
        else:
            waiting.extend(_parts(item))


def _parts(item: Any) -> list[Any]:
    if isinstance(item, list | tuple | set | frozenset | dict):
        return [*item.values()] if isinstance(item, dict) else [*item]
    if isinstance(item, partial):
        return [item.func, item.args, item.keywords]
    if isinstance(item, FunctionType):
        return [item.__defaults__, *map(held_by, item.__closure__ or ())]
    if isinstance(item, MethodType):
        return [item.__self__]
    names = [field.name for field in fields(item)] if is_dataclass(item) else getattr(item, "__dict__", {})
    return [getattr(item, name) for name in names] if type(item).__module__.startswith("hofunc.") else []
