"""Many inputs as one variable: the same derivatives, of which the results are parts."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.plan.plans import lowered_plan, names
from verification.oracles import nested_reverse, relative_error

Function = Callable[..., Any]
SHAPES = [(3, 2), (3,), (3, 3), (3,), (3, 3), (3,), (1, 3), (1,), (2, 3), ()]


def inputs(device: torch.device) -> list[Tensor]:
    return [rand(device, *shape, seed=seed) for seed, shape in enumerate(SHAPES)]


def network(*p: Tensor) -> Tensor:
    """Return the output of a network; one of its weights is used twice."""
    h = torch.linspace(-1, 1, 8).to(p[0]).reshape(4, 2)
    for place in (0, 2, 4, 2):
        h = (h @ p[place].mT + p[place + 1]).tanh()
    return (h @ p[6].mT + p[7]).square().sum() + (p[8] ** 2).sum() * p[9]


def of_rows(*p: Tensor) -> Tensor:
    return (network(*p) * p[6]).sin()


def recurrence(*p: Tensor) -> Tensor:
    h = p[1]
    for _ in range(3):
        h = (p[2] @ h + p[3] * p[4].diagonal()).sin() + p[5]
    return (h * p[6][0]).sum() * p[7][0] + p[0].sum() * p[9]


FUNCTIONS: dict[str, Function] = {"network": network, "several outputs": of_rows, "recurrence": recurrence}


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(("name", "order"), [*product(FUNCTIONS, (1, 2)), ("network", 3), ("recurrence", 3)])
def test_derivatives_by_many_inputs(name: str, order: int, compact: bool, device: torch.device) -> None:
    f, given, numbers = FUNCTIONS[name], inputs(device), tuple(range(len(SHAPES)))
    got = hofunc.hod(f, order, argnums=numbers, strategy="reverse", layout="compact" if compact else "dense")(*given)
    chosen = [*product(numbers, repeat=order)] if order < 3 else [(2, 4, 3), (2, 2, 2), (3, 2, 3), (6, 2, 4), (0, 1, 2)]
    expected = nested_reverse(f, order, numbers)(*given)
    for place in chosen:
        one, other = got, expected
        for number in place:
            one, other = one[number], other[number]
        assert relative_error(one.dense() if compact else one, other) < 1e-12, place


@pytest.mark.parametrize("compact", [False, True])
def test_an_input_or_a_value_without_elements(compact: bool, device: torch.device) -> None:
    def f(*p: Tensor) -> tuple[Tensor, ...]:
        moved = recurrence(*p[:-1]) + p[-1].sum()
        return (p[-1] * moved).sin(), (p[1] * moved + p[-1].prod()).tanh()

    given, numbers = [*inputs(device), rand(device, 0, 2)], tuple(range(len(SHAPES) + 1))
    got = hofunc.hod(f, 2, argnums=numbers, strategy="reverse", layout="compact" if compact else "dense")(*given)
    expected = nested_reverse(lambda *p: f(*p)[1], 2, numbers)(*given)
    for one, other in product(numbers, repeat=2):
        empty, block = (part[one][other] for part in got)
        assert empty.shape == (0, 2, *given[one].shape, *given[other].shape)
        assert block.shape == expected[one][other].shape
        if expected[one][other].numel():
            assert relative_error(block.dense() if compact else block, expected[one][other]) < 1e-12


def test_a_layer_is_composed_with_what_follows_it_at_once(device: torch.device) -> None:
    """The steps by all parameters grow with the layers, but for two views of each block of the result."""

    def steps(layers: int) -> list[int]:
        weights = [rand(device, 3, 3, seed=seed) for seed in range(layers)]

        def deep(*weights: Tensor) -> Tensor:
            h = torch.ones(3).to(weights[0])
            for weight in weights:
                h = (weight @ h).tanh()
            return h.sum()

        found = names(lowered_plan(deep, *weights).program)
        views = [name for name in found if name in ("cut", "reshape", "permute")]
        assert "cut" in views
        return [len(found) - len(views), len(found)]

    small, middle, large = (steps(layers)[0] for layers in (10, 20, 40))
    assert large - middle < 2.2 * (middle - small)


def test_results_share_no_element(device: torch.device) -> None:
    given, numbers = inputs(device), tuple(range(len(SHAPES)))
    got = hofunc.hod(network, 2, argnums=numbers, strategy="reverse")(*given)
    expected = [[block.clone() for block in row] for row in got]
    for i, j in product(numbers, repeat=2):
        got[i][j].fill_(7.0)
        for k, m in product(numbers, repeat=2):
            if {k, m} != {i, j}:
                assert torch.equal(got[k][m], expected[k][m]), ((i, j), (k, m))
        got[i][j].copy_(expected[i][j])


def test_inputs_that_do_not_meet_vanish(device: torch.device) -> None:
    plan = lowered_plan(network, *inputs(device), orders=(1, 2))
    graph = plan.lowered.graph
    found = {tuple(graph.inputs.index(number) for number in key) for _, key in plan.dense if len(key) == 2}
    assert {pair for pair in found if 8 in pair or 9 in pair} == {(8, 8), (8, 9)}
    assert {(2, 4), (2, 2), (0, 6), (3, 5)} <= found


# Which of the layers have a matrix and which a factor for each number, after how many of them a part of the first input
# is added, how many parts it has, and of how many numbers each is.
PARTS = {
    "wrong": ([1, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1], 5, 4, 5),
    "wrong, likewise": ([1, 0, 0, 1, 1, 0, 1, 1], 3, 5, 6),
    "wrong, of odd parts": ([0, 1, 0, 1, 0, 1, 0, 1, 1, 0], 5, 5, 4),
    "refused": ([0, 1, 0, 1, 0, 1, 0, 1, 0], 2, 4, 3),
    "in matrices": ([1] * 9, 2, 4, 3),
}


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("case", PARTS)
def test_parts_of_an_input_that_meet_others_in_different_layers(
    case: str, order: int, compact: bool, device: torch.device
) -> None:
    """By the input and the others it is a sum of terms, of which each reaches some of the others alone."""
    layers, each, count, width = PARTS[case]
    shapes = [(count * width,), *((width, width) if layer else (width,) for layer in layers)]
    given = [rand(device, *shape, seed=seed) for seed, shape in enumerate(shapes)]

    def f(biases: Tensor, *weights: Tensor) -> Tensor:
        h, parts = torch.linspace(-1, 1, width).to(biases), biases.split(width)
        for number, weight in enumerate(weights):
            h = weight @ h if weight.dim() == 2 else weight * h
            h = (h + parts[number // each]).tanh() if number % each == 0 and number // each < count else h.tanh()
        return h.square().sum()

    numbers = tuple(range(len(given)))
    chosen = numbers if order == 2 else (0, 2, 5)  # of order three some, of which nested torch.func has to be asked
    held = [x for number, x in enumerate(given) if number not in chosen]

    def of_chosen(*some: Tensor) -> Tensor:
        found, others = iter(some), iter(held)
        return f(*(next(found if number in chosen else others) for number in numbers))

    got = hofunc.hod(f, order, argnums=numbers, strategy="reverse", layout="compact" if compact else "dense")(*given)
    places = tuple(range(len(chosen)))
    expected = nested_reverse(of_chosen, order, places)(*(given[number] for number in chosen))
    for key in product(places, repeat=order):
        one, other = got, expected
        for place in key:
            one, other = one[chosen[place]], other[place]
        assert relative_error(one.dense() if compact else one, other) < 1e-10, key
