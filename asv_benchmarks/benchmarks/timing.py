"""Timing functions beside each other."""

import ctypes
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_memory() -> None:
    """Make glibc keep what is freed in blocks of up to 32 MB, so that no call pays for asking for it anew.

    Else it depends on what lies at the end of the heap whether a call does, which changes its time by up to four times.
    Where there is no glibc, nothing happens.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(M_MMAP_THRESHOLD, 2**25)
        option(M_TRIM_THRESHOLD, 2**31 - 1)


def keep_to_processors(count: int) -> None:
    """Run on so many processors only, where the system can be asked to.

    JAX takes as many threads as there are processors when it starts, whatever its flags say (0.10), and a single one is
    up to three times as fast where it stays on its processor.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    rounds: int,
    burst: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
    warm: float = 0.0,
) -> dict[str, list[float]]:
    """Call all functions in turn, after each has warmed up, and return the seconds that a call took in each round.

    Whatever else the machine does meanwhile slows all of them alike. A turn is one call; with a burst, it is one call
    that is not counted, so that no function finds the caches as another left them, and then the mean of as many as
    last about that many seconds. The first calls of a turn take longer all the same after others that have little in
    common with them, so that the order is drawn anew for every round, the same orders in every process. Where others
    use the processors as well, a clock of the time that this process has them, as `time.process_time`, is not slowed
    by them.

    To warm up, each is called once, and on until that took so many seconds: what is planned or compiled after some
    calls, as backward passes are by hofunc, is part of what later calls take, as those of a training are.
    """
    for function in functions.values():
        end = clock() + warm
        function()
        while clock() < end:
            function()
    counts = {
        name: max(1, int(burst / _mean(function, 1, clock))) if burst else 1 for name, function in functions.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    draw, order = random.Random(0), [*functions]  # noqa: S311 - nothing is to be kept secret
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            if burst:
                functions[name]()
            seconds[name].append(_mean(functions[name], counts[name], clock))
    return seconds


def _mean(function: Callable[[], Any], count: int, clock: Callable[[], float]) -> float:
    """Return the seconds of one of so many calls."""
    start = clock()
    for _ in range(count):
        function()
    return (clock() - start) / count
