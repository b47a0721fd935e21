"""The tensors that a function reaches before it is called, which it does not compute."""

from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn import Module

from hofunc.graph.route import ATOMS

MOST_OBJECTS = 1000  # that are looked at, of what a function reaches
_HELD_BY_MODULES = ("_parameters", "_buffers", "_modules")
_NO_HOLDERS = ATOMS | {float, complex, BuiltinFunctionType, type, ModuleType}


def reached(function: Any) -> dict[int, torch.Tensor]:
    """Return tensors that a function reaches by what it closes over, is bound to, and has for defaults, by their ids.

    They are there before it is called. What it reads by its globals is not among them.
    """
    found: dict[int, torch.Tensor] = {}
    met, waiting = set[int](), [function]
    while waiting and len(met) < MOST_OBJECTS:
        each = waiting.pop()
        if type(each) in _NO_HOLDERS or id(each) in met:
            continue
        met.add(id(each))
        if isinstance(each, torch.Tensor):
            found[id(each)] = each
        else:
            waiting.extend(_held(each))
    return found


def _held(each: Any) -> Iterable[Any]:
    """Return what an object holds, without running any code of it."""
    known = _HELD_BY.get(type(each))
    if known is not None:
        return known(each)
    if isinstance(each, tuple | list):
        return each
    if isinstance(each, dict):
        return dict.values(each)
    try:
        attributes = object.__getattribute__(each, "__dict__")
    except AttributeError:
        return ()
    return _of_attributes(each, attributes) if type(attributes) is dict else ()  # which that of a class is not


def _of_attributes(each: Any, attributes: dict[str, Any]) -> Iterable[Any]:
    if "__wrapped__" in attributes:  # as a transform has it
        return (attributes["__wrapped__"],)
    if isinstance(each, Module):
        return [attributes[name] for name in _HELD_BY_MODULES if name in attributes]
    return attributes.values()


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return None


_HELD_BY: dict[type, Callable[[Any], Iterable[Any]]] = {
    FunctionType: lambda f: (*map(_content, f.__closure__ or ()), f.__defaults__, f.__kwdefaults__),
    MethodType: lambda method: (method.__self__, method.__func__),
    partial: lambda f: (f.func, *f.args, *f.keywords.values()),
}
