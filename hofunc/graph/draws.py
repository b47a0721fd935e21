"""Random numbers under an outer vmap: drawn again wherever a recording is computed again, as vmap's randomness says.

Under vmap a function is recorded on stand-ins, and its graph is computed again on what is mapped. So what draws random
numbers is a node also where it takes no input, and torch itself then draws one number for all rows, or one for each,
or refuses. The recording starts from the same state of the generators as that, so that both draw the same numbers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn, TypeVar

import torch
from torch.random import fork_rng

from hofunc.errors import UntracedError
from hofunc.internals import (
    OpOverload,
    VmapInterpreter,
    dispatch_modes,
    identity_of,
    retrieve_all_functorch_interpreters,
    schema_of,
)

# Arguments by which a call that may draw random numbers draws none if they are zero, or false.
_ASKING = ("dropout_p", "dropout", "train", "training")


def may_be_random(op: Any) -> bool:
    """Tell whether some calls of an op draw random numbers."""
    return op is drawn or torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def is_random(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> bool:
    """Tell whether a call of an op draws random numbers: not so attention or a recurrent network without dropout.

    Args:
        op: The op.
        args: Its positional arguments, or what stands for them.
        kwargs: Those that it is given by name.
    """
    if not may_be_random(op):
        return False
    named = dict(kwargs)
    values = [args[at] if at < len(args) else named.get(name, default) for at, name, default in _asking(op)]
    return not any(type(value) in (bool, int, float) and not value for value in values)


def draws(call: Any) -> bool:
    """Tell whether a call, or a node of a graph, draws random numbers."""
    return is_random(call.op, call.args, call.kwargs)


@cache
def _asking(op: Any) -> tuple[tuple[int, str, Any], ...]:
    """Return the place, name and default of each of these arguments that an op has."""
    if not isinstance(op, OpOverload):
        return ()
    arguments = enumerate(schema_of(op).arguments)
    return tuple([(at, each.name, each.default_value) for at, each in arguments if each.name in _ASKING])


def generators_of(calls: Iterable[Any], device: torch.device) -> tuple[torch.Generator, ...]:
    """Return the generators from which calls draw, of ops with templates of arguments, on a device unless they say."""
    found = {}
    for call in calls:
        if draws(call):
            given = [each for each in (*call.args, *dict(call.kwargs).values()) if isinstance(each, torch.Generator)]
            found.update({identity_of(each): each for each in given or [_default_of(device)]})
    return tuple(found.values())


def _default_of(device: torch.device) -> torch.Generator:
    if device.type in {"cpu", "meta"}:
        return torch.default_generator
    module: Any = getattr(torch, device.type)
    return module.default_generators[torch.empty(0, device=device).device.index]


def drawn(op: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return what an op in place makes of a tensor.

    It is what the functional form of the op returns, except that vmap minds its randomness for ops in place only.
    """
    return op(tensor.clone(), *args, **kwargs)


def differs_by_row() -> bool:
    """Tell whether a vmap that is running asks for other random numbers for every row."""
    levels = retrieve_all_functorch_interpreters()
    return any(isinstance(level, VmapInterpreter) and level.randomness() == "different" for level in levels)


class Generators:
    """The random generators from which a function draws, to be set back to where they were when it first did.

    Those of devices are left out, which somebody else sets back.
    """

    def __init__(self) -> None:
        self._first: dict[int, tuple[torch.Generator, torch.Tensor]] = {}

    @contextmanager
    def drawing(self, args: tuple, kwargs: dict) -> Iterator[None]:
        """Note the state of the generator of an op before it draws."""
        generator = generator_of(args, kwargs)
        if identity_of(generator) != identity_of(torch.default_generator):
            self._note(generator)
        yield

    def _note(self, generator: torch.Generator) -> None:
        if identity_of(generator) not in self._first:
            self._first[identity_of(generator)] = generator, generator.get_state()

    def set_back(self) -> None:
        """Set all back."""
        for generator, first in self._first.values():
            generator.set_state(first)


class DrawsError(BaseException):
    """A function is about to draw random numbers, which it is not to; no error that it might catch."""


class Undrawn(Generators):
    """Those of a function that is called again if it draws, so that it does so only then."""

    def drawing(self, args: tuple, kwargs: dict) -> NoReturn:  # noqa: ARG002 - as of all generators
        """Raise a DrawsError before an op draws."""
        raise DrawsError


class Unseeded(Generators):
    """Those of a function that is not to set their state between two draws, with those of devices.

    If it sets the state of one before, that is as the first draw has found it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now: dict[int, torch.Tensor] = {}

    @contextmanager
    def drawing(self, args: tuple, kwargs: dict) -> Iterator[None]:
        """Note the state of the generator of an op before it draws, and after.

        Raises:
            UntracedError: The function has set it between two draws, which computing the graph again would not.
        """
        generator = generator_of(args, kwargs)
        key, before = identity_of(generator), generator.get_state()
        if not torch.equal(before, self._now.get(key, before)):
            raise UntracedError(
                "hofunc: f sets the state of a random generator between two draws under vmap",
                got="another state than the last draw has left",
                expected="one sequence of random numbers",
                remedy="Set the seed before f is called, or draw the numbers outside and pass them to f.",
            )
        self._note(generator)
        yield
        self._now[key] = generator.get_state()

    def look_again(self) -> None:
        """Note the states anew, after a recording inside the function has set them back."""
        self._now = {key: generator.get_state() for key, (generator, _) in self._first.items()}


def generator_of(args: tuple, kwargs: dict) -> torch.Generator:
    """Return the generator that is among the arguments of an op, or else the default one."""
    return next((arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)), torch.default_generator)


_G = TypeVar("_G", bound=Generators)


@contextmanager
def drawn_again(tensors: Iterable[torch.Tensor], kind: type[_G] = Unseeded) -> Iterator[_G]:  # type: ignore[assignment]
    """Leave the generators of the devices of some tensors as they were; yields what takes note of others."""
    devices = {tensor.device for tensor in tensors if tensor.device.type not in {"cpu", "meta"}}
    device_type = next((device.type for device in devices), "cuda")
    generators = kind()
    try:
        with fork_rng([device.index for device in devices], device_type=device_type):
            yield generators
    finally:
        generators.set_back()
        for mode in dispatch_modes():
            if isinstance(outer := getattr(mode, "generators", None), Unseeded):
                outer.look_again()
