"""Timing functions beside each other."""

import time
from collections.abc import Callable, Mapping
from typing import Any


def interleaved(functions: Mapping[str, Callable[[], Any]], rounds: int, burst: float = 0.0) -> dict[str, list[float]]:
    """Call all functions in turn, after one round to warm up, and return the seconds that a call took in each round.

    Whatever else the machine does meanwhile slows all of them alike. A turn is one call; with a burst, it is one call
    that is not counted, so that no function finds the caches as another left them, and then the mean of as many as
    last about that many seconds.
    """
    for function in functions.values():
        function()
    counts = {name: max(1, int(burst / _mean(function, 1))) if burst else 1 for name, function in functions.items()}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            if burst:
                function()
            seconds[name].append(_mean(function, counts[name]))
    return seconds


def _mean(function: Callable[[], Any], count: int) -> float:
    """Return the seconds of one of so many calls."""
    start = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - start) / count
