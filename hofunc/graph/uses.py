"""What code does with the names in it: which it looks at, and which it only adds to or binds anew.

What a function only keeps for others, a count of its calls or a list of losses, decides nothing that it computes.
"""

import dis
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

# Methods that say nothing of what a builtin container holds.
_ADDING = frozenset({"append", "appendleft", "extend", "extendleft", "insert", "add", "update"})
_ASKING = frozenset({"getattr", "hasattr"})
_EXPECTING = frozenset({"AttributeError", "Exception", "BaseException"})
_ASKING_OTHERWISE = frozenset({"attrgetter", "__getattribute__"})
# What gives a module otherwise than by its own name, so that its globals may be attributes of that.
_IMPORTING = frozenset({"modules", "import_module", "__import__"})
# What loads a number or a local name, and the operands by which BINARY_OP is an augmented assignment, in all releases.
_SIMPLE = frozenset({"LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_SMALL_INT"})
_IN_PLACE = range(13, 26)
_LEFT_OUT = frozenset({"CACHE", "PRECALL", "EXTENDED_ARG", "NOP"})
_BINDING = frozenset({"STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_NAME"})
_JUMPING = frozenset((*dis.hasjrel, *dis.hasjabs))
_NAMING = frozenset((*dis.hasname, *dis.hasfree))
_PREPARING = frozenset({"MAKE_CELL", "COPY_FREE_VARS", "LOAD_CLOSURE"})


class Uses(NamedTuple):
    """What code does with names.

    Attributes:
        looked_at: The names whose values may decide what it does, also those that it asks for by strings.
        added_to: Others, to whose values it adds, of which it sees nothing if they are numbers or containers.
        bound: The names of attributes that it binds; what binds them may do that by names that it puts together, and
            so may what looks at them.
        asked_for: Those of attributes that there may not be, as far as it says them to `getattr` or `hasattr`, or
            names the error.
        free: Those of the variables of enclosing functions that it looks at, or code within it does.
        outermost: Those that may be of globals: names that stand by themselves, not behind a dot, and strings.
    """

    looked_at: frozenset[str]
    added_to: frozenset[str]
    bound: frozenset[str]
    asked_for: frozenset[str]
    free: frozenset[str]
    outermost: frozenset[str]


NO_USES = Uses(*[frozenset[str]()] * 6)


@lru_cache(maxsize=1 << 16)
def uses_of(code: CodeType) -> Uses:
    """Tell what a code object does with names."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _LEFT_OUT]
    looked_at = {const for const in code.co_consts if isinstance(const, str)}
    asked_for = {const for const in looked_at if const.isidentifier() and not _ASKING.isdisjoint(code.co_names)}
    outermost = looked_at.union(() if _IMPORTING.isdisjoint(code.co_names) else code.co_names)
    added_to, bound, free = set(), set(), set()
    is_expecting = not _EXPECTING.isdisjoint(code.co_names)
    for place, step in _naming(steps):
        if is_expecting and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            asked_for.add(step.argval)
        if "GLOBAL" in step.opname or "NAME" in step.opname:
            outermost.add(step.argval)
        if step.opname in _BINDING:
            bound |= {step.argval} if step.opname == "STORE_ATTR" else set()
        elif _only_adds(steps, place):
            added_to.add(step.argval)
        elif step.opcode in dis.hasfree:
            free.add(step.argval)
        else:
            looked_at.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            free |= uses_of(inner).free
    return Uses(*map(frozenset, (looked_at, added_to - looked_at, bound, asked_for, free, outermost)))


@lru_cache(maxsize=1 << 16)
def asks_by_values(code: CodeType) -> bool:
    """Tell whether code may ask for attributes by names that it does not say, but puts together or is given."""
    if not _ASKING_OTHERWISE.isdisjoint(code.co_names):
        return True
    if _ASKING.isdisjoint(code.co_names):
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in {"CACHE", "EXTENDED_ARG"}]
    places = [place for place, step in _naming(steps) if step.argval in _ASKING]
    return not _ASKING_OTHERWISE.isdisjoint(code.co_names) or not all(
        _says_name(steps[place + 1 :]) for place in places
    )


def _says_name(steps: Iterable[dis.Instruction]) -> bool:
    """Tell whether the second argument of the call of a function, loaded before these steps, is surely a text."""
    depth, second, before = 0, None, ""
    for step in steps:
        is_call = step.opname == "PRECALL" or (step.opname == "CALL" and before != "PRECALL")
        if is_call and step.arg == depth:
            return second is not None and second.opname == "LOAD_CONST" and isinstance(second.argval, str)
        if step.opcode in _JUMPING:
            return False
        before = step.opname
        depth += dis.stack_effect(step.opcode, step.arg)
        second = step if depth == 2 else second  # the last that leaves two makes the second
        if depth < 0:
            return False
    return False


def _naming(steps: Sequence[dis.Instruction]) -> Iterator[tuple[int, dis.Instruction]]:
    """Yield the steps that name attributes, globals or variables of enclosing functions, with their places."""
    for place, step in enumerate(steps):
        if step.opcode in _NAMING and step.opname not in _PREPARING:
            yield place, step


def _only_adds(steps: Sequence[dis.Instruction], place: int) -> bool:
    """Tell whether what a step loads is only added to, and goes nowhere else."""
    name = steps[place].argval
    before, (first, second, third) = steps[max(place - 1, 0)], _following(steps, place)
    if first.opname in ("LOAD_METHOD", "LOAD_ATTR") and first.argval in _ADDING:
        return True
    if first.opname in _SIMPLE and second.opname == "STORE_SUBSCR":  # held[key] = value
        return True
    if before.opname == "COPY" and steps[place].opname == "LOAD_ATTR":  # owner.name += value
        return any(step.opname == "STORE_ATTR" and step.argval == name for step in steps[place:])
    return (  # name += value
        first.opname in _SIMPLE
        and second.opname == "BINARY_OP"
        and second.arg in _IN_PLACE
        and third.opname in ("STORE_GLOBAL", "STORE_DEREF")
        and third.argval == name
    )


def _following(steps: Sequence[dis.Instruction], place: int) -> Sequence[dis.Instruction]:
    """Return the three steps after one; the last of all, which returns, stands for what is not there."""
    return [steps[min(place + number, len(steps) - 1)] for number in (1, 2, 3)]
