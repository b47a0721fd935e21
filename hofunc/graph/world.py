"""The state of torch that recording depends on beside tensors: it decides which ops a function comes to."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hofunc.internals import (
    DisableAutocast,
    autocast_devices,
    count_function_modes,
    function_modes,
    is_any_autocast_enabled,
)

_CPU = torch.device("cpu")


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """Return the devices for which autocast is on, each with its dtype."""
    if not is_any_autocast_enabled():
        return ()
    devices = [device for device in autocast_devices() if torch.is_autocast_enabled(device)]
    return tuple((device, torch.get_autocast_dtype(device)) for device in devices)


def _default_device() -> torch.device:
    """Return where factories make tensors; only a mode makes it another one than the CPU."""
    return torch.get_default_device() if count_function_modes() else _CPU


def _function_modes() -> tuple[Any, ...]:
    """Return the modes of users, in which calls of torch may do anything."""
    if not count_function_modes():
        return ()
    return tuple([mode for mode in function_modes() if not type(mode).__module__.startswith(("torch.", "hofunc."))])


# What is read, by the name that an error gives it.
STATE: dict[str, Callable[[], Any]] = {
    "autocast": _autocast,
    "the default dtype": torch.get_default_dtype,
    "the default device": _default_device,
    "the modes of torch functions": _function_modes,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
}


def state() -> tuple[Any, ...]:
    """Return the state that holds now, in the order of STATE."""
    return tuple([read() for read in STATE.values()])


@contextmanager
def uncached_autocast() -> Iterator[None]:
    """Let autocast convert a tensor at every use: a copy that it kept would be taken for a tensor of its own."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def without_autocast(run: Callable[..., Any], *args: Any) -> Any:
    """Call a function with autocast off: what was recorded has its conversions, and derivatives want none."""
    if not is_any_autocast_enabled():
        return run(*args)
    with DisableAutocast():
        return run(*args)
