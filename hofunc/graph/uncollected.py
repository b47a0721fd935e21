"""Calls during which Python does not look for cycles.

Recording makes many objects for every op, which all live until the call ends and are then gone, without cycles. But
what has lived through some collections is counted as if it stayed, so that every few calls of a large function all
that there is in the process is gone through.
"""

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from hofunc.graph.uncompiled import opaque

_P = ParamSpec("_P")
_R = TypeVar("_R")


def uncollected(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Put off the collection of cycles until a function has returned and what it made is gone."""

    @opaque
    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return called
