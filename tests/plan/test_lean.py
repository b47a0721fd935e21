"""Whether another order of steps, and loops, are looked for."""

from typing import Any

import pytest
import torch

from hofunc.plan import lean
from hofunc.plan.lean import Lean, arranged, priced, worth
from hofunc.plan.order import in_order
from hofunc.plan.peak import held_by_one, peak_of
from hofunc.plan.program import Given, Program, Register, Step, frees_of
from hofunc.plan.tracing import traced

CPU, SIZE = torch.device("cpu"), 200
ONE = SIZE * SIZE * 8  # bytes of a matrix


def program(several: int) -> Program:
    """Return the sum of products of two matrices and of so many matrices, that are all made before they are added."""
    given = {0: Given(0, (SIZE, SIZE), torch.float64)}
    made = [Step(1 + number, torch.mul, (Register(0), float(number))) for number in range(several)]
    products = [Step(102, torch.mm, (Register(1), Register(2)))]
    products += [
        Step(100 + number, torch.mm, (Register(99 + number), Register(number))) for number in range(3, several + 1)
    ]
    steps = (*made, *products)
    outputs = (100 + several,)
    return Program(given, {}, steps, frees_of(steps, outputs)[0], outputs)


def test_what_one_step_holds_is_held_in_any_order() -> None:
    few, many = program(2), program(9)
    assert [held_by_one(each, traced(each)) for each in (few, many)] == [3 * ONE, 3 * ONE]
    assert [peak_of(each, traced(each)) for each in (few, many)] == [3 * ONE, 10 * ONE]


@pytest.mark.parametrize(("several", "most", "expected"), [(2, None, 0), (2, 4 * ONE, 2), (9, None, 1)])
def test_no_order_is_looked_for_where_one_step_holds_most(
    several: int, most: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is another one after that in which it does; unless memory is limited, as a little less may be what fits."""
    found: list[Any] = []

    def noted(*args: Any) -> Any:
        found.append(args)
        return in_order(*args)

    monkeypatch.setattr(lean, "in_order", noted)
    monkeypatch.setattr(lean, "FEW", 0)
    _, cost = priced(program(several), CPU, most=most)
    assert len(found) == expected
    assert cost.peak_bytes <= 4 * ONE


def test_what_each_register_holds_beyond_a_goal() -> None:
    few = program(2)
    made = Lean.of(few, traced(few))
    assert made.held == [0, ONE, 2 * ONE, 3 * ONE]
    assert made.excess_of(ONE) == {1: 2 * ONE, 2: 2 * ONE}
    assert made.excess_of(2 * ONE) == {1: ONE, 2: ONE}
    assert made.excess(ONE) == 3 * ONE


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what takes note of every search for loops, which finds none."""
    found: list[Any] = []

    def noted(*args: Any) -> Any:
        found.append(args)
        return args[2]

    monkeypatch.setattr(lean, "_in_loops", noted)
    return found


@pytest.mark.parametrize(("times", "expected"), [(0.8, 1), (0.95, 0)])
def test_no_loops_are_looked_for_where_little_less_is_enough(
    times: float, expected: int, searched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "HELD", int(times * 3 * ONE))
    monkeypatch.setattr(lean, "MOST", 0)
    monkeypatch.setattr(lean, "HELD_EACH", 0)
    priced(program(2), CPU)
    assert len(searched) == expected


@pytest.mark.parametrize(("allowed", "expected"), [(3 * ONE, 0), (3 * ONE - 1, 1)])
def test_no_loops_are_looked_for_where_so_much_may_be_held(
    allowed: int, expected: int, searched: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "_goal", lambda *_: ONE)
    assert arranged(program(2), CPU).leaner(allowed=allowed).peak == 3 * ONE
    assert len(searched) == expected


def test_a_program_may_take_longer_the_less_it_holds() -> None:
    assert [worth(3.0, 1 << 20, 1 << bits) for bits in (20, 19, 18)] == pytest.approx([3.3, 3.3, 3 * 1.1**2])
