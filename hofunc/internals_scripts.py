"""What is read of TorchScript, with a test of every fact, as for `hofunc.internals`."""

from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._C import ScriptFunction, ScriptMethod
from torch.jit._fuser import optimized_execution
from torch.jit._recursive import wrap_cpp_module

__all__ = ["Script", "attributes_of", "before_scripts", "run_as_written"]

Script = ScriptFunction | ScriptMethod  # a function, or a method of a module
_call = ScriptFunction.__call__
_copies: WeakKeyDictionary[Script, ScriptFunction] = WeakKeyDictionary()


def before_scripts(run: Callable[[Callable[..., Any], Script, tuple, dict[str, Any]], Any]) -> None:
    """Have a function called in the place of every script, with what calls that, itself, and its arguments."""
    kind: Any
    for kind in (ScriptFunction, ScriptMethod):
        kind.__call__ = _replaced(kind.__call__, run)


def _replaced(call: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(script: Script, *args: Any, **kwargs: Any) -> Any:
        return run(call, script, args, kwargs)

    return replaced


def run_as_written(call: Callable[..., Any], script: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a script op by op, as none is that was optimised after some calls, and leave it as it is.

    Args:
        call: What calls it; arguments that it does not take are an error of that.
        script: The script.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """
    given = (script.owner, *args) if isinstance(script, ScriptMethod) else args
    rest = script.schema.arguments[len(given) :]
    is_complete = all(each.name in kwargs or each.has_default_value() for each in rest)
    if not is_complete or not kwargs.keys() <= {each.name for each in rest}:
        return call(script, *args, **kwargs)
    if (copy := _copies.get(script)) is None:  # which is never optimised, as it is called only here
        copy = _copies[script] = torch._C._create_function_from_graph(script.name, script.inlined_graph)
    filled = [kwargs.get(each.name, each.default_value) for each in rest]
    with optimized_execution(False):
        return _call(copy, *given, *filled)


def attributes_of(script: Script) -> Iterator[tuple[Any, str]]:
    """Yield the modules of TorchScript whose attributes a script may read, each with the name of one it has."""
    modules = [wrap_cpp_module(script.owner)] if isinstance(script, ScriptMethod) else []
    for module in modules:
        yield from ((module._c, name) for name in module._concrete_type.get_attributes())
        modules += module.children()
