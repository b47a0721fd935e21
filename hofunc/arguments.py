"""All checks of what a transform is called with, and the separation of what it differentiates by from the rest."""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from hofunc.complex_tensors import by_parts, is_complex, put_together
from hofunc.errors import ArgumentError
from hofunc.graph.identity import is_fake
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.internals import TreeSpec, has_forward_level, keystr, tree_flatten_with_path
from hofunc.plan import strategies as planned
from hofunc.plan.ablation import ABLATIONS
from hofunc.stream import Stream
from hofunc.trees import tree_flatten, tree_unflatten

LAYOUTS = ("dense", "compact")
STRATEGIES = ("auto", *planned.STRATEGIES)


class Arguments(NamedTuple):
    """The arguments of a call, taken apart.

    Attributes:
        leaves: The tensors to differentiate by, over all argnums in turn; those of numbers are new, and complex ones
            are here by real and imaginary part.
        are_complex: Whether each of them is complex.
        spec: The structure that a derivative has at each slot.
        rest: All arguments as (args, kwargs), None at the argnums.
        argnums: The positions, counted from the front.
        specs: Structure of the argument at each of them.
        operands: For each pattern of contractions its operands, whose leaves are numbers of tensors among ``leaves``.
        form: A number for all calls of contractions that have the same structures.
    """

    leaves: list[torch.Tensor]
    are_complex: tuple[bool, ...]
    spec: TreeSpec
    rest: tuple[tuple, dict]
    argnums: tuple[int, ...]
    specs: tuple[TreeSpec, ...]
    operands: tuple[tuple[Any, ...], ...] = ()
    form: int = 0

    def joined(self, leaves: Sequence[torch.Tensor], rest: tuple[tuple, dict]) -> tuple[list, dict]:
        """Put leaves back among the other arguments."""
        args, supply = list(rest[0]), iter(map(put_together, leaves, self.are_complex))
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


def check_transform(
    name: str, f: Any, order: Any, argnums: Any, layout: Any, strategy: Any, holomorphic: Any = False
) -> None:
    """Check what does not depend on the call.

    Raises:
        ArgumentError: f is not callable, order is not a positive int, argnums is not made of distinct ints, layout or
            strategy is unknown, or holomorphic is asked for with a compact layout.
    """
    check_function(name, f)
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        refuse(name, "order", repr(order), "an int of at least 1", "The value itself is f(x), or derivatives()[0].")
    check_argnums(name, argnums)
    if layout not in LAYOUTS:
        refuse(name, "layout", repr(layout), f"one of {LAYOUTS}", "Use 'dense' for plain tensors.")
    if strategy not in ABLATIONS:
        check_strategy(name, strategy, STRATEGIES)
    if not isinstance(holomorphic, bool):
        refuse(name, "holomorphic", repr(holomorphic), "True or False", "Leave it out if in doubt.")
    if holomorphic and layout == "compact":
        refuse(
            name,
            "holomorphic=True",
            "layout='compact'",
            "layout='dense', in which derivatives are complex tensors",
            "Leave holomorphic out for a compact derivative by real and imaginary part.",
        )


def check_function(name: str, f: Any) -> None:
    """Check that what is to be differentiated can be called.

    Raises:
        ArgumentError: It cannot.
    """
    if not callable(f):
        refuse(name, "f", type(f).__name__, "a function of tensors", "Pass the function itself, not its result.")


def check_argnums(name: str, argnums: Any) -> None:
    """Check that argnums is an int or made of some.

    Raises:
        ArgumentError: It is not.
    """
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    if (
        not isinstance(numbers, tuple | list)
        or not numbers
        or not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
    ):
        refuse(name, "argnums", repr(argnums), "an int or a tuple of ints", "Name positional arguments by number.")


def check_strategy(name: str, strategy: Any, known: Sequence[str]) -> None:
    """Check that a strategy is known.

    Raises:
        ArgumentError: It is not.
    """
    if strategy not in known:
        refuse(name, "strategy", repr(strategy), f"one of {known}", "Leave it at 'auto' if in doubt.")


def check_limits(name: str, chunk_size: Any, max_bytes: Any) -> None:
    """Check what a transform is asked to keep to.

    Raises:
        ArgumentError: One is neither None nor a positive int.
    """
    for what, limit in (("chunk_size", chunk_size), ("max_bytes", max_bytes)):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            refuse(name, what, repr(limit), "an int of at least 1, or None", "Leave it out for what is fastest.")


def check_out(name: str, out: Any, layout: str) -> None:
    """Check what dense derivatives are to be written to.

    Raises:
        ArgumentError: It is no stream, or derivatives are kept as terms.
    """
    if out is None:
        return
    if not isinstance(out, Stream):
        refuse(name, "out", type(out).__name__, "a hofunc.Stream", "Give it the path: out=hofunc.Stream(path).")
    if layout == "compact":
        refuse(name, "out", "layout='compact'", "layout='dense'", "Save a compact derivative with torch.save.")


def check_alone(name: str, what: str, leaves: Sequence[torch.Tensor]) -> None:
    """Check that nothing follows a call whose derivatives are handed over in pieces.

    Raises:
        ArgumentError: A transform, forward-mode AD or a recording does, or torch traces.
    """
    if in_transform() or has_forward_level() or is_recording() or any(map(is_fake, leaves)):
        got, expected = "a call inside a transform, forward-mode AD or what torch traces", "one outside"
        refuse(name, what, got, expected, "Call it outside, or take the whole derivative.")


def split(name: str, args: tuple, kwargs: dict, argnums: int | Sequence[int]) -> Arguments:
    """Take the arguments of a call apart.

    Raises:
        ArgumentError: argnums is out of range or names one argument twice, or an argument that it names has a leaf
            that is neither a floating-point or complex tensor nor a float or complex number.
        UntracedError: A complex tensor is sparse or nested.
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    if not args:
        refuse(name, "argnums", "no positional argument", "one to differentiate by", "Pass it by position.")
    if not all(-len(args) <= number < len(args) for number in numbers):
        refuse(
            name,
            "argnums",
            f"{argnums!r} for {len(args)} positional arguments",
            f"numbers from {-len(args)} to {len(args) - 1}",
            "Pass what you differentiate by as a positional argument.",
        )
    places = tuple(number % len(args) for number in numbers)
    if len(set(places)) != len(places):
        refuse(name, "argnums", repr(argnums), "every argument once", "Leave the second one out.")
    flat = [tree_flatten(args[place]) for place in places]
    leaves = [as_input(leaf) for part, _ in flat for leaf in part]
    for leaf in leaves:
        _check_leaf(name, leaf)
    structure = args[places[0]] if isinstance(argnums, int) else tuple(args[place] for place in places)
    rest = tuple(None if place in places else arg for place, arg in enumerate(args))
    are_complex = tuple(map(is_complex, leaves))
    if any(are_complex):
        leaves = [*map(by_parts, leaves)]
    specs = tuple(spec for _, spec in flat)
    return Arguments(leaves, are_complex, tree_flatten(structure)[1], (rest, kwargs), places, specs)


def as_input(leaf: Any) -> Any:
    """Return a float or a complex number as the tensor that it stands for, of torch's default dtype; else as it is."""
    return torch.as_tensor(leaf) if isinstance(leaf, float | complex) else leaf


def _check_leaf(name: str, leaf: Any) -> None:
    if not isinstance(leaf, torch.Tensor):
        is_number = isinstance(leaf, int) and not isinstance(leaf, bool)
        refuse(
            name,
            "an input to differentiate by",
            type(leaf).__name__,
            "a tensor, a float or complex number, or a pytree of these",
            f"Turn it into a {'float' if is_number else 'tensor'}, or leave it out of argnums.",
        )
    if not (leaf.is_floating_point() or leaf.is_complex()):
        refuse(
            name,
            "an input to differentiate by",
            f"dtype {leaf.dtype}",
            "a floating-point or complex dtype",
            "Convert it with .double().",
        )


def check_outputs(name: str, leaves: Sequence[Any]) -> bool:
    """Check what f returned, and tell whether any of it is complex.

    Raises:
        ArgumentError: A leaf is not a floating-point or complex tensor.
    """
    are_complex = [*map(is_complex, leaves)]
    for leaf, is_complex_leaf in zip(leaves, are_complex, strict=True):
        got = f"dtype {leaf.dtype}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__
        if not is_complex_leaf and not (isinstance(leaf, torch.Tensor) and leaf.is_floating_point()):
            refuse(
                name,
                "an output of f",
                got,
                "a floating-point or complex tensor",
                "Return only what is to be differentiated; other results go into aux, with has_aux=True.",
            )
    return any(are_complex)


def check_unlimited(name: str, max_bytes: int | None) -> None:
    """Check that there is no limit on memory where derivatives of complex outputs are put together, which takes more.

    Raises:
        ArgumentError: There is one.
    """
    if max_bytes is not None:
        refuse(
            name,
            "max_bytes",
            f"{max_bytes} for a complex output of f, of which derivatives are put together from those of its parts",
            "real outputs",
            "Return torch.view_as_real(y), or leave max_bytes out.",
        )


def check_holomorphic(name: str, what: str, leaves: Sequence[torch.Tensor], are_complex: Sequence[bool]) -> None:
    """Check that all that is differentiated, or differentiated by, is complex, for holomorphic.

    Raises:
        ArgumentError: It is not.
    """
    for leaf, is_complex_leaf in zip(leaves, are_complex, strict=True):
        if not is_complex_leaf:
            refuse(
                name,
                f"{what}, with holomorphic=True",
                f"dtype {leaf.dtype}",
                "a complex dtype",
                "Convert it to a complex tensor, or leave holomorphic out.",
            )


def check_aux(name: str, result: Any) -> tuple[Any, Any]:
    """Check that f returned a pair, for has_aux.

    Raises:
        ArgumentError: It did not.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        refuse(
            name, "the result of f", type(result).__name__, "a pair (output, aux)", "Return a pair, or drop has_aux."
        )
    return result


def refuse(name: str, what: str, got: str, expected: str, remedy: str) -> NoReturn:
    """Raise the error of a transform about what it was given."""
    raise ArgumentError(f"{name}: {what}", got=got, expected=expected, remedy=remedy)
