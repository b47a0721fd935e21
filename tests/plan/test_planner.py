"""Planning: which strategy is taken, and which are given up."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import packing, planner, strategies, turns
from hofunc.plan.blocks import local_blocks
from hofunc.plan.blueprint import Blueprint, Limits, own_peak
from hofunc.plan.builder import Leave, TooManyStepsError
from hofunc.plan.cost import Cost, StepCost
from hofunc.plan.devices import rates_of
from hofunc.plan.entries import Extents
from hofunc.plan.estimate import CLOSE, ENTRIES, Estimate, _pairs_of_reverse, estimate, estimates
from hofunc.plan.planner import plan, rival
from hofunc.plan.reverse import elimination_order
from hofunc.plan.rows import with_rows
from hofunc.plan.strategies import PLAIN, STRATEGIES, Way
from hofunc.plan.turns import LIKELY, POSSIBLE, Turns, preferred
from hofunc.rules.lower import lower
from hofunc.run import cache
from hofunc.run.cache import forget
from tests.cases import mixed, rand
from tests.graph.recordings import recorded

# The choice of a strategy; another device may choose otherwise.

CPU = torch.device("cpu")


def plans(f: Callable[..., Any], *inputs: Tensor, order: int = 2, strategy: str = "auto") -> dict[str, Blueprint]:
    """Plan the derivatives of f by all its inputs; by strategy, the one that is chosen first."""
    recording = recorded(f, *inputs)
    made = plan(lower(recording.graph, recording.values, order), (order,), compact=True, strategy=strategy)
    return {one.strategy: one for one in made}


def tanh_network(*widths: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Return a network as a function of an input and its weights, and weights."""

    def f(x: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights[:-1]:
            x = (x @ weight).tanh()
        return (x @ weights[-1]).squeeze(-1)

    return f, [rand(CPU, *shape, seed=seed) for seed, shape in enumerate(pairwise(widths))]


@pytest.mark.parametrize(("order", "less"), [(2, 10), (3, 300)])
def test_a_field_over_points_is_mixed(order: int, less: int) -> None:
    """Two directions in 64 wide layers: reverse has blocks of 64^order for every point, mixed of 2^order."""
    f, weights = tanh_network(2, 64, 64, 1)
    found = plans(lambda x: f(x, *weights), rand(CPU, 256, 2), order=order)
    assert [*found] == ["mixed", "forward", "reverse"]
    assert less * found["mixed"].cost.flops < found["reverse"].cost.flops
    assert less * found["mixed"].cost.peak_bytes < 2 * found["reverse"].cost.peak_bytes
    assert found["mixed"].cost.flops < found["forward"].cost.flops


def test_the_hessian_by_parameters_is_reverse() -> None:
    f, weights = tanh_network(4, 8, 3)
    x, labels = rand(CPU, 16, 4), torch.arange(16, device=CPU) % 3
    found = plans(lambda *weights: torch.nn.functional.cross_entropy(f(x, *weights), labels), *weights)
    assert [*found] == ["reverse", "mixed", "forward"]
    assert found["reverse"].cost.flops < found["mixed"].cost.flops < found["forward"].cost.flops


def test_a_curve_in_many_dimensions_is_not_reverse() -> None:
    """One direction, and as many outputs as you like."""
    f, weights = tanh_network(1, 16, 16, 50)
    found = plans(lambda t: f(t, *weights), rand(CPU, 1), order=4)
    assert [*found][-1] == "reverse"


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_least_estimated_time_comes_first(order: int) -> None:
    f, weights = tanh_network(2, 6, 5, 1)
    found = plans(f, rand(CPU, 9, 2), *weights, order=order)
    assert {*found} == ({"reverse", "forward"} if order == 1 else {*STRATEGIES}), "at order 1 mixed is reverse"
    times = [made.run_cost.seconds for made in found.values()]
    assert times == sorted(times)


def test_what_a_result_in_terms_keeps_is_part_of_the_price() -> None:
    """By mixed a sheet of triangles has a term for every pair of coordinates of two corners, each of which is read."""
    points = torch.arange(71 * 71).view(71, 71)
    first, second, third = (part.reshape(-1) for part in (points[:-1, :-1], points[1:, :-1], points[:-1, 1:]))
    rest = torch.eye(2, dtype=torch.float64).expand(len(first), 2, 2)

    def energy(x: Tensor) -> Tensor:
        stretch = torch.stack([x[second] - x[first], x[third] - x[first]], -1) @ rest
        area = stretch[:, 0, 0] * stretch[:, 1, 1] - stretch[:, 0, 1] * stretch[:, 1, 0]
        return (stretch.square().sum((1, 2)) + area.log().square()).sum()

    found = plans(energy, torch.cartesian_prod(*[torch.arange(71.0, dtype=torch.float64)] * 2))
    counts = {name: sum(map(len, made.terms.values())) for name, made in found.items()}
    assert counts == {"reverse": 7, "mixed": 31}
    costs = {name: made.run_cost for name, made in found.items()}
    assert costs["mixed"].reading > costs["reverse"].reading > 0
    assert all(cost.price == cost.seconds + cost.reading for cost in costs.values())
    assert [*found] == ["reverse", "mixed"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_that_is_asked_for_is_taken(strategy: str, device: torch.device) -> None:
    for order in (1, 2):
        assert [*plans(mixed, rand(device, 3), order=order, strategy=strategy)] == [strategy]


def test_a_strategy_that_does_not_apply_is_left_out(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> Tensor:
        return x.prod().sin()

    monkeypatch.setattr(packing, "MAX_ENTRIES", 8)
    assert {*plans(f, rand(device, 2), order=3)} == {*STRATEGIES}
    assert {*plans(f, rand(device, 3), order=3)} == {"reverse"}
    for strategy in ("forward", "mixed"):
        with pytest.raises(packing.DirectionsError):
            plans(f, rand(device, 3), order=3, strategy=strategy)


# Strategies that take no end of steps.


def endless(x: Tensor, a: Tensor) -> Tensor:
    """Mix two inputs of four directions each, and no node is all: polynomials have thousands of coefficients."""
    v = (a * x).view(4, 1)
    return (v @ v.t()).exp().sum(1) + x.sum()


ENDLESS = rand(CPU, 2, 2, 1), rand(CPU, 2, 2, 1, seed=1)


def test_a_strategy_of_endless_steps_is_given_up() -> None:
    assert {*plans(endless, *ENDLESS, order=4)} == {"reverse"}
    mixed = plans(endless, *ENDLESS, order=4, strategy="mixed")["mixed"]
    best = plans(endless, *ENDLESS, order=4, strategy="reverse")["reverse"]
    assert mixed.cost.seconds > best.cost.seconds


@pytest.mark.parametrize("first", [1, 10, 10**9])
def test_how_many_steps_are_allowed_at_first_does_not_decide(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    f, weights = tanh_network(2, 64, 64, 1)
    expected, *_ = plans(lambda x: f(x, *weights), rand(CPU, 256, 2), order=3)
    monkeypatch.setattr(turns, "FIRST_LEAVE", first)
    chosen, *_ = plans(lambda x: f(x, *weights), rand(CPU, 256, 2), order=3)
    assert chosen == expected


def test_other_ways_have_no_turn_where_the_plain_one_is_given_up() -> None:
    """But that by a waist, which may take far fewer steps."""
    tried: list[str] = []

    def given_up(name: str) -> Callable[[Leave], Blueprint]:
        def make(_: Leave) -> Blueprint:
            tried.append(name)
            raise TooManyStepsError

        return make

    ways = {PLAIN: given_up("plain"), Way(3): given_up("waist"), Way(wide=frozenset({1})): given_up("wide")}
    with pytest.raises(TooManyStepsError):
        planner._best_way(ways, Leave(10), Limits(), own_peak)
    assert tried == ["plain", "waist"]


@pytest.mark.parametrize(
    ("max_bytes", "expected"), [(None, {"reverse"}), (100, {"reverse"}), (99, {"reverse", "mixed"})]
)
def test_a_plan_beyond_the_limits_makes_no_other_give_up(max_bytes: int | None, expected: set[str]) -> None:
    """One strategy takes 1 ms and 100 bytes, the other 5000 steps, of which one takes a microsecond at least."""
    real = plans(torch.sin, rand(CPU, 1), strategy="reverse")["reverse"]

    def make(name: str, leave: Leave) -> Blueprint:
        if leave.steps < {"reverse": 1, "mixed": 5000}[name]:
            raise TooManyStepsError
        return replace(real, strategy=name, cost=Cost((StepCost(0, 0, (), 1e-3),), 100 if name == "reverse" else 10))

    in_turn = Turns(
        make,
        {"reverse": Estimate(1, 1), "mixed": Estimate(1, 1)},
        Limits(max_bytes=max_bytes),
        own_peak,
        in_terms=False,
        close=1.0,
    )
    made = in_turn.taken(POSSIBLE)
    assert {one.strategy for one in made} == expected


@pytest.mark.parametrize(
    ("seconds", "peak_bytes", "expected"),
    [
        (1.05, 1 << 24, "mixed"),
        (1.05, (1 << 26) - (1 << 20), "reverse"),  # hardly less
        (1.2, 1 << 24, "reverse"),
        (0.95, 1 << 27, "reverse"),
        (0.9, 1 << 26, "mixed"),
    ],
)
def test_far_more_memory_is_not_taken_for_little_time(seconds: float, peak_bytes: int, expected: str) -> None:
    real = plans(torch.sin, rand(CPU, 1), strategy="reverse")["reverse"]
    one, other = (
        replace(real, strategy=name, cost=Cost((StepCost(0, 0, (), time),), held))
        for name, time, held in (("reverse", 1.0, 1 << 26), ("mixed", seconds, peak_bytes))
    )
    assert preferred([one, other]).strategy == preferred([other, one]).strategy == expected
    small = [replace(made, cost=made.cost._replace(peak_bytes=made.cost.peak_bytes >> 10)) for made in (one, other)]
    assert preferred(small) is min(small, key=lambda made: made.cost.seconds)


def test_a_rival_says_why_it_is_none() -> None:
    recording = recorded(endless, *ENDLESS)
    best, *_ = plan(lower(recording.graph, recording.values, 4), (4,), compact=True)
    with pytest.raises(TooManyStepsError):
        rival(best, (4,), compact=True, strategy="mixed", limits=Limits())
    assert rival(best, (4,), compact=True, strategy="reverse", limits=Limits()).cost == best.cost


# Plans that are quick to make.


def steps(n: int) -> Callable[[Tensor], Tensor]:
    """Return a recurrence of n steps that reads its input step by step."""
    weight = rand(CPU, 3, 3, seed=1)

    def f(x: Tensor) -> Tensor:
        h = x[0]
        for t in range(n):
            h = (weight @ h + x[t]).tanh()
        return h.sum()

    return f


def test_what_is_not_likely_to_be_faster_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "FIRST_LEAVE", 10)
    recording = recorded(steps(6), rand(CPU, 6, 3))
    lowered = lower(recording.graph, recording.values, 2)
    made, forgone, effort = planner.quickly(lowered, (2,), compact=False, limits=Limits())
    best, *others = plan(lowered, (2,), compact=False)
    assert len(others) == 2
    assert forgone > 0
    assert effort >= made.effort
    assert made.run_cost.seconds < 1.6 * best.run_cost.seconds
    assert made.cost in [one.cost for one in (best, *others)]


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_compositions_are_counted_before(strategy: str) -> None:
    """By what planning takes in the end, in steps."""
    for f, x in ((steps(5), rand(CPU, 5, 3)), (steps(20), rand(CPU, 20, 3)), (mixed, rand(CPU, 3))):
        recording = recorded(f, x)
        lowered = lower(recording.graph, recording.values, 2)
        made, *_ = plan(lowered, (2,), compact=False, strategy=strategy)
        count = estimate(lowered.graph, local_blocks(lowered, 2), (2,), strategy).compositions
        assert count < made.effort < 6 * count


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_what_is_differentiated_by_a_node_before_is_counted(strategy: str) -> None:
    """All steps of this are one function of the first of them, number by number, and no strategy has more to do."""

    def f(x: Tensor) -> Tensor:
        for number in range(1, 41):
            x = x / (number / 20 + x * x)
        return x.sum()

    recording = recorded(f, rand(CPU, 10))
    lowered = lower(recording.graph, recording.values, 3)
    (made,) = plan(lowered, (3,), compact=False, strategy=strategy)
    count = estimate(lowered.graph, local_blocks(lowered, 3), (3,), strategy).compositions
    assert count < made.effort < 6 * count


def put_together(x: Tensor) -> Tensor:
    """Of many parts that are stacked, each makes a part of the derivative."""
    return (torch.stack([(x * number).sin() * x.sum() for number in range(40)]) @ x).square().sum()


def rowwise(x: Tensor) -> Tensor:
    """Return a sum over rows that do not mix."""
    weight = rand(CPU, 3, 8, seed=1)
    return ((x @ weight).tanh() @ weight.T).sin().sum()


def by_parts(*parts: Tensor) -> Tensor:
    """Return a recurrence of many steps in some parameters, of which each is in every step."""
    state = torch.ones_like(parts[0])
    for _ in range(8):
        for part in parts:
            state = (state * part).tanh()
    return state.sum()


RUNNING = [
    (steps(5), (rand(CPU, 5, 3),)),  # each step reads a row of its input
    (rowwise, (rand(CPU, 6, 3),)),
    (rowwise, (rand(CPU, 200, 3),)),
    (by_parts, tuple(rand(CPU, 3, seed=seed) for seed in range(3))),
]


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize(("f", "inputs"), RUNNING, ids=["recurrence", "few rows", "many rows", "parts"])
def test_how_long_plans_run_is_told_before(f: Callable[..., Any], inputs: tuple[Tensor, ...], strategy: str) -> None:
    """In compositions, of which each is about two calls."""
    recording = recorded(f, *inputs)
    lowered = with_rows(lower(recording.graph, recording.values, 2))
    (made,) = plan(lowered, (2,), compact=True, strategy=strategy)
    run = 2 * rates_of(CPU).call * estimate(lowered.graph, local_blocks(lowered, 2), (2,), strategy).run
    assert run / 2.5 < made.run_cost.seconds < 2.5 * run


@pytest.mark.parametrize("strategy", ["forward", "mixed"])
def test_what_lies_side_by_side_is_counted_once_and_not_for_each_part(strategy: str) -> None:
    recording = recorded(put_together, rand(CPU, 30))
    lowered = lower(recording.graph, recording.values, 2)
    (made,) = plan(lowered, (2,), compact=True, strategy=strategy)
    run = 2 * rates_of(CPU).call * estimate(lowered.graph, local_blocks(lowered, 2), (2,), strategy).run
    assert run / 2.5 < made.run_cost.seconds < 2.5 * run


@pytest.mark.parametrize(("f", "inputs"), RUNNING, ids=["recurrence", "few rows", "many rows", "parts"])
def test_what_reverse_composes_is_told_from_pairs_of_nodes(f: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    recording = recorded(f, *inputs)
    for order in (2, 3):
        lowered = with_rows(lower(recording.graph, recording.values, order))
        local = local_blocks(lowered, order)
        whole = estimate(lowered.graph, local, (order,), "reverse").compositions
        least = _pairs_of_reverse(Extents(lowered.graph, local, (order,)), elimination_order(local), inf).compositions
        assert least == whole if order == 2 else least < whole


def test_a_strategy_of_which_it_is_told_that_it_runs_longer_is_not_planned() -> None:
    recording = recorded(steps(80), rand(CPU, 80, 3))
    lowered = lower(recording.graph, recording.values, 2)
    made, forgone, effort = planner.quickly(lowered, (2,), compact=False, limits=Limits())
    assert (made.strategy, made.effort) == ("mixed", effort)
    assert forgone > 0


def test_a_strategy_that_is_out_of_reach_is_not_planned_in_full() -> None:
    """A gradient by many weights, for each of which forward has a direction."""
    f, weights = tanh_network(4, 32, 32, 1)
    recording = recorded(lambda *weights: f(rand(CPU, 16, 4), *weights).square().mean(), *weights)
    made = plan(lower(recording.graph, recording.values, 1), (1,), compact=False)
    assert [one.strategy for one in made] == ["reverse"]


@pytest.mark.parametrize("is_much", [False, True])
def test_what_was_planned_quickly_is_not_planned_again_in_full(is_much: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it holds so much that it might hold less, which nobody has asked as yet."""
    recording = recorded(steps(6), rand(CPU, 6, 3))
    lowered = lower(recording.graph, recording.values, 2)
    quick = planner.quickly(lowered, (2,), compact=False, limits=Limits()).plan
    anew = plan(lowered, (2,), compact=False)
    names, propagated = [], strategies.propagated

    def noted(*args: Any, **options: Any) -> Any:
        names.append(args[3])
        return propagated(*args, **options)

    monkeypatch.setattr(planner, "propagated", noted)
    monkeypatch.setattr(planner, "is_much", lambda *_: is_much)
    made = plan(lowered, (2,), compact=False, before=quick)
    assert {*names} == {*STRATEGIES} - ({*()} if is_much else {quick.strategy})
    assert [(one.strategy, one.run_cost.seconds) for one in made] == [
        (one.strategy, one.run_cost.seconds) for one in anew
    ]


@pytest.mark.parametrize(("run", "expected"), [(10, ["mixed", "reverse"]), (1000, ["mixed", "mixed"])])
def test_a_strategy_far_behind_has_no_turn_before_there_is_a_plan(run: float, expected: list[str]) -> None:
    """One strategy takes more steps than it may at first, the other should run some times as long."""
    real = plans(torch.sin, rand(CPU, 1), strategy="reverse")["reverse"]
    names = []

    def make(name: str, leave: Leave) -> Blueprint:
        names.append(name)
        if leave.steps < {"reverse": 1, "mixed": 5000}[name]:
            raise TooManyStepsError
        return replace(real, strategy=name)

    told = {"mixed": Estimate(1, 1), "reverse": Estimate(1, run)}
    Turns(make, told, Limits(), own_peak, in_terms=False, close=1.0).taken(LIKELY)
    assert names[:2] == expected


def test_a_strategy_is_out_of_reach_where_one_like_it_says_so() -> None:
    """Reverse is the best one, and estimated at so much that forward would be near: by mixed, it is not."""
    weights = [rand(CPU, 6, 6, seed=seed) for seed in range(4)]

    def attention(x: Tensor) -> Tensor:
        scores = (x @ weights[0]) @ (x @ weights[1]).T
        return (scores.softmax(-1) @ x @ weights[2] @ weights[3]).tanh().square().sum()

    recording = recorded(attention, rand(CPU, 8, 6))
    lowered = lower(recording.graph, recording.values, 3)
    best, *others = plan(lowered, (3,), compact=False)
    assert {best.strategy, *(one.strategy for one in others)} == {"reverse", "mixed"}


def leaves(*numbers: Tensor) -> Tensor:
    """Each of many numbers, multiplied by two others: steps that are alike, which take inputs of their own."""
    total = torch.zeros((), dtype=torch.float64)
    for i, number in enumerate(numbers):
        total = total + number.sin() * numbers[i - 1] * numbers[i // 2]
    return total


def test_numbers_of_which_few_meet_are_no_batch() -> None:
    """Of which a batch of all has a block for every pair."""
    recording = recorded(leaves, *(rand(CPU, seed=seed) for seed in range(100)))
    lowered = lower(recording.graph, recording.values, 2)
    quick = planner.quickly(lowered, (2,), compact=False, limits=Limits(), looks=True)
    assert quick.plan.strategy == "reverse"
    assert quick.effort < 20 * 100
    full, *_ = plan(lowered, (2,), compact=False, looks=True)
    assert full.effort == quick.plan.effort


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_a_recurrence_is_planned_in_proportion_to_its_steps(strategy: str) -> None:
    def effort(n: int) -> int:
        return plans(steps(n), rand(CPU, n, 3), strategy=strategy)[strategy].effort

    assert effort(40) < 2.3 * effort(20)


def test_long_planning_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "LONG", 1e-3)
    forget()
    with pytest.warns(
        hofunc.PlanningWarning, match=r"planning takes some .* by 1 inputs are \d+ compositions"
    ) as caught:
        hofunc.hessian(steps(5))(rand(CPU, 5, 3))
    assert caught[0].filename == __file__
    hofunc.hessian(steps(5))(rand(CPU, 5, 3))


def test_compositions_by_reverse_are_announced_later(recwarn: pytest.WarningsRecorder) -> None:
    recording = recorded(lambda x: x.sin().sum(), rand(CPU, 3))
    lowered = lower(recording.graph, recording.values, 2)
    planner._announce(lowered, (2,), {"reverse": Estimate(80_000, 1.0)})
    assert not recwarn
    planner._announce(lowered, (2,), {"mixed": Estimate(80_000, 1.0)})
    assert "planning takes some 8 seconds" in str(recwarn.pop(hofunc.PlanningWarning).message)


def test_planning_is_bounded_in_time() -> None:
    x = rand(CPU, 5, 3)
    with hofunc.options(max_plan_seconds=1e-9):
        assert len(plans(steps(5), x)) == 1
    assert len(plans(steps(5), x)) == 3


def test_interrupted_planning_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    f, x = steps(4), rand(CPU, 4, 3)
    forget()
    with monkeypatch.context() as patch:
        patch.setattr("hofunc.plan.accumulate._sum", interrupted)
        with pytest.raises(KeyboardInterrupt):
            hofunc.hessian(f)(x)
    torch.testing.assert_close(hofunc.hessian(f)(x), torch.func.hessian(f)(x))


@pytest.mark.parametrize(
    ("planning", "planned"), [("auto", ["quickly", "plan"]), ("quick", ["quickly"]), ("full", ["plan"])]
)
def test_a_plan_is_made_in_full_once_calls_have_taken_as_long(
    planning: str, planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    recording = recorded(steps(4), rand(CPU, 4, 3))
    found = plan(lower(recording.graph, recording.values, 2), (2,), compact=False)
    made = {one.strategy: one for one in found}

    def quickly(*_: Any, **__: Any) -> planner.Quick:
        calls.append("quickly")
        forgone = int(2.5 * made["reverse"].run_cost.seconds / planner.STEP_SECONDS)
        return planner.Quick(made["reverse"], forgone, made["reverse"].effort)

    def fully(*_: Any, **__: Any) -> tuple[Blueprint, ...]:
        calls.append("plan")
        return (made["mixed"],)

    monkeypatch.setattr(cache, "quickly", quickly)
    monkeypatch.setattr(cache, "plan", fully)
    f, x = steps(4), rand(CPU, 4, 3)
    with hofunc.options(planning=planning):
        forget()
        results = [hofunc.hessian(f)(x) for _ in range(8)]
    assert calls == planned
    for each in results:
        torch.testing.assert_close(each, torch.func.hessian(f)(x))


def test_counting_ends_where_a_strategy_cannot_be_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> Tensor:
        states = [x[place].sin() for place in range(40)]
        return torch.stack([one * other for one, other in pairwise(states)]).prod()

    recording = recorded(f, rand(CPU, 40))
    lowered = lower(recording.graph, recording.values, 3)
    local = local_blocks(lowered, 3)
    whole = estimate(lowered.graph, local, (3,), "reverse")
    with monkeypatch.context() as patch:
        patch.setattr("hofunc.plan.estimate.MOST", whole.compositions // 4)
        assert estimate(lowered.graph, local, (3,), "reverse").run > whole.run / 2, "the rest is not left out"
    found = estimates(Extents(lowered.graph, local, (3,)), (3,), STRATEGIES)
    assert list(found) == list(STRATEGIES)
    for name in STRATEGIES:
        alone = estimate(lowered.graph, local, (3,), name)
        is_hopeless = alone.run > CLOSE * min(each.run for other, each in found.items() if other != "reverse")
        assert (found[name] == alone) is not (name == "reverse" and is_hopeless)


def test_what_multiplies_a_number_has_the_entries_of_its_indices() -> None:
    """The second derivative of the square of a sum of 200 is 2 for each pair of terms."""
    recording = recorded(lambda x: (rand(CPU, 200, 20) @ x).sin().square().sum() ** 2, rand(CPU, 20))
    lowered = with_rows(lower(recording.graph, recording.values, 2))
    local = local_blocks(lowered, 2)
    assert 2 * estimate(lowered.graph, local, (2,), "reverse").run > 200 * 200 / ENTRIES


def sines(x: Tensor) -> Tensor:
    for _ in range(20):
        x = torch.sin(x)
    return x.sum()


def rosenbrock(x: Tensor) -> Tensor:
    total = torch.zeros((), dtype=x.dtype)
    for i in range(19):
        total = total + 100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2
    return total


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_calls_are_told_of_a_chain(strategy: str) -> None:
    """Those that name axes anew, and products of numbers, are none; like products are stacked by mixed."""
    recording = recorded(sines, rand(CPU, 5))
    lowered = with_rows(lower(recording.graph, recording.values, 2))
    (made,) = plan(lowered, (2,), compact=False, strategy=strategy)
    calls = 2 * estimate(lowered.graph, local_blocks(lowered, 2), (2,), strategy).run
    assert calls == pytest.approx(len(made.program.steps), rel=0.12)


def relaxed(x: Tensor) -> Tensor:
    """Sums of neighbours, to each of which what is read of all the others is added by reverse."""
    for _ in range(6):
        x = (x[1:-1, :-2] + x[1:-1, 2:] + x[:-2, 1:-1] + x[2:, 1:-1]) * 0.25
        x = torch.nn.functional.pad(x.sin(), (1, 1, 1, 1))
    return x.square().sum()


@pytest.mark.parametrize(("f", "shape", "best"), [(rosenbrock, (20,), "reverse"), (relaxed, (6, 6), "mixed")])
def test_a_function_written_with_indices_is_told_to_be_faster_by(
    f: Callable[[Tensor], Tensor], shape: tuple[int, ...], best: str
) -> None:
    recording = recorded(f, rand(CPU, *shape))
    lowered = with_rows(lower(recording.graph, recording.values, 2))
    local = local_blocks(lowered, 2)
    told = {name: estimate(lowered.graph, local, (2,), name).run for name in ("reverse", "mixed", "forward")}
    made = {one.strategy: one.run_cost.seconds for one in plan(lowered, (2,), compact=False)}
    order = sorted(told, key=told.__getitem__)
    assert order[0] == best
    assert [name for name in order if name in made] == sorted(made, key=made.__getitem__)
