"""Functions that are planned anew at every call are told of, once, with what changes."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.run import cache
from hofunc.run.churn import MANY
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error


@pytest.fixture(autouse=True)
def _no_plans() -> Iterator[None]:
    """Start and end every test with an empty cache."""
    cache.forget()
    yield
    cache.forget()


def warned(calls: Callable[[int], None], times: int = 3 * MANY) -> list[str]:
    """Return what PlanningWarnings say while something is called with the numbers from 0 on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(times):
            calls(number)
    assert all(one.category is hofunc.PlanningWarning for one in caught)
    assert all(one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


def call(f: Callable[[Tensor], Tensor], x: Tensor) -> None:
    assert relative_error(hofunc.hessian(f)(x), nested_reverse(f, 2)(x)) < 1e-10


def gradient(f: Callable[[Tensor], Tensor], x: Tensor) -> None:
    hofunc.jacobian(f)(x)


def test_a_constant_that_is_structure(device: torch.device) -> None:
    x = rand(device, 3).exp()
    (said,) = warned(lambda number: call(lambda x: (x ** (2.5 + number / 8)).sum(), x))
    assert f"at each of {MANY} calls" in said
    last = 2.5 + (MANY - 1) / 8
    assert f"{last - 1 / 8}, then {last}, among the arguments of aten.pow.Tensor_Scalar" in said


def test_a_keyword(device: torch.device) -> None:
    x = rand(device, 3)
    (said,) = warned(lambda number: call(lambda x: torch.nn.functional.softplus(x, beta=1 + number / 8).sum(), x))
    assert "aten.softplus.default" in said


def test_the_shape_of_an_input(device: torch.device) -> None:
    (said,) = warned(lambda number: call(lambda x: x.exp().sum(), rand(device, number + 1)))
    assert f"an input of f has shape ({MANY - 1},), then ({MANY},)" in said


def test_a_number_of_elements_that_changes(device: torch.device) -> None:
    x = rand(device, 60)
    masks = [torch.arange(60, device=device) < number + 1 for number in range(3 * MANY)]
    (said,) = warned(lambda number: call(lambda x: (x[masks[number]] ** 3).sum(), x))
    assert f"the result of aten.index.Tensor has shape ({MANY - 1},), then ({MANY},)" in said


def test_a_count_that_no_shape_shows(device: torch.device) -> None:
    x = rand(device, 60)
    masks = [torch.arange(60, device=device) < number + 1 for number in range(3 * MANY)]
    (said,) = warned(lambda number: call(lambda x: ((x * x).index_put((masks[number],), x.sum()[None]) ** 3).sum(), x))
    assert "another number of elements that a mask selects" in said


def steps(x: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = (0.9 * x + 0.1).sin() * x
    return x.sum()


def test_a_number_of_ops_that_changes(device: torch.device) -> None:
    x = rand(device, 3)
    (said,) = warned(lambda number: gradient(lambda x: steps(x, 1 + number), x), MANY)
    assert f"at each of {MANY} calls" in said
    few, many = MANY - 1, MANY
    assert f"{2 + 4 * few} nodes, then {2 + 4 * many}, of aten.mul.Tensor {2 * few}, then {2 * many}" in said
    assert "torch.where" in said


def test_a_number_of_turns_that_goes_up_and_down(device: torch.device) -> None:
    x = rand(device, 3)
    turns = [7 * number % 23 for number in range(1, MANY + 1)]
    (said,) = warned(lambda number: gradient(lambda x: steps(x.exp(), turns[number]) + steps(x, 2), x), MANY)
    assert "torch.where" in said


def test_nothing_is_said_of_numbers_of_turns_that_come_back(device: torch.device) -> None:
    x = rand(device, 3)
    assert not warned(lambda number: gradient(lambda x: steps(x, 1 + number % 12), x))


def test_nothing_is_said_of_programs_of_the_same_ops_in_other_orders(device: torch.device) -> None:
    x = rand(device, 3)

    def program(x: Tensor, number: int) -> Tensor:
        for place in range(5 + number % 3):
            x = x.sin() if number >> place & 1 else x.cos()
        return x.sum()

    assert not warned(lambda number: gradient(lambda x: program(x, number), x), 2 * MANY)


def test_nothing_is_said_where_plans_are_found(device: torch.device) -> None:
    x = rand(device, 3)
    assert not warned(lambda number: call(lambda x: (x**3 * (number + 0.5)).sum(), x))
    assert not warned(lambda number: call(lambda x: (x ** (number % 4 + 2)).sum(), x))


def test_nothing_is_said_of_functions_that_are_met_once(device: torch.device) -> None:
    functions = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.erf, torch.sigmoid, torch.atan, torch.sinh]
    x = rand(device, 3)
    assert not warned(lambda number: call(lambda x: functions[number](x).sum() * 2, x), len(functions))


def test_the_cache_says_that_it_is_too_small(device: torch.device) -> None:
    sizes = [rand(device, size) for size in (100, 101, 102)]
    functions = [torch.sin, torch.cos, torch.exp]
    with hofunc.options(cache_bytes=1):
        (said,) = warned(lambda number: call(lambda x: functions[number % 3](x).sum(), sizes[number % 3]))
        assert "dropped" in said
        assert "no more than 512 plans, and 1 bytes" in said
        assert len(cache._plans) == 1
    assert not warned(lambda number: call(lambda x: functions[number % 3](x).sum(), sizes[number % 3]))
