"""What torch.compile leaves alone: the code that records, which would be compiled inside compiled functions."""

from collections.abc import Callable
from typing import Any, TypeVar

from hofunc.internals import skip_by_compiler

_F = TypeVar("_F", bound=Callable[..., Any])


def uncompiled(function: _F) -> _F:
    """Keep torch.compile from a function and from all that it calls, at no cost to a call."""
    skip_by_compiler(function.__code__)
    return function
