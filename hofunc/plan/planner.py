"""Planning: from a recorded graph and what is wanted of it to the blueprints of all strategies, the cheapest first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from math import inf, prod
from typing import NamedTuple

from hofunc.errors import PlanningWarning, warn
from hofunc.plan.blocks import Local, local_blocks
from hofunc.plan.blueprint import Blueprint, Limits, Peak, drawn, own_peak, taken, told_once
from hofunc.plan.builder import Leave, TooManyStepsError
from hofunc.plan.candidates import are_looked_at, candidates, estimated, in_order
from hofunc.plan.devices import rates_of
from hofunc.plan.entries import Extents
from hofunc.plan.estimate import CALLS, CLOSE, CLOSE_AS_TERMS, Estimate, estimates
from hofunc.plan.lean import HELD_QUICKLY, is_much
from hofunc.plan.levels import with_levels
from hofunc.plan.limited import check_possible, kept_to, within
from hofunc.plan.offsets import with_offsets
from hofunc.plan.packing import DirectionsError
from hofunc.plan.program import device_of
from hofunc.plan.recurrences import has_batches, with_recurrences
from hofunc.plan.rows import with_rows
from hofunc.plan.steps import Steps
from hofunc.plan.strategies import PLAIN, Way, is_directional, propagated
from hofunc.plan.turns import (
    LIKELY,
    PER_COMPOSITION,
    POSSIBLE,
    Maker,
    Turns,
    beside,
    fits,
    narrower,
    of_first,
    preferred,
    price,
)
from hofunc.plan.values import GONE_BY
from hofunc.plan.waist import waist
from hofunc.plan.wanted import Chosen, Contractions, Wanted, highest
from hofunc.rules.lower import Lowered, isolated
from hofunc.rules.settle import Settlings

STEP_SECONDS = 4e-5  # that a step of planning takes, about
LONG_RECURRENCE = 300  # nodes of recurrences, from which on planning them node by node takes longer than as batches
SHORT_RECURRENCE = 100  # nodes, below which none gains,
SHORT_CONTRACTED = 180  # and of contractions, of which some gain much and others lose
BATCH = 115  # compositions node by node, at least, that take as long to plan and to run as a batch does,
PER_NODE = 8  # and more for each node of a step,
PER_STEP = 2  # for each step,
BATCH_ENTRIES = 40  # and for so many entries that the states have as derivatives
SLOWER = 3  # times as long as nodes that a batch which is worked out may be estimated to run, mostly of large products
FAR = 6  # times as long as plans node by node are estimated to run, at which none is made of batches
BLOCK_SECONDS = 2e-5  # that a composition takes to plan, about, where blocks are propagated,
DIRECTION_SECONDS = 1e-4  # and by directions
LONG = 2.0  # seconds of planning, from which on it is announced


def plan(
    lowered: Lowered,
    wanted: Wanted,
    *,
    compact: bool,
    strategy: str = "auto",
    limits: Limits = Limits(),  # noqa: B008 - it is a tuple
    peak: Peak = own_peak,
    looks: bool = False,
    before: Blueprint | None = None,
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
        before: What was planned quickly of the same, which is not planned again unless memory is at issue.

    Returns:
        Blueprints of the strategies, the one that is estimated to be fastest first; if memory is at issue, one before
        it that holds less and takes about as long.

    Raises:
        DirectionsError: The strategy asked for does not apply; it is an ArgumentError.
        ArgumentError: No plan keeps to max_bytes, or rows mix, so that chunk_size cannot be kept to.
    """
    peak = told_once(peak)
    asked = _Asked(lowered, wanted, compact, limits, peak, looks=looks)
    if strategy != "auto":
        found = kept_to([asked.make(strategy, of_first(limits))], lowered, wanted, compact, limits, peak)
        return tuple(map(taken, found))
    if before is not None and is_much(before.run_cost.peak_bytes, before.program):  # of which nobody may have asked
        before = None
    plans, by_nodes = asked.by_recurrences(before), asked.by_nodes
    if before is not None and before not in plans and limits == Limits():
        by_nodes.keep(before)
    if not any(fits(made, limits, peak) and by_nodes.are_futile_beside(made) for made in plans):
        plans += asked.announced(by_nodes).taken(POSSIBLE, plans)
    kept = sorted(kept_to(plans, lowered, wanted, compact, limits, peak), key=price)
    best = preferred(kept)
    return (taken(best), *(made for made in kept if made is not best))


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

    @property
    def calls(self) -> float:
        """After how many calls these have taken as long as the strategies would take to plan that were left out."""
        return 1 + self.forgone * STEP_SECONDS / max(self.plan.run_cost.seconds, STEP_SECONDS) if self.forgone else inf


def quickly(
    lowered: Lowered, wanted: Wanted, *, compact: bool, limits: Limits, peak: Peak = own_peak, looks: bool = False
) -> Quick:
    """Plan as `plan` does, but only by strategies that are likely to be the fastest.

    What a plan takes to make and what it takes to run are in proportion, where no tensor is large, to the number of
    compositions, which is counted before. So the strategy that should run fastest is planned first; another one only
    if it should not take longer than the first plan does. Where that holds more than it may, others are only planned
    if they should run sooner than by columns.
    """
    peak = told_once(peak)
    asked = _Asked(lowered, wanted, compact, limits, peak, looks=looks, allowed=HELD_QUICKLY)
    recurrent = asked.sooner_turns()
    turns = asked.announced(recurrent or asked.by_nodes)
    soonest = turns.soonest() if asked.may_be_by_columns else None
    if soonest is not None and not fits(soonest, limits, peak):
        others = partial(turns.others, LIKELY)
        kept = kept_to([soonest], lowered, wanted, compact, limits, peak, others)
        return Quick(taken(preferred(kept)), 0, turns.effort)
    plans = turns.first() if asked.is_taken_apart else turns.taken(LIKELY)
    best = preferred(kept_to(plans, lowered, wanted, compact, limits, peak))
    made = {plan.strategy for plan in plans} | turns.inapplicable
    left_out = [each.compositions for name, each in turns.estimates.items() if name not in made and each.run < inf]
    if recurrent is not None:
        left_out.append(asked.compositions)
    return Quick(taken(best), PER_COMPOSITION * sum(left_out), turns.effort)


def soonest(
    lowered: Lowered, wanted: Wanted, *, compact: bool, limits: Limits, peak: Peak = own_peak, steps: float = inf
) -> Blueprint:
    """Plan by the strategy alone that should run fastest, whether or not that keeps to the limits.

    Raises:
        TooManyStepsError: It takes more steps of planning than given.
    """
    (made,) = _Asked(lowered, wanted, compact, limits, peak).by_nodes.first(steps)
    return taken(made)


def admitted(lowered: Lowered, wanted: Wanted, *, compact: bool, limits: Limits) -> Sequence[str]:
    """Return the strategies of which "auto" takes the fastest, for a graph and what is wanted of it."""
    settlings = Settlings(lowered.graph, lowered.rules, local_blocks(lowered, highest(wanted)))
    return candidates(settlings, wanted, looks=are_looked_at(lowered, compact=compact, limits=limits))


def rival(best: Blueprint, wanted: Wanted, *, compact: bool, strategy: str, limits: Limits) -> Blueprint:
    """Plan what another plan does by another strategy, unless it takes too many steps to be the faster one.

    Raises:
        DirectionsError: The strategy does not apply.
        TooManyStepsError: It takes too many steps.
        ArgumentError: It does not keep to the limits.
    """
    asked = _Asked(best.lowered, wanted, compact, limits, own_peak)
    (made,) = within([asked.make(strategy, beside(best, POSSIBLE, limits))], limits, own_peak)
    return taken(made)


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


def _maker(
    lowered: Lowered,
    local: dict[int, Local],
    settlings: Settlings,
    extents: Callable[[], Extents],
    wanted: Wanted,
    compact: bool,
    limits: Limits,
    peak: Peak,
    *,
    looks: bool = False,
    settles: bool = True,
    allowed: int = 0,
) -> Maker:
    """Return the function that plans by the strategy of a name, within what it may take.

    Looking at results takes a dense one, and that nobody waits for a device or counts memory. Of so many bytes that a
    plan holds nobody asks whether they could be less.
    """
    keeps_blocks = compact or limits != Limits()

    def made(name: str, leave: Leave, *, settles: bool = settles, graph: Lowered = lowered) -> Blueprint:
        ways = {way: partial(one, name, settles, graph, way) for way in _ways(lowered, local, wanted, name, extents)}
        return _best_way(ways, leave, limits, peak)

    def one(name: str, settles: bool, graph: Lowered, way: Way, leave: Leave) -> Blueprint:
        builder, blocks = propagated(
            graph,
            local,
            wanted,
            name,
            leave,
            keeps_indices=compact,
            keeps_blocks=keeps_blocks,
            settles=settles,
            settlings=settlings,
            extents=extents,
            way=way,
        )
        try:
            return drawn(builder, blocks, name, compact=compact, limits=limits, peak=peak, allowed=allowed)
        finally:
            builder.forget()

    def careless(name: str, leave: Leave) -> Blueprint:
        masks_come_last = not is_directional(wanted, name)
        possible = candidates(settlings, wanted)
        if name in possible and not settlings.of(masks_come_last=masks_come_last).settled:
            return made(name, leave)
        found = made(name, leave, settles=False)

        def careful() -> Blueprint:
            with isolated():  # as it is made in the middle of a call, which others may follow
                return made(_careful_one(name, possible), of_first(limits), graph=_gone_by(lowered, found))

        return replace(found, careful=careful)

    return careless if looks else made


def _careful_one(name: str, possible: Sequence[str]) -> str:
    """Return the strategy of what is right everywhere beside a plan by another one: the same if it may be taken."""
    return name if name in possible else possible[0]


def _gone_by(lowered: Lowered, made: Blueprint) -> Lowered:
    """Return a graph of which a plan may go by the values that another plan goes by, which are compared for that."""
    readings = [reading for reading in made.lowered.decided if reading.call.op is GONE_BY]
    origins = {lowered.origins[number] for reading in readings for number in reading.operands}
    return lowered._replace(values={number: value for number, value in lowered.values.items() if number in origins})


def _ways(
    lowered: Lowered, local: dict[int, Local], wanted: Wanted, name: str, extents: Callable[[], Extents]
) -> Sequence[Way]:
    """Return the ways in which a strategy may compute derivatives by the inputs, the plain one first."""
    if name != "mixed" or isinstance(wanted, Contractions) or highest(wanted) < 2:
        return (PLAIN,)
    narrow = None if isinstance(wanted, Chosen) else waist(lowered.graph, local)
    found = Way(narrow), Way(wide=extents().wide), Way(leading=extents().leading)
    return [*dict.fromkeys((PLAIN, *found))]


def _best_way(ways: Mapping[Way, Callable[[Leave], Blueprint]], leave: Leave, limits: Limits, peak: Peak) -> Blueprint:
    """Return the cheapest of the blueprints of one strategy, of those that keep to the limits if one does.

    A way after the first may take as many steps of planning as one that is likely to be the faster. But for that by a
    waist they take about as many as the plain one, or more, and have no turn where that is given up.

    Raises:
        TooManyStepsError: None is made in the steps that it may take.
        DirectionsError: The strategy does not apply.
    """
    found: list[Blueprint] = []
    given_up = 0
    error: Exception | None = None
    for way, make in ways.items():
        fitting = [made for made in found if fits(made, limits, peak)]
        own = narrower(leave, beside(preferred(fitting), LIKELY, limits)) if fitting else leave
        if not found and isinstance(error, TooManyStepsError) and way.waist is None:
            continue
        try:
            found.append(make(own))
        except (TooManyStepsError, DirectionsError) as caught:
            error = caught
            given_up += int(own.steps) if isinstance(caught, TooManyStepsError) else 0
    if error is not None and not found:
        raise error
    best = preferred([made for made in found if fits(made, limits, peak)] or found)
    return replace(best, effort=given_up + sum(each.effort for each in found))


def _announce(lowered: Lowered, wanted: Wanted, estimates: dict[str, Estimate]) -> None:
    """Say so if planning is going to take long."""
    name = min(estimates, key=lambda name: estimates[name].compositions)
    count, seconds = estimates[name].compositions, _planning(name, estimates[name])
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


def _planning(name: str, estimate: Estimate) -> float:
    """Return how many seconds it takes to plan by a strategy, about."""
    return estimate.compositions * (BLOCK_SECONDS if name in ("reverse", "blocks") else DIRECTION_SECONDS)


class _Asked:
    """What is asked of a plan, from which plans by a strategy and turns of strategies are made.

    Args:
        lowered: The graph.
        wanted: The orders wanted, or the contractions.
        compact: Whether to return terms rather than dense tensors.
        limits: Rows at a time, and memory.
        peak: Tells what is held at once where a plan is run.
        looks: Whether whoever runs a plan looks at the results, see `plan`.
        allowed: How many bytes a plan may hold of which nobody asks whether they could be less.
    """

    def __init__(
        self,
        lowered: Lowered,
        wanted: Wanted,
        compact: bool,
        limits: Limits,
        peak: Peak,
        *,
        looks: bool = False,
        allowed: int = 0,
    ):
        self._wanted, self._compact, self._limits, self._peak = wanted, compact, limits, peak
        if not compact:
            check_possible(lowered.graph, wanted, limits)
        self._lowered = _with_rows(lowered, wanted)
        local = local_blocks(self._lowered, highest(wanted))
        is_apart = compact and not isinstance(wanted, Contractions)
        self._local = with_offsets(self._lowered.graph, local, highest(wanted)) if is_apart else local
        self._settlings = Settlings(self._lowered.graph, self._lowered.rules, self._local)
        self._extents = cache(partial(Extents, self._lowered.graph, self._local, wanted))
        self._may_look, self._allowed = looks, allowed
        self._looks = looks and are_looked_at(lowered, compact=compact, limits=limits)

    @property
    def is_taken_apart(self) -> bool:
        """Whether plans of the whole are run for some coordinates at a time in any case, never as they are."""
        nodes = [self._lowered.graph.nodes[number] for number in self._lowered.graph.inputs]
        counts = [prod(map(int, node.shape)) for node in nodes if node.active]
        is_dense = not (self._compact or isinstance(self._wanted, Contractions))
        return self._limits.in_pieces and is_dense and 0 not in counts and sum(counts) > 1

    @property
    def may_be_by_columns(self) -> bool:
        """Whether all of it is held, and what that takes is limited, so that it may be computed by columns instead."""
        is_dense = not (self._compact or isinstance(self._wanted, Contractions))
        return is_dense and self._limits.max_bytes is not None and not self._limits.in_pieces

    @property
    def compositions(self) -> int:
        """How many compositions a plan node by node takes, about."""
        return len(self._local) * (highest(self._wanted) + 1)

    @cached_property
    def by_nodes(self) -> Turns:
        """What plans node by node, by the strategies that may be taken."""
        close = inf if isinstance(self._wanted, Contractions) else CLOSE_AS_TERMS if self._compact else CLOSE
        joins = not self._compact and self._limits == Limits()
        found = estimated(
            self._extents(), self._settlings, self._wanted, compact=self._compact, joins=joins, looks=self._looks
        )
        return self._turns(found, self.make, close)

    def sooner_turns(self) -> Turns | None:
        """Return what plans with all steps of recurrences as batches, if that is sooner done than node by node."""
        if len(self._local) < LONG_RECURRENCE and self.by_nodes.run < BATCH:
            return None
        least = SHORT_CONTRACTED if isinstance(self._wanted, Contractions) else SHORT_RECURRENCE
        found = self.recurrent_turns(min(least, LONG_RECURRENCE), self._may_be_sooner)
        return found if found is not None and self._is_sooner(found) else None

    @cached_property
    def _compactly(self) -> Extents:
        """How many entries derivatives have that are no zeros, once for all recurrences."""
        return self._extents().compactly()

    def _may_be_sooner(self, steps: Steps) -> bool:
        """Tell whether a batch of steps may be sooner than its nodes, by counts alone: long recurrences always may be.

        All batches take about as many calls, and each of them is planned by itself, while what is planned of a step
        node by node serves for all that follow. So a batch of few nodes is not worked out; nor one of steps that share
        what they vary by, whose derivatives by that take longest to plan, unless their nodes run as long as batches do.
        """
        count, nodes = len(steps.nodes), len(steps.nodes[0])
        if count * nodes >= LONG_RECURRENCE:
            return True
        whole, is_shared = not isinstance(self._wanted, Contractions), any(each.is_shared for each in steps.active)
        times = (highest(self._wanted) / 2) ** 2  # as all orders are propagated through so many batches
        if whole and not is_shared:
            left = count * nodes - times * SHORT_RECURRENCE
        else:
            by_nodes = self.by_nodes.run * count * nodes / len(self._local)
            left = by_nodes - times * (BATCH + PER_NODE * nodes + PER_STEP * count)
        if left < 0 or not whole:
            return left >= 0
        handed = [each.nodes[-1] for each in steps.active if each.nodes[1] in steps.nodes[0]]
        entries = count * sum(self._compactly.coefficient(node, 1) for node in handed)
        return left >= times * entries / BATCH_ENTRIES

    def _is_sooner(self, recurrent: Turns) -> bool:
        """Tell whether a first call is done sooner by batches of steps than node by node, and later ones are no slower.

        Where each step takes inputs of its own, a batch has a block for every pair of these, though few of them meet.
        Whether later calls are slower is of no account where it takes long to plan the nodes.
        """
        is_long, seconds = len(self._local) >= LONG_RECURRENCE, self._first_call(recurrent)
        if is_long and seconds <= BLOCK_SECONDS * self.compositions:
            return True
        return (is_long or recurrent.run <= SLOWER * self.by_nodes.run) and seconds <= self._first_call(self.by_nodes)

    def _first_call(self, turns: Turns) -> float:
        """Return how many seconds it takes to plan by the strategy that should run fastest, and to run the plan."""
        name, fastest = next(iter(turns.estimates.items()))
        return _planning(name, fastest) + CALLS * rates_of(device_of(self._lowered.graph)).call * fastest.run

    def announced(self, turns: Turns) -> Turns:
        """Return turns that are going to be taken, and say so if that takes long."""
        _announce(self._lowered, self._wanted, turns.estimates)
        return turns

    @cached_property
    def make(self) -> Maker:
        """What plans by the strategy of a name, node by node."""
        return self._maker(self._lowered, looks=self._looks)

    def _maker(self, lowered: Lowered, *, looks: bool) -> Maker:
        limits = self._limits._replace(max_bytes=None) if self.is_taken_apart else self._limits
        known = self._local, self._settlings, self._extents, self._wanted, self._compact
        return _maker(lowered, *known, limits, self._peak, looks=looks, allowed=self._allowed)

    def recurrent_turns(self, least: int = 0, pays: Callable[[Steps], bool] = lambda _: True) -> Turns | None:
        """Return what plans with all steps of recurrences as batches, or nodes that are alike; None if there are none.

        By reverse, a block would be held for every pair of steps; so that is for what no other strategy applies to.

        Args:
            least: How many nodes recurrences are to have.
            pays: Tells whether it may pay to take steps as a batch, by counts alone.
        """
        wanted = self._wanted
        is_plain = not self._compact and self._limits == Limits() and not isinstance(wanted, Chosen)
        if not (is_plain and self._may_look) or highest(wanted) < 2:
            return None
        looks = self._looks
        if not (looks or self._settlings.are_finite):
            return None
        whole = not isinstance(wanted, Contractions)
        given = self._lowered, self._local, highest(wanted)
        steps = with_recurrences(*given, whole=whole, least=least, pays=pays, with_masks=looks)
        lowered = steps or with_levels(*given)
        if lowered is None:
            return None
        local = local_blocks(lowered, highest(wanted))
        settlings = Settlings(lowered.graph, lowered.rules, local)
        extents = Extents(lowered.graph, local, wanted)
        known = local, settlings, lambda: extents
        make = _maker(lowered, *known, wanted, False, self._limits, self._peak, settles=False, allowed=self._allowed)

        def careful() -> Blueprint:
            possible = candidates(self._settlings, wanted)
            without = self._lowered._replace(values={})  # as nobody compares them then
            with isolated():
                make, best = self._maker(without, looks=False), next(iter(self.by_nodes.estimates))
                return make(_careful_one(best, possible), of_first(self._limits))

        def made(name: str, leave: Leave) -> Blueprint:
            return replace(make(name, leave), careful=careful)

        every = candidates(settlings, wanted, looks=looks)
        likely = [name for name in every if is_directional(wanted, name)]
        computed = sum(origin is None for origin in lowered.origins) - len(local)
        found = in_order(
            {
                name: each._replace(run=each.run + computed / CALLS)
                for name, each in estimates(extents, wanted, likely, joins=True).items()
            }
        )
        found |= dict.fromkeys([name for name in every if name not in found], Estimate(len(local) ** 2 // 2, inf))
        return self._turns(found, make if self._settlings.are_finite else made, CLOSE)

    def by_recurrences(self, before: Blueprint | None) -> list[Blueprint]:
        """Return plans with all steps of recurrences as batches: that which was planned quickly, if it is one.

        There are none where they are estimated to run far longer than one node by node.
        """
        if before is not None and has_batches(before.lowered.graph):
            return [before]
        turns = self.recurrent_turns()
        if turns is None or turns.run > FAR * self.by_nodes.run:
            return []
        return self.announced(turns).taken(LIKELY)

    def _turns(self, estimates: dict[str, Estimate], make: Maker, close: float) -> Turns:
        return Turns(make, estimates, self._limits, self._peak, in_terms=self._compact, close=close)
