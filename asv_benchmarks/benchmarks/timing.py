"""Timing functions beside each other."""

import time
from collections.abc import Callable, Mapping
from typing import Any


def interleaved(functions: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Call all functions in turn, after one round to warm up, and return the seconds that each call took.

    Whatever else the machine does meanwhile slows all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(1 + rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: taken[1:] for name, taken in seconds.items()}
