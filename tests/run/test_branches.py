"""Branches: of plans that read values those are found that fit, and each value is computed once."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc import Plan, hessian
from hofunc.run.branches import Branches
from tests.cases import rand


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 4)


def of(f: Callable[..., Tensor], *values: tuple[Tensor, ...]) -> tuple[Branches[Plan], list[Plan]]:
    """Return the plans of a Hessian at some arguments, as branches and as they are."""
    plans = [hessian(f).plan(*args) for args in values]
    return _of_plans(plans), plans


def _of_plans(plans: Iterable[Plan]) -> Branches[Plan]:
    branches: Branches[Plan] = Branches()
    for plan in plans:
        branches.add(plan, plan._steps.program, plan._facts.captured)
    return branches


def halved(x: Tensor) -> Tensor:
    """Halve until what is left is small, which is read at every turn."""
    while x.abs().max() > 1:
        x = x / 2
        x = x.sin() + x
    return (x**3).sum()


def test_the_plan_of_every_branch_is_found(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return (x**3).sum() if x.max() > 1.5 else (x**2).sum()
        return x.exp().sum() * x.abs().max().item() if x[0] < 0 else (x**4).sum()

    a = x.abs() / x.abs().max()
    values = (2 * a, a, -a, -2 * a, torch.stack([a[0], -a[1] - 1, -a[2], -a[3]]))
    branches, plans = of(f, *((value,) for value in values))
    for value, plan in zip(values, plans, strict=True):
        assert branches.fitting([value]) == [plan]
    assert branches.fitting([-3 * a]) == []


def test_plans_that_read_the_same_or_nothing_are_all_found(x: Tensor) -> None:
    box = {"power": 2}

    def f(x: Tensor) -> Tensor:
        return (x ** box["power"]).sum() if x.sum() > 0 else x.sum()

    plans = [hessian(f).plan(x.abs())]
    box["power"] = 3
    plans += [hessian(f).plan(x.abs()), hessian(f).plan(-x.abs()), hessian(torch.sum).plan(x)]
    branches = _of_plans(plans)
    assert {*map(id, branches.fitting([x.abs() + 1]))} == {*map(id, (plans[0], plans[1], plans[3]))}
    assert {*map(id, branches.fitting([-x.abs()]))} == {*map(id, plans[2:])}


class _Watched(Branches[Plan]):
    """Counts what is computed, and the most that is known at once."""

    computed = most = 0

    def _value(self, number: int, known: dict[int, Any], passing: Any) -> Any:
        before = len(known)
        found = super()._value(number, known, passing)
        self.computed += len(known) - before
        self.most = max(self.most, len(known))
        return found


def _watched(plans: Iterable[Plan]) -> _Watched:
    watched = _Watched()
    for plan in plans:
        watched.add(plan, plan._steps.program, plan._facts.captured)
    return watched


def test_what_several_plans_read_is_computed_once_and_held_no_longer_than_it_is_needed() -> None:
    values = [torch.full((3,), float(2**turns)) for turns in range(1, 12)]
    plans = [hessian(halved).plan(value) for value in values]
    alone = _watched(plans[-1:])
    assert alone.fitting([values[-1]]) == plans[-1:]
    together = _watched(plans)
    assert together.fitting([values[-1]]) == plans[-1:]
    assert together.computed == alone.computed > 60
    assert together.most == alone.most < 10


def test_what_a_function_makes_is_told_by_what_it_holds_and_what_it_captures_by_what_it_is(x: Tensor) -> None:
    scale = torch.tensor(2.0).to(x)

    def f(x: Tensor, n: int) -> Tensor:
        start = torch.ones(4).to(x) * scale
        start = start + torch.tensor([float(n)] * 4).to(x)
        return (x**3).sum() if (x + start).sum() > 20 else (x**2).sum()

    a = x.abs()
    branches, plans = of(lambda x: f(x, 1), (a,), (a + 9,))
    count = len(branches._steps)
    other = hessian(lambda x: f(x, 2)).plan(a)
    assert branches.fitting([a]) == plans[:1]
    scale.fill_(90.0)
    assert branches.fitting([a]) == plans[1:]
    scale.fill_(2.0)
    again = hessian(lambda x: f(x, 1)).plan(a)
    branches.add(again, again._steps.program, again._facts.captured)
    assert len(branches._steps) == count
    branches.add(other, other._steps.program, other._facts.captured)
    assert len(branches._steps) > count
    assert {*map(id, branches.fitting([a]))} == {*map(id, (plans[0], again, other))}


def test_random_numbers_are_drawn_as_the_plans_draw_them(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        turns = 1
        while torch.rand_like(x).sum() + x[0].sin() / 9 < 2:
            turns += 1
        return x.pow(turns + 1).sum() * torch.rand_like(x).sum()

    plans: dict[int, Plan] = {}
    seeds: dict[int, int] = {}
    for seed in range(20):
        torch.manual_seed(seed)
        plan = hessian(f).plan(x)
        plans.setdefault(len(plan._origin.graph.nodes), plan)
        seeds.setdefault(len(plan._origin.graph.nodes), seed)
    assert len(plans) > 2
    branches = _of_plans(plans.values())
    for key, plan in plans.items():
        torch.manual_seed(seeds[key])
        assert branches.fitting([x]) == [plan]
        torch.manual_seed(seeds[key])
        plan(x)


def test_plans_say_themselves_what_cannot_be_computed(x: Tensor) -> None:
    def f(x: Tensor, places: Tensor) -> Tensor:
        return (x**3).sum() if x[places].sum() > 2 else (x**2).sum()

    places = torch.tensor([0, 1], device=x.device)
    branches, plans = of(f, (x.abs(), places), (x.abs() + 9, places))
    assert branches.fitting([x.abs(), places]) == plans[:1]
    if x.device.type == "cpu":  # where an op looks at its indices
        assert {*map(id, branches.fitting([x, places + 9]))} == {*map(id, plans)}
        with pytest.raises(IndexError):
            plans[0](x, places + 9)
