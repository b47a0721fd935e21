"""Planning: from a recorded graph and what is wanted of it to the blueprints of all strategies, the cheapest first."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from time import perf_counter
from typing import NamedTuple

from hofunc.errors import ArgumentError, PlanningWarning, warn
from hofunc.options import max_plan_seconds
from hofunc.plan.blocks import Local, local_blocks
from hofunc.plan.blueprint import Blueprint, Limits, Peak, drawn, own_peak, result_bytes
from hofunc.plan.columns import Columns
from hofunc.plan.estimate import CLOSE, CLOSE_AS_TERMS, Estimate, estimates
from hofunc.plan.lean import FEWER, HELD, SLOWER, is_much
from hofunc.plan.packing import DirectionsError
from hofunc.plan.program import Leave, TooManyStepsError, device_of
from hofunc.plan.rates import rates_of
from hofunc.plan.recurrences import with_recurrences
from hofunc.plan.rows import number_of_rows, with_rows
from hofunc.plan.strategies import is_directional, propagated, strategies_of
from hofunc.plan.waist import waist
from hofunc.plan.wanted import Chosen, Contractions, Wanted, highest
from hofunc.progress import counting
from hofunc.rules.lower import Lowered
from hofunc.rules.settle import Settlings

FIRST_LEAVE = 1500  # steps of planning that a strategy may take before the others have their turn
_LEAVE_GROWS = 4
_PER_COMPOSITION = 5  # steps of planning at most, as a rule
STEP_SECONDS = 4e-5  # that a step of planning takes, about
LONG_RECURRENCE = 800  # nodes of recurrences, from which on planning them node by node takes longer than by steps
BLOCK_SECONDS = 2e-5  # that a composition takes to plan, about, where blocks are propagated,
DIRECTION_SECONDS = 1e-4  # and by directions
LONG = 2.0  # seconds of planning, from which on it is announced

# How many steps of planning a strategy may take for as long as the best plan runs, in calls that compute nothing. A
# fourth of the steps at least are calls in the end, so that beyond the first number it cannot be faster; as a rule it
# is not beyond twice the second.
_POSSIBLE, _LIKELY = 4.0, 0.8


def plan(
    lowered: Lowered,
    wanted: Wanted,
    *,
    compact: bool,
    strategy: str = "auto",
    limits: Limits = Limits(),  # noqa: B008 - it is a tuple
    peak: Peak = own_peak,
    looks: bool = False,
) -> tuple[Blueprint, ...]:
    """Plan the derivatives of the outputs of a graph by its active inputs.

    Args:
        lowered: The graph.
        wanted: The orders wanted, or the contractions.
        compact: Whether to return terms rather than dense tensors.
        strategy: One of those by which it can be computed or of ABLATIONS, or "auto" for all that apply and that could
            be the fastest.
        limits: Rows at a time, and memory.
        peak: Tells what is held at once where a blueprint is run, which max_bytes bounds.
        looks: Whether whoever runs a blueprint looks at the results, and has a careful one if they are not finite.

    Returns:
        Blueprints of the strategies, the one that is estimated to be fastest first; if memory is at issue, one before
        it that holds less and takes about as long.

    Raises:
        DirectionsError: The strategy asked for does not apply; it is an ArgumentError.
        ArgumentError: No plan keeps to max_bytes, or rows mix, so that chunk_size cannot be kept to.
    """
    asked = _Asked(lowered, wanted, compact, limits, peak, looks=looks)
    if strategy != "auto":
        return tuple(_kept([asked.make(strategy, _of_first(limits))], lowered, wanted, compact, limits, peak))
    recurrent = asked.recurrent_turns()
    plans = [] if recurrent is None else recurrent.taken(_LIKELY)
    plans += asked.turns().taken(_POSSIBLE, plans)
    kept = sorted(_kept(plans, lowered, wanted, compact, limits, peak), key=_price)
    best = _preferred(kept)
    return (best, *(made for made in kept if made is not best))


class Quick(NamedTuple):
    """A plan that was quick to make.

    Attributes:
        plan: The plan, of the strategy that is fastest in all likelihood.
        forgone: How many steps it would take to make those of the strategies that were left out, about.
        effort: How many steps all plans took that were tried, those that were given up among them.
    """

    plan: Blueprint
    forgone: int
    effort: int


def quickly(
    lowered: Lowered, wanted: Wanted, *, compact: bool, limits: Limits, peak: Peak = own_peak, looks: bool = False
) -> Quick:
    """Plan as `plan` does, but only by strategies that are likely to be the fastest.

    What a plan takes to make and what it takes to run are in proportion, where no tensor is large, to the number of
    compositions, which is counted before. So the strategy that should run fastest is planned first; another one only
    if it should not take longer than the first plan does.
    """
    asked = _Asked(lowered, wanted, compact, limits, peak, looks=looks)
    turns = asked.recurrent_turns(LONG_RECURRENCE) or asked.turns()
    plans = turns.taken(_LIKELY)
    best = _preferred(_kept(plans, lowered, wanted, compact, limits, peak))
    made = {plan.strategy for plan in plans} | turns.inapplicable
    left_out = [each.compositions for name, each in turns.estimates.items() if name not in made]
    return Quick(best, _PER_COMPOSITION * sum(left_out), turns.effort)


def admitted(lowered: Lowered, wanted: Wanted) -> Sequence[str]:
    """Return the strategies of which "auto" takes the fastest, for a graph and what is wanted of it."""
    return _candidates(Settlings(lowered.graph, lowered.rules, local_blocks(lowered, highest(wanted))), wanted)


def rival(best: Blueprint, wanted: Wanted, *, compact: bool, strategy: str, limits: Limits) -> Blueprint:
    """Plan what another plan does by another strategy, unless it takes too many steps to be the faster one.

    Raises:
        DirectionsError: The strategy does not apply.
        TooManyStepsError: It takes too many steps.
        ArgumentError: It does not keep to the limits.
    """
    asked = _Asked(best.lowered, wanted, compact, limits, own_peak)
    (made,) = _within([asked.make(strategy, _beside(best, _POSSIBLE, limits))], limits, own_peak)
    return made


def _narrowed(lowered: Lowered, wanted: Wanted) -> Lowered:
    """Return the graph, in which an input that is in no block that is asked for is none to differentiate by."""
    if not isinstance(wanted, Chosen):
        return lowered
    graph = wanted.narrowed(lowered.graph)
    rules = {number: rule for number, rule in lowered.rules.items() if graph.nodes[number].active}
    return lowered._replace(graph=graph, rules=rules)


def _with_rows(lowered: Lowered, wanted: Wanted) -> Lowered:
    """Return the graph with the axes of rows marked, those of operands too, of what is asked for alone."""
    lowered = with_rows(_narrowed(lowered, wanted))
    return lowered._replace(graph=wanted.marked(lowered.graph)) if isinstance(wanted, Contractions) else lowered


def _candidates(settlings: Settlings, wanted: Wanted) -> Sequence[str]:
    """Return the strategies of which the fastest is to be taken.

    Those by directions multiply derivatives by directions, of which a mask before may have left zeros. Where the former
    are infinite or nan, as torch lets them be since its own masks come last, that is nan; so only those are taken whose
    masks come last too, if there is a singularity behind a mask where nothing need be constant.
    """
    if settlings.of(masks_come_last=True).exposed:
        return tuple(name for name in strategies_of(wanted) if not is_directional(wanted, name))
    left_out = {*["mixed"] * (highest(wanted) == 1), *["each"] * (isinstance(wanted, Contractions) and wanted.is_one)}
    return tuple(name for name in strategies_of(wanted) if name not in left_out)


_Maker = Callable[[str, Leave], Blueprint]


def _maker(
    lowered: Lowered,
    local: dict[int, Local],
    settlings: Settlings,
    wanted: Wanted,
    compact: bool,
    limits: Limits,
    peak: Peak,
    *,
    looks: bool = False,
) -> _Maker:
    """Return the function that plans by the strategy of a name, within what it may take.

    Looking at results takes a dense one, and that nobody waits for a device or counts memory.
    """
    keeps_blocks = compact or limits != Limits()
    looks = looks and not keeps_blocks and device_of(lowered.graph).type == "cpu"

    def made(name: str, leave: Leave, *, settles: bool = True) -> Blueprint:
        ways = [partial(one, name, settles, way) for way in _ways(lowered, local, wanted, name)]
        return _best_way(ways, leave, limits, peak)

    def one(name: str, settles: bool, way: int | None, leave: Leave) -> Blueprint:
        builder, blocks = propagated(
            lowered,
            local,
            wanted,
            name,
            leave,
            keeps_indices=compact,
            keeps_blocks=keeps_blocks,
            settles=settles,
            settlings=settlings,
            way=way,
        )
        try:
            return drawn(builder, blocks, name, compact=compact, limits=limits, peak=peak)
        finally:
            builder.forget()

    def careless(name: str, leave: Leave) -> Blueprint:
        masks_come_last = not is_directional(wanted, name)
        if not settlings.of(masks_come_last=masks_come_last).settled:
            return made(name, leave)
        return replace(made(name, leave, settles=False), careful=lambda: made(name, _of_first(limits)))

    return careless if looks else made


def _ways(lowered: Lowered, local: dict[int, Local], wanted: Wanted, name: str) -> Sequence[int | None]:
    """Return the nodes by whose derivatives a strategy may compute those by the inputs, None for these alone."""
    if name != "mixed" or isinstance(wanted, Contractions | Chosen) or highest(wanted) < 2:
        return (None,)
    return [*dict.fromkeys((None, waist(lowered.graph, local)))]


def _best_way(ways: Sequence[Callable[[Leave], Blueprint]], leave: Leave, limits: Limits, peak: Peak) -> Blueprint:
    """Return the cheapest of the blueprints of one strategy, of those that keep to the limits if one does.

    A way after the first may take as many steps of planning as one that is likely to be the faster.

    Raises:
        TooManyStepsError: None is made in the steps that it may take.
        DirectionsError: The strategy does not apply.
    """
    found: list[Blueprint] = []
    given_up = 0
    for place, way in enumerate(ways):
        fitting = [made for made in found if _fits(made, limits, peak)]
        own = _least(leave, _beside(_preferred(fitting), _LIKELY, limits)) if fitting else leave
        try:
            found.append(way(own))
        except (TooManyStepsError, DirectionsError) as error:
            if place == len(ways) - 1 and not found:
                raise
            given_up += int(own.steps) if isinstance(error, TooManyStepsError) else 0
    best = _preferred([made for made in found if _fits(made, limits, peak)] or found)
    return replace(best, effort=given_up + sum(each.effort for each in found))


def _of_first(limits: Limits) -> Leave:
    """Return what the plan may take that is made first."""
    return Leave(bytes=inf if limits.max_bytes is None else limits.max_bytes)


def _beside(best: Blueprint, per_call: float, limits: Limits) -> Leave:
    """Return what a plan may take to make that is faster than another one.

    It has so many steps at most for each call of no work of that, runs hardly longer, and what holds more as it is made
    than that as it is run is no better.
    """
    call = rates_of(device_of(best.lowered.graph)).view
    steps = max(FIRST_LEAVE, per_call * best.run_cost.seconds / call)
    own = Leave(steps, max(HELD, best.run_cost.peak_bytes), SLOWER * _price(best))
    return _least(own, _of_first(limits))


def _least(one: Leave, other: Leave) -> Leave:
    return Leave(*map(min, zip(one, other, strict=True)))


def _estimates(
    lowered: Lowered, local: dict[int, Local], settlings: Settlings, wanted: Wanted, *, compact: bool = False
) -> dict[str, Estimate]:
    """Return what the strategies take of which one is to be taken, the one that should run fastest first."""
    found = estimates(lowered.graph, local, wanted, _candidates(settlings, wanted), compact=compact)
    return dict(sorted(found.items(), key=lambda item: item[1].run))


def _announce(lowered: Lowered, wanted: Wanted, estimates: dict[str, Estimate]) -> None:
    """Say so if planning is going to take long."""
    name = min(estimates, key=lambda name: estimates[name].compositions)
    count = estimates[name].compositions
    seconds = count * (BLOCK_SECONDS if name in ("reverse", "blocks") else DIRECTION_SECONDS)
    if seconds < LONG:
        return
    nodes = lowered.graph.nodes
    inputs = sum(nodes[number].active for number in lowered.graph.inputs)
    warn(
        f"hofunc: planning takes some {seconds:.0f} seconds: derivatives of order {highest(wanted)} of {len(nodes)} "
        f"nodes by {inputs} inputs are {count} compositions. Later calls of this structure find the plan. `.plan(...)` "
        "makes one beforehand; hofunc.options(max_plan_seconds=...) takes the best that is found in time; one input "
        "that f takes apart is planned sooner than many.",
        PlanningWarning,
    )


class _Turns:
    """Plans by all strategies that apply and that could be the fastest.

    Some strategies take no end of steps for a graph for which another takes few. So each may take a number of steps at
    first, and those that need more have leave for more in the next turn, until they take so many that they cannot be
    faster than the best plan.

    Args:
        make: Plans by a strategy, in so many steps.
        estimates: What each is estimated to take, the one that should run fastest first.
        limits: Rows at a time, and memory.
        peak: Tells what is held at once where a plan is run.
        in_terms: Whether results are, of which no estimate knows what they leave to be read.

    Attributes:
        estimates: What was given.
        inapplicable: The strategies that turned out not to apply.
        effort: How many steps all took so far, those that were given up among them.
    """

    def __init__(
        self,
        make: _Maker,
        estimates: dict[str, Estimate],
        limits: Limits,
        peak: Peak,
        *,
        in_terms: bool,
    ):
        self.estimates = estimates
        self.inapplicable: set[str] = set()
        self.effort = 0
        self._make, self._limits, self._peak, self._in_terms = make, limits, peak, in_terms

    @counting("hofunc: planning", "step")
    def taken(self, per_call: float, rivals: Sequence[Blueprint] = ()) -> list[Blueprint]:
        """Return the plans.

        Args:
            per_call: How many steps a strategy may take for as long as the best plan runs, in calls of no work.
            rivals: Plans that were made otherwise, of which one may be the best.
        """
        plans: list[Blueprint] = []
        clock = _Clock(max_plan_seconds())
        left = list(self.estimates)
        leave = max(
            FIRST_LEAVE, 2 * _PER_COMPOSITION * self.estimates[left[0]].compositions
        )  # it should be the fastest
        while left:
            for name in left[:]:
                fitting = [one for one in (*rivals, *plans) if _fits(one, self._limits, self._peak)]
                most = _of_first(self._limits)
                if fitting:
                    best = _preferred(fitting)
                    most = _least(_beside(best, per_call, self._limits), Leave(clock.steps_left(plans)))
                    is_likely = self._is_close(name, best) and self._expected(name, best) <= most.steps
                    if per_call < _POSSIBLE and not is_likely:
                        left.remove(name)
                        continue
                try:
                    plans.append(self._make(name, _least(most, Leave(leave))))
                except DirectionsError:  # reverse always applies
                    self.inapplicable.add(name)
                    left.remove(name)
                except TooManyStepsError:
                    self.effort += int(min(leave, most.steps))
                    if most.steps <= leave:
                        left.remove(name)
                else:
                    self.effort += plans[-1].effort
                    left.remove(name)
            leave *= _LEAVE_GROWS
        return plans

    def _is_close(self, name: str, best: Blueprint) -> bool:
        """Tell whether a strategy may be faster than the best one, for all that estimates err."""
        is_along_slots = "each" in self.estimates or "blocks" in self.estimates  # of which estimates err by more
        close = CLOSE_AS_TERMS if self._in_terms else CLOSE
        return is_along_slots or self.estimates[name].run <= close * self.estimates[best.strategy].run

    def _expected(self, name: str, best: Blueprint) -> float:
        """Return how many steps a strategy takes, or runs as long as, if estimates err as that of the best one did."""
        theirs = self.estimates[name]
        steps = theirs.compositions if self._in_terms else max(theirs)
        return steps * best.effort / max(1, self.estimates[best.strategy].compositions)


class _Asked:
    """What is asked of a plan, from which plans by a strategy and turns of strategies are made.

    Args:
        lowered: The graph.
        wanted: The orders wanted, or the contractions.
        compact: Whether to return terms rather than dense tensors.
        limits: Rows at a time, and memory.
        peak: Tells what is held at once where a plan is run.
        looks: Whether whoever runs a plan looks at the results, see `plan`.
    """

    def __init__(
        self, lowered: Lowered, wanted: Wanted, compact: bool, limits: Limits, peak: Peak, *, looks: bool = False
    ):
        self._wanted, self._compact, self._limits, self._peak = wanted, compact, limits, peak
        self._lowered = _with_rows(lowered, wanted)
        self._local = local_blocks(self._lowered, highest(wanted))
        self._settlings = Settlings(self._lowered.graph, self._lowered.rules, self._local)
        self._looks = looks

    def turns(self) -> _Turns:
        """Return what plans by the strategies that may be taken, and say so if that is going to take long."""
        given = self._lowered, self._local, self._settlings, self._wanted
        return self._turns(self._lowered, _estimates(*given, compact=self._compact), self.make)

    @cached_property
    def make(self) -> _Maker:
        """What plans by the strategy of a name, node by node."""
        given = self._lowered, self._local, self._settlings, self._wanted, self._compact, self._limits, self._peak
        return _maker(*given, looks=self._looks)

    def recurrent_turns(self, least: int = 0) -> _Turns | None:
        """Return what plans with the steps of recurrences as ops of their own; None if there are none.

        By reverse, of each step a dense block would be held for every pair of steps; so that is for what no other
        strategy applies to.

        Args:
            least: How many nodes recurrences are to have.
        """
        wanted, graph = self._wanted, self._lowered.graph
        is_plain = not self._compact and self._limits == Limits() and not isinstance(wanted, Contractions | Chosen)
        if not (is_plain and self._looks) or highest(wanted) < 2:
            return None
        looks = device_of(graph).type == "cpu"
        if not (looks or self._settlings.are_finite):
            return None
        lowered = with_recurrences(self._lowered, self._local, highest(wanted), least=least, with_masks=looks)
        if lowered is None:
            return None
        local = local_blocks(lowered, highest(wanted))
        settlings = Settlings(lowered.graph, lowered.rules, local)
        make = _maker(lowered, local, settlings, wanted, False, self._limits, self._peak)

        def careful(name: str) -> Blueprint:
            possible = _candidates(self._settlings, wanted)
            return self.make(name if name in possible else possible[0], _of_first(self._limits))

        def made(name: str, leave: Leave) -> Blueprint:
            return replace(make(name, leave), careful=partial(careful, name))

        found = _estimates(lowered, local, settlings, wanted)
        likely = {name: each for name, each in found.items() if is_directional(wanted, name)}
        unlikely = {name: each._replace(run=inf) for name, each in found.items() if name not in likely}
        return self._turns(lowered, likely | unlikely, make if self._settlings.are_finite else made)

    def _turns(self, lowered: Lowered, estimates: dict[str, Estimate], make: _Maker) -> _Turns:
        _announce(lowered, self._wanted, estimates)
        return _Turns(make, estimates, self._limits, self._peak, in_terms=self._compact)


class _Clock:
    """Counts the seconds of planning.

    Args:
        limit: How many it may take once there is a plan.
    """

    def __init__(self, limit: float):
        self._limit, self._start = limit, perf_counter()

    def steps_left(self, plans: Sequence[Blueprint]) -> float:
        """Return how many more steps can be made in time, as fast as those of some plans were."""
        spent = perf_counter() - self._start
        return inf if self._limit == inf else max(0, (self._limit / spent - 1) * sum(plan.effort for plan in plans))


def _price(made: Blueprint) -> float:
    return made.run_cost.price


def _preferred(plans: Sequence[Blueprint]) -> Blueprint:
    """Return the cheapest of some plans, or if memory is at issue one that holds less and takes about as long."""
    best = min(plans, key=_price)
    if len(plans) == 1 or not is_much(best.run_cost.peak_bytes, best.program):
        return best
    close = [made for made in plans if _price(made) <= SLOWER * _price(best)]
    least = min(close, key=lambda made: made.run_cost.peak_bytes)
    return least if least.run_cost.peak_bytes < FEWER * best.run_cost.peak_bytes else best


def _kept(
    plans: Sequence[Blueprint], lowered: Lowered, wanted: Wanted, compact: bool, limits: Limits, peak: Peak
) -> list[Blueprint]:
    """Return the plans that keep to the limits, by columns if none does otherwise and that can be."""
    is_contracted = isinstance(wanted, Contractions)
    if compact or (is_contracted and limits.in_pieces) or any(_fits(made, limits, peak) for made in plans):
        return _within(plans, limits, peak)
    whole = min(plans, key=_price)
    ways = Columns.of(lowered, whole, wanted)
    if not ways and is_contracted and whole.dense:
        return _within(plans, limits, peak)
    if not ways:  # there is nothing to take apart
        return _within(plans, limits._replace(chunk_size=None, in_pieces=False), peak)
    if not limits.in_pieces and limits.max_bytes is not None and result_bytes(whole) > limits.max_bytes:
        return _within(plans, limits, peak)
    found: list[Blueprint] = []
    if limits.chunk_size is not None or limits.in_pieces:
        ways = [columns for columns in ways if columns.slots == 1]
    for columns in ways:
        found += _by_columns(columns, wanted, limits, peak)
        if any(_fits(made, limits, peak) for made in found):
            break
    return _within([*plans, *found], limits, peak)


def _by_columns(columns: Columns, wanted: Wanted, limits: Limits, peak: Peak) -> list[Blueprint]:
    """Return plans of what another one computes at once, by some coordinates at a time."""
    local = local_blocks(columns.lowered, highest(wanted))

    def made(name: str, leave: Leave) -> Blueprint:
        return columns.drawn(local, name, leave, limits, peak)

    settlings = Settlings(columns.lowered.graph, columns.lowered.rules, local)
    estimates = _estimates(columns.lowered, local, settlings, columns.wanted)
    apart = {name: each for name, each in estimates.items() if is_directional(columns.wanted, name)}
    turns = _Turns(made, apart or estimates, limits, peak, in_terms=False)
    return [replace(plan, strategy=columns.whole.strategy) for plan in turns.taken(_LIKELY)]


def _within(plans: Sequence[Blueprint], limits: Limits, peak: Peak) -> list[Blueprint]:
    """Return the plans that keep to the limits."""
    in_chunks = [made for made in plans if _is_in_chunks(made, limits)]
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
    fitting = [made for made in in_chunks if _fits(made, limits, peak)]
    if not fitting:
        held = result_bytes(plans[0]) if plans[0].dense and not limits.in_pieces else 0
        is_large = limits.max_bytes is not None and held > limits.max_bytes
        other = "write whole ones to files by out=hofunc.Stream(path)" if is_large else "pass fewer rows at a time"
        least = f"{min(map(peak, in_chunks))} bytes at once, the least of all strategies and chunks tried"
        raise ArgumentError(
            "hofunc: a derivative that takes more memory than allowed",
            got=least + (f", of which {held} are results" if held else ""),
            expected=f"at most max_bytes={limits.max_bytes}",
            remedy=f"Raise max_bytes, take layout='compact', or {other}.",
        )
    return fitting


def _fits(made: Blueprint, limits: Limits, peak: Peak) -> bool:
    """Tell whether a plan keeps to the limits."""
    return _is_in_chunks(made, limits) and (limits.max_bytes is None or peak(made) <= limits.max_bytes)


def _is_in_chunks(made: Blueprint, limits: Limits) -> bool:
    """Tell whether a plan runs in such chunks as are asked for."""
    if limits.in_pieces:
        return made.chunks is not None and made.chunks.in_pieces
    if limits.chunk_size is None or made.chunks is not None:
        return True
    rows = number_of_rows(made.lowered.graph)
    return rows is not None and rows <= limits.chunk_size
