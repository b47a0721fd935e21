"""Showing how far something is that takes long."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from hofunc.errors import ArgumentError

Progress = bool | Callable[[int, int], None]
Shown = Callable[[int, str], AbstractContextManager[Callable[[int], None]]]


def display(progress: Progress, what: str) -> Shown:
    """Return what shows progress: given of how many of what, it is a context, with what is called as some are done.

    Args:
        progress: Whether to show a bar, by tqdm; or what is called with the number of those done, and of all.
        what: What is called, for the error.

    Raises:
        ArgumentError: There is no tqdm.
    """
    if progress is not True:
        call = progress or (lambda *_: None)
        return lambda total, _: nullcontext(lambda done: call(done, total))
    try:
        tqdm = importlib.import_module("tqdm")
    except ImportError as error:
        raise ArgumentError(
            what,
            got="progress=True where tqdm is not installed",
            expected="tqdm, a function of two numbers, or False",
            remedy="Nothing was computed. Install tqdm, or pass a function.",
        ) from error
    return lambda total, unit: _bar(tqdm.tqdm, total, unit)


@contextmanager
def _bar(tqdm: Callable[..., Any], total: int, unit: str) -> Iterator[Callable[[int], None]]:
    with tqdm(total=total, unit=unit) as bar:
        yield lambda done: bar.update(done - bar.n)
