"""Which line of the user's code computed which tensor: noted while a function is recorded under `detect_anomaly`."""

import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch

from hofunc.errors import is_library
from hofunc.graph.identity import tensors_in
from hofunc.graph.parts import executed
from hofunc.graph.uncompiled import UncompiledMode


class Line(NamedTuple):
    """A line that was running."""

    file: str
    number: int
    function: str

    @property
    def short(self) -> str:
        """The file and the number: ``model.py:12``."""
        return f"{os.path.basename(self.file)}:{self.number}"

    def __str__(self) -> str:
        text = linecache.getline(self.file, self.number).strip()
        return f'  File "{self.file}", line {self.number}, in {self.function}\n    {text}'


Lines = Mapping[int, Sequence[Line]]  # by node, the outermost line first


class LineNotes(UncompiledMode):
    """Notes the lines that every op came from; it is entered around a tape, which computes what it records in it."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[torch.Tensor] = []  # so that no id is used again
        self._lines: dict[int, tuple[Line, ...]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = executed(func, args, kwargs or {})
        if tensors_in((args, kwargs)):  # what takes none makes tensors of numbers, which nobody may hold
            lines = _lines_running()
            for tensor in tensors_in(out):
                self._held.append(tensor)
                self._lines.setdefault(id(tensor), lines)
        return out

    def of(self, values: Sequence[torch.Tensor]) -> Lines:
        """Return the lines of the values of nodes."""
        return {number: self._lines[id(value)] for number, value in enumerate(values) if id(value) in self._lines}


def noting_lines() -> AbstractContextManager[LineNotes | None]:
    """Return what notes lines while something runs in it, if that is asked for."""
    return LineNotes() if is_detecting() else nullcontext()


def _lines_running() -> tuple[Line, ...]:
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        if not is_library(frame):
            found.append(Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


_detecting: ContextVar[bool] = ContextVar("detecting", default=False)


def is_detecting() -> bool:
    """Tell whether numbers that are not finite are errors."""
    return _detecting.get()


class detect_anomaly:  # noqa: N801 - it is called as a function is, as torch.autograd.detect_anomaly
    """Make an error of the first nan or inf in what f returns, or in its derivatives, which names where it came from.

    It is a context manager, and holds for transforms and plans that are called in it, by this thread. Nothing changes
    but that: the error names the op, the line of f that called it, and whether the value was finite there. A value or a
    derivative inside f that is not finite, as the minus infinity of a mask, is no error unless it reaches the result.
    A plan knows the lines of f if it was made in it, and the ops in any case.

    Raises:
        AnomalyError: Where a call in it would return a nan or an inf.

    Cost:
        None outside of it. Inside, some 20 microseconds an op that is recorded, and a look at every result.

    Example:
        >>> def f(x):
        ...     return (x - 1).sqrt().sum()
        >>> with hofunc.detect_anomaly():
        ...     hofunc.jacobian(f)(torch.tensor([1.0, 2.0]))
        Traceback (most recent call last):
        hofunc.errors.AnomalyError: hofunc: a derivative is not finite: got inf in the derivative of ...
    """

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        self._tokens.append(_detecting.set(True))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _detecting.reset(self._tokens.pop())


def undetected(function: Any, *args: Any) -> Any:
    """Call a function where numbers that are not finite are no errors."""
    token = _detecting.set(False)
    try:
        return function(*args)
    finally:
        _detecting.reset(token)
