"""A contest of hofunc and all peers over one workload: who takes part, what each takes, whether results agree."""

import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, NamedTuple

from torch import Tensor

from asv_benchmarks.benchmarks.nests import Call
from asv_benchmarks.benchmarks.peers import Point, flattened, ours, peers
from asv_benchmarks.benchmarks.timing import interleaved
from asv_benchmarks.benchmarks.ways import Peer

BURST = 50e-3  # seconds of one contender's turn, by which it has the caches to itself, as in a training,
WARM = 0.3  # and of its calls before the first
LINE = 100  # characters of a reason to skip
FINALISTS = 2  # of the ways that are captured, how many are compiled


@dataclass(frozen=True)
class Budget:
    """What a contender may take: seconds to prepare it, seconds a call of a peer, and rounds of timing by a clock."""

    prepare: float = 120.0
    call: float = 1.0
    rounds: int = 30
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Entry:
    """What a contender took: seconds of each round, and the largest difference over the largest entry."""

    name: str
    kind: str
    seconds: Sequence[float]
    difference: float
    ours: bool = False

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile of the seconds."""
        low, _, high = quantiles(self.seconds)
        return low, high


@dataclass(frozen=True)
class Contest:
    """The entries of a workload, of which the result takes so many bytes, and why others are not among them."""

    name: str
    nbytes: int
    entries: Sequence[Entry]
    skipped: dict[str, str]

    def best(self, kinds: Sequence[str], *, ours: bool) -> Entry | None:
        """Return the fastest of hofunc's ways, or of the peers, among some kinds."""
        found = [entry for entry in self.entries if entry.kind in kinds and entry.ours == ours]
        return min(found, key=lambda entry: entry.median, default=None)

    def ratio(self, kinds: Sequence[str]) -> float | None:
        """Return the time of the fastest peer of some kinds over the fastest of hofunc's: above 1, that is faster.

        None where nobody of the last of these kinds, which the others are only allowed beside, took part.
        """
        if all(entry.kind != kinds[-1] for entry in self.entries):
            return None
        ours, theirs = self.best(kinds, ours=True), self.best(kinds, ours=False)
        return theirs.median / ours.median if ours and theirs else None


class _TooLongError(Exception):
    """A contender took longer than it may."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise where a block takes longer; only between two instructions of Python."""

    def stop(*_: Any) -> None:
        raise _TooLongError(f"over {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def limit_memory(gigabytes: float) -> None:
    """Make allocations beyond a size fail, so that what is too large is skipped instead of ending the run."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 2**30), resource.RLIM_INFINITY))


def contest(workload: Point, budget: Budget, chosen: Callable[[Peer], bool]) -> Contest:
    """Check and time hofunc and the chosen peers of a workload, in turn, in one process.

    Args:
        workload: What all compute.
        budget: What each may take; whoever takes more is skipped.
        chosen: Which of hofunc's ways and of the peers take part.
    """
    own = [peer for peer in ours(workload) if chosen(peer)]
    trial = _Trial(workload, budget)
    for peer in own:
        trial.enter(peer, budget.prepare)
    for peer in filter(chosen, peers(workload)):
        if not peer.name.startswith("compiled ") or trial.is_finalist(peer):
            trial.enter(peer, budget.call)
    calls = {name: contender.call for name, contender in trial.passed.items()}
    seconds = interleaved(calls, budget.rounds, BURST, budget.clock, WARM)
    entries = [
        Entry(name, contender.kind, seconds[name], contender.difference, name in {peer.name for peer in own})
        for name, contender in trial.passed.items()
    ]
    return Contest(workload.name, workload.nbytes, entries, trial.skipped)


class _Contender(NamedTuple):
    """Who passed a first call: its kind, what to call, the seconds that took, and how far its result is off."""

    kind: str
    call: Call
    first: float
    difference: float


class _Trial:
    """Contenders that passed a first call, and why others did not."""

    def __init__(self, workload: Point, budget: Budget) -> None:
        self.workload, self.budget = workload, budget
        self.passed: dict[str, _Contender] = {}
        self.skipped: dict[str, str] = {}
        self.reference: Tensor | None = None

    def is_finalist(self, peer: Peer) -> bool:
        """Whether what was captured is among the fastest, so that compiling it is worth while."""
        captured = {name: entrant.first for name, entrant in self.passed.items() if name.startswith("captured ")}
        fastest = sorted(captured, key=lambda name: captured[name])[:FINALISTS]
        return not captured or peer.name.replace("compiled ", "captured ") in fastest

    def enter(self, peer: Peer, limit: float) -> None:
        """Prepare and call a contender, and let it pass if a call takes no more seconds than the limit."""
        try:
            with _at_most(self.budget.prepare):
                call = peer.prepare()
                result = flattened(self.workload, call())
                first = min(_seconds(call), _seconds(call))
        except Exception as error:  # a peer may fail in any way, as torch.compile does
            message = (str(error).strip().splitlines() or [""])[0]
            self.skipped[peer.name] = f"{type(error).__name__.strip('_')}: {message}"[:LINE]
            return
        if first > limit:
            self.skipped[peer.name] = f"{first:.2f} s a call, over {limit:g} s"
            return
        if self.reference is None:
            self.reference = result
        self.passed[peer.name] = _Contender(peer.kind, call, first, difference(result, self.reference))


def difference(result: Tensor, reference: Tensor) -> float:
    """Return the largest difference of two tensors, relative to the largest entry of the second."""
    return float((result - reference).abs().max() / reference.abs().max())


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
