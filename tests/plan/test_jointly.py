"""Inputs that are varied jointly: which are, and that their blocks are those of each by itself."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.plan import jointly
from tests.cases import rand
from tests.checks import check_hod
from tests.plan.plans import lowered_plan, names


def stepped(count: int) -> Any:
    """Return a recurrence by a matrix, a vector, a scalar and a start, and an output that none but the start is in."""

    def f(matrix: Tensor, bias: Tensor, rate: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        state = start
        for _ in range(count):
            state = state + rate * torch.tanh(matrix @ state + bias)
        return state.square().sum(), start.sin()

    return f


def args(size: int = 2) -> tuple[Tensor, ...]:
    cpu = torch.device("cpu")
    return rand(cpu, size, size), rand(cpu, size, seed=1), rand(cpu, seed=2), rand(cpu, size, seed=3)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("strategy", ["forward", "mixed"])
def test_blocks_are_those_of_each_input(order: int, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jointly, "pays_jointly", lambda *_, **__: True)
    check_hod(stepped(4), args(), order, argnums=(3, 0, 1, 2), strategies=(strategy,))


@pytest.mark.parametrize("strategy", ["forward", "mixed"])
def test_they_take_as_many_steps_as_one_input(strategy: str) -> None:
    few, many = (lowered_plan(stepped(count), *args(), strategy=strategy) for count in (40, 80))
    assert names(few.program).count("eye_like") == 1
    assert len(many.program.steps) - len(few.program.steps) < 40 * 45
    assert ((few.lowered.graph.outputs[1], (3, 3)) in few.dense) == (3 in few.lowered.graph.inputs)


@pytest.mark.parametrize(("order", "most"), [(2, 0.6), (3, 0.4), (4, 0.3)])
def test_they_are_joined_by_what_that_spares(order: int, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of few parameters in many nodes, the more so the higher the order."""
    joint = lowered_plan(stepped(6), *args(), strategy="mixed", orders=(order,))
    monkeypatch.setattr(jointly, "pays_jointly", lambda *_, **__: False)
    apart = lowered_plan(stepped(6), *args(), strategy="mixed", orders=(order,))
    assert joint.effort < most * apart.effort


@pytest.mark.parametrize("order", [2, 3])
def test_joined_inputs_of_infinite_slopes_are_found_out(order: int) -> None:
    """Zero by the one that is not infinite, which a product with the other's slope leaves nan."""

    def f(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(12):
            b = torch.tanh(b * b)
        return a.sqrt().sum() + b.sum()

    a, b = torch.tensor([0.0, 1.0], dtype=torch.float64), rand(torch.device("cpu"), 2)
    got = hofunc.hod(f, order, argnums=(0, 1))(a, b)
    leaves = tree_leaves(got)
    assert leaves[0].isinf().any()
    assert all(leaf.isfinite().all() for leaf in leaves[1:])
    torch.testing.assert_close(leaves[-1], hofunc.hod(lambda b: f(a, b), order, strategy="reverse")(b))


def test_a_block_by_what_an_output_does_not_depend_on_is_not_there() -> None:
    made = lowered_plan(stepped(40), *args(), strategy="forward")
    start, sine = made.lowered.graph.inputs[3], made.lowered.graph.outputs[1]
    assert [key for output, key in made.dense if output == sine] == [(start, start)]


@pytest.mark.parametrize(("size", "compact"), [(60, False), (2, True)])
def test_large_inputs_and_those_whose_structure_matters_are_kept_apart(size: int, compact: bool) -> None:
    made = lowered_plan(stepped(40), *args(size), strategy="mixed", compact=compact)
    assert "eye_like" not in names(made.program)


def test_weights_are_joined_where_every_step_takes_them_and_not_where_each_is_of_a_layer() -> None:
    """As those of a layer have many zeros alone, up to the next one, and none as parts of all of them."""
    cpu = torch.device("cpu")
    start, rows = rand(cpu, 3, 4), rand(cpu, 8, 10)

    def recurrent(inner: Tensor, outer: Tensor, bias: Tensor) -> Tensor:
        state = start
        for _ in range(8):
            state = torch.tanh(torch.tanh(state @ inner + bias) @ outer)
        return state.square().sum()

    def layered(inner: Tensor, outer: Tensor, bias: Tensor) -> Tensor:
        return (torch.tanh(rows @ inner + bias) @ outer).square().sum()

    many = rand(cpu, 4, 9), rand(cpu, 9, 4, seed=1), rand(cpu, 9, seed=2)
    assert "eye_like" in names(lowered_plan(recurrent, *many, strategy="mixed").program)
    wide = rand(cpu, 10, 64), rand(cpu, 64, 1, seed=1), rand(cpu, 64, seed=2)
    assert "eye_like" not in names(lowered_plan(layered, *wide, strategy="mixed").program)


def test_inputs_are_kept_apart_where_a_slope_may_be_infinite() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        for _ in range(60):
            a = a + (a * b).sqrt()
        return a.sum()

    made = lowered_plan(f, rand(torch.device("cpu"), 2), rand(torch.device("cpu"), 2, seed=1), strategy="mixed")
    assert "eye_like" not in names(made.program)


def test_blocks_that_vanish_are_not_there() -> None:
    """As those by the inputs of sums are, of which there is no second derivative."""

    def f(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        state = a
        for _ in range(60):
            state = state + b * c
        return state.sum()

    inputs = tuple(rand(torch.device("cpu"), 2, seed=seed) for seed in range(3))
    made = lowered_plan(f, *inputs, strategy="mixed", orders=(2,))
    assert "eye_like" in names(made.program)
    assert {key for _, key in made.dense} == {(1, 2)}
    check_hod(f, inputs, 2, argnums=(0, 1, 2), strategies=("forward", "mixed"))


@pytest.mark.parametrize("strategy", ["forward", "mixed"])
def test_an_input_without_elements_has_no_part_in_it(strategy: str) -> None:
    """As a part of it, of which the blocks have no elements, it would have to be of a shape that has none."""

    def f(nothing: Tensor, matrix: Tensor, bias: Tensor, rate: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        values = stepped(40)(matrix, bias + nothing.sum(), rate, start)
        return *values, (nothing * start.sum()).sin()

    inputs = (torch.zeros(0, 2, dtype=torch.float64), *args())
    made = lowered_plan(f, *inputs, strategy=strategy)
    assert "eye_like" in names(made.program)
    check_hod(f, inputs, 2, argnums=(0, 1, 2, 3, 4), strategies=(strategy,))
