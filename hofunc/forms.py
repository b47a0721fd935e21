"""The form of a call: all that tells one call of a transform from another, without calling the function.

Calls of one form differ in values of tensors alone, and in what the function reads elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, signature
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from hofunc.errors import ArgumentError
from hofunc.given import refuse
from hofunc.graph.identity import PLAIN, is_fake
from hofunc.graph.world import state
from hofunc.options import of_recording
from hofunc.rules.registry import RULES
from hofunc.trees import tree_flatten

_NUMBERS = frozenset((float, complex))

_form = attrgetter("shape", "dtype", "device")


class Call(NamedTuple):
    """A call, taken apart.

    Attributes:
        form: All that can be told of it without calling the function, values of tensors left out.
        leaves: The leaves of its arguments.
        args: The positional arguments, with tensors for numbers that are differentiated by.
        kwargs: The keyword arguments, sorted by name.
    """

    form: tuple
    leaves: Sequence[Any]
    args: tuple
    kwargs: dict


class Value(NamedTuple):
    """A leaf of the arguments that is no tensor: 1 is neither True nor 1.0."""

    kind: type
    value: Any


def without_values(form: tuple) -> tuple:
    """Return a form without the values of what is no tensor."""
    return tuple([Value if type(each) is Value else each for each in form])


class Forms:
    """Takes the calls of a transform apart.

    Args:
        transform: The transform.
        static: The names of arguments that are compared as a whole.

    Raises:
        ArgumentError: It has no parameter of such a name.
    """

    def __init__(self, transform: Any, static: tuple[str, ...]):
        self._transform, self._static = transform, _places(transform, static)

    def taken(self, args: tuple, kwargs: dict) -> Call | None:
        """Take the arguments of a call apart; None for tensors of which there are no plans."""
        try:
            return self._taken(args, kwargs)
        except RuntimeError:
            if any(isinstance(leaf, torch.Tensor) and leaf.is_nested for leaf in tree_flatten((args, kwargs))[0]):
                return None  # of which torch tells no shape
            raise

    def _taken(self, args: tuple, kwargs: dict) -> Call | None:
        """Take the arguments of a call apart, of which all tensors have shapes."""
        if not kwargs and not self._static and PLAIN.issuperset(map(type, args)):
            return Call((state(), of_recording(), len(RULES), *map(_form, args)), args, args, kwargs)
        kwargs = dict(sorted(kwargs.items())) if len(kwargs) > 1 else kwargs
        leaves, spec = tree_flatten((args, kwargs))
        kinds = {*map(type, leaves)}
        if not kinds.isdisjoint(_NUMBERS):
            args = self._transform.inputs(args)
            leaves, spec = tree_flatten((args, kwargs))
        elif not kinds <= PLAIN and any(map(is_fake, leaves)):
            return None
        static = self._statics(args, kwargs) if self._static else ()
        forms = [_form(leaf) if isinstance(leaf, torch.Tensor) else self._value(leaf) for leaf in leaves]
        return Call((state(), of_recording(), len(RULES), spec, *static, *forms), leaves, args, kwargs)

    def _value(self, leaf: Any) -> Value:
        """Return what tells a leaf of the arguments that is no tensor from others."""
        value = repr(leaf) if type(leaf) in _NUMBERS else leaf  # which tells -0.0 from 0.0, and finds nan
        try:
            hash(value)
        except TypeError as error:
            raise ArgumentError(
                f"jit of {self._transform.__name__}: an argument that is no tensor",
                got=f"a {type(leaf).__name__}, which is not hashable",
                expected="a tensor, or what is compared by its hash and by ==",
                remedy="Pass it as a tensor, or call the transform itself.",
            ) from error
        return Value(type(leaf), value)

    def _statics(self, args: tuple, kwargs: dict) -> Iterator[tuple]:
        """Yield what tells the arguments that are static from others, as a whole."""
        for name, place in self._static.items():
            if name in kwargs:
                found = kwargs[name]
            elif place is not None and place < len(args):
                found = args[place]
            else:
                continue
            if any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(found)[0]):
                remedy = "Take it out of static_argnames: the values of tensors are free."
                refuse(
                    "jit", f"the static argument {name!r}", "a tensor", "what is compared by its hash and ==", remedy
                )
            yield name, self._value(found)


def _places(transform: Any, names: tuple[str, ...]) -> Mapping[str, int | None]:
    """Return the positions of arguments by their names; None of one that is passed by keyword only."""
    if not names:
        return {}
    try:
        parameters = [*signature(transform).parameters.values()]
    except (TypeError, ValueError):
        return dict.fromkeys(names)
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    found = {each.name: place if each.kind in by_position else None for place, each in enumerate(parameters)}
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    for name in names:
        if name not in found and not takes_any:
            expected = f"names among {', '.join(found) or 'none'}"
            refuse("jit", "static_argnames", repr(name), expected, "Name parameters of the function.")
    return {name: found.get(name) for name in names}
