"""The Python objects that a function reads while it runs: the search for them.

A function takes more than its arguments: cells of closures, globals, attributes of the objects that it meets, modules
of a network above all. None of these passes through torch. But whatever is read is named in a code object that ran, so
the objects are searched, from the function and what it is called with, for what bears such a name.
"""

import builtins
import dataclasses
import functools
import gc
import importlib
import os
import sys
from collections import ChainMap, UserDict, UserList, UserString, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

import torch

from hofunc.graph.holding import (
    Holding,
    held_by,
    of_cell,
    of_code,
    of_container,
    of_context,
    of_kind,
    of_labels,
    of_memory,
    of_names,
    of_slot,
)
from hofunc.graph.scratch import Attribute
from hofunc.graph.settings import LOOKING_UP, Asked
from hofunc.graph.snapshot import is_plain, leaves, snapshot
from hofunc.graph.uncompiled import uncompiled
from hofunc.graph.uses import NO_USES, asks_by_values, uses_of
from hofunc.internals import MAKE_SUBCLASS
from hofunc.internals_settings import SETTINGS

_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_OBJECTS_OF_TORCH = tuple(
    os.path.join(_TORCH, package) + os.sep
    for package in ("nn", "distributions", "optim", os.path.join("utils", "data"))
)

_BY_NAMES = (_TORCH, _OWN, str(functools.__file__))  # the code of modules, and of properties that are kept
_ALL_ATTRIBUTES = frozenset({"__dict__", "vars"})

_OF_ALL_LAYERS = vars(torch.nn.Module()).keys()
_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")  # which all layers run
_FIRST = (property, MemberDescriptorType)  # what comes before attributes of the same name

# Containers of Python's library that are written in Python, and where they have what is in them.
_WRITTEN = UserDict | UserList | UserString | ChainMap | WeakKeyDictionary | WeakValueDictionary | WeakSet
_HAVING = frozenset({"data", "maps"})

_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]

_Found = tuple[Any, str]  # an object, and what an error calls it

_SEEDING = frozenset({"manual_seed", "seed", "set_state", "set_offset"})  # methods of random generators


class Witness:
    """Watches which code runs, as a context manager, and finds what that reads.

    Args:
        wrapped: Called with the tensors from which a parameter or another subclass may be made past all ops, and the
            name of what makes it.

    Attributes:
        codes: The code objects, each with the globals that it sees.
        seeded: The random generators of which it set the state.
        restored: Those of them that it set otherwise than by a seed that it names.
    """

    def __init__(self, wrapped: Callable[[list[torch.Tensor], str], None]) -> None:
        self._wrapped = wrapped
        self.codes: dict[CodeType, dict[str, Any]] = {}
        self.seeded: list[torch.Generator] = []
        self.restored: list[torch.Generator] = []
        self._asked = Asked()
        self._before: Any = None
        self._importing: FrameType | None = None
        self._collects = gc.isenabled()

    def __enter__(self) -> "Witness":
        self._before = sys.getprofile()
        gc.disable()  # what runs when garbage is collected is no part of the function
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        if self._collects:
            gc.enable()
        if callable(self._before) or self._before is None:
            sys.setprofile(self._before)
        elif hasattr(self._before, "enable"):  # of cProfile, which is no function
            self._before.enable()
        else:  # of torch.profiler with stacks, which nothing can put back: it sees ops but no more lines
            sys.setprofile(None)

    @uncompiled
    def _see(self, frame: FrameType, event: str, what: Any) -> None:
        if self._importing is not None:  # modules, whose code runs once and is no part of the function
            if event == "return" and frame is self._importing:
                self._importing = None
        elif event == "call" and frame.f_code is _IMPORT:
            self._importing = frame
        elif event == "call":
            self.codes.setdefault(frame.f_code, frame.f_globals)
            if frame.f_code is LOOKING_UP:
                self._asked.look_up(frame)
        elif event == "c_call" and what.__name__ in SETTINGS:
            self._asked.ask(what)
        elif event == "c_call" and what.__name__ in _SEEDING and isinstance(what.__self__, torch.Generator):
            self.seeded.append(what.__self__)
            self.restored += [what.__self__] if what.__name__ != "manual_seed" else []
        elif event == "c_call" and what.__name__ == MAKE_SUBCLASS:
            tensors = [held for held in frame.f_locals.values() if isinstance(held, torch.Tensor)]
            self._wrapped([tensor for tensor in tensors if not tensor.is_meta], what.__name__)  # that has elements

    def watched(self) -> dict[CodeType, dict[str, Any]]:
        """Return the code objects that may read what a user changes, each with the globals that it sees."""
        return {code: space for code, space in self.codes.items() if _is_watched(code.co_filename)}

    def looks_past_names(self) -> bool:
        """Tell whether code ran that may look at the attributes of an object otherwise than by their names."""
        codes = [code for code in self.codes if not code.co_filename.startswith(_BY_NAMES)]
        return any(not _ALL_ATTRIBUTES.isdisjoint(code.co_names) for code in codes)

    def holdings(self, roots: Iterable[Any], scratch: Collection[Attribute]) -> tuple[list[Holding], list[Any]]:
        """Return all that the code has read, from the objects that it was called with and from globals.

        Beside it stand the objects that have attributes, whether it has read any or not.

        Args:
            roots: The objects.
            scratch: Attributes of which it read nothing that they held before.
        """
        roots, names = [*roots], _Names.of(self.watched())
        is_asking = any(asks_by_values(code) for code in self._codes_of_users())
        search = self._search(roots, names, frozenset(scratch), is_asking=is_asking)
        while is_asking and (told := search.texts(roots) - names.read):  # which may be names
            names = names._replace(read=names.read | told, added_to=names.added_to - told)
            search = self._search(roots, names, frozenset(scratch), is_asking=is_asking)
        return [*search.holdings, *self._asked.holdings()], search.objects

    def _codes_of_users(self) -> Iterator[CodeType]:
        """Yield the code that may ask for attributes of what users make; that of dataclasses does."""
        for code, path in [(code, code.co_filename) for code in self.codes]:
            if path == dataclasses.__file__ or (_is_watched(path) and not path.startswith(_BY_NAMES)):
                yield code

    def _search(
        self, roots: Sequence[Any], names: "_Names", scratch: frozenset[Attribute], *, is_asking: bool
    ) -> "_Search":
        """Search for what bears some names, from objects and from globals."""
        codes, looks_at_all = self.watched(), self.looks_past_names() or is_asking
        search = _Search(names, scratch, codes, looks_at_all=looks_at_all)
        named = {module for code, space in codes.items() for module in _modules(code, space)}
        search.find([(sys.modules[module], module) for module in sorted(named)])
        search.find([(root, "an argument") for root in roots])
        seeing: dict[int, list[CodeType]] = {}
        for code, space in codes.items():
            if not _is_of(code.co_filename, _TORCH):
                seeing.setdefault(id(space), []).append(code)
        for space in {id(space): space for space in codes.values()}.values():
            of_globals = _Names.of_globals(seeing.get(id(space), ()))
            bound = _HOOKS if space is vars(torch.nn.modules.module) else of_globals.among(space)
            shadowed = of_globals.read.intersection(vars(builtins))
            if _is_of(space.get("__file__"), _TORCH):
                bound = [label for label in bound if not _is_fixed(space[label])]
            search.find(search.within(f"the globals of {space.get('__name__')}", space, bound, shadowed))
        return search


class _Names(NamedTuple):
    """Names in code, that may stand for what it reads.

    Attributes:
        read: Those that it looks at, or binds.
        added_to: Others, to whose values it adds.
    """

    read: frozenset[str]
    added_to: frozenset[str]

    @classmethod
    def of(cls, codes: Iterable[CodeType]) -> "_Names":
        """Return the names in some code objects."""
        looked_at, added_to, bound, *_ = map(frozenset[str]().union, NO_USES, *map(uses_of, codes))
        return cls(looked_at | (bound - added_to), added_to - looked_at)

    @classmethod
    def of_globals(cls, codes: Iterable[CodeType]) -> "_Names":
        """Return those names in some code objects that may be of globals, rather than of attributes only."""
        read, added_to = cls.of(codes := [*codes])
        outermost = frozenset[str]().union(*(uses_of(code).outermost for code in codes))
        return cls(read & outermost, added_to & outermost)

    def among(self, space: Any) -> list[str]:
        """Return those that stand for something that matters in a mapping of names."""
        read = [label for label in self.read if label in space]
        return read + [label for label in self.added_to if label in space and not _only_takes(space[label])]


class _Search:
    """The search for what bears one of some names; what is found holds others, or is named in an error.

    Args:
        names: The names.
        scratch: Attributes of which nothing was read that they held before.
        codes: The code that ran.
        looks_at_all: Whether that looked at attributes otherwise than by their names, so that all of them count.
    """

    def __init__(
        self, names: _Names, scratch: frozenset[Attribute], codes: Collection[CodeType], *, looks_at_all: bool
    ):
        self.holdings: list[Holding] = []
        self.objects: list[Any] = []
        self._names, self._scratch, self._codes, self._looks_at_all = names, scratch, codes, looks_at_all
        self._seen: dict[int, Any] = {}  # by id, which an object keeps while it is here

    def find(self, left: list[_Found]) -> None:
        """Hold what objects hold, and what that holds in turn."""
        while left:
            value, name = left.pop()
            has_nothing = is_plain(value) or (isinstance(value, torch.Tensor) and not vars(value))
            if id(value) not in self._seen and not has_nothing:
                self._seen[id(value)] = value
                left += self._inside(value, name)

    def texts(self, roots: Iterable[Any]) -> frozenset[str]:
        """Return the texts that were found, which may be names of attributes."""
        held = [*(snapshot(root) for root in roots), *(value for each in self.holdings for value in each.values)]
        found = (leaf for each in held for leaf in leaves(each))
        return frozenset(leaf for leaf in found if isinstance(leaf, str) and leaf.isidentifier())

    def _inside(self, value: Any, name: str) -> list[_Found]:
        """Hold what an object holds; returns that."""
        inside = next((each for kinds, each in self._KINDS.items() if isinstance(value, kinds)), _Search._in_object)
        return [(_attributes(value).get("__wrapped__"), name), *inside(self, value, name)]

    def _in_parts(self, parts: Iterable[Any], name: str) -> list[_Found]:
        return [(part, f"what is in {name}") for part in parts]

    def _in_builtin(self, function: BuiltinFunctionType, name: str) -> list[_Found]:
        return [(function.__self__, name)]  # of a method that is the object, else a module

    def _in_method(self, method: MethodType, name: str) -> list[_Found]:
        return [(method.__self__, name), (method.__func__, name)]

    def _in_reference(self, reference: ref, name: str) -> list[_Found]:
        return [(reference(), name)]

    def _in_proxy(self, proxy: MappingProxyType, name: str) -> list[_Found]:
        return [(mapping, name) for mapping in gc.get_referents(proxy)]

    def _in_context(self, variable: ContextVar, _: str) -> list[_Found]:
        return self._held(of_context(f"the context variable {variable.name}", variable))

    def _in_descriptor(self, descriptor: Any, name: str) -> list[_Found]:
        """Return the functions of a property, or that of a static or class method."""
        functions = (getattr(descriptor, label, None) for label in ("fget", "__func__"))
        return [(function, name) for function in functions if function is not None]

    def _in_partial(self, function: partial, name: str) -> list[_Found]:
        keywords = self._held(of_container(f"the keywords of {name}", function.keywords))
        return [*keywords, *self._in_parts((function.func, *function.args), name)]

    def _in_tensor(self, tensor: torch.Tensor, _: str) -> list[_Found]:
        return self.within("a tensor", vars(tensor), self._names.among(vars(tensor)), place=tensor)

    def _in_container(self, container: Any, name: str) -> list[_Found]:
        return self._held(of_container(name, container))

    def _in_function(self, function: FunctionType, _: str) -> list[_Found]:
        name = function.__name__
        found = self._held(of_code(name, function)) if function.__code__ in self._codes else []
        for label in ("__defaults__", "__kwdefaults__"):
            if getattr(function, label):
                found += self._held(of_slot(f"the function {name}", function, label))
        read = uses_of(function.__code__).free
        for label, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if label in read or not _only_takes(held_by(cell)):
                found += self._held(of_cell(f"the closure of {name}", label, cell))
        return found + self.within(f"the function {name}", vars(function), self._names.among(vars(function)))

    def _in_module(self, module: ModuleType, _: str) -> list[_Found]:
        """Hold what names stand for in a module that is of no library; classes may hold settings."""
        path, space = getattr(module, "__file__", _typed(module.__name__)), vars(module)
        path = "<made>" if path is None and module.__spec__ is None else path
        if not _is_watched(path) or _is_of(path, _TORCH):
            return []
        names = self._names.among(space)
        classes = [(space[label], label) for label in names if isinstance(space[label], type)]
        others = [label for label in names if not isinstance(space[label], type)]
        return classes + self.within(f"module {module.__name__}", space, others)

    def _in_class(self, owner: type, _: str) -> list[_Found]:
        path, space = _file_of(owner), vars(owner)
        if _is_of(path, _TORCH):  # a method may have been made there, as that of a graph
            of_users = [label for label in self._names.among(space) if _is_of_users(space[label])]
            return self.within(f"class {owner.__name__}", space, of_users, place=owner)
        if not _is_watched(path):
            return []
        bases = [(base, base.__name__) for base in (type(owner), *owner.__bases__)]
        others = [base for base in owner.__mro__[1:-1] if not _is_of(_file_of(base), _TORCH)]
        inherited = {label: held for base in others for label, held in vars(base).items()}
        shadowed = self._names.read.intersection(inherited) | _implied(inherited)
        names = _implied(space).union(self._names.among(space))
        return bases + self.within(f"class {owner.__name__}", space, names, shadowed, place=owner)

    def _in_object(self, value: Any, _: str) -> list[_Found]:
        owner, path = type(value), _file_of(type(value))
        name = f"a {owner.__name__}"
        found = self._held(of_memory(name, value)) if _is_array(value) else []
        is_of_torch = _is_of(path, _TORCH) and not isinstance(value, torch.nn.Module)  # others have modules as well
        if _is_of(path, _OWN) or (is_of_torch and not _is_watched(path)):
            return found
        of_class = {label: held for base in reversed(owner.__mro__) for label, held in vars(base).items()}
        self.objects.append(value)
        found += self._held(of_kind(name, value)) if hasattr(value, "__dict__") else []
        kept = {label for other, label in self._scratch if other == id(value)}
        of_class = {label: of_class[label] for label in self._names.among(of_class) if label not in kept}
        for slot in [label for label, held in of_class.items() if isinstance(held, MemberDescriptorType)]:
            found += self._held(of_slot(name, value, slot))
        shadowed = [label for label, held in of_class.items() if not isinstance(held, _FIRST)]
        labels = {*self._names.among(_attributes(value))}
        if self._looks_at_all and hasattr(value, "__dict__") and not _is_of(path, _TORCH):
            labels |= vars(value).keys() - (_OF_ALL_LAYERS if isinstance(value, torch.nn.Module) else ())
            found += self._held(of_labels(name, value))
        if isinstance(value, _WRITTEN):
            labels |= _HAVING & vars(value).keys()
        names = [label for label in labels if label not in kept]
        return [*found, (owner, name), *self.within(name, _attributes(value), names, shadowed, place=value)]

    _KINDS: ClassVar[dict[Any, Callable]] = {
        torch.Tensor: _in_tensor,
        tuple | frozenset: _in_parts,
        dict | list | set | deque: _in_container,
        FunctionType: _in_function,
        MethodType: _in_method,
        BuiltinFunctionType: _in_builtin,
        partial: _in_partial,
        property | staticmethod | classmethod: _in_descriptor,
        ref: _in_reference,
        MappingProxyType: _in_proxy,
        ContextVar: _in_context,
        ModuleType: _in_module,
        type: _in_class,
    }

    def within(
        self, name: str, space: Any, names: Iterable[str], shadowed: Collection[str] = (), place: Any = None
    ) -> list[_Found]:
        """Hold what some names stand for among attributes or globals; returns that.

        Args:
            name: What the space is called.
            space: The attributes or globals.
            names: The names, which stand for something there.
            shadowed: Others, of which it is held that they stand for nothing there.
            place: The object or class, if the names are those of its attributes.
        """
        labels = (*sorted(names), *sorted(label for label in shadowed if label not in space))
        return self._held(of_names(name, space, labels, place)) if labels else []

    def _held(self, holding: Holding) -> list[_Found]:
        self.holdings.append(holding)
        things = zip(holding.labels, holding.values, strict=True)
        return [(leaf, f"{label} of {holding.name}") for label, value in things for leaf in leaves(value)]


def _modules(code: CodeType, space: dict[str, Any]) -> Iterator[str]:
    """Yield the modules that bear a name of a code object: those that it imports are held by nothing else."""
    for name in code.co_names:
        yield from {name, f"{space.get('__package__')}.{name}"} & sys.modules.keys()


def _is_of(path: str | None, folder: str) -> bool:
    return path is not None and path.startswith(folder)


def _file_of(owner: type) -> str | None:
    """Return the file of a class."""
    return getattr(sys.modules.get(owner.__module__), "__file__", _typed(owner.__module__))


def _typed(module: str) -> str | None:
    """Return what stands for the file of a module that has none: one which was typed in is no library."""
    return "<typed>" if module == "__main__" else None


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
    """Tell whether what a name of a library stands for is code, or a library, which nobody binds anew."""
    if isinstance(value, BuiltinFunctionType | ModuleType):
        return True
    if isinstance(value, classmethod | staticmethod | property):
        return _is_fixed(value.fget if isinstance(value, property) else value.__func__)
    return isinstance(value, FunctionType) and not _is_watched(value.__code__.co_filename)


def _is_of_users(value: Any) -> bool:
    """Tell whether a value is a function that was not written in torch."""
    return isinstance(value, FunctionType) and not _is_of(value.__code__.co_filename, _TORCH)


def _implied(space: Mapping[str, Any]) -> set[str]:
    """Return the names of those methods of a class that code calls without naming them."""
    return {label for label, held in space.items() if label.startswith("__") and isinstance(held, FunctionType)}


def _only_takes(value: Any) -> bool:
    """Tell whether nothing is seen of what a value holds where it is only added to."""
    return is_plain(value) or type(value) in (list, dict, set, deque)


def _is_array(value: Any) -> bool:
    """Tell whether a value is an array, of numpy or another library, of which the memory can be read."""
    try:
        memoryview(value)
    except (TypeError, ValueError, BufferError):
        return False
    return True
