"""Showing how far something is that takes long: planning, compiling, chunks and streams, by tqdm."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from hofunc.errors import ArgumentError
from hofunc.given import refuse, shown
from hofunc.options import shows_progress

Progress = bool | Callable[[int, int], None]
Shown = Callable[[int | None, str], AbstractContextManager[Callable[[int], None]]]

TICK = 500  # steps of planning after which it is shown that they are done
DELAY = 2  # seconds after which what nobody asked for by name is shown


def display(progress: Progress | None, what: str) -> Shown:
    """Return what shows progress: given of how many of what, it is a context, with what is called as some are done.

    Args:
        progress: Whether to show a bar, by tqdm; or what is called with the number of those done, and of all. None for
            what `hofunc.options` says, and then what takes two seconds only.
        what: What is called, for the bar and the error.

    Raises:
        ArgumentError: There is no tqdm, or nothing to call.
    """
    check_progress(what, progress)
    if progress is None and shows_progress():
        return lambda total, unit: _bar(_tqdm(what), total, unit, what, DELAY)
    if progress is not True:
        call: Callable[[int, Any], None] = progress or (lambda *_: None)
        return lambda total, _: nullcontext(lambda done: call(done, total))
    tqdm = _tqdm(what)
    return lambda total, unit: _bar(tqdm, total, unit, what, 0)


def check_progress(what: str, progress: Any) -> None:
    """Check that what is to show progress is yes, no, or can be called.

    Raises:
        ArgumentError: It is none of these.
    """
    if progress is not None and type(progress) is not bool and not callable(progress):
        refuse(what, "progress", shown(progress), "True, False, None or a function of two numbers", "As progress=True.")


def _tqdm(what: str) -> Any:
    """Return tqdm's bar for where this runs, a notebook or a terminal.

    Raises:
        ArgumentError: There is no tqdm.
    """
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError as error:
        raise ArgumentError(
            what,
            got="progress=True where tqdm is not installed",
            expected="tqdm, a function of two numbers, or False",
            remedy="Nothing was computed. pip install tqdm, or pass a function.",
        ) from error


@contextmanager
def _bar(tqdm: Any, total: int | None, unit: str, what: str, delay: int) -> Iterator[Callable[[int], None]]:
    with tqdm(total=total, unit=unit, desc=what, delay=delay) as bar:
        yield lambda done: bar.update(done - bar.n)


_ticking: ContextVar[Callable[[int], None]] = ContextVar("ticking", default=lambda _: None)


@contextmanager
def counting(what: str, unit: str) -> Iterator[None]:
    """Show how many steps are counted by `ticking` while something runs, of which nobody knows how many there will be.

    Args:
        what: What runs.
        unit: What a step is called.
    """
    if not shows_progress():
        yield
        return
    done = 0
    with display(None, what)(None, unit) as show:

        def tick(count: int) -> None:
            nonlocal done
            done += count
            show(done)

        token = _ticking.set(tick)
        try:
            yield
        finally:
            _ticking.reset(token)


def ticking() -> Callable[[int], None]:
    """Return what is to be called with a number of steps when they are done."""
    return _ticking.get()
