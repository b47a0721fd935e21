"""What the arguments of contractions mean: argnums or names for slots, operands, and what is given for each pattern."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from inspect import CO_VARARGS, CO_VARKEYWORDS, signature
from itertools import chain
from types import FunctionType
from typing import Any, cast

import torch

from hofunc.arguments import Arguments, are_real, check_argnums, described, is_continuous, named_variables
from hofunc.complex_tensors import is_complex
from hofunc.given import refuse
from hofunc.internals import keystr, tree_flatten_with_path
from hofunc.trees import tree_flatten, tree_unflatten


def for_each(
    name: str, what: str, given: Any, pattern: Any, spec: Any, default: Any, *, is_one: Callable[[Any], bool]
) -> list[Any]:
    """Return what is given for each of the patterns: for one, for all, or in the structure of a tuple or dict."""
    if isinstance(pattern, str):
        return [given]
    if is_one(given):
        return [given] * spec.num_leaves
    is_named = isinstance(pattern, Mapping) and isinstance(given, Mapping) and given.keys() <= pattern.keys()
    is_listed = isinstance(pattern, tuple | list) and isinstance(given, tuple | list) and len(given) == len(pattern)
    if not is_named and not is_listed:
        got = f"{type(given).__name__} of {len(given) if hasattr(given, '__len__') else 'no'} entries"
        expected = "one entry a pattern, in a structure like theirs"
        refuse(name, what, got, expected, "Pass () for those that have none.")
    if is_named:
        numbered = tree_unflatten([*range(spec.num_leaves)], spec)
        by_number = {numbered[key]: value for key, value in given.items()}
        return [by_number.get(number, default) for number in range(spec.num_leaves)]
    return list(given)


def is_argnums(value: Any) -> bool:
    """Tell whether a value is what argnums may be for one pattern."""
    kinds = int | str
    return isinstance(value, kinds) or (isinstance(value, tuple | list) and all(isinstance(v, kinds) for v in value))


def is_none(value: Any) -> bool:
    """Tell whether a value says that there are no operands."""
    return isinstance(value, tuple | list) and not value


def meant(name: str, f: Callable[..., Any], wrt: Any, argnums: Any) -> tuple[Any, tuple[str, ...]]:
    """Return what stands in argnums for names in their structure, and the names of those that are of arguments."""
    leaves, spec = tree_flatten(wrt)
    if not all(isinstance(each, str) for each in leaves):
        refuse(name, "wrt", repr(wrt), "names, as of numbers in argnums", "Name parameters of f, or what it taps.")
    names = tuple(dict.fromkeys(leaves))
    variables, parameters = named_variables(name, f, names, argnums)
    meaning = dict(zip(names, cast("tuple[int | str, ...]", variables), strict=True))
    return tree_unflatten([meaning[each] for each in leaves], spec), parameters


def check_argnums_of_slots(name: str, argnums: Any) -> None:
    """Check that argnums is an int, or has for every slot one or some."""
    for entry in argnums if isinstance(argnums, tuple | list) else (argnums,):
        check_argnums(name, entry)


def positions_in(argnums: Any) -> tuple[int | str, ...]:
    """Return all positions and names in argnums, or in an entry of it."""
    return (argnums,) if isinstance(argnums, int | str) else tuple(chain(*map(positions_in, argnums)))


@lru_cache(maxsize=1024)
def in_order(positions: tuple[int | str, ...], size: int) -> list[int | str]:
    """Return the positions of arguments, of which there are so many, from the first to the last."""
    numbers = [number for number in positions if isinstance(number, int)]
    return sorted({number % size if -size <= number < size else number for number in numbers})


def places_of(entry: Any, arguments: Arguments) -> list[int]:
    """Return which of what is differentiated by is in an entry of argnums."""
    size = len(arguments.rest[0])
    each = [number % size if isinstance(number, int) else number for number in positions_in(entry)]
    return [arguments.variables.index(one) for one in each]


def check_signature(name: str, f: Callable[..., Any], keywords: Sequence[str]) -> None:
    """Refuse a function that has a parameter called as what the transform takes."""
    names = _parameters_of(f) if keywords else ()
    for keyword in keywords:
        if keyword in names:
            got, remedy = f"a parameter called {keyword}", "Wrap f in a function that names it otherwise."
            refuse(name, "f", got, f"none of that name, which {name} takes itself", remedy)


def _parameters_of(f: Callable[..., Any]) -> Collection[str]:
    """Return the names of the parameters of a function, none if it does not tell."""
    if type(f) is FunctionType and not f.__dict__:  # of which nothing stands for the signature of another
        code = f.__code__
        beside = sum(bool(code.co_flags & flag) for flag in (CO_VARARGS, CO_VARKEYWORDS))
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + beside]
    try:
        return signature(f).parameters
    except (TypeError, ValueError):
        return ()


def check_operands(name: str, keyword: str, given: Any, leaves: Sequence[Any]) -> list[bool]:
    """Check what multiplies derivatives, given by a keyword, and its leaves too; tell which are complex."""
    if are_real(leaves):
        return [False] * len(leaves)
    for number, leaf in enumerate(leaves):
        if not is_continuous(leaf):
            what = keyword + keystr(tree_flatten_with_path(given)[0][number][0])
            is_tensor = isinstance(leaf, torch.Tensor)
            remedy = "Convert it with .to(x.dtype)." if is_tensor else "Write torch.as_tensor(v, dtype=x.dtype)."
            refuse(name, what, described(leaf), "a floating-point or complex tensor", remedy)
    return [*map(is_complex, leaves)]
