"""Tables of contests, and what they come to."""

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from asv_benchmarks.contest import Contest

CLASSES = {
    "eager": ("eager",),
    "captured": ("eager", "captured"),
    "compiled": ("eager", "captured", "compiled"),
}
MEANING = {
    "eager": "nothing done before the call",
    "captured": "eager, or captured once as a graph of ops",
    "compiled": "any, torch.compile and jitted JAX among them",
}


def rows(contest: Contest) -> Iterator[str]:
    """Yield the table of one workload: ours first, then all peers, the fastest first."""
    yield f"\n{contest.workload.name}: result {size(contest.workload.nbytes)}"
    yield f"  {'milliseconds':50}{'':10}{'median':>9}{'quartiles':>20}{'ratio':>8}{'difference':>12}"
    reference = min((entry.median for entry in contest.ours), default=None)
    for entry in sorted(contest.entries, key=lambda entry: (not entry.ours, entry.median)):
        low, high = (f"{1e3 * seconds:.3f}" for seconds in entry.quartiles)
        ratio = f"{entry.median / reference:8.2f}" if reference else f"{'':8}"
        yield (
            f"  {entry.name:50}{entry.kind:10}{1e3 * entry.median:9.3f}{f'{low} .. {high}':>20}"
            f"{ratio}{entry.difference:12.0e}"
        )
    for name, reason in contest.skipped.items():
        yield f"  {name:50}skipped: {reason}"


def summary(contests: Sequence[Contest]) -> Iterator[str]:
    """Yield the ratio of every workload to its best peer, class by class, and their mean and minimum."""
    yield "\nTime of the best peer over that of hofunc: above 1, hofunc is faster. Best of all that are"
    yield from (f"  {name}: {MEANING[name]}" for name in CLASSES)
    yield f"\n{'':50}" + "".join(f"{name:>12}" for name in CLASSES)
    ratios = {contest.workload.name: [contest.ratio(kinds) for kinds in CLASSES.values()] for contest in contests}
    for name, values in ratios.items():
        yield f"{name:50}" + "".join(f"{value:12.2f}" if value else f"{'-':>12}" for value in values)
    known = [[value for value in column if value] for column in zip(*ratios.values(), strict=True)]
    for title, reduce in (("geometric mean", geometric_mean), ("minimum", min)):
        yield f"{title:50}" + "".join(f"{reduce(column):12.2f}" if column else f"{'-':>12}" for column in known)


def size(nbytes: float) -> str:
    """Return a number of bytes as people write it: `1.6 MB`."""
    for unit in ("B", "kB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} MB"
