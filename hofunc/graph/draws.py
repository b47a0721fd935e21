"""Random numbers under an outer vmap: drawn again wherever a recording is computed again, as vmap's randomness says.

Under vmap a function is recorded on stand-ins, and its graph is computed again on what is mapped. So what draws random
numbers is a node also where it takes no input, and torch itself then draws one number for all rows, or one for each,
or refuses. The recording starts from the same state of the generators as that, so that both draw the same numbers.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.random import fork_rng

from hofunc.errors import UntracedError
from hofunc.internals import VmapInterpreter, dispatch_modes, identity_of, retrieve_all_functorch_interpreters


def is_random(op: Any) -> bool:
    """Tell whether an op draws random numbers."""
    return op is drawn or torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def generators_of(calls: Iterable[Any], device: torch.device) -> tuple[torch.Generator, ...]:
    """Return the generators from which calls draw, of ops with templates of arguments, on a device unless they say."""
    found = {}
    for call in calls:
        if is_random(call.op):
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

    If it sets the state of one, that is as the first draw has found it.
    """

    def __init__(self) -> None:
        self._states: dict[int, tuple[torch.Generator, torch.Tensor, torch.Tensor]] = {}  # at the first draw, and now

    @contextmanager
    def drawing(self, args: tuple, kwargs: dict) -> Iterator[None]:
        """Note the state of the generator of an op before it draws, and after.

        Raises:
            UntracedError: The function has set it between two draws, which computing the graph again would not.
        """
        given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)]
        generator = given[0] if given else torch.default_generator
        key, before = identity_of(generator), generator.get_state()
        _, first, now = self._states.get(key, (generator, before, before))
        if not torch.equal(before, now):
            raise UntracedError(
                "hofunc: f sets the state of a random generator between two draws under vmap",
                got="another state than the last draw has left",
                expected="one sequence of random numbers",
                remedy="Set the seed before f is called, or draw the numbers outside and pass them to f.",
            )
        yield
        self._states[key] = generator, first, generator.get_state()

    def look_again(self) -> None:
        """Note the states anew, after a recording inside the function has set them back."""
        for key, (generator, first, _) in self._states.items():
            self._states[key] = generator, first, generator.get_state()

    def set_back(self) -> None:
        """Set all back."""
        for generator, first, _ in self._states.values():
            generator.set_state(first)


@contextmanager
def drawn_again(tensors: Iterable[torch.Tensor]) -> Iterator[Generators]:
    """Leave the generators of the devices of some tensors as they were; yields what takes note of others."""
    devices = {tensor.device for tensor in tensors if tensor.device.type not in {"cpu", "meta"}}
    kind = next((device.type for device in devices), "cuda")
    generators = Generators()
    try:
        with fork_rng([device.index for device in devices], device_type=kind):
            yield generators
    finally:
        generators.set_back()
        for mode in dispatch_modes():
            if isinstance(outer := getattr(mode, "generators", None), Generators):
                outer.look_again()
