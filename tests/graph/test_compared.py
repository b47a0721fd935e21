"""Numbers that leave torch to be compared: plans are of the outcomes, or of numbers that are used otherwise."""

import math
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import hod, jit
from hofunc.graph.compared import Compared
from tests.checks import assert_equal, refused

TOLERANCE = 1e-9
SETTINGS = SimpleNamespace(tolerance=1e-9)


class Loose:
    """Makes an attribute by code."""

    @property
    def tolerance(self) -> float:
        """What only a call tells."""
        return TOLERANCE


LOOSE = Loose()


def solved(x: Tensor, goes_on: Callable[[Tensor], bool]) -> Tensor:
    """Return the real root of y**3 + y = x by Newton's method."""
    y = x
    while goes_on(y**3 + y - x):
        y = y - (y**3 + y - x) / (3 * y**2 + 1)
    return y


def steps_of(x: Tensor) -> int:
    """Return how many of these steps there are."""
    outcomes: list[bool] = []

    def goes_on(rest: Tensor) -> bool:
        outcomes.append(at_once(rest))
        return outcomes[-1]

    solved(x, goes_on)
    return len(outcomes)


def of_autograd(y: Tensor, x: Tensor) -> Tensor:
    """Return the second derivative of what was computed."""
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    return torch.autograd.grad(slope, x)[0]


def at_once(rest: Tensor) -> bool:
    return rest.abs().item() > 1e-9


def by_a_global(rest: Tensor) -> bool:
    return not rest.abs().item() <= TOLERANCE


def by_an_attribute(rest: Tensor) -> bool:
    return rest.abs().item() > SETTINGS.tolerance


def by_a_name(rest: Tensor) -> bool:
    error = rest.abs().item()
    if error < 1e-9:
        return False
    return error >= 1e-9


def by_a_name_that_is_passed_on(rest: Tensor) -> bool:
    if (error := rest.abs().item()) < 1e-9:
        return False
    return error >= 1e-9


def as_a_float(rest: Tensor) -> bool:
    return float(rest.detach().abs()) > 1e-9


def as_a_float_of_a_name(rest: Tensor) -> bool:
    rest = rest.detach().abs()
    return float(rest) > 1e-9


def by_an_argument(rest: Tensor, tolerance: float = 1e-9) -> bool:
    error = rest.abs().item()
    return error > tolerance


def of_an_enclosing_function(tolerance: float) -> Callable[[Tensor], bool]:
    return lambda rest: rest.abs().item() > tolerance


COMPARED = [
    *(at_once, by_a_global, by_an_attribute, by_a_name, by_a_name_that_is_passed_on, as_a_float, as_a_float_of_a_name),
    *(by_an_argument, of_an_enclosing_function(1e-9)),
]


@pytest.mark.parametrize("goes_on", COMPARED, ids=lambda goes_on: goes_on.__qualname__)
def test_a_solver_is_planned_once_for_each_number_of_its_steps(goes_on: Callable[[Tensor], bool]) -> None:
    def f(x: Tensor) -> Tensor:
        return solved(x, goes_on) ** 2

    jitted, steps = jit(hod(f, 2)), set()
    for number in (1.0, 1.01, 1.02, 3.0, 3.01, 1.03, 40.0):
        x = torch.tensor(number, dtype=torch.float64, requires_grad=True)
        assert_equal(jitted(x.detach()), of_autograd(f(x), x))
        steps.add(steps_of(x.detach()))
    assert f"{len(steps)} made" in str(jitted.explain_misses())


def in_arithmetic(x: Tensor) -> Tensor:
    return x**3 * (1.0 if -x.item() < -100 else x.item())


def as_it_is(x: Tensor) -> Tensor:
    number = x.item()
    return x**3 * (number if number > 0 else 1.0)


def in_a_chain(x: Tensor) -> Tensor:
    return x**3 * (0 < x.item() < 1.5)


def in_a_function_of_floats(x: Tensor) -> Tensor:
    return x**3 * (2 if math.sqrt(x) > 100 else float(x))


def as_a_float_of_a_sum(x: Tensor) -> Tensor:
    return x**3 * (2 if float(x) + 1 > 100 else float(x))


def by_all_names(x: Tensor) -> Tensor:
    number = x.item()
    return x**3 * (2 if number > 100 else locals()["number"])


def by_what_changes(x: Tensor) -> Tensor:
    number, bound = x.item(), 0.5
    while number > bound:
        bound += 0.125
    return bound * x**3


def by_a_property(x: Tensor) -> Tensor:
    return x**3 * (x.item() > LOOSE.tolerance)


def by_a_tensor(x: Tensor) -> Tensor:
    return x**3 * (x.item() < x * 2)


@pytest.mark.parametrize(
    "f",
    [
        *(in_arithmetic, as_it_is, in_a_function_of_floats, as_a_float_of_a_sum, in_a_chain, by_all_names),
        *(by_what_changes, by_a_property, by_a_tensor),
    ],
)
def test_a_number_that_is_used_otherwise_is_read_as_it_is(f: Callable[[Tensor], Tensor]) -> None:
    jitted = jit(hod(f, 1))
    for number in (1.0, 1.25, 2.0):
        x = torch.tensor(number, dtype=torch.float64)
        assert_equal(jitted(x), hod(f, 1)(x))
    assert "3 made" in str(jitted.explain_misses())


def test_numbers_are_compared_as_python_does() -> None:
    def f(x: Tensor) -> Tensor:
        return x**3 if x.item() < 0.1 else x**2  # which is less than the float32 next to it

    def of_integers(x: Tensor, count: Tensor) -> Tensor:
        return x**3 if count.item() > 2 else x**2

    jitted, counted = jit(hod(f, 2)), jit(hod(of_integers, 2))
    for number in (0.05, 0.1, 0.09999999, math.nan, -math.inf, 0.2):
        x = torch.tensor(number)
        torch.testing.assert_close(jitted(x), hod(f, 2)(x), rtol=0, atol=0, equal_nan=True)
    assert "2 made" in str(jitted.explain_misses())
    for count in (0, 1, 2, 3, 4):
        x = torch.tensor(2.0)
        assert_equal(counted(x, torch.tensor(count)), hod(of_integers, 2)(x, torch.tensor(count)))
    assert "2 made" in str(counted.explain_misses())


def test_plans_that_compare_travel(tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return solved(x, at_once) ** 2

    x, near = torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.01, dtype=torch.float64)
    plan = hod(f, 2).plan(x)
    plan.save(tmp_path / "plan")
    again: list[Any] = [hofunc.load_plan(tmp_path / "plan"), pickle.loads(pickle.dumps(plan))]  # noqa: S301 - ours
    far = torch.tensor(40.0, dtype=torch.float64)
    for each in (plan, *again):
        assert_equal(each(near), hod(f, 2)(near))
        refused(partial(each, far), hofunc.PlanMismatchError, "whether it is > 1e-09")


def test_a_comparison_says_what_it_compares() -> None:
    assert str(Compared("<", 0.5)) == "whether it is < 0.5"
    assert [Compared("<=", 2)(torch.tensor(number)) for number in (1, 2, 3)] == [True, True, False]
