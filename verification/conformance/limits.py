"""Limits on what one case may take, so that none can hold up or bring down a run."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooSlowError(Exception):
    """A case took longer than it may."""


@contextmanager
def limited(seconds: float, gigabytes: int = 6) -> Iterator[None]:
    """Raise `TooSlowError` after some seconds, and make allocations fail that would need more memory than said.

    The seconds are those that the process has a processor, so that a verdict does not depend on what else runs. It
    needs the main thread, and waits for a kernel that is running. The memory is that of the whole process.
    """

    def stop(*_: Any) -> None:
        raise TooSlowError

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (gigabytes << 30, hard))
    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
