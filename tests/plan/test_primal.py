"""Programs from a function's inputs to its derivatives: which shapes are checked when they run."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.primal import Whole, same_shape
from tests.cases import rand
from tests.plan.plans import lowered_plan, names


def whole(f: Callable[[Tensor], Tensor], x: Tensor) -> list[str]:
    """Return the names of the steps from x to the second derivative of f by it."""
    made = lowered_plan(f, x)
    graph = made.lowered.graph
    (given,) = graph.inputs
    constants = {node.number: rand(x.device, 1) for node in graph.nodes if node.is_given and node.number != given}
    program = Whole(made.program, graph, {given: 0, **constants})
    return names(program.program(program.outputs))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[x > 0].sin(),
        lambda x: x.masked_select(x > 0).sin(),
        lambda x: x[(x > 0).nonzero()[:, 0]].sin(),
        lambda x: (x * x.detach()[x > 0].sum()).sin(),
    ],
)
def test_shapes_that_values_decide_are_checked(f: Callable[[Tensor], Tensor], device: torch.device) -> None:
    assert "same_shape" in whole(f, rand(device, 4))


@pytest.mark.parametrize(
    "f", [torch.sin, lambda x: x[x.argsort()].sin(), lambda x: (x * x.detach()[x.argsort()].sum()).sin()]
)
def test_others_are_not(f: Callable[[Tensor], Tensor], device: torch.device) -> None:
    assert "same_shape" not in whole(f, rand(device, 4))


def test_an_op_with_several_results_runs_once(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        first, second = x.sin().split(2)
        return (first * second).exp()

    assert whole(f, rand(device, 4)).count("split.Tensor") == 1


def test_the_same_op_called_twice_runs_twice(device: torch.device) -> None:
    """It may draw random numbers."""

    def f(x: Tensor) -> Tensor:
        (first, second), (third, fourth) = x.sin().split(2), x.sin().split(2)
        return (first * second * third * fourth).exp()

    assert whole(f, rand(device, 4)).count("split.Tensor") == 2


def test_only_the_shape_that_was_planned_for_passes(device: torch.device) -> None:
    x = rand(device, 2)
    assert same_shape(x, (2,), "aten.nonzero.default") is x
    for shape in ((1,), (3,), (2, 1)):
        with pytest.raises(hofunc.ArgumentError, match=r"got shape \(2,\), expected shape .*, as planned"):
            same_shape(x, shape, "aten.nonzero.default")
