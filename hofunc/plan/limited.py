"""Limits: which plans keep to what may be held and how many rows may be taken, by columns if none does otherwise."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf

from hofunc.errors import ArgumentError
from hofunc.graph.node import Graph
from hofunc.plan.blocks import local_blocks
from hofunc.plan.blueprint import Blueprint, Limits, Peak
from hofunc.plan.builder import Leave
from hofunc.plan.candidates import estimated
from hofunc.plan.columns import Columns
from hofunc.plan.entries import Extents
from hofunc.plan.estimate import CLOSE
from hofunc.plan.program import finished
from hofunc.plan.results import least_bytes, result_bytes
from hofunc.plan.strategies import is_directional
from hofunc.plan.turns import LIKELY, Turns, fits, is_in_chunks, preferred, price
from hofunc.plan.wanted import Contractions, Wanted, highest
from hofunc.rules.lower import Lowered
from hofunc.rules.settle import Settlings

_OVER = "hofunc: a derivative that takes more memory than allowed"

HOPELESS = 4  # times what may be held that a strategy is known to hold otherwise, at which it is not tried


class OverLimitError(ArgumentError):
    """A derivative takes more than `max_bytes`; it is caught where something else can be planned that may not.

    Args:
        least: How many bytes it takes at the least.
        results: How many of them are results, 0 if these are handed over.
        max_bytes: How many it may take.
        whole: A plan of all of it at once, if one was made.
        by_columns: Plans that take too much by columns, as they are where each result is handed over as it is computed.
        is_exact: Whether some plan takes no more than the least, of all that were tried.
    """

    def __init__(
        self,
        least: int,
        results: int,
        max_bytes: int | None,
        whole: Blueprint | None = None,
        by_columns: Sequence[Blueprint] = (),
        *,
        is_exact: bool,
    ):
        self.least, self.whole, self.by_columns, self._is_exact = least, whole, by_columns, is_exact
        how = "the least of all strategies and chunks tried" if is_exact else "at the least"
        self._got = f"{least} bytes at once, {how}" + (f", of which {results} are results" if results else "")
        self._expected = f"at most max_bytes={max_bytes}"
        super().__init__(_OVER, got=self._got, expected=self._expected, remedy=self._remedy(()))

    def _remedy(self, instead: Sequence[str]) -> str:
        more = (
            f"Raise max_bytes to {self.least}" if self._is_exact else f"Raise max_bytes, to {self.least} at the least"
        )
        return f"{', '.join([more, *instead[:-1]])}, or {instead[-1]}." if instead else f"{more}."

    def naming(self, instead: Sequence[str]) -> ArgumentError:
        """Return an error that tells the same, and what would fit."""
        return ArgumentError(_OVER, got=self._got, expected=self._expected, remedy=self._remedy(instead))


def kept_to(
    plans: Sequence[Blueprint],
    lowered: Lowered,
    wanted: Wanted,
    compact: bool,
    limits: Limits,
    peak: Peak,
    others: Callable[[Blueprint | None], Sequence[Blueprint]] = lambda _: (),
) -> list[Blueprint]:
    """Return the plans that keep to the limits, by columns if none does otherwise and that can be.

    Args:
        plans: Plans of all of it at once.
        lowered: The graph.
        wanted: What is asked for.
        compact: Whether terms are returned.
        limits: What is to be kept to.
        peak: Tells what is held at once where a plan is run.
        others: Makes further plans, given the best one by columns that keeps to the limits, if there is one.
    """

    def is_found(made: Sequence[Blueprint]) -> bool:
        return any(fits(one, limits, peak) for one in made)

    is_contracted = isinstance(wanted, Contractions)
    if compact or (is_contracted and limits.in_pieces) or is_found(plans):
        return within(plans, limits, peak)
    whole = min(plans, key=price)
    ways = Columns.of(lowered, whole, wanted)
    if not ways and is_contracted and whole.dense:
        return within(plans, limits, peak)
    if not ways:  # there is nothing to take apart
        return within([*plans, *others(None)], limits._replace(chunk_size=None, in_pieces=False), peak)
    if limits.chunk_size is not None or limits.in_pieces:
        ways = [columns for columns in ways if columns.slots == 1]
    possible = _possible(ways, wanted, limits)
    found: list[Blueprint] = []
    held = {} if is_contracted else _held_along_slots([] if limits.in_pieces else plans, peak)
    for _, alike in groupby(possible, key=lambda columns: columns.slots):
        for columns in alike:
            found += _by_columns(columns, wanted, limits, peak, held)
            if not is_contracted and is_found(found):
                break
        if is_found(found):
            break
        held = {}  # they are propagated along fewer slots then
    plans = [*plans, *others(preferred([one for one in found if fits(one, limits, peak)]) if is_found(found) else None)]
    if not possible and not is_found(plans):
        by_columns = min(_at_least(columns, wanted, limits) for columns in ways)
        at_once = inf if limits.in_pieces else min(map(peak, plans))
        results = 0 if limits.in_pieces else least_bytes(lowered.graph, wanted)
        least = int(min(by_columns, at_once))
        raise OverLimitError(least, results, limits.max_bytes, whole, is_exact=at_once < by_columns)
    return within([*plans, *found], limits, peak, whole)


def _possible(ways: Sequence[Columns], wanted: Wanted, limits: Limits) -> list[Columns]:
    """Return the ways to compute something by columns that may keep to the limits, for all that is known before."""
    most = inf if limits.max_bytes is None else limits.max_bytes
    return [columns for columns in ways if _at_least(columns, wanted, limits) <= most]


def _at_least(columns: Columns, wanted: Wanted, limits: Limits) -> int:
    """Return what is held at the least by columns: all results, unless they are handed over, and what one makes."""
    results = 0 if limits.in_pieces else least_bytes(columns.whole.lowered.graph, wanted)
    return limits.beside + results + columns.piece


def _held_along_slots(plans: Sequence[Blueprint], peak: Peak) -> dict[str, int]:
    """Return what strategies along slots hold at least, about, by one coordinate of one slot at a time.

    Whatever that is of, derivatives by the other slots are there to be multiplied: at every node, for all coordinates.
    So they are where mixed computes the whole, but it has an adjoint for each output beside, and forward has none.
    """
    held = {plan.strategy: peak(plan) - result_bytes(plan) for plan in plans}
    mixed = held.get("mixed", 0)
    forward = held.get("forward", mixed)  # which propagates all that mixed does, and more
    return {"mixed": mixed, "forward": min(mixed, forward)}


def _by_columns(columns: Columns, wanted: Wanted, limits: Limits, peak: Peak, held: dict[str, int]) -> list[Blueprint]:
    """Return plans of what another one computes at once, by some coordinates at a time.

    Args:
        columns: What they are of.
        wanted: What is asked for.
        limits: What they are to keep to.
        peak: Tells what a plan holds.
        held: What plans by as many slots hold at least by some strategies, about; where that is far too much, none is
            made by these. What is made here is added.
    """
    found = _turns(columns, wanted, limits, peak, held).taken(LIKELY)
    return [replace(plan, strategy=columns.whole.strategy) for plan in found]


def _turns(columns: Columns, wanted: Wanted, limits: Limits, peak: Peak, held: dict[str, int]) -> Turns:
    """Return what makes such plans."""
    local = local_blocks(columns.lowered, highest(wanted))
    most = inf if limits.max_bytes is None else HOPELESS * limits.max_bytes

    def made(name: str, leave: Leave) -> Blueprint:
        plan = columns.drawn(local, name, leave, limits, peak)
        if name in held:
            held[name] = max(held[name], peak(plan))
        return plan

    settlings = Settlings(columns.lowered.graph, columns.lowered.rules, local)
    estimates = estimated(Extents(columns.lowered.graph, local, columns.wanted), settlings, columns.wanted)
    apart = {name: each for name, each in estimates.items() if is_directional(columns.wanted, name)} or estimates
    likely = {name: each for name, each in apart.items() if held.get(name, 0) <= most}
    return Turns(made, likely or apart, limits, peak, in_terms=False, close=CLOSE)


def may_be_handed_over(whole: Blueprint, lowered: Lowered, wanted: Wanted, limits: Limits, peak: Peak) -> bool:
    """Tell whether results that are handed over as they are computed keep to the limits, in all likelihood.

    They do by the strategy that should run fastest, of one coordinate of one slot at a time; others are not planned to
    tell what may be asked for instead.

    Args:
        whole: A plan of all of them at once.
        lowered: The graph.
        wanted: What is asked for.
        limits: What is to be kept to.
        peak: Tells what a plan holds.
    """
    if fits(whole, limits, peak):
        return True
    ways = [columns for columns in Columns.of(lowered, whole, wanted) if columns.slots == 1]
    return any(
        fits(made, limits, peak)
        for columns in _possible(ways, wanted, limits)
        for made in _turns(columns, wanted, limits, peak, {}).first()
    )


def within(plans: Sequence[Blueprint], limits: Limits, peak: Peak, whole: Blueprint | None = None) -> list[Blueprint]:
    """Return the plans that keep to the limits.

    Args:
        plans: Plans.
        limits: What is to be kept to.
        peak: Tells what a plan holds.
        whole: The cheapest of those of all of it at once, if some are by columns.
    """
    in_chunks = [made for made in plans if is_in_chunks(made, limits)]
    if not in_chunks and limits.in_pieces:
        raise ArgumentError(
            "hofunc: pieces of what is not computed by coordinates",
            got="contractions, terms, or steps that cannot be taken apart",
            expected="dense derivatives",
            remedy="Ask for the whole, with max_bytes if it is large.",
        )
    if not in_chunks:
        raise ArgumentError(
            "hofunc: chunk_size for rows that cannot be taken apart",
            got=f"chunk_size={limits.chunk_size} for derivatives that are no products along the rows of the input",
            expected="those of a function that treats rows independently",
            remedy="Leave chunk_size out, or ask for a dense derivative.",
        )
    fitting = [made for made in in_chunks if fits(made, limits, peak)]
    if not fitting:
        held = result_bytes(plans[0]) if plans[0].dense and not limits.in_pieces else 0
        by_columns = [*_handing_over(in_chunks)]
        least = min(map(peak, in_chunks))
        whole = whole or min(plans, key=price)
        raise OverLimitError(least, held, limits.max_bytes, whole, by_columns, is_exact=True)
    return fitting


def _handing_over(plans: Iterable[Blueprint]) -> Iterator[Blueprint]:
    """Yield the plans by coordinates of one slot, as they are where each result is handed over as it is computed."""
    for made in plans:
        if made.chunks is not None and made.chunks.is_by_one_slot:
            cost = made.chunks.cost._replace(peak_bytes=made.chunks.handed_over)
            yield replace(made, chunks=made.chunks._replace(after=finished({}, {}, [], []), in_pieces=True, cost=cost))


def check_possible(graph: Graph, wanted: Wanted, limits: Limits) -> None:
    """Check that what is there in any case, as what is returned, is not more than may be held, whatever is planned.

    Args:
        graph: The graph.
        wanted: What is asked for, as dense tensors.
        limits: What may be held, and what is held beside.

    Raises:
        ArgumentError: It is.
    """
    if limits.max_bytes is None or limits.in_pieces:
        return
    results = least_bytes(graph, wanted)
    least = max(limits.beside, limits.left + results)
    if least > limits.max_bytes:
        raise OverLimitError(least, results, limits.max_bytes, is_exact=False)
