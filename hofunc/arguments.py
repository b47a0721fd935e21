"""All checks of what a transform is called with, and the separation of what it differentiates by from the rest."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import is_dataclass
from functools import lru_cache
from inspect import Parameter, signature, unwrap
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import torch

from hofunc.complex_tensors import by_parts, is_complex, put_together
from hofunc.given import check_choice, check_flag, check_order, refuse
from hofunc.graph.identity import PLAIN, is_fake
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.internals import TreeSpec, has_forward_level, keystr, tree_flatten_with_path
from hofunc.plan import strategies as planned
from hofunc.plan.ablation import ABLATIONS
from hofunc.stream import Stream
from hofunc.taps import Tapping, anew, is_tapping
from hofunc.trees import tree_flatten, tree_unflatten
from hofunc.words import plural

LAYOUTS = ("dense", "compact")
STRATEGIES = ("auto", *planned.STRATEGIES)
Variables = int | str | Sequence[int | str]  # positions of arguments, and names of taps


class Arguments(NamedTuple):
    """The arguments of a call, taken apart.

    Attributes:
        leaves: The tensors to differentiate by, over all variables in turn; those of numbers are new, and complex ones
            are here by real and imaginary part.
        are_complex: Whether each of them is complex.
        spec: The structure that a derivative has at each slot.
        rest: All arguments as (args, kwargs), None where one is differentiated by.
        variables: What is differentiated by: positions of arguments, counted from the front, and names of taps.
        specs: Structure of each of them.
        name: Of the transform.
        parameters: What those of them are called that are arguments, if they were named.
        operands: For each pattern of contractions its operands, whose leaves are numbers of tensors among ``leaves``.
        form: A number for all calls of contractions that have the same structures.
    """

    leaves: list[torch.Tensor]
    are_complex: tuple[bool, ...]
    spec: TreeSpec
    rest: tuple[tuple, dict]
    variables: tuple[int | str, ...]
    specs: tuple[TreeSpec, ...]
    name: str
    parameters: tuple[str, ...] = ()
    operands: tuple[tuple[Any, ...], ...] = ()
    form: int = 0

    @property
    def argnums(self) -> tuple[int, ...]:
        """The positions of the arguments that it is differentiated by."""
        return tuple([each for each in self.variables if isinstance(each, int)])

    @property
    def taps(self) -> tuple[str, ...]:
        """The names of the taps that it is differentiated by."""
        return tuple([each for each in self.variables if isinstance(each, str)])

    def joined(self, leaves: Sequence[torch.Tensor], rest: tuple[tuple, dict]) -> tuple[list, dict]:
        """Put leaves back among the other arguments."""
        args = list(rest[0])
        for variable, tree in self._trees(leaves):
            if isinstance(variable, int):
                args[variable] = tree
        return args, rest[1]

    def called(self, function: Callable[..., Any], leaves: Sequence[torch.Tensor], rest: tuple[tuple, dict]) -> Any:
        """Call a function with leaves put back among the other arguments, those of taps where it taps."""
        args, kwargs = self.joined(leaves, rest)
        with self.tapped(leaves):
            return function(*args, **kwargs)

    def tapped(self, leaves: Sequence[torch.Tensor] | None) -> AbstractContextManager[Tapping | None]:
        """Put leaves where a function taps that runs within; without any, it is to tell what it taps."""
        if is_tapping():
            anew()
        if not self.taps and not self.parameters:
            return nullcontext()
        changes = None if leaves is None else dict(self._trees(leaves))
        return Tapping(self.name, changes, self.taps, self.parameters)

    def names(self) -> list[str]:
        """Name each of the leaves: ``args[0]['w']``."""
        return _names(self.variables, self.specs)

    def name_of(self, place: int) -> str:
        """Name one of the variables: ``args[0]``."""
        return _name(self.variables[place])

    def _trees(self, leaves: Sequence[torch.Tensor]) -> Iterator[tuple[Any, Any]]:
        """Yield each of the variables, and what stands there."""
        whole = [*map(put_together, leaves, self.are_complex)] if True in self.are_complex else leaves
        start = 0
        for variable, spec in zip(self.variables, self.specs, strict=True):
            start, first = start + spec.num_leaves, start
            yield variable, tree_unflatten(whole[first:start], spec)


def _names(variables: Sequence[int | str], specs: Sequence[TreeSpec]) -> list[str]:
    """Name each of the leaves of some variables."""
    return [
        _name(variable) + keystr(path)
        for variable, spec in zip(variables, specs, strict=True)
        for path, _ in tree_flatten_with_path(tree_unflatten([0] * spec.num_leaves, spec))[0]
    ]


def _name(variable: int | str) -> str:
    return f"args[{variable}]" if isinstance(variable, int) else f"tap {variable!r}"


def check_transform(
    name: str, f: Any, order: Any, argnums: Any, layout: Any, strategy: Any, holomorphic: Any = False
) -> None:
    """Check what does not depend on the call.

    Raises:
        ArgumentError: f is not callable, order is not a positive int, argnums is not made of distinct ints, layout or
            strategy is unknown, or holomorphic is asked for with a compact layout.
    """
    check_function(name, f)
    _check_no_point(name, "order", order, "an int of at least 1")
    check_order(name, order)
    check_argnums(name, argnums)
    check_choice(name, "layout", layout, LAYOUTS, "Use 'dense' for plain tensors.")
    if not isinstance(strategy, str) or strategy not in ABLATIONS:
        check_strategy(name, strategy, STRATEGIES)
    check_flag(name, "holomorphic", holomorphic)
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
        expected = "an int or a tuple of ints"
        _check_no_point(name, "argnums", argnums, expected)
        names = (argnums,) if isinstance(argnums, str) else argnums
        are_names = isinstance(names, tuple | list) and names and all(isinstance(each, str) for each in names)
        remedy = f"Names go into wrt={argnums!r}." if are_names else "Name positional arguments by number."
        refuse(name, "argnums", repr(argnums), expected, remedy)


def _check_no_point(name: str, what: str, given: Any, expected: str) -> None:
    """Check that no tensor stands where there is an option, as with torch.autograd.functional.

    Raises:
        ArgumentError: One does.
    """
    leaves = tree_flatten(given)[0]
    point = next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) or _has_axes(leaf)), None)
    if point is not None:
        got = f"{type(point).__name__} of shape {tuple(point.shape)}"
        refuse(name, what, got, expected, f"Pass arguments to the function that is returned: {name}(f)(x).")


def _has_axes(leaf: Any) -> bool:
    """Whether something is an array of another library, and no number of one."""
    return hasattr(leaf, "shape") and leaf.shape != ()


def check_strategy(name: str, strategy: Any, known: Sequence[str]) -> None:
    """Check that a strategy is known.

    Raises:
        ArgumentError: It is not.
    """
    check_choice(name, "strategy", strategy, known, "Leave it at 'auto' if in doubt.")


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


def named_variables(name: str, f: Any, wrt: Any, argnums: Any) -> tuple[Variables, tuple[str, ...]]:
    """Return what names stand for, positions of arguments or taps, and those that are of arguments.

    Raises:
        ArgumentError: They are no names, one stands for an argument that is passed by keyword, or there are argnums.
    """
    if argnums != 0:
        refuse(name, "argnums", f"{argnums!r} beside wrt={wrt!r}", "one of both", "Name all in wrt.")
    names: Sequence[str] = (wrt,) if isinstance(wrt, str) else wrt
    if (
        not isinstance(names, tuple | list)
        or not names
        or not all(isinstance(each, str) for each in names)
        or len({*names}) < len(names)
    ):
        expected = "a str or a tuple of different ones"
        refuse(name, "wrt", repr(wrt), expected, "Name parameters of f, or what it names by hofunc.tap.")
    try:
        called = unwrap(f)
        parameters = [*signature(getattr(called, "forward", called)).parameters.values()]
    except (TypeError, ValueError):
        parameters = []
    places = {each.name: place for place, each in enumerate(parameters) if each.kind in _BY_POSITION}
    for each in parameters:
        if each.name in names and each.name not in places:
            got = f"{each.name!r}, which f takes by keyword or as several"
            refuse(name, "wrt", got, "a parameter that is passed by position, or a tap", "Change the parameter of f.")
    meant: dict[str, int | str] = {each: each for each in names}
    meant.update({each: place for each, place in places.items() if each in meant})
    variables = tuple(meant.values())
    return variables[0] if isinstance(wrt, str) else variables, tuple(each for each in names if each in places)


_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NONE: Mapping[str, Any] = MappingProxyType({})


def split(
    name: str,
    args: tuple,
    kwargs: dict,
    argnums: Variables,
    taps: Mapping[str, Any] = _NONE,
    parameters: tuple[str, ...] = (),
) -> Arguments:
    """Take the arguments of a call apart.

    Args:
        name: Of the transform.
        args: Positional arguments.
        kwargs: Keyword arguments.
        argnums: What is differentiated by: positions of arguments, or names of taps.
        taps: The changes of the latter.
        parameters: What the former are called, if they were named.

    Raises:
        ArgumentError: argnums is out of range or names one argument twice, or an argument that it names has a leaf
            that is neither a floating-point or complex tensor nor a float or complex number.
        UntracedError: A complex tensor is sparse or nested.
    """
    places = _places(name, argnums if isinstance(argnums, int | str) else tuple(argnums), len(args), parameters)
    trees = tuple([args[place] if isinstance(place, int) else taps[place] for place in places])
    flat = [tree_flatten(tree) for tree in trees]
    leaves, specs = [leaf for part, _ in flat for leaf in part], tuple([spec for _, spec in flat])
    are_complex = (False,) * len(leaves)
    if not are_real(leaves):
        leaves = [*map(as_input, leaves)]
        for number, leaf in enumerate(leaves):
            if not is_continuous(leaf):
                _refuse_input(name, _names(places, specs)[number], leaf)
        are_complex = tuple([leaf.is_complex() for leaf in leaves])
        if True in are_complex:
            leaves = [*map(by_parts, leaves)]
    structure = specs[0] if isinstance(argnums, int | str) else tree_flatten(trees)[1]
    rest = tuple([None if place in places else arg for place, arg in enumerate(args)])
    return Arguments(leaves, are_complex, structure, (rest, kwargs), places, specs, name, parameters)


@lru_cache(maxsize=1024)
def _places(
    name: str, argnums: int | str | tuple[int | str, ...], count: int, parameters: tuple[str, ...]
) -> tuple[int | str, ...]:
    """Return what is differentiated by, positions of so many arguments counted from the front.

    Raises:
        ArgumentError: One is out of range, or named twice.
    """
    variables = (argnums,) if isinstance(argnums, int | str) else argnums
    numbers, what = [each for each in variables if isinstance(each, int)], "wrt" if parameters else "argnums"
    if numbers and not count:
        refuse(name, what, "no positional argument", "one to differentiate by", "Pass it by position.")
    if not all(-count <= number < count for number in numbers):
        refuse(
            name,
            what,
            f"{_shown(parameters or variables)} for {plural(count, 'positional argument')}",
            "0 or -1" if count == 1 else f"numbers from {-count} to {count - 1}",
            "Arguments are counted from 0, from behind if below it, and only those that are passed by position.",
        )
    places = tuple([each % count if isinstance(each, int) else each for each in variables])
    if len(set(places)) != len(places):
        refuse(name, "argnums", repr(argnums), "every argument once", "Leave the second one out.")
    return places


def _shown(several: tuple) -> str:
    """Return a tuple as text, without its brackets if it has one entry."""
    return repr(several[0] if len(several) == 1 else several)


def are_real(leaves: Sequence[Any]) -> bool:
    """Tell whether all leaves are floating-point tensors of no subclass, as most are."""
    return False not in [type(leaf) in PLAIN and leaf.dtype.is_floating_point for leaf in leaves]


def as_input(leaf: Any) -> Any:
    """Return a float or a complex number as the tensor that it stands for, of torch's default dtype; else as it is."""
    return torch.as_tensor(leaf) if isinstance(leaf, float | complex) else leaf


def is_continuous(leaf: Any) -> bool:
    """Whether something can be differentiated, or differentiated by."""
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def described(leaf: Any) -> str:
    """Tell the dtype of a tensor, and the type of what is none."""
    return f"dtype {leaf.dtype}" if isinstance(leaf, torch.Tensor) else type(leaf).__name__


def _refuse_input(name: str, where: str, leaf: Any) -> NoReturn:
    what = f"an input to differentiate by, at {where}"
    if isinstance(leaf, torch.Tensor):
        expected, remedy = "a floating-point or complex dtype", "Convert it with .double()."
        refuse(name, what, described(leaf), expected, remedy)
    is_number = isinstance(leaf, int) and not isinstance(leaf, bool)
    remedy = f"Turn it into a {'float' if is_number else 'tensor'}, or leave it out of argnums."
    if is_dataclass(leaf) and not isinstance(leaf, type):
        remedy = f"Register it as a pytree: torch.export.register_dataclass({type(leaf).__name__})."
    refuse(name, what, described(leaf), "a tensor, a float or complex number, or a pytree of these", remedy)


def check_outputs(name: str, output: Any, leaves: Sequence[Any]) -> bool:
    """Check what f returned, given its leaves too, and tell whether any of it is complex.

    Raises:
        ArgumentError: A leaf is not a floating-point or complex tensor.
    """
    if are_real(leaves):
        return False
    for number, leaf in enumerate(leaves):
        if not is_continuous(leaf):
            path = keystr(tree_flatten_with_path(output)[0][number][0])
            refuse(
                name,
                f"an output of f, at {path}" if path else "an output of f",
                described(leaf),
                "a floating-point or complex tensor",
                "Return only what is to be differentiated; other results go into aux, with has_aux=True.",
            )
    return any(map(is_complex, leaves))


def check_unlimited(name: str, max_bytes: int | None) -> None:
    """Check that there is no limit on memory where derivatives are checked to be complex ones, which takes more.

    Raises:
        ArgumentError: There is one.
    """
    if max_bytes is not None:
        refuse(
            name,
            "max_bytes",
            f"{max_bytes} with holomorphic=True, of which all derivatives are checked at once",
            "no limit",
            "Leave holomorphic out, for the derivatives by real and imaginary part, or max_bytes.",
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
