"""Options that there are not: errors name those that there are, the nearest first."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, wraps
from inspect import Parameter, signature
from typing import Any, TypeVar, get_overloads

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from hofunc.errors import OptionError

_F = TypeVar("_F", bound=Callable[..., Any])
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def spelt(function: _F) -> _F:
    """Let a function refuse what it has no parameter for by an error that says which there are."""

    @wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        check_options(function, args, options, "Pass the others by name.")
        return function(*args, **options)

    return checked  # type: ignore[return-value]


def check_options(
    function: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any], remedy: str, *, returned: str = ""
) -> None:
    """Check that a function has a parameter for whatever it is given.

    Args:
        function: The function.
        args: What it is given by position.
        options: What it is given by name.
        remedy: What to do if there is too much by position.
        returned: What it returns, as text, if that is what takes tensors by name: ``hvp(f)``.

    Raises:
        OptionError: It has none for a name, or for so many positional arguments.
    """
    if is_dynamo_compiling():  # which says itself what a function does not take
        return
    most, known = _parameters(function)
    name = function.__qualname__.removesuffix(".__init__")
    if len(args) > most:
        hidden = name != function.__qualname__  # of a class, the object itself
        got, expected = str(len(args) - hidden), f"at most {most - hidden}"
        raise OptionError(f"{name}: arguments by position", got=got, expected=expected, remedy=remedy)
    for option, value in options.items():
        if option not in known:
            near = get_close_matches(option, sorted(known), len(known))
            others = ", ".join([*near, *sorted(known.difference(near))])
            remedy = f"Write {near[0]}=..." if near else f"help(hofunc.{name}) says what they mean."
            if returned and _has_tensors(value):
                remedy = f"Pass tensors to the function that is returned: {returned}(x, {option}=...)."
            raise OptionError(f"{name}: an option", got=option, expected=f"one of {others}", remedy=remedy)


def _has_tensors(value: Any) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return isinstance(value, Tensor) or any(map(_has_tensors, parts))


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[int, frozenset[str]]:
    """Return how many positional arguments a function takes, and the names of its options."""
    known = set[str]()
    for form in (function, *get_overloads(function)):
        for each in signature(form).parameters.values():
            if each.kind is Parameter.VAR_KEYWORD:  # by a TypedDict
                known.update(
                    *(getattr(kind, "__annotations__", ()) for kind in getattr(each.annotation, "__args__", ()))
                )
            else:
                known.add(each.name)
    own = [each for each in signature(function).parameters.values() if each.kind in _BY_POSITION]
    return len(own), frozenset(known - {"self", "f"})
