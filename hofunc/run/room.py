"""Room: whether what a plan holds at once fits into the memory that is free, and what would fit if it does not."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path

import torch

from hofunc.algebra.extents import Rows
from hofunc.errors import ArgumentError
from hofunc.plan.blueprint import Blueprint, Limits, Peak
from hofunc.plan.builder import TooManyStepsError
from hofunc.plan.limited import OverLimitError, may_be_handed_over
from hofunc.plan.planner import quickly, soonest
from hofunc.plan.program import device_of
from hofunc.plan.results import least_bytes, result_bytes, zero_bytes
from hofunc.plan.rows import number_of_rows, with_rows
from hofunc.plan.wanted import Contractions, Wanted
from hofunc.rules.lower import Lowered

SMALL = 64 << 20  # bytes, below which nobody looks what is free
HOPELESS = 2  # times what may be held that a plan holds, beside its results, at which that of their terms is not made
STEPS = 2000  # of planning, for which one may wait to be told what fits in place of what does not;
FEW_STEPS = 500  # of a plan, up to which it is looked for chunks that fit, which takes many times as long
MANY = 500  # nodes, of which it takes long to plan what may fit where nothing has been planned
_GROUP = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> float:
    """Return how many bytes can be allocated on a device now, infinity where that is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_available(), _left_in_group()) if device.type == "cpu" else inf


def _available() -> float:
    """Return what the machine has free, as Linux tells it."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return inf


def _left_in_group() -> float:
    """Return what the control group of a container has left, of which files that are cached can be dropped."""
    with suppress(OSError, ValueError):
        most = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_GROUP / "memory.current").read_text(encoding="ascii"))
        counts = dict(line.split() for line in (_GROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        return most - used + int(counts.get("inactive_file", 0))
    return inf


def check_results(lowered: Lowered, wanted: Wanted, limits: Limits, *, compact: bool) -> None:
    """Check that there is as much memory as results take, before anything is planned.

    Args:
        lowered: The graph.
        wanted: What is asked for.
        limits: Memory, which is not looked at where a caller limits it, or where results are handed over.
        compact: Whether terms are returned.

    Raises:
        ArgumentError: There is less.
    """
    if compact or limits.in_pieces or limits.max_bytes is not None:
        return
    least = least_bytes(lowered.graph, wanted)
    if least > SMALL and least > (free := free_bytes(device_of(lowered.graph))):
        raise _over(f"{least} bytes at once, at the least", int(free), _instead(lowered, least, int(free), wanted))


def check_room(made: Blueprint, needed: int, wanted: Wanted, *, compact: bool) -> None:
    """Check that there is as much memory as a plan holds at once, before it is run.

    Args:
        made: The plan.
        needed: How many bytes it holds.
        wanted: What it is of.
        compact: Whether it returns terms.

    Raises:
        ArgumentError: There is less.
    """
    if needed <= SMALL or needed <= (free := free_bytes(device_of(made.lowered.graph))):
        return
    raise _over(f"{needed} bytes at once", int(free), _remedies(made, int(free), wanted, compact=compact))


def what_fits(
    error: OverLimitError,
    lowered: Lowered,
    wanted: Wanted,
    limits: Limits,
    peak: Peak,
    peak_of_terms: Peak,
    *,
    compact: bool,
) -> Iterator[str]:
    """Yield what keeps to `max_bytes` in place of what is asked for, which does not.

    Args:
        error: What it takes.
        lowered: The graph.
        wanted: What is asked for.
        limits: Memory, and what is there beside a plan.
        peak: Tells what is held at once where a plan of dense tensors is run,
        peak_of_terms: and where one of terms is.
        compact: Whether terms are asked for.
    """
    most, graph = limits.max_bytes or 0, with_rows(lowered).graph
    rows = number_of_rows(graph) or 1
    is_quick = len(graph.nodes) <= MANY or error.whole is not None
    if not (compact or limits.in_pieces or isinstance(wanted, Contractions)) and limits.beside <= most and is_quick:
        own = Limits() if rows == 1 else limits._replace(chunk_size=None)  # by which terms of rows are taken apart
        with suppress(ArgumentError):
            _check_terms(error, most, peak)
            terms = soonest(lowered, wanted, compact=True, limits=own, peak=peak_of_terms)
            if peak_of_terms(terms) <= most:
                yield "take layout='compact'"
        if _is_handed_over(error, lowered, wanted, limits, peak):
            yield "write whole ones to files by out=hofunc.Stream(path)"
    are_rows = all(any(isinstance(size, Rows) for size in graph.nodes[number].shape) for number in graph.outputs)
    if are_rows and error.least <= rows * most:
        yield "pass fewer rows at a time"


def _check_terms(error: OverLimitError, most: int, peak: Peak) -> None:
    """Check that terms may keep to `max_bytes`, for all that is known of the plan of dense tensors.

    That holds what the terms do, and the results, of which there may be a copy as they are put together.

    Raises:
        OverLimitError: It holds far more beside these.
    """
    if error.whole is not None and peak(error.whole) - 2 * result_bytes(error.whole) > HOPELESS * most:
        raise error


def _is_handed_over(error: OverLimitError, lowered: Lowered, wanted: Wanted, limits: Limits, peak: Peak) -> bool:
    """Tell whether results that are handed over as they are computed keep to `max_bytes`."""
    if error.by_columns:
        return min(map(peak, error.by_columns)) <= (limits.max_bytes or 0)
    own = limits._replace(in_pieces=True)
    whole = error.whole or soonest(lowered, wanted, compact=False, limits=own, peak=peak)
    return may_be_handed_over(whole, lowered, wanted, own, peak)


def _over(got: str, free: int, remedies: Iterable[str]) -> ArgumentError:
    """Return the error of a derivative that takes more than is free."""
    return ArgumentError(
        "hofunc: a derivative that takes more memory than there is",
        got=got,
        expected=f"at most {free}, which are free",
        remedy=" ".join(remedies),
    )


def _remedies(made: Blueprint, free: int, wanted: Wanted, *, compact: bool) -> Iterator[str]:
    """Yield what would fit."""
    if compact or isinstance(wanted, Contractions):
        yield "Take fewer rows at a time, or max_bytes, which takes fewer rows or coordinates where that is possible."
        return
    results = result_bytes(made) + zero_bytes(made, wanted)
    if results <= free and made.effort > FEW_STEPS:
        yield f"It may fit with max_bytes={free}, which takes fewer rows or coordinates at a time."
    elif results <= free:
        with suppress(ArgumentError):
            in_chunks = quickly(made.lowered, wanted, compact=False, limits=Limits(max_bytes=free)).plan
            yield f"It takes {in_chunks.run_cost.peak_bytes} bytes with max_bytes={free}, in chunks."
    yield from _instead(made.lowered, results, free, wanted)


def _instead(lowered: Lowered, results: int, free: int, wanted: Wanted) -> Iterator[str]:
    """Yield what would fit in place of results."""
    if results > free:
        yield f"The results alone are {results}, to be written to a file by out=hofunc.Stream(path)."
    try:
        terms = soonest(lowered, wanted, compact=True, limits=Limits(), steps=STEPS).run_cost.peak_bytes
    except TooManyStepsError:
        yield "It may take less with layout='compact'."
    else:
        if terms <= free:
            yield f"It takes {terms} with layout='compact'."
    yield "Products with it, by hofunc.einsum or hofunc.hvp, take least."
