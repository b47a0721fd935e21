"""What torch.compile leaves alone: code that records and plans, which would be compiled inside compiled functions."""

from collections.abc import Callable
from typing import Any, TypeVar

from hofunc.internals import TorchDispatchMode, end_graph_before, skip_by_compiler

_F = TypeVar("_F", bound=Callable[..., Any])


def uncompiled(function: _F) -> _F:
    """Keep torch.compile from a function and from all that it calls, at no cost to a call."""
    skip_by_compiler(function.__code__)
    return function


def opaque(function: _F) -> _F:
    """Let torch.compile end its graph before a call of a function, which runs as it is, at no cost to a call."""
    end_graph_before(function)
    return uncompiled(function)


class UncompiledMode(TorchDispatchMode):
    """A dispatch mode that torch.compile leaves alone.

    Torch itself keeps its compiler from modes in another way, which imports the compiler when the first op arrives, and
    takes time at every op.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__torch_dispatch__" in vars(cls):
            uncompiled(vars(cls)["__torch_dispatch__"])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
