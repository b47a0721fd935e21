"""Turns: each strategy may take some steps of planning at first, and more until it cannot be the fastest any more."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from time import perf_counter

from hofunc.options import max_plan_seconds
from hofunc.plan.blueprint import Blueprint, Limits, Peak
from hofunc.plan.builder import Leave, TooManyStepsError
from hofunc.plan.devices import rates_of
from hofunc.plan.estimate import CALLS, Estimate
from hofunc.plan.lean import FEWER, HELD, SLOWER, is_much
from hofunc.plan.packing import DirectionsError
from hofunc.plan.program import device_of
from hofunc.plan.rows import number_of_rows
from hofunc.progress import counting

FIRST_LEAVE = 1500  # steps of planning that a strategy may take before the others have their turn
_LEAVE_GROWS = 4
PER_COMPOSITION = 5  # steps of planning at most, as a rule

# How many steps of planning a strategy may take for as long as the best plan runs, in calls that compute nothing. A
# fourth of the steps at least are calls in the end, so that beyond the first number it cannot be faster; as a rule it
# is not beyond twice the second.
POSSIBLE, LIKELY = 4.0, 0.8
_TABLES = 8  # as much as tables of places may take as a plan is made, it may hold as it is run

FUTILE = 2  # times as long as a plan runs that others are estimated to, at which none of them is made;
FUTILE_OF_CONTRACTIONS = 6  # of contractions, of which estimates err by more

OUT_OF_REACH = 20  # times what the best is estimated to run, from which on no other is planned, for all that these err,
PATIENCE = 3  # nor, as long as there is no plan, in so many turns

Maker = Callable[[str, Leave], Blueprint]


class Turns:
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
        close: Times what the best one is estimated to run, up to which another one may be faster.

    Attributes:
        estimates: What was given.
        inapplicable: The strategies that turned out not to apply.
        effort: How many steps all took so far, those that were given up among them.
    """

    def __init__(
        self,
        make: Maker,
        estimates: dict[str, Estimate],
        limits: Limits,
        peak: Peak,
        *,
        in_terms: bool,
        close: float,
    ):
        self.estimates = estimates
        self.inapplicable: set[str] = set()
        self.effort = 0
        self._make, self._limits, self._peak, self._in_terms, self._close = make, limits, peak, in_terms, close
        self._soonest: dict[str, Blueprint] = {}

    @counting("hofunc: planning", "step")
    def taken(self, per_call: float, rivals: Sequence[Blueprint] = ()) -> list[Blueprint]:
        """Return the plans.

        Args:
            per_call: How many steps a strategy may take for as long as the best plan runs, in calls of no work.
            rivals: Plans that were made otherwise, of which one may be the best; beside them a strategy is planned only
                if it is estimated to run about as long as the best.
        """
        plans: list[Blueprint] = []
        clock = _Clock(max_plan_seconds())
        left = list(self.estimates)
        leave, patience = self._first_leave, PATIENCE
        while left:
            soonest = left[0]
            for name in left[:]:
                fitting = [one for one in (*rivals, *plans) if fits(one, self._limits, self._peak)]
                most = of_first(self._limits)
                if fitting:
                    best = preferred(fitting)
                    most = narrower(beside(best, per_call, self._limits), Leave(clock.steps_left(plans)))
                    is_close = self._is_close(name, best)
                    is_likely = is_close and self._expected(name, best) <= most.steps
                    is_enough = per_call < POSSIBLE and not is_likely
                    if is_enough or self._is_out_of_reach(name, best, fitting) or (rivals and not is_close):
                        left.remove(name)
                        continue
                elif patience > 0 and self._is_far_behind(name, soonest):
                    continue
                if name in self._soonest:
                    plans.append(self._soonest[name])
                    left.remove(name)
                    continue
                try:
                    plans.append(self._make(name, narrower(most, Leave(leave))))
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
            patience -= 1
        return plans

    def soonest(self) -> Blueprint | None:
        """Return the plan of the strategy that should run fastest, if it can be made in its first turn."""
        name = next(iter(self.estimates))
        with suppress(DirectionsError, TooManyStepsError):
            self._soonest[name] = self._make(name, narrower(of_first(self._limits), Leave(self._first_leave)))
            self.effort += self._soonest[name].effort
        return self._soonest.get(name)

    def keep(self, made: Blueprint) -> None:
        """Take a plan that was made before for that of its strategy."""
        self._soonest[made.strategy] = made

    def others(self, per_call: float, best: Blueprint | None) -> list[Blueprint]:
        """Return plans by the strategies beside the soonest, those that should run sooner than a plan if there is one.

        Args:
            per_call: How many steps a strategy may take for as long as the best plan runs, in calls of no work.
            best: The plan.
        """
        others = {name: each for name, each in self.estimates.items() if name not in self._soonest}
        left = {
            name: each
            for name, each in others.items()
            if (self._may_hold_less(name) if best is None else self._is_sooner(each, best))
        }
        if not left:
            return []
        turns = Turns(self._make, left, self._limits, self._peak, in_terms=self._in_terms, close=self._close)
        found = turns.taken(per_call)
        self.effort += turns.effort
        return found

    def _may_hold_less(self, name: str) -> bool:
        """Tell whether a strategy may hold less than the soonest: what runs far longer makes far more as well."""
        return not any(self._is_far_behind(name, soonest) for soonest in self._soonest)

    def _is_sooner(self, estimate: Estimate, best: Blueprint) -> bool:
        """Tell whether a strategy should run sooner than a plan, if estimates err as that of the soonest did."""
        return all(
            price(own) * estimate.run < price(best) * self.estimates[name].run for name, own in self._soonest.items()
        )

    @property
    def _first_leave(self) -> int:
        """How many steps a strategy may take before the others have their turn."""
        fastest = next(iter(self.estimates.values()))  # or should be
        return max(FIRST_LEAVE, 2 * PER_COMPOSITION * fastest.compositions)

    def first(self, steps: float = inf) -> list[Blueprint]:
        """Return the plan of the strategy that should run fastest, of those that apply.

        Args:
            steps: How many steps of planning it may take.

        Raises:
            TooManyStepsError: It takes more.
        """
        for name in self.estimates:
            try:
                made = self._make(name, narrower(of_first(self._limits), Leave(steps)))
            except DirectionsError:  # reverse always applies
                self.inapplicable.add(name)
            else:
                self.effort += made.effort
                return [made]
        return []

    @property
    def run(self) -> float:
        """How long the best is estimated to run, in compositions of small tensors."""
        return min(each.run for each in self.estimates.values())

    def are_futile_beside(self, made: Blueprint) -> bool:
        """Tell whether none of the strategies can be faster than a plan made otherwise, for all that estimates err."""
        call = rates_of(device_of(made.lowered.graph)).call
        times = FUTILE_OF_CONTRACTIONS if self._close == inf else FUTILE
        return self.run * CALLS * call > times * price(made)

    def _is_close(self, name: str, best: Blueprint) -> bool:
        """Tell whether a strategy may be faster than the best one, for all that estimates err."""
        return self.estimates[name].run <= self._close * self.estimates[best.strategy].run

    def _is_out_of_reach(self, name: str, best: Blueprint, plans: Sequence[Blueprint]) -> bool:
        """Tell whether a strategy runs far longer than the best one, whatever estimates err by.

        Where that of the best one was far too high, those of others may not be: each tells what the strategy takes if
        its own errs as much, and one that is like it errs as it does.
        """
        run, longest = self.estimates[name].run, OUT_OF_REACH * price(best)
        return not self._in_terms and any(
            run * price(made) > longest * self.estimates[made.strategy].run for made in plans
        )

    def _is_far_behind(self, name: str, soonest: str) -> bool:
        """Tell whether a strategy is estimated to run far longer than the one that should run fastest of those left."""
        return not self._in_terms and self.estimates[name].run > OUT_OF_REACH * self.estimates[soonest].run

    def _expected(self, name: str, best: Blueprint) -> float:
        """Return how many steps a strategy takes, or runs as long as, if estimates err as that of the best one did."""
        theirs = self.estimates[name]
        steps = theirs.compositions if self._in_terms else max(theirs)
        return steps * best.effort / max(1, self.estimates[best.strategy].compositions)


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


def of_first(limits: Limits) -> Leave:
    """Return what the plan may take that is made first."""
    most = inf if limits.max_bytes is None else limits.max_bytes
    return Leave(bytes=most, tables=most / _TABLES)


def beside(best: Blueprint, per_call: float, limits: Limits) -> Leave:
    """Return what a plan may take to make that is faster than another one.

    It has so many steps at most for each call of no work of that, and runs no longer, or hardly longer if memory is at
    issue; what holds more as it is made than that as it is run is no better.
    """
    call, peak = rates_of(device_of(best.lowered.graph)).view, best.run_cost.peak_bytes
    steps = max(FIRST_LEAVE, per_call * best.run_cost.seconds / call)
    longest = price(best) * (SLOWER if is_much(peak, best.program) else 1)
    own = Leave(steps, max(HELD, peak), longest)
    return narrower(own, of_first(limits))


def narrower(one: Leave, other: Leave) -> Leave:
    """Return what both leave."""
    return Leave(*map(min, zip(one, other, strict=True)))


def preferred(plans: Sequence[Blueprint]) -> Blueprint:
    """Return the cheapest of some plans, or if memory is at issue one that holds less and takes about as long."""
    best = min(plans, key=price)
    if len(plans) == 1 or not is_much(best.run_cost.peak_bytes, best.program):
        return best
    close = [made for made in plans if price(made) <= SLOWER * price(best)]
    least = min(close, key=lambda made: made.run_cost.peak_bytes)
    return least if least.run_cost.peak_bytes < FEWER * best.run_cost.peak_bytes else best


def price(made: Blueprint) -> float:
    """Return that by which plans are compared."""
    return made.run_cost.price


def fits(made: Blueprint, limits: Limits, peak: Peak) -> bool:
    """Tell whether a plan keeps to the limits."""
    return is_in_chunks(made, limits) and (limits.max_bytes is None or peak(made) <= limits.max_bytes)


def is_in_chunks(made: Blueprint, limits: Limits) -> bool:
    """Tell whether a plan runs in such chunks as are asked for."""
    if limits.in_pieces:
        return made.chunks is not None and made.chunks.in_pieces
    if limits.chunk_size is None or made.chunks is not None:
        return True
    rows = number_of_rows(made.lowered.graph)
    return rows is not None and rows <= limits.chunk_size
