"""Loops over labels that are summed: the same as at once, and nothing is held of what is made for all entries."""

from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.graph.node import Call, Ref
from hofunc.plan import lean
from hofunc.plan.known import Known
from hofunc.plan.lean import Lean, _Search, _Sizes, arranged, priced
from hofunc.plan.lean import _in_loops as in_loops
from hofunc.plan.looped import looped
from hofunc.plan.loops import Loop, apart, with_loops
from hofunc.plan.program import Given, Program, Register, Step, finished
from hofunc.plan.regions import SMALL, Region
from hofunc.plan.tracing import traced
from hofunc.rules.ops.maps import put_back
from hofunc.run.executor import compiled, interpreted
from tests.cases import rand
from verification.memory import SLACK, taken

CPU = torch.device("cpu")
FEATURES, POINTS, PLACES = 40, 30, 12
RESULTS = (POINTS * POINTS + POINTS) * 8  # bytes of what `squares` returns
X, Y = Register(0), Register(1)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all memory for worth to be saved."""
    for name, value in (
        ("HELD", 0),
        ("HELD_EACH", 0),
        ("LARGE", 0),
        ("EACH", 0),
        ("LEAST", 1 << 12),
        ("SLOWER", 100.0),
    ):
        monkeypatch.setattr(lean, name, value)


def squares(*, returned: bool = False, mixed: bool = False) -> Program:
    """Multiply all features of points by each other, as many as there are points, and sum over both.

    Args:
        returned: Whether what is large is returned as well.
        mixed: Whether one sum is multiplied by the other's summands.
    """
    outer, turned, flat, other, total, sums = map(Register, range(10, 16))
    steps = [
        Step(20, torch.reshape, (X, (POINTS, 1, FEATURES))),
        Step(21, torch.reshape, (Y, (1, POINTS, FEATURES))),
        Step(outer.index, torch.mul, (Register(20), Register(21))),
        Step(turned.index, torch.permute, (outer, (0, 2, 1))),
        Step(flat.index, torch.reshape, (turned, (POINTS * FEATURES, POINTS))),
        Step(22, torch.transpose, (flat, 0, 1)),
        Step(other.index, torch.mul, (flat, 2.0)),
        Step(total.index, torch.mm, (Register(22), other)),
        Step(sums.index, torch.sum, (outer, (0, 2))),
    ]
    outputs = [total, sums, *([outer] if returned else [])]
    if mixed:
        steps += [Step(23, torch.mul, (outer, sums)), Step(24, torch.sum, (Register(23), (0, 1, 2)))]
        steps[-2:] = [
            Step(25, torch.reshape, (sums, (1, POINTS, 1))),
            Step(23, torch.mul, (outer, Register(25))),
            Step(24, torch.sum, (Register(23), (0, 1))),
        ]
        outputs.append(Register(24))
    given = {n: Given(n, (POINTS, FEATURES), torch.float64) for n in (0, 1)}
    return finished(given, {}, steps, outputs)


def parts() -> Program:
    """Multiply all features of points by each other, and the matrix of one of them by itself, by rows and columns."""
    steps = [
        Step(20, torch.reshape, (X, (POINTS, 1, FEATURES))),
        Step(21, torch.reshape, (Y, (1, POINTS, FEATURES))),
        Step(22, torch.mul, (Register(20), Register(21))),
        Step(23, torch.mul, (Register(22), Register(22))),
        Step(24, torch.select, (Register(23), 2, 3)),
        Step(25, torch.mm, (Register(24), Register(24))),
    ]
    given = {n: Given(n, (POINTS, FEATURES), torch.float64) for n in (0, 1)}
    return finished(given, {}, steps, [Register(25)])


def at_indices() -> Program:
    """Multiply all features of points by each other, and add them to few places, of which the last is the first."""
    put = Call(put_back, (Ref(0), Ref(1), PLACES))
    steps = [
        Step(20, torch.reshape, (X, (POINTS, 1, FEATURES))),
        Step(21, torch.reshape, (Y, (1, POINTS, FEATURES))),
        Step(22, torch.mul, (Register(20), Register(21))),
        Step(23, torch.mul, (Register(22), 2.0)),
        Step(24, put, (Register(23), Register(2))),
        Step(25, torch.cumsum, (Register(24), 0)),
        Step(26, torch.sum, (Register(25), (0, 1))),
    ]
    given = {n: Given(n, (POINTS, FEATURES), torch.float64) for n in (0, 1)}
    given[2] = Given(torch.arange(FEATURES) % PLACES - PLACES, (FEATURES,), torch.long)
    return finished(given, {}, steps, [Register(26)])


def scaled_diagonal() -> Program:
    """Multiply all features of points by each other, scale the diagonal over the points, and read those of one point.

    The diagonal is small beside all else, and leads back to it.
    """
    steps = [
        Step(20, torch.reshape, (X, (POINTS, 1, FEATURES))),
        Step(21, torch.reshape, (Y, (1, POINTS, FEATURES))),
        Step(22, torch.mul, (Register(20), Register(21))),
        Step(23, torch.diagonal, (Register(22), 0, 0, 1)),
        Step(24, torch.mul, (Register(23), 2.0)),
        Step(25, torch.diagonal_scatter, (Register(22), Register(24), 0, 0, 1)),
        Step(26, torch.select, (Register(25), 1, 3)),
        Step(27, torch.mm, (Register(23), Register(26))),
    ]
    given = {n: Given(n, (POINTS, FEATURES), torch.float64) for n in (0, 1)}
    return finished(given, {}, steps, [Register(27)])


def values() -> list[Tensor]:
    return [rand(CPU, POINTS, FEATURES), rand(CPU, POINTS, FEATURES, seed=1)]


def functions(program: Program) -> list[object]:
    return [step.function for step in program.steps]


@pytest.mark.parametrize("make", [squares, partial(squares, mixed=True), parts, at_indices, scaled_diagonal])
def test_what_is_made_in_a_loop_is_what_is_made_at_once(make: Callable[[], Program]) -> None:
    program = make()
    made, cost = priced(program, CPU)
    assert looped in functions(made)
    for run in (compiled, interpreted):
        torch.testing.assert_close(run(made)(values()), run(program)(values()))
    whole = 8 * POINTS**2 * FEATURES
    given, whole_run = values(), compiled(made)
    assert taken(lambda: whole_run(given)) <= cost.peak_bytes + SLACK
    assert cost.peak_bytes < whole


def test_what_leads_to_a_sum_may_be_any_number_of_steps() -> None:
    count = 1500
    steps = [
        Step(20, torch.reshape, (X, (POINTS, 1, FEATURES))),
        Step(21, torch.reshape, (Y, (1, POINTS, FEATURES))),
        Step(100, torch.mul, (Register(20), Register(21))),
        *(Step(101 + number, torch.mul, (Register(100 + number), 1.0)) for number in range(count)),
        Step(22, torch.sum, (Register(100 + count), (2,))),
    ]
    given = {n: Given(n, (POINTS, FEATURES), torch.float64) for n in (0, 1)}
    program = finished(given, {}, steps, [Register(22)])
    known = Known(program, traced(program))
    regions = [*Region.at(known, 100, 2)]
    assert all(len(region.inside) > count and [*region.ends] == [22] for region in regions)
    assert regions


def test_several_sums_are_one_loop() -> None:
    made, _ = priced(squares(), CPU)
    assert functions(made).count(looped) == 1
    assert not {torch.mm, torch.sum, torch.mul} & {*functions(made)}


def test_of_what_runs_too_long_nobody_asks_what_it_holds() -> None:
    made, _ = priced(squares(), CPU, 0.0)
    assert looped not in functions(made)


def test_what_is_returned_is_made_as_a_whole() -> None:
    program = squares(returned=True)
    made, _ = priced(program, CPU)
    torch.testing.assert_close(compiled(made)(values()), compiled(program)(values()))


def test_what_is_small_beside_what_it_is_made_of_is_kept() -> None:
    """No axis of what is multiplied leads to sums alone."""
    known = Known(parts(), traced(parts()))
    regions = [*Region.at(known, 22, 0), *Region.at(known, 22, 1)]
    assert [region.kept for region in regions] == [{24}, {24}]
    assert not any(region.ends for region in regions)


def test_what_is_kept_leads_back_to_nothing() -> None:
    """It is made for some entries as well as it is read then."""
    known = Known(scaled_diagonal(), traced(scaled_diagonal()))
    regions = [*Region.at(known, 22, 2)]
    assert [region.kept for region in regions] == [{23, 26}]
    assert {24, 25} <= regions[0].inside.keys()


def test_what_is_added_at_indices_is_added_to_the_sum_itself() -> None:
    """A sum of some entries, which is as large, is not made beside it."""
    made, cost = priced(at_indices(), CPU)
    (loop,) = (step for step in made.steps if step.function is looped)
    assert len(loop.args[0].shapes) == 1
    assert cost.peak_bytes < 2.5 * 8 * POINTS**2 * PLACES


@pytest.mark.parametrize("make", [squares, parts, at_indices])
def test_autograd_and_vmap_follow_it(make: Callable[[], Program]) -> None:
    program = make()
    run, plain = compiled(priced(program, CPU)[0]), compiled(program)
    x, y = values()
    torch.testing.assert_close(
        torch.func.jacrev(lambda x: run([x, y])[0])(x), torch.func.jacrev(lambda x: plain([x, y])[0])(x)
    )
    torch.testing.assert_close(
        torch.func.vmap(lambda x: tuple(run([x, y])))(torch.stack([x, 2 * x])),
        torch.func.vmap(lambda x: tuple(plain([x, y])))(torch.stack([x, 2 * x])),
    )
    x.requires_grad_(True)
    torch.stack([each.sum() for each in run([x, y])]).sum().backward()
    grad, x.grad = x.grad, None
    torch.stack([each.sum() for each in plain([x, y])]).sum().backward()
    torch.testing.assert_close(grad, x.grad)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
def test_vmap_keeps_nothing_of_what_a_loop_makes(in_dims: tuple[int | None, int | None]) -> None:
    program, stack = squares(), 3
    made, cost = priced(program, CPU)

    def under_vmap(program: Program) -> Callable[..., tuple[Tensor, ...]]:
        run = compiled(program)
        return torch.func.vmap(lambda x, y: tuple(run([x, y])), in_dims)

    run, plain = under_vmap(made), under_vmap(program)
    given = [
        each if dim is None else torch.stack([each, 2 * each, -each])
        for each, dim in zip(values(), in_dims, strict=True)
    ]
    torch.testing.assert_close(run(*given), plain(*given))
    with torch.no_grad():
        assert taken(lambda: run(*given)) <= 1.5 * stack * cost.peak_bytes < taken(lambda: plain(*given)) / 2
    given[0].requires_grad_(True)
    (got,) = torch.autograd.grad(run(*given)[0].square().sum(), given[0])
    (expected,) = torch.autograd.grad(plain(*given)[0].square().sum(), given[0])
    torch.testing.assert_close(got, expected)


def test_a_loop_is_the_same_at_every_call() -> None:
    run = compiled(priced(squares(), CPU)[0])
    first, second = run(values()), run(values())
    assert all(map(torch.equal, first, second))


def test_plans_have_loops_and_say_so_and_travel(tmp_path: Path) -> None:
    weights, readout = rand(CPU, 6, 40, seed=2), rand(CPU, 40, seed=3)

    def energy(x: Tensor) -> Tensor:
        y = (x @ weights).tanh()
        return ((y @ y.T).softmax(-1) @ y @ readout).square().sum()

    x = rand(CPU, 12, 6)
    plan = hofunc.hessian(energy).plan(x)
    torch.testing.assert_close(plan(x), torch.func.hessian(energy)(x), atol=1e-10, rtol=1e-10)
    assert taken(lambda: plan(x)) <= plan.peak_bytes + SLACK
    assert "looped" in plan.explain()
    plan.save(tmp_path / "plan.hofunc")
    torch.testing.assert_close(hofunc.load_plan(tmp_path / "plan.hofunc")(x), plan(x))


@pytest.mark.parametrize(("most", "expected"), [(10_000, [SMALL]), (100_000, [SMALL, (100_000 - RESULTS) // 2])])
def test_where_the_smallest_loops_hold_too_much_no_others_are_looked_for(
    most: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int | None] = []

    def noted(*args: Any, **options: Any) -> Lean:
        sizes.append(options.get("size"))
        return in_loops(*args, **options)

    monkeypatch.setattr(lean, "_in_loops", noted)
    monkeypatch.setattr(lean, "HELD", 1 << 30)
    _, cost = priced(squares(), CPU, most=most)
    assert sizes == expected
    assert (cost.peak_bytes <= most) is (len(expected) > 1)


@pytest.mark.parametrize(("times", "expected"), [(inf, 1), (25, 1), (6, 6), (2, 20), (0, None)])
def test_a_loop_takes_more_entries_where_it_would_take_too_long_of_fewer(times: float, expected: int | None) -> None:
    first = arranged(squares(), CPU)
    known = Known(first.program, first.trace)
    region = next(Region.at(known, 10, 2))
    search = _Search(1 << 20, 1 << 13, times * first.made.cost(CPU).seconds, CPU)
    with hofunc.options(rates="standard"):
        assert _Sizes(known, first.made, search).of(region) == expected


def two(*, each_takes: bool) -> Program:
    """Multiply all features of points by each other twice, and sum over them.

    Args:
        each_takes: Whether sums of each are multiplied by the other one's summands.
    """
    steps = [
        Step(20, torch.reshape, (X, (POINTS, 1, FEATURES))),
        Step(21, torch.reshape, (Y, (1, POINTS, FEATURES))),
    ]
    for large, total, factor in ((30, 31, 2.0), (40, 41, 3.0)):
        steps += [
            Step(large + 2, torch.mul, (Register(20), factor)),
            Step(large, torch.mul, (Register(large + 2), Register(21))),
            Step(total, torch.sum, (Register(large), (0,))),
        ]
    for large, other, last in ((30, 41, 33), (40, 31, 43)):
        steps += [
            Step(last + 1, torch.mul, (Register(large), Register(other if each_takes else large))),
            Step(last, torch.sum, (Register(last + 1), (0, 1))),
        ]
    given = {n: Given(n, (POINTS, FEATURES), torch.float64) for n in (0, 1)}
    return finished(given, {}, steps, [Register(n) for n in (31, 41, 33, 43)])


@pytest.mark.parametrize("each_takes", [True, False])
def test_loops_that_are_apart_are_made_together(each_takes: bool) -> None:
    program = two(each_takes=each_takes)
    known = Known(program, traced(program))
    regions = [next(Region.at(known, large, 0)) for large in (30, 40, 40)]
    loops = [Loop.of(known, region, 4, number) for number, region in enumerate(regions)]
    together = apart(known, [loop for loop in loops if loop is not None])
    assert together == (loops[:1] if each_takes else loops[:2])
    made = with_loops(known, together)
    assert made is not None
    torch.testing.assert_close(interpreted(made[0])(values()), interpreted(program)(values()))


def test_few_loops_are_tried_and_those_of_what_is_held_most(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[set[int]] = []

    def noted(_: Known, region: Region, *__: Any) -> Loop | None:
        tried.append(region.results)
        return None

    monkeypatch.setattr(Loop, "of", noted)
    monkeypatch.setattr(lean, "ROUNDS", 1)
    priced(squares(mixed=True), CPU)
    every = tried[:]
    monkeypatch.setattr(lean, "LIKELIEST", 1)
    priced(squares(mixed=True), CPU)
    assert len(every) > 1
    assert tried == [*every, every[0]]
