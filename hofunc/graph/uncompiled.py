"""What torch.compile leaves alone: the code that records, which would be compiled inside compiled functions."""

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

_F = TypeVar("_F", bound=Callable[..., Any])


def uncompiled(function: _F) -> _F:
    """Keep torch.compile from a function and from all that it calls, at no cost to a call."""
    skipped = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    set_code_exec_strategy(function.__code__, skipped)
    return function
