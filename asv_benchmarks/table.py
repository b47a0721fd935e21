"""Tables of contests, and what they come to."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import NamedTuple

from asv_benchmarks.benchmarks.ways import KINDS
from asv_benchmarks.contest import Contest, Entry

CLASSES = {
    "eager": ("eager",),
    "captured": ("eager", "captured"),
    "compiled": ("eager", "captured", "compiled"),
}
MEANING = {
    "eager": "nothing is done before the call; hofunc records in every call and takes its plan from the cache",
    "captured": "eager, or captured once as a graph of ops; for hofunc, a plan",
    "compiled": "any, torch.compile, jitted JAX and compiled plans among them",
}


class Ratio(NamedTuple):
    """The time of the best peer over the best of hofunc's ways in a class, both in milliseconds, and who it is."""

    value: float | None
    ours: float | None
    best: float | None
    peer: str


Ratios = Mapping[str, Mapping[str, Ratio]]  # of workloads, by class

REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {"geometric mean": geometric_mean, "minimum": min}


def rows(contest: Contest) -> Iterator[str]:
    """Yield the table of one workload: ours first, then all peers, the fastest first."""
    yield f"\n{contest.name}: result {size(contest.nbytes)}"
    yield f"  {'milliseconds':50}{'':10}{'median':>9}{'quartiles':>20}{'ratio':>8}{'difference':>12}"
    for entry in ordered(contest):
        low, high = (f"{1e3 * seconds:.3f}" for seconds in entry.quartiles)
        reference = contest.best(CLASSES.get(entry.kind, KINDS), ours=True)
        ratio = f"{entry.median / reference.median:.2f}" if reference else ""
        yield (
            f"  {entry.name:50}{entry.kind:10}{1e3 * entry.median:9.3f}{f'{low} .. {high}':>20}"
            f"{ratio:>8}{entry.difference:12.0e}"
        )
    for name, reason in contest.skipped.items():
        yield f"  {name:50}skipped: {reason}"


def ordered(contest: Contest) -> list[Entry]:
    """Return the entries, hofunc's first, then all peers, the fastest first."""
    return sorted(contest.entries, key=lambda entry: (not entry.ours, entry.median))


def summary(contests: Sequence[Contest]) -> Iterator[str]:
    """Yield the ratio of every workload to its best peer, class by class, and their means and minima by family."""
    yield "\nTime of the best peer over the best of hofunc in the same class: above 1, hofunc is faster. Best of all"
    yield from (f"  {name}: {MEANING[name]}" for name in CLASSES)
    yield f"\n{'':50}" + "".join(f"{name:>12}" for name in CLASSES)
    workloads = ratios(contests)
    for workload, row in workloads.items():
        yield f"{workload:50}" + _cells(ratio.value for ratio in row.values())
    for family, members in families(workloads).items():
        for title in REDUCTIONS:
            yield f"{f'{title}, {family}':50}" + _cells(reduced(members, title, kind) for kind in CLASSES)


def ratios(contests: Sequence[Contest]) -> dict[str, dict[str, Ratio]]:
    """Return what every contest comes to, class by class."""
    return {each.name: {kind: _ratio(each, kinds) for kind, kinds in CLASSES.items()} for each in contests}


def _ratio(contest: Contest, kinds: Sequence[str]) -> Ratio:
    ours, best = contest.best(kinds, ours=True), contest.best(kinds, ours=False)
    first, second = (1e3 * entry.median if entry else None for entry in (ours, best))
    return Ratio(contest.ratio(kinds), first, second, best.name if best else "")


def families(workloads: Ratios) -> dict[str, Ratios]:
    """Return the workloads of every family, and in the end all."""
    letters = dict.fromkeys(name[0] for name in workloads)
    members = {letter: {name: workloads[name] for name in workloads if name[0] == letter} for letter in letters}
    return {**members, "all": workloads}


def reduced(workloads: Ratios, title: str, kind: str) -> float | None:
    """Return the mean or minimum of the ratios that there are in a class."""
    known = [ratio for row in workloads.values() if (ratio := row[kind].value) is not None]
    return REDUCTIONS[title](known) if known else None


def _cells(values: Iterable[float | None]) -> str:
    return "".join(f"{value:12.2f}" if value is not None else f"{'-':>12}" for value in values)


def size(nbytes: float) -> str:
    """Return a number of bytes as people write it: `1.6 MB`."""
    for unit in ("B", "kB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} MB"
