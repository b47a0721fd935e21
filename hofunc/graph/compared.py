"""Numbers that leave torch only to be compared: what code does next depends on the outcomes, not on the numbers.

A solver goes on until ``residual.norm().item() < tolerance``. Each call finds another number there, and does the same.
That nothing else becomes of a number is told from the code: what calls ``.item()`` or ``float`` compares it at once
with another number, or gives it a local name that it uses for nothing but comparisons.
"""

import dis
import inspect
import operator
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LEFT_OUT = frozenset({"CACHE", "PRECALL", "EXTENDED_ARG", "NOP"})
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_NUMBERS = (float, int, bool)
_CALLING = frozenset({"LOAD_METHOD", "LOAD_ATTR"})
# What loads a constant, a local name, and anything that bears a name.
_CONSTANT = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_LOCAL = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"})
_SIMPLE = _CONSTANT | _LOCAL | {"LOAD_GLOBAL", "LOAD_DEREF"}
_BINDING = frozenset({"STORE_FAST", "DELETE_FAST"})
_MAY_BIND = frozenset(name for name in dis.opmap if "FAST" in name) - _LOCAL
_TWICE = "((?:LOAD|STORE)_FAST(?:_BORROW)?)_((?:LOAD|STORE)_FAST(?:_BORROW)?)"


@dataclass(frozen=True, slots=True)
class Compared:
    """Compares the number in a tensor with another, to be called as an op.

    Attributes:
        symbol: How, as code says it.
        other: The other number, on the right.
    """

    symbol: str
    other: float

    def __call__(self, tensor: torch.Tensor) -> bool:
        """Return the outcome."""
        return self.of(torch.ops.aten._local_scalar_dense.default(tensor))

    def of(self, number: float) -> bool:
        """Return the outcome of the comparison of a number."""
        return _COMPARISONS[self.symbol](number, self.other)

    def __str__(self) -> str:
        return f"whether it is {self.symbol} {self.other}"


class _Step(NamedTuple):
    """An instruction, see `dis.Instruction`."""

    opname: str
    arg: int | None
    argval: Any
    offset: int


class _Site(NamedTuple):
    """Where code compares a number.

    Attributes:
        symbol: How.
        loads: The instructions that load what it is compared with.
    """

    symbol: str
    loads: tuple[_Step, ...]


def comparisons(value: Any) -> list[Compared] | None:
    """Return all that the running code makes of a number that it is about to get from a tensor by `.item()` or `float`.

    Args:
        value: The number.

    Returns:
        None if it may make anything else of it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame is None or type(value) not in _NUMBERS or "float" in frame.f_globals:
        return None
    sites = _sites(frame.f_code, frame.f_lasti, is_float=type(value) is float)
    others = [_other(site, frame) for site in sites]
    if not sites or any(type(other) not in _NUMBERS for other in others):
        return None
    return [Compared(site.symbol, other) for site, other in zip(sites, others, strict=True)]


@lru_cache(maxsize=1 << 12)
def _sites(code: CodeType, offset: int, *, is_float: bool) -> tuple[_Site, ...]:
    """Return where code compares what such a call returns; nothing if it does anything else with it."""
    steps = [*_steps(code)]
    place = next((place for place, step in enumerate(steps) if step.offset >= offset), 0)
    if not (_is_item(steps, place) or (is_float and _is_float(steps, place))):
        return ()
    if (site := _site(steps, place + 1)) is not None:
        return (site,)
    is_passed_on = steps[place + 1].opname == "COPY"  # name := x.item()
    store = steps[place + 1 + is_passed_on]
    if store.opname != "STORE_FAST" or not {"locals", "vars", "dir", "eval", "exec"}.isdisjoint(code.co_names):
        return ()
    uses = [at for at, step in enumerate(steps) if store.argval == step.argval and step.opname not in _BINDING]
    sites = [_site(steps, place + 3)] if is_passed_on else []
    sites += [_site(steps, at + 1) if steps[at].opname in _LOCAL else None for at in uses]
    bound = {step.argval for step in steps if step.opname in _MAY_BIND}
    found = tuple([site for site in sites if site is not None and not _are_bound(site.loads, bound)])
    return found if len(found) == len(sites) else ()


def _is_item(steps: Sequence[_Step], place: int) -> bool:
    """Tell whether an instruction calls a method `item` without arguments."""
    call, before = steps[place], steps[place - 1]
    return call.opname == "CALL" and call.arg == 0 and before.opname in _CALLING and before.argval == "item"


def _is_float(steps: Sequence[_Step], place: int) -> bool:
    """Tell whether an instruction calls `float` with a name, or with what attributes and methods make of it."""
    if steps[place].opname != "CALL" or steps[place].arg != 1:
        return False
    place -= 1
    while steps[place].opname in _CALLING or (steps[place].opname == "CALL" and steps[place].arg == 0):
        is_attribute = steps[place].opname in _CALLING
        if not is_attribute and steps[place - 1].opname not in _CALLING:
            return False
        place -= 1 if is_attribute else 2
    function = steps[place - 1]
    return steps[place].opname in _SIMPLE and function.opname == "LOAD_GLOBAL" and function.argval == "float"


def _steps(code: CodeType) -> Iterator[_Step]:
    """Yield the instructions of code; those that load or store two local names, as two."""
    for step in dis.get_instructions(code):
        twice = re.fullmatch(_TWICE, step.opname)
        if twice is not None:
            for kind, name in zip(twice.groups(), step.argval, strict=True):
                yield _Step(kind, None, name, step.offset)
        elif step.opname not in _LEFT_OUT:
            yield _Step(step.opname, step.arg, step.argval, step.offset)


def _are_bound(loads: Sequence[_Step], bound: set[Any]) -> bool:
    """Tell whether what is loaded may be another thing by then: the code binds it, or others may have."""
    return any(load.opname not in _CONSTANT and (load.opname not in _LOCAL or load.argval in bound) for load in loads)


def _site(steps: Sequence[_Step], place: int) -> _Site | None:
    """Return the comparison that begins at a place, where the number has been loaded."""
    loads: list[_Step] = []
    for step in steps[place : place + 3]:
        if step.opname == "COMPARE_OP":
            return _Site(step.argval, tuple(loads)) if loads and step.argval in _COMPARISONS else None
        if step.opname not in (_SIMPLE if not loads else {"LOAD_ATTR"}):
            break
        loads.append(step)
    return None


def _other(site: _Site, frame: FrameType) -> Any:
    """Return what a number is compared with; None if that is not known without running code."""
    first, *attributes = site.loads
    if first.opname in _CONSTANT:
        value = first.argval
    elif first.opname == "LOAD_GLOBAL":
        value = frame.f_globals.get(first.argval)
    else:
        value = frame.f_locals.get(first.argval)
    for attribute in attributes:
        value = _attribute(value, attribute.argval)
    return value


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute of an object; for one that runs code something that is no number."""
    is_made = isinstance(inspect.getattr_static(type(owner), "__getattribute__"), FunctionType)
    return None if is_made else inspect.getattr_static(owner, name, None)
