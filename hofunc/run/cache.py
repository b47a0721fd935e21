"""The cache of plans, keyed by the structure of the recorded graph.

A function is recorded at every call, so a branch that went the other way, or a tensor of another shape, is another
graph and finds another plan: what is cached can never be stale. What values decide inside expansions is part of the
key too, see `hofunc.run.decided`; numbers that change are not, see NOTE [numbers].
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import inf
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from hofunc.graph.draws import draws
from hofunc.graph.identity import is_fake
from hofunc.graph.lines import is_detecting
from hofunc.graph.node import CONSTANT, Graph
from hofunc.graph.readings import ReadingTape
from hofunc.graph.saving import is_hooked
from hofunc.graph.tape import innermost_tape
from hofunc.graph.values import Values
from hofunc.internals import current_dispatch_mode
from hofunc.options import cache_bytes, fallback, planning, rates_by
from hofunc.plan.blueprint import Blueprint, Limits, table_bytes
from hofunc.plan.limited import OverLimitError
from hofunc.plan.memory import bytes_of, memory_of
from hofunc.plan.peak import peak_of
from hofunc.plan.planner import plan, quickly
from hofunc.plan.program import device_of
from hofunc.plan.results import result_bytes, zero_bytes
from hofunc.plan.tracing import traced
from hofunc.plan.values import likely_values
from hofunc.plan.wanted import Contractions, Wanted, highest
from hofunc.rules.lower import INTEGERS, Lowered, isolated, lower
from hofunc.rules.numbers import Spot, as_tensors, lifted, numbers_of, without_numbers
from hofunc.rules.registry import RULES
from hofunc.run import allocator
from hofunc.run.asked import runner
from hofunc.run.churn import Dropped, Family, Kin
from hofunc.run.decided import Decided
from hofunc.run.executor import Runner
from hofunc.run.learning import Learning
from hofunc.run.room import check_results, what_fits
from hofunc.run.schedules import Schedules
from hofunc.run.weight import bytes_held

MAX_PLANS = 512
MOST_VARIANTS = 8  # of plans of one graph, which differ in what values decide
MORE = 3  # times as much room as for the first member of a batch, where there is too little for others,
TRIES = 2  # and how often

_plans: OrderedDict[tuple, "Planned"] = OrderedDict()
_latest: list[tuple[tuple[Graph, "_Asked"], "Planned"]] = []  # the last that was found, with its key
_lock = Lock()
_checked: OrderedDict[Graph, WeakSet[Any]] = OrderedDict()
_schedules = Schedules(MAX_PLANS)
_families: OrderedDict[tuple, Family] = OrderedDict()
_kin: OrderedDict[tuple, Kin] = OrderedDict()
_besides: OrderedDict[tuple[Graph, bool], "_Beside"] = OrderedDict()
_dropped = Dropped()


class Due:
    """Counts the calls that are left of a plan, after which it is planned in full.

    Args:
        calls: How many.
    """

    __slots__ = ("calls",)

    def __init__(self, calls: float):
        self.calls = calls


class Planned(NamedTuple):
    """A plan, as it is kept.

    Attributes:
        plan: The plan.
        run: The function that runs it.
        checked: The sources of functions of which its graph is known to be right.
        spots: Where its graph takes numbers as values, which it gets after those of the recorded nodes.
        decided: What values decided as it was made, inside expansions.
        family: Graphs that are like its own.
        bytes: What it holds.
        needs: What a call holds at once beside what the function computed.
        due: After how many calls it is planned in full.
        arrangements: Of what its derivatives consist, by order, as far as somebody asked.
        learning: Plans its backward pass; None if that is left to autograd.
        may_refuse: Whether it checks facts about indices as it is run.
        other: The plan of the same key for other such decisions that was made before it, if there is one.
    """

    plan: Blueprint
    run: Runner
    checked: WeakSet[Any]
    spots: tuple[Spot, ...]
    decided: Decided
    family: Family
    bytes: int
    needs: int
    due: Due
    arrangements: dict[int, Any]
    learning: Learning | None = None
    may_refuse: bool = False
    other: "Planned | None" = None


class _Beside(NamedTuple):
    """What a function computed, that is there as its derivatives are computed.

    Attributes:
        bytes: How many.
        left: Of those, how many are there to the end; all of them unless others are given up at their last use.
    """

    bytes: int
    left: int

    def most(self, made: Blueprint, needed: int) -> int:
        """Return the most that is held at once where a blueprint is run that needs so many bytes of its own."""
        if self.left == self.bytes or made.chunks is not None or made.careful is not None:
            return self.bytes + needed
        trace, lowered = made.trace or traced(made.program), made.lowered
        computed = {number for number, place in lowered.numbers.items() if not lowered.graph.nodes[place].is_given}
        given = [register for register, one in made.program.given.items() if one.origin not in computed]
        later = peak_of(made.program, trace, memory_of(trace.of(given)))
        return max(self.bytes, self.left + max(later, needed))


class _Asked(NamedTuple):
    """What is asked of a plan, beside its graph; see `planned`."""

    wanted: Wanted
    compact: bool
    replayed: bool
    strategy: str
    limits: Limits
    beside: "_Beside"
    rules: int
    is_strict: bool
    planning: str
    rates: str


def planned(
    graph: Graph,
    values: list[torch.Tensor] | Values,
    wanted: Wanted,
    *,
    compact: bool,
    replayed: bool,
    strategy: str = "auto",
    limits: Limits = Limits(),  # noqa: B008 - it is a tuple
    unfit: Sequence[Planned] = (),
) -> Planned:
    """Return the plan of a graph, made now or at an earlier call with a graph of the same structure.

    Args:
        graph: The recorded graph.
        values: The value of each of its nodes, used to expand ops that have no rule of their own, and to tell
            what they decide.
        wanted: The orders wanted, or the contractions.
        compact: Whether the plan returns terms rather than dense tensors.
        strategy: One of the planner's strategies, or "auto".
        limits: Rows at a time, and memory.
        replayed: Whether the plan is run on the values of the lowered graph, rather than of the recorded one.
        unfit: Plans of the graph that refused these values.
    """
    beside = _Beside(0, 0) if limits.max_bytes is None else _beside(graph, values, limits, replayed=replayed)
    asked = _Asked(
        wanted,
        compact,
        replayed,
        strategy,
        limits,
        beside,
        len(RULES),  # a rule that is added later makes other plans
        fallback() == "error",  # what was planned with the fallback is refused
        tier(),
        rates_by(),
    )
    found = _found(graph, values, asked, unfit)
    if found is not None:
        return found
    numbers = _varying(graph, asked)
    if not numbers or any(map(is_fake, values)):  # beside which no tensor of a number may stand
        return _made(graph, values, asked, (), unfit)
    given = lifted(graph, numbers, [value.device for value in values])
    values = as_tensors(graph, numbers, values)
    return _found(given, values, asked, unfit) or _made(given, values, asked, tuple(numbers), unfit)


def tier() -> str:
    """Return how far to plan; in full at once where what autograd saves has to be the same at every call."""
    chosen = planning()
    return "full" if chosen == "auto" and is_hooked() else chosen


def _found(graph: Graph, values: Sequence[torch.Tensor], asked: _Asked, unfit: Sequence[Planned]) -> Planned | None:
    """Return the plan that was made for a graph and for what its values decide, if there is one.

    What records the call would not know of values that planning went by, and go on for others.
    """
    found, is_watched = _first((graph, asked)), current_dispatch_mode() is not None
    while found is not None and (
        (is_watched and found.decided.goes_by) or _is_unfit(found, values, unfit) or not found.decided.holds(values)
    ):
        found = found.other
    if found is None:
        return None
    found.family.met_again()
    found.due.calls -= 1
    return found if found.due.calls > 0 else None


def _is_unfit(made: Planned, values: Sequence[torch.Tensor], unfit: Sequence[Planned]) -> bool:
    """Tell whether a plan refused some values, or would check them where it may not."""
    if not made.may_refuse:
        return False
    return any(made.run is each.run for each in unfit) or any(map(is_fake, values)) or not _may_check()


def _may_check() -> bool:
    """Tell whether values may be checked by what is run: what records the call may refuse others for it, or fail.

    The tape of a plan would notice, and refuse other indices; that of a call does not.
    """
    tape = innermost_tape()
    return current_dispatch_mode() is None or not (tape is None or isinstance(tape, ReadingTape))


def _first(key: tuple[Graph, _Asked]) -> Planned | None:
    """Return the first plan of a key, which is then the last to be dropped; None if there is none."""
    graph, asked = key
    with _lock:
        for (latest, before), first in _latest:
            if (
                latest is graph and before == asked
            ):  # not one that is equal: to compare sizes that are symbols fixes them
                return first
        found = _plans.get(key)
        if found is not None:
            _plans.move_to_end(key)
            _latest[:] = [(key, found)]
        return found


def _variants(first: Planned | None) -> Iterator[Planned]:
    while first is not None:
        yield first
        first = first.other


def _varying(graph: Graph, asked: _Asked) -> Mapping[Spot, float]:
    """Return the numbers of a graph that are to be values."""
    numbers = numbers_of(graph)
    if not numbers:
        return numbers
    key = (without_numbers(graph, numbers), asked)
    with _lock:
        return _schedules.varying(key, graph, numbers)


def _made(
    graph: Graph,
    values: Sequence[torch.Tensor],
    asked: _Asked,
    spots: tuple[Spot, ...],
    unfit: Sequence[Planned],
) -> Planned:
    """Plan, and keep the plan."""
    family, key = _noted(graph, asked), (graph, asked)
    recorded = lower(graph, values, highest(asked.wanted))
    with _lock:
        variants = [*_variants(_plans.get(key))]
    lowered = _told(recorded, graph, values, asked, variants, unfit)
    check_results(lowered, asked.wanted, asked.limits, compact=asked.compact)
    before = next((each.plan for each in variants if each.due.calls <= 0 and each.decided.holds(values)), None)
    made, all_of_it = _by_strategies(lowered, asked, before)
    decided = Decided(recorded._replace(decided=made.lowered.decided))
    with _lock:
        checked = _checked.setdefault(graph, WeakSet())
        _bounded(_checked)
    may_refuse = made.goes_by_facts
    learns = isinstance(asked.wanted, Contractions) and asked.limits == Limits() and not (asked.replayed or may_refuse)
    learning = Learning(made, asked.wanted, graph) if learns else None  # type: ignore[arg-type]
    held, most = bytes_held(made), _needed(made, asked, compact=asked.compact)
    allocator.keep(most, device_of(made.lowered.graph))
    result = Planned(
        made,
        runner(made, asked.wanted, learning),
        checked,
        spots,
        decided,
        family,
        held,
        most,
        all_of_it,
        {},
        learning,
        may_refuse,
    )
    if any(map(is_fake, values)):  # of which a plan may hold some
        return result
    return _keep(key, result)


def _told(
    lowered: Lowered,
    graph: Graph,
    values: Sequence[torch.Tensor],
    asked: _Asked,
    variants: Sequence[Planned],
    unfit: Sequence[Planned],
) -> Lowered:
    """Return a lowered graph with what planning may go by: values, what those of a call are like, and where they are.

    Args:
        lowered: The graph, lowered.
        graph: The recorded graph.
        values: The value of each of its nodes.
        asked: What is asked of the plan.
        variants: The plans that there are of it.
        unfit: Those that refused the values.
    """
    numbers = lowered.numbers if asked.replayed else None
    have_changed = any(made.decided.goes_by and not made.decided.holds(values) for made in variants)
    is_watched = current_dispatch_mode() is not None
    if not (have_changed or is_watched) and not any(map(is_fake, values)):
        lowered = lowered._replace(values=_values(graph, values, numbers))
    if _may_check() and not asked.limits.in_pieces and not (asked.replayed and _is_untold(graph, unfit)):
        room = MORE ** len(unfit) if asked.replayed else 1
        lowered = lowered._replace(likely=_likely(graph, values, numbers), room=room)
    if not asked.replayed:
        return lowered
    origins = [origin if isinstance(origin, torch.Tensor) else index for index, origin in enumerate(lowered.origins)]
    return lowered._replace(origins=tuple(origins))


def _by_strategies(lowered: Lowered, asked: _Asked, before: Blueprint | None) -> tuple[Blueprint, Due]:
    """Plan by the strategies that may be taken; returns the plan, and after how many calls all of them are planned.

    Args:
        lowered: The graph.
        asked: What is asked of the plan.
        before: What was planned quickly of the same, and is to be planned in full.
    """

    def peak(made: Blueprint, *, compact: bool = asked.compact) -> int:
        return asked.beside.most(made, _needed(made, asked, compact=compact)) + table_bytes(made)

    limits = asked.limits._replace(beside=asked.beside.bytes, left=asked.beside.left)
    looks, is_quick = not asked.replayed, asked.planning == "quick" or (asked.planning == "auto" and before is None)
    try:
        with isolated():  # as a plan may hold constants, which no transform that runs by now may wrap
            if asked.strategy != "auto" or not is_quick:
                made, *_ = plan(
                    lowered,
                    asked.wanted,
                    compact=asked.compact,
                    strategy=asked.strategy,
                    limits=limits,
                    peak=peak,
                    looks=looks,
                    before=before,
                )
                return made, Due(inf)
            quick = quickly(lowered, asked.wanted, compact=asked.compact, limits=limits, peak=peak, looks=looks)
    except OverLimitError as error:
        with isolated():
            of_terms = partial(peak, compact=True)
            fits = what_fits(error, lowered, asked.wanted, limits, peak, of_terms, compact=asked.compact)
            raise error.naming([*fits]) from None
    return quick.plan, Due(inf if asked.planning == "quick" else quick.calls)


def _needed(made: Blueprint, asked: _Asked, *, compact: bool) -> int:
    """Return what a call holds at once beside what the function computed, its results as terms if they are compact."""
    if asked.limits.in_pieces or (made.chunks is not None and made.chunks.in_pieces):
        return made.run_cost.peak_bytes
    zeros = 0 if compact else zero_bytes(made, asked.wanted)
    after = asked.limits.made_after and asked.limits.made_after + result_bytes(made)
    return max(made.run_cost.peak_bytes, after) + zeros


def _values(
    graph: Graph, values: Sequence[torch.Tensor], replayed: Mapping[int, int] | None
) -> Mapping[int, torch.Tensor]:
    """Return the values by which planning may go: integers that are given.

    Where they change from call to call, a second plan is made that goes by facts about them only.

    Args:
        graph: The recorded graph.
        values: The value of each of its nodes.
        replayed: The numbers of its nodes in the lowered graph, if the plan is run on values of that; of its inputs
            there may be many then, so that only constants count.
    """
    known = {node.number: values[node.number] for node in graph.nodes if node.is_given and node.dtype in INTEGERS}
    if replayed is None:
        return known
    return {replayed[n]: known[n] for n in replayed if n in known and graph.nodes[n].op is CONSTANT}


def _likely(
    graph: Graph, values: Sequence[torch.Tensor], replayed: Mapping[int, int] | None
) -> Mapping[int, torch.Tensor]:
    """Return values that tell what indices are like, see `_values`; of a batch, those of its first member."""
    likely = likely_values(graph, values)
    return likely if replayed is None else {replayed[n]: value for n, value in likely.items() if n in replayed}


def _is_untold(graph: Graph, unfit: Sequence[Planned]) -> bool:
    """Tell whether others of a batch are not like its first member, or random numbers would be drawn twice."""
    return len(unfit) > TRIES or any(map(draws, graph.nodes))


def _noted(graph: Graph, asked: _Asked) -> Family:
    """Take note that a graph is planned, and return its family."""
    ops = tuple(node.op for node in graph.nodes)
    kind, kind_of_kin = (ops, asked), (frozenset(ops), asked)
    with _lock:
        kin = _kin.setdefault(kind_of_kin, Kin())
        family = _families.setdefault(kind, Family(kin))
        _kin.move_to_end(kind_of_kin)
        _families.move_to_end(kind)
        _bounded(_kin)
        _bounded(_families)
    if not _dropped.holds(hash((graph, asked)), f"{MAX_PLANS} plans, and {cache_bytes()} bytes"):
        family.note(graph)
    return family


def _keep(key: tuple, made: Planned) -> Planned:
    """Keep a plan, and drop those not used for longest where there are too many, or too large ones."""
    with _lock:
        _latest.clear()
        others = [other for other in _variants(_plans.pop(key, None)) if other.due.calls > 0]
        first: Planned | None = None
        for other in sorted([made, *others[: MOST_VARIANTS - 1]], key=_is_last)[::-1]:
            kept = other if other.other is first else other._replace(other=first)
            made = kept if other is made else made
            first = kept
        _plans[key] = kept
        held = {key: sum(variant.bytes for variant in _variants(first)) for key, first in _plans.items()}
        total = sum(held.values())
        while len(_plans) > 1 and (len(_plans) > MAX_PLANS or total > cache_bytes()):
            oldest, _ = _plans.popitem(last=False)
            total -= held[oldest]
            _dropped.note(hash(oldest))
    return made


def _is_last(made: Planned) -> bool:
    """Tell whether a plan comes after those that refuse some indices and take less for others."""
    return not made.may_refuse


def _bounded(kept: OrderedDict) -> None:
    while len(kept) > MAX_PLANS:
        kept.popitem(last=False)


def _beside(graph: Graph, values: Sequence[torch.Tensor], limits: Limits, *, replayed: bool) -> _Beside:
    """Return what the function computed, which is held while its derivatives are, or until it was read last.

    What writes in place holds more at one call than at another, as what is written over is copied or not. So that all
    calls have one plan, or are refused alike, it is the most that any call of the structure so far has held.
    """
    outside = memory_of([values[node.number] for node in graph.nodes if node.is_given])
    every = bytes_of(list(values), outside)
    is_kept = replayed or limits.in_pieces or is_detecting() or any(value.requires_grad for value in values)
    ends = (*graph.outputs, *graph.aux)
    found = _Beside(every, every if is_kept else bytes_of([values[number] for number in ends], outside))
    if any(map(is_fake, values)):  # to compare sizes that are symbols fixes them
        return found
    with _lock:
        most = _besides[graph, is_kept] = _Beside(*map(max, found, _besides.get((graph, is_kept), found)))
        _besides.move_to_end((graph, is_kept))
        _bounded(_besides)
    return most


def forget() -> None:
    """Drop all plans, so that the next call of any function plans anew."""
    with _lock:
        _plans.clear()
        _latest.clear()
        _checked.clear()
        _schedules.clear()
        _families.clear()
        _kin.clear()
        _besides.clear()
        _dropped.clear()
