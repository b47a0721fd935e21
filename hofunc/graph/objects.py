"""The Python objects that a function reads while it runs, and whether they still hold what they held.

A function takes more than its arguments: cells of closures, globals, attributes of the objects that it meets, modules
of a network above all. None of these passes through torch. But whatever is read is named in a code object that ran, so
the objects are searched, from the function and what it is called with, for what bears such a name.
"""

import os
import sys
import sysconfig
from collections import deque
from collections.abc import Collection, Iterable
from functools import cache, partial
from inspect import getattr_static
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch

from hofunc.graph.holding import MISSING, Holding, is_plain, of_cell, of_container, of_memory, of_names, of_slot

_STDLIB = os.path.abspath(sysconfig.get_path("stdlib")) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OBJECTS_OF_TORCH = tuple(os.path.join(_TORCH, package) + os.sep for package in ("nn", "distributions"))

_SEEDING = frozenset({"manual_seed", "seed", "set_state", "set_offset"})  # methods of random generators


class Witness:
    """Watches which code runs, as a context manager, and finds what that reads.

    Attributes:
        codes: The code objects, each with the globals that it sees.
        seeded: The random generators of which it set the state.
    """

    def __init__(self) -> None:
        self.codes: dict[CodeType, dict[str, Any]] = {}
        self.seeded: list[torch.Generator] = []
        self._before: Any = None

    def __enter__(self) -> "Witness":
        self._before = sys.getprofile()
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        if callable(self._before) or self._before is None:
            sys.setprofile(self._before)
        else:
            self._before.enable()  # of cProfile, which is no function

    def _see(self, frame: FrameType, event: str, what: Any) -> None:
        if event == "call":
            self.codes.setdefault(frame.f_code, frame.f_globals)
        elif event == "c_call" and what.__name__ in _SEEDING and isinstance(what.__self__, torch.Generator):
            self.seeded.append(what.__self__)

    def holdings(self, roots: Iterable[Any]) -> list[Holding]:
        """Return all that the code has read, from the objects that it was called with and from globals."""
        codes = {code: space for code, space in self.codes.items() if _is_watched(code.co_filename)}
        search = _Search(frozenset().union(*map(_names, codes)))
        for root in roots:
            search.visit(root, "an argument")
        read: dict[int, set[str]] = {}
        for code, space in codes.items():
            if not _is_of(code.co_filename, _TORCH):
                read.setdefault(id(space), set()).update(_names(code))
        for space in {id(space): space for space in codes.values()}.values():
            search.hold_names(f"the globals of {space.get('__name__')}", space, read.get(id(space), ()))
        return search.holdings


class _Search:
    """The search for what bears one of some names."""

    def __init__(self, names: frozenset[str]):
        self.holdings: list[Holding] = []
        self._names = names
        self._seen: dict[int, Any] = {}  # by id, which an object keeps while it is here

    def visit(self, value: Any, name: str) -> None:
        """Hold what a value holds, and visit that."""
        if id(value) in self._seen or is_plain(value) or isinstance(value, torch.Tensor):
            return
        self._seen[id(value)] = value
        self.visit(_attributes(value).get("__wrapped__"), name)
        if isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, ModuleType):
            self._visit_module(value)
        elif isinstance(value, MethodType):
            self.visit(value.__self__, name)
            self.visit(value.__func__, name)
        elif isinstance(value, partial):
            self._visit_all((value.func, *value.args, *value.keywords.values()), name)
        elif isinstance(value, tuple | frozenset):
            self._visit_all(value, name)
        elif isinstance(value, dict | list | set | deque):
            self._hold(of_container(name, value))
        elif isinstance(value, type):
            self._visit_class(value)
        else:
            self._visit_object(value)

    def _visit_all(self, values: Iterable[Any], name: str) -> None:
        for value in values:
            self.visit(value, f"what is in {name}")

    def _visit_function(self, function: FunctionType) -> None:
        name = f"the closure of {function.__name__}"
        self.hold_names(f"the function {function.__name__}", vars(function), self._names)
        for label, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._hold(of_cell(name, label, cell))
        self._visit_all(_defaults(function), f"the defaults of {function.__name__}")

    def _visit_module(self, module: ModuleType) -> None:
        path = getattr(module, "__file__", None)
        if _is_watched(path) and not _is_of(path, _TORCH):
            numbers = [label for label in self._names if not callable(vars(module).get(label))]
            self.hold_names(f"module {module.__name__}", vars(module), numbers)

    def _visit_class(self, owner: type) -> None:
        path = _file_of(owner)
        if _is_watched(path) and not _is_of(path, _TORCH):
            self.hold_names(f"class {owner.__name__}", vars(owner), self._names)
            for base in owner.__bases__:
                self.visit(base, owner.__name__)

    def _visit_object(self, value: Any) -> None:
        owner = type(value)
        name = f"a {owner.__name__}"
        if _is_array(value):
            self._hold(of_memory(name, value))
        path = _file_of(owner)
        if _is_of(path, _OWN) or (_is_of(path, _TORCH) and not _is_watched(path)):
            return
        of_class = {label: getattr_static(owner, label, MISSING) for label in self._names}
        self.hold_names(name, _attributes(value), self._names, [n for n, held in of_class.items() if is_plain(held)])
        for slot, held in of_class.items():
            if isinstance(held, MemberDescriptorType):
                self._hold(of_slot(name, value, slot))
        self.visit(owner, name)

    def hold_names(self, name: str, space: Any, names: Iterable[str], shadowed: Collection[str] = ()) -> None:
        """Hold what some names stand for among attributes or globals, and visit that.

        Args:
            name: What the space is called.
            space: The attributes or globals.
            names: The names.
            shadowed: Those of which it is held too that they stand for nothing there.
        """
        found = [label for label in names if label in space and not _is_fixed(space[label])]
        self._visit_all((space[label] for label in names if isinstance(space.get(label), ModuleType)), name)
        labels = (*sorted(found), *sorted(label for label in shadowed if label not in space))
        if labels:
            self._hold(of_names(name, space, labels))

    def _hold(self, holding: Holding) -> None:
        self.holdings.append(holding)
        for label, value in zip(holding.labels, holding.values, strict=True):
            self.visit(value, f"{label} of {holding.name}")


def _names(code: CodeType) -> frozenset[str]:
    """Return the names that a code object reads, also those that it asks for by strings."""
    return frozenset(code.co_names) | {const for const in code.co_consts if isinstance(const, str)}


def _is_of(path: str | None, folder: str) -> bool:
    return path is not None and path.startswith(folder)


def _file_of(owner: type) -> str | None:
    return getattr(sys.modules.get(owner.__module__), "__file__", None)


@cache
def _is_watched(path: str | None) -> bool:
    """Tell whether code of a file may read what a user changes: not that of Python, hofunc and most of torch."""
    if path is None or path.startswith("<frozen"):
        return False
    of_python = path.startswith(_STDLIB) and "site-packages" not in path
    return path.startswith(_OBJECTS_OF_TORCH) or not (of_python or path.startswith((_TORCH, _OWN)))


def _attributes(value: Any) -> Any:
    return vars(value) if hasattr(value, "__dict__") else {}


def _is_fixed(value: Any) -> bool:
    """Tell whether what a name stands for is code, or a library, which nobody changes."""
    if isinstance(value, BuiltinFunctionType | ModuleType | classmethod | staticmethod | property):
        return True
    return isinstance(value, FunctionType) and not _is_watched(value.__code__.co_filename)


def _is_array(value: Any) -> bool:
    """Tell whether a value is an array, of numpy or another library, of which the memory can be read."""
    try:
        memoryview(value)
    except (TypeError, ValueError, BufferError):
        return False
    return True


def _defaults(function: FunctionType) -> tuple:
    return (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
