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
        with paused():
            return function(*args, **kwargs)

    return called


class paused:  # noqa: N801 - it is called as a function is; a generator would take three times as long
    """Put off the collection of cycles while something runs in it."""

    __slots__ = ("_was",)

    def __enter__(self) -> None:
        self._was = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was:
            gc.enable()


class kept(paused):  # noqa: N801 - likewise
    """Put off the collection of cycles while what is made stays for good, as modules do, and look for none in it after.

    Else all of it were gone through by the next object that is made: a tenth of what an import of hofunc takes.
    """

    __slots__ = ()

    def __exit__(self, *_: object) -> None:
        if self._was and not gc.get_freeze_count():  # the program has set nothing aside, which is not given back alone
            gc.freeze()
            gc.unfreeze()  # to the oldest of what lives
        paused.__exit__(self)
