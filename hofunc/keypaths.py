"""Parts of what is differentiated by, named as a caller names them: by the numbers of arguments, and by paths in these.

An entry is the number of a positional argument, as in argnums; a name, as in wrt; a key; or a tuple of such, the path
from an argument to a part of it. A path that begins with an int begins with the number of an argument, and one that
begins with a name in wrt with what has it; any other one is a path in the only argument that has it. An entry stands
for all leaves below it.
"""

from collections.abc import Hashable, Iterator, Sequence
from difflib import get_close_matches
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from hofunc.arguments import Arguments
from hofunc.given import refuse
from hofunc.internals import tree_flatten, tree_flatten_with_path, tree_is_leaf
from hofunc.trees import tree_unflatten

Path = tuple[Any, ...]

MOST_NAMED = 4  # paths that an error suggests


class Part(NamedTuple):
    """A part of what is differentiated by.

    Attributes:
        tree: Its structure, with the numbers of its leaves, over all argnums in turn.
        path: The number of the argument, and the keys on the way to it.
    """

    tree: Any
    path: Path


def is_entry(value: Any) -> bool:
    """Tell whether something may name a part."""
    if not isinstance(value, tuple):
        return _is_key(value)
    return bool(value) and all(isinstance(key, Hashable) and not isinstance(key, torch.Tensor) for key in value)


def _is_key(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def part_of(name: str, entry: Any, arguments: Arguments) -> Part:
    """Return the part that an entry names.

    Args:
        name: Name of the transform.
        entry: The entry.
        arguments: The arguments of a call.

    Raises:
        ArgumentError: It names none, or several.
    """
    path, roots = entry if isinstance(entry, tuple) else (entry,), _roots(arguments)
    if _is_key(path[0]) and isinstance(path[0], int):
        count = len(arguments.rest[0])
        position = path[0] % count if -count <= path[0] < count else path[0]
        found = _found([root for root in roots if root.path == (position,)], path[1:])
    else:
        named = [root for root in roots if path[0] in _names(root.path[0], arguments)]
        found = _found(named, path[1:]) if named else _found(roots, path)
    if not any(tree_flatten(part.tree)[0] for part in found):
        refuse(
            name,
            "an entry of blocks or groups",
            f"{entry!r}, which names no tensor that is differentiated by",
            f"one of what is differentiated by, {', '.join(repr(root.path[0]) for root in roots)}, or a path in one",
            _remedy(path, roots),
        )
    if len(found) > 1:
        both = " and ".join(spelt(part.path) for part in found)
        remedy = f"Begin with the number of the argument: {found[0].path!r}."
        refuse(name, "an entry of blocks or groups", f"{entry!r}, which is {both}", "one part of the arguments", remedy)
    return found[0]


def spelt(path: Path) -> str:
    """Return a path as it is written in Python: ``args[0]['w']``, and that of a tap with its name."""
    root = f"tap {path[0]!r}" if isinstance(path[0], str) else f"args[{path[0]}]"
    return root + "".join(f"[{key!r}]" for key in path[1:])


def _roots(arguments: Arguments) -> list[Part]:
    """Return the arguments that are differentiated by."""
    starts = accumulate([spec.num_leaves for spec in arguments.specs], initial=0)
    return [
        Part(tree_unflatten([*range(start, start + spec.num_leaves)], spec), (variable,))
        for variable, spec, start in zip(arguments.variables, arguments.specs, starts, strict=False)
    ]


def _names(variable: int | str, arguments: Arguments) -> list[str]:
    """Return what a variable is called by wrt: a tap by its name, an argument by that of the parameter."""
    called = dict(zip(arguments.argnums, arguments.parameters, strict=False))
    return [variable] if isinstance(variable, str) else [called[variable]] if variable in called else []


def _found(roots: Sequence[Part], path: Path) -> list[Part]:
    """Return what a path leads to from some parts."""
    found = list(roots)
    for key in path:
        found = [child for part in found for child in _children(part) if _is_same(child.path[-1], key)]
    return found


def _is_same(key: Any, other: Any) -> bool:
    """Tell whether keys are the same, of which True is not 1."""
    return isinstance(key, bool) == isinstance(other, bool) and bool(key == other)


def _children(part: Part) -> list[Part]:
    """Return the parts of a part, one level below."""
    tree, path = part
    if tree_is_leaf(tree):
        return []

    def is_below(each: Any) -> bool:
        return each is not tree

    try:
        keyed, _ = tree_flatten_with_path(tree, is_leaf=is_below)
    except ValueError:  # of a class that was registered without names of its parts
        children, _ = tree_flatten(tree, is_leaf=is_below)
        return [Part(child, (*path, number)) for number, child in enumerate(children)]
    return [Part(child, (*path, _key(entry))) for (entry,), child in keyed]


def _key(entry: Any) -> Any:
    """Return the key that an entry of torch's paths stands for."""
    return next((getattr(entry, field) for field in ("key", "idx", "name") if hasattr(entry, field)), entry)


def _below(part: Part) -> Iterator[Part]:
    """Yield a part and all that is below it."""
    yield part
    for child in _children(part):
        yield from _below(child)


def _remedy(path: Path, roots: Sequence[Part]) -> str:
    """Name the parts whose paths are like one that leads nowhere: those that end so first."""
    parts = [part.path for root in roots for part in _below(root)]
    known = {_joined(path[isinstance(path[0], int) :]): path for path in parts if path[isinstance(path[0], int) :]}
    texts = [_joined(path), *[_joined(path[1:])] * isinstance(path[0], int)]
    found = [known[text] for given in texts for text in known if f".{text}".endswith(f".{given}")]
    found = found or [known[text] for given in texts for text in get_close_matches(given, known, MOST_NAMED)]
    if found:
        return f"Did you mean {' or '.join(map(repr, dict.fromkeys(found[:MOST_NAMED])))}?"
    some = ", ".join(map(repr, [*known.values()][:MOST_NAMED]))
    return f"There are {some}{', ...' if len(known) > MOST_NAMED else ''}." if known else "Name an argument."


def _joined(path: Path) -> str:
    return ".".join(map(str, path))
