"""Documents: what a plan is made of as text and tensors, and back, without running anything that the text names.

A document is a JSON list of entries, each a kind and its parts; a part is a number, a text, or ``[n]``, the entry n,
which comes before. So it has no circles and is read in one pass. What is one object is one entry, and is one object
again. Ops are named as torch names them, the functions of hofunc that steps call by their modules, those of elementwise
rules by the op whose rule they are; classes have to be those of hofunc, or known to pytrees where it is read.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, NamedTuple, NoReturn

import torch
from torch.nn import Parameter

from hofunc.algebra.extents import Rows
from hofunc.errors import PlanFileError
from hofunc.graph.functions import FunctionOp
from hofunc.graph.identity import PLAIN
from hofunc.internals import OpOverload, TreeSpec, is_namedtuple_class, is_torch_function, pytree_classes
from hofunc.rules.kinds import Elementwise, ElementwisePair
from hofunc.rules.registry import RULES
from hofunc.trees import tree_flatten

aten = torch.ops.aten

# Where the functions of steps are defined. What enters rules is none.
_HOMES = (
    "hofunc.complex_tensors",
    "hofunc.graph.compared",
    "hofunc.graph.draws",
    "hofunc.graph.layout",
    "hofunc.plan",
    "hofunc.rules",
    "hofunc.scatter",
    "hofunc.views",
)
_NO_HOMES = ("hofunc.rules.registry",)
_REFUSED = (aten.from_file.default,)  # which reads a file where it is called
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)
_FACTORIES = (bool, complex, dict, float, int, list, set, str, tuple)  # of defaultdicts

_ATOMS = (type(None), bool, int, float, str)
_GETITEM = "operator:getitem"


class Document(NamedTuple):
    """Something as plain data.

    Attributes:
        text: Its entries.
        tensors: The tensors that they name, without a history.
        devices: The devices that it names.
    """

    text: str
    tensors: list[torch.Tensor]
    devices: list[str]


def written(name: str, parts: Mapping[str, Any]) -> Document:
    """Return the document of some things.

    Args:
        name: Whose they are, for the error.
        parts: The things, by what an error calls them.

    Raises:
        PlanFileError: Something in them is known to this process alone.
    """
    writer = _Writer(name)
    for part, value in parts.items():
        writer.add(part, value)
    return Document(f"[{','.join(writer.entries)}]", writer.tensors, sorted(writer.devices))


def read(document: Document) -> dict[str, Any]:
    """Return the things of which this is the document.

    Raises:
        MissingError: It names what is not there.
        Exception: It is no document, of the kinds of DAMAGE.
    """
    entries = json.loads(document.text)
    made: list[Any] = []
    things: dict[str, Any] = {}

    def value(part: Any) -> Any:
        if type(part) is list:
            (place,) = part
            return made[_checked(place, int)]
        return sys.intern(part) if type(part) is str else _checked(part, *_ATOMS)

    for kind, *parts in entries:
        values = [value(part) for part in parts]
        if kind == "tensor":
            values[0] = document.tensors[values[0]]
        if kind == "part":
            things[values[0]] = values[1]
        made.append(_READERS[kind](*values))
    return things


class MissingError(Exception):
    """A document names an op, a function or a class that is not there."""


# What a document that is damaged, or was made by hand, may raise.
DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)


class _Writer:
    """Writes entries.

    Args:
        name: Whose they are.

    Attributes:
        entries: Those that there are.
        tensors: The tensors that they name.
        devices: The devices that they name.
    """

    def __init__(self, name: str):
        self.entries: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.devices: set[str] = set()
        self._name, self._where = name, ""
        self._places: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no id is used again
        self._known: dict[str, int] = {}
        self._rules = {
            id(rule.derivative): op for op, rule in RULES.items() if isinstance(rule, Elementwise | ElementwisePair)
        }

    def add(self, name: str, value: Any) -> None:
        """Write a thing and its name."""
        self._where = name
        self._append(json.dumps(["part", name, self._part(value)]))

    def _append(self, text: str) -> int:
        self.entries.append(text)
        return len(self.entries) - 1

    def _part(self, value: Any) -> Any:
        if type(value) in _ATOMS:
            return value
        if type(value) is Rows:
            return int(value)
        if id(value) not in self._places:
            self._kept.append(value)
            self._places[id(value)] = self._entry(value)
        return [self._places[id(value)]]

    def _entry(self, value: Any) -> int:
        kind, *parts = self._described(value)
        text = json.dumps([kind, *map(self._part, parts)])
        if kind in _BY_IDENTITY:
            return self._append(text)
        if text not in self._known:
            self._known[text] = self._append(text)
        return self._known[text]

    def _described(self, value: Any) -> Sequence[Any]:
        """Return the kind of an entry and its parts."""
        describe = _KINDS.get(type(value))
        if describe is not None:
            return describe(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.device):
            self.devices.add(str(value))
            return "device", str(value)
        if isinstance(value, TreeSpec):
            return _structure(value)
        if isinstance(value, OpOverload) and value not in _REFUSED:
            return "op", str(value)
        described = self._function(value) if callable(value) else None
        if described is None and _is_ours(type(value)) and not isinstance(value, FunctionOp):
            described = _of_class(value)
        return described or self._refuse(value)

    def _tensor(self, tensor: torch.Tensor) -> Sequence[Any]:
        if type(tensor) not in PLAIN:
            self._refuse(tensor)
        self.tensors.append(tensor.detach())
        self.devices.add(str(tensor.device))
        return "tensor", len(self.tensors) - 1, tensor.requires_grad, type(tensor) is Parameter

    def _function(self, function: Any) -> Sequence[Any] | None:
        """Describe a function or a class, if there is a name for it."""
        if id(function) in self._rules:
            return "rule", self._rules[id(function)]
        names = {
            FunctionType: ("function", _called),
            BuiltinFunctionType: ("torch", lambda builtin: builtin.__name__),
            MethodDescriptorType: ("method", lambda method: method.__name__),
            type: ("class", _called),
        }
        if function is getitem:
            return "function", _GETITEM
        kind, name_of = names.get(type(function), (None, None))
        if kind is None or name_of is None:
            return None
        name = name_of(function)
        try:
            return (kind, name) if _READERS[kind](name) is function else None
        except (MissingError, *DAMAGE):
            return None

    def _refuse(self, value: Any) -> NoReturn:
        remedy = "Make the plan in the process that is to use it, or write f without it."
        got = f"{value!r} of type {type(value).__name__}"
        if isinstance(value, FunctionOp):
            got = f"{value}, a custom torch.autograd.Function"
            remedy = "Have its forward recorded by hofunc.options(functions=[...]) with its class."
        elif isinstance(value, torch.Tensor):
            got = f"a tensor of the class {type(value).__name__}"
        raise PlanFileError(
            f"{self._name}: a plan that is to be saved",
            got=f"{got if len(got) < _WIDE else got[: _WIDE - 3] + '...'}, in its {self._where}",
            expected="tensors, numbers, text, and what can be looked up by name elsewhere",
            remedy=remedy,
        )


_WIDE = 100
_BY_IDENTITY = frozenset(("list", "dict", "set", "object"))  # of which equal ones are not the same


def _called(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "hofunc"


def _of_class(value: Any) -> Sequence[Any]:
    """Describe an instance of a class of hofunc, by what it holds."""
    kind = type(value)
    if isinstance(value, tuple):
        return "fields", _called(kind), *value
    if isinstance(value, float | complex):
        return "number", _called(kind), float(value) if isinstance(value, float) else complex(value)
    state = value.__getstate__() if "__setstate__" in vars(kind) and not hasattr(kind, _FIELDS) else _state(value)
    return "object", _called(kind), *[part for pair in state.items() for part in pair]


_FIELDS = "__dataclass_fields__"


def _state(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    return {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})


def _checked(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise TypeError(f"{type(value).__name__} in place of {kinds[0].__name__}")
    return value


def _found(name: str) -> Any:
    """Look something up in a module that is there already: nothing is imported."""
    module, _, path = _checked(name, str).partition(":")
    found = sys.modules.get(module)
    for step in path.split("."):
        found = getattr(found, step, None)
    if found is None:
        raise MissingError(f"{path} of {module}")
    return found


def _of_hofunc(name: str) -> type:
    found = _found(name)
    if not isinstance(found, type) or not _is_ours(found) or _called(found) != name:
        raise TypeError(f"{name}, no class of hofunc")
    return found


def _read_function(name: str) -> Callable:
    if name == _GETITEM:
        return getitem
    module = name.partition(":")[0]
    is_home = any(module == home or module.startswith(f"{home}.") for home in _HOMES) and module not in _NO_HOMES
    if not is_home:
        raise TypeError(f"{name}, no function of a step")
    function = _found(name)
    if type(function) is not FunctionType or _called(function) != name or "." in function.__qualname__:
        raise TypeError(f"{name}, no function of a step")
    return function


def _read_op(name: str) -> OpOverload:
    found: Any = torch.ops
    try:
        for step in _checked(name, str).split("."):
            found = getattr(found, step)
    except AttributeError as error:
        raise MissingError(f"the op {name}") from error
    if not isinstance(found, OpOverload) or str(found) != name or found in _REFUSED:
        raise TypeError(f"{name}, no op of a step")
    return found


def _read_rule(op: Any) -> Callable:
    rule = RULES.get(op)
    if not isinstance(rule, Elementwise | ElementwisePair):
        raise MissingError(f"an elementwise rule of {op}")
    return rule.derivative


def _read_torch(name: str) -> Any:
    found = getattr(torch, _checked(name, str))
    if not isinstance(found, _CONSTANTS) and not (is_torch_function(found) and name != "from_file"):
        raise TypeError(f"torch.{name}, no function of a step")
    return found


def _read_method(name: str) -> Callable:
    found = getattr(torch.Tensor, _checked(name, str))
    if type(found) is not MethodDescriptorType:
        raise TypeError(f"Tensor.{name}, no function of a step")
    return found


def _read_class(name: str) -> type:
    found = _found(name)
    if not is_namedtuple_class(found) and found not in _FACTORIES and not _is_ours(found):
        raise TypeError(f"{name}, no class of a pytree")
    return found


def _read_tensor(tensor: torch.Tensor, requires_grad: bool, is_parameter: bool) -> torch.Tensor:
    if is_parameter:
        return Parameter(tensor, requires_grad)
    return _checked(tensor, torch.Tensor).requires_grad_(requires_grad)


def _read_structure(name: str, context: Any, *children: TreeSpec) -> TreeSpec:
    if not all(isinstance(child, TreeSpec) for child in children):
        raise TypeError("a structure of anything else")
    classes = {_called(kind): kind for kind in pytree_classes()}
    if name not in classes:
        raise MissingError(f"the class {name}, registered for pytrees")
    return TreeSpec(classes[name], context, [*children])


def _read_fields(name: str, *fields: Any) -> Any:
    kind: Any = _of_hofunc(name)
    if len(fields) != len(kind._fields):
        raise TypeError(f"{len(fields)} fields of {name}")
    return tuple.__new__(kind, fields)


def _read_number(name: str, value: complex) -> Any:
    return next(each for each in (float, complex) if type(value) is each).__new__(_of_hofunc(name), value)


def _read_object(name: str, *state: Any) -> Any:
    kind: Any = _of_hofunc(name)
    made, held = object.__new__(kind), dict(zip(state[::2], state[1::2], strict=True))
    if "__setstate__" in vars(kind) and not hasattr(kind, _FIELDS):
        made.__setstate__(held)
    else:
        for attribute, value in held.items():
            if attribute.startswith("__") and attribute != "__name__":
                raise ValueError(f"{attribute} among what an object holds")
            object.__setattr__(made, attribute, value)
    return made


_READERS: dict[str, Callable[..., Any]] = {
    "part": lambda *_: None,
    "tuple": lambda *items: items,
    "list": lambda *items: [*items],
    "set": lambda *items: {*items},
    "frozenset": lambda *items: frozenset(items),
    "dict": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "complex": complex,
    "slice": slice,
    "device": torch.device,
    "op": _read_op,
    "torch": _read_torch,
    "method": _read_method,
    "function": _read_function,
    "rule": _read_rule,
    "class": _read_class,
    "tensor": _read_tensor,
    "leaf": lambda: tree_flatten(None)[1],
    "structure": _read_structure,
    "fields": _read_fields,
    "number": _read_number,
    "object": _read_object,
}


def _structure(spec: TreeSpec) -> Sequence[Any]:
    if spec.is_leaf():
        return ("leaf",)
    return "structure", _called(spec.type), spec.context, *spec.children()


def _constant(value: Any) -> Sequence[Any]:
    return "torch", str(value).removeprefix("torch.")


_KINDS: dict[type, Callable[[Any], Sequence[Any]]] = {
    **dict.fromkeys(_CONSTANTS, _constant),
    tuple: lambda items: ("tuple", *items),
    torch.Size: lambda items: ("tuple", *items),
    list: lambda items: ("list", *items),
    set: lambda items: ("set", *items),
    frozenset: lambda items: ("frozenset", *items),
    dict: lambda items: ("dict", *[part for pair in items.items() for part in pair]),
    complex: lambda number: ("complex", number.real, number.imag),
    slice: lambda cut: ("slice", cut.start, cut.stop, cut.step),
}
