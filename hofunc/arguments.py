"""All checks of what a transform is called with, and the separation of what it differentiates by from the rest."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from hofunc.errors import ArgumentError
from hofunc.internals import TreeSpec, keystr, tree_flatten, tree_flatten_with_path, tree_unflatten
from hofunc.plan import strategies as planned
from hofunc.plan.ablation import ABLATIONS

LAYOUTS = ("dense", "compact")
STRATEGIES = ("auto", *planned.STRATEGIES)


class Arguments(NamedTuple):
    """The arguments of a call, taken apart.

    Attributes:
        leaves: The tensors to differentiate by, over all argnums in turn; those of floats are new.
        spec: The structure that a derivative has at each slot.
        rest: All arguments as (args, kwargs), None at the argnums.
        argnums: The positions, counted from the front.
        specs: Structure of the argument at each of them.
    """

    leaves: list[torch.Tensor]
    spec: TreeSpec
    rest: tuple[tuple, dict]
    argnums: tuple[int, ...]
    specs: tuple[TreeSpec, ...]

    def joined(self, leaves: Sequence[torch.Tensor], rest: tuple[tuple, dict]) -> tuple[list, dict]:
        """Put leaves back among the other arguments."""
        args, supply = list(rest[0]), iter(leaves)
        for position, spec in zip(self.argnums, self.specs, strict=True):
            args[position] = tree_unflatten([next(supply) for _ in range(spec.num_leaves)], spec)
        return args, rest[1]

    def names(self) -> list[str]:
        """Name each of the leaves: ``args[0]['w']``."""
        paths = [
            (position, path)
            for position, spec in zip(self.argnums, self.specs, strict=True)
            for path, _ in tree_flatten_with_path(tree_unflatten([0] * spec.num_leaves, spec))[0]
        ]
        return [f"args[{position}]{keystr(path)}" for position, path in paths]


def check_transform(name: str, f: Any, order: Any, argnums: Any, layout: Any, strategy: Any) -> None:
    """Check what does not depend on the call.

    Raises:
        ArgumentError: f is not callable, order is not a positive int, argnums is not made of distinct ints, or layout
            or strategy is unknown.
    """
    if not callable(f):
        _refuse(name, "f", type(f).__name__, "a function of tensors", "Pass the function itself, not its result.")
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        _refuse(name, "order", repr(order), "an int of at least 1", "The value itself is f(x), or derivatives()[0].")
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if (
        not isinstance(numbers, tuple | list)
        or not numbers
        or not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    ):
        _refuse(name, "argnums", repr(argnums), "an int or a tuple of ints", "Name positional arguments by number.")
    if layout not in LAYOUTS:
        _refuse(name, "layout", repr(layout), f"one of {LAYOUTS}", "Use 'dense' for plain tensors.")
    if strategy not in (*STRATEGIES, *ABLATIONS):
        _refuse(name, "strategy", repr(strategy), f"one of {STRATEGIES}", "Leave it at 'auto' if in doubt.")


def check_limits(name: str, chunk_size: Any, max_bytes: Any) -> None:
    """Check what a transform is asked to keep to.

    Raises:
        ArgumentError: One is neither None nor a positive int.
    """
    for what, limit in (("chunk_size", chunk_size), ("max_bytes", max_bytes)):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            _refuse(name, what, repr(limit), "an int of at least 1, or None", "Leave it out for what is fastest.")


def split(name: str, args: tuple, kwargs: dict, argnums: int | Sequence[int]) -> Arguments:
    """Take the arguments of a call apart.

    Raises:
        ArgumentError: argnums is out of range or names one argument twice, or an argument that it names has a leaf
            that is neither a real floating-point tensor nor a float.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not args:
        _refuse(name, "argnums", "no positional argument", "one to differentiate by", "Pass it by position.")
    if not all(-len(args) <= number < len(args) for number in numbers):
        _refuse(
            name,
            "argnums",
            f"{argnums!r} for {len(args)} positional arguments",
            f"numbers from {-len(args)} to {len(args) - 1}",
            "Pass what you differentiate by as a positional argument.",
        )
    places = tuple(number % len(args) for number in numbers)
    if len(set(places)) != len(places):
        _refuse(name, "argnums", repr(argnums), "every argument once", "Leave the second one out.")
    flat = [tree_flatten(args[place]) for place in places]
    leaves = [as_input(leaf) for part, _ in flat for leaf in part]
    for leaf in leaves:
        _check_leaf(name, leaf)
    structure = args[places[0]] if isinstance(argnums, int) else tuple(args[place] for place in places)
    rest = tuple(None if place in places else arg for place, arg in enumerate(args))
    return Arguments(leaves, tree_flatten(structure)[1], (rest, kwargs), places, tuple(spec for _, spec in flat))


def as_input(leaf: Any) -> Any:
    """Return a Python float as the tensor that it stands for, of torch's default dtype; anything else as it is."""
    return torch.as_tensor(leaf) if isinstance(leaf, float) else leaf


def _check_leaf(name: str, leaf: Any) -> None:
    if not isinstance(leaf, torch.Tensor):
        is_number = isinstance(leaf, int | complex) and not isinstance(leaf, bool)
        _refuse(
            name,
            "an input to differentiate by",
            type(leaf).__name__,
            "a tensor, a float, or a pytree of these",
            f"Turn it into a {'float' if is_number else 'tensor'}, or leave it out of argnums.",
        )
    if not leaf.is_floating_point():
        remedy = "Differentiate by its real and imaginary part." if leaf.is_complex() else "Convert it with .double()."
        _refuse(name, "an input to differentiate by", f"dtype {leaf.dtype}", "a real floating-point dtype", remedy)


def check_outputs(name: str, leaves: Sequence[Any]) -> None:
    """Check what f returned.

    Raises:
        ArgumentError: A leaf is not a real floating-point tensor.
    """
    for leaf in leaves:
        got = f"dtype {leaf.dtype}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            _refuse(
                name,
                "an output of f",
                got,
                "a real floating-point tensor",
                "Return only what is to be differentiated; other results go into aux, with has_aux=True.",
            )


def check_aux(name: str, result: Any) -> tuple[Any, Any]:
    """Check that f returned a pair, for has_aux.

    Raises:
        ArgumentError: It did not.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        _refuse(
            name, "the result of f", type(result).__name__, "a pair (output, aux)", "Return a pair, or drop has_aux."
        )
    return result


def _refuse(name: str, what: str, got: str, expected: str, remedy: str) -> None:
    raise ArgumentError(f"{name}: {what}", got=got, expected=expected, remedy=remedy)
