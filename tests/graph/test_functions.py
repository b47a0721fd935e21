"""Custom autograd Functions: recorded whole once they have a rule, and refused before."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.graph.functions import as_op
from hofunc.rules import define_composite, define_elementwise
from hofunc.rules.registry import RULES
from tests.cases import rand
from tests.graph.recordings import recorded
from verification.oracles import nested_reverse, relative_error


class Cube(torch.autograd.Function):
    """The third power, whose own backward is twice too large, so that it is seen who uses it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], _: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 6 * ctx.saved_tensors[0] ** 2 * grads[0]


class Halves(torch.autograd.Function):
    """Both halves of a vector."""

    @staticmethod
    def forward(_: Any, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return factor * x[: len(x) // 2], factor * x[len(x) // 2 :]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError


def cubes(x: Tensor) -> Tensor:
    return (Cube.apply(x.sin()) * x).sum()


def sum_of_cubes(x: Tensor) -> Tensor:
    total: Tensor = Cube.apply(x).sum()
    return total


def written_out(x: Tensor) -> Tensor:
    return (x.sin() ** 3 * x).sum()


@pytest.fixture
def _with_rules() -> Iterator[None]:
    """Enter rules, and take them out again: without one a Function is as it was."""
    define_elementwise(Cube, lambda x, y, r: [y, 3 * x * x, 6 * x, torch.full_like(x, 6)][r], degree=3)
    define_composite(Halves, lambda x, factor: (factor * x[: len(x) // 2], factor * x[len(x) // 2 :]))
    yield
    for function in (Cube, Halves):
        del RULES[as_op(function)]


def test_without_a_rule_it_is_refused(device: torch.device) -> None:
    with pytest.raises(hofunc.UntracedError, match=r"Cube\.apply.*or enter a rule for it"):
        hofunc.hessian(cubes)(rand(device, 3))


@pytest.mark.usefixtures("_with_rules")
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_its_rule_is_used(order: int, strategy: str, device: torch.device) -> None:
    x = rand(device, 3)
    got = hofunc.hod(cubes, order, strategy=strategy)(x)
    assert relative_error(got, nested_reverse(written_out, order)(x)) < 1e-12


@pytest.mark.usefixtures("_with_rules")
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: hofunc.hod(lambda x: hofunc.hessian(f)(x).sin().sum(), 1),
        lambda f: lambda x: hofunc.hessian(f).plan(x)(x),
        lambda f: lambda x: torch.func.vmap(hofunc.hessian(f))(torch.stack([x, x.cos()])),
    ],
    ids=["twice", "plan", "vmap"],
)
def test_it_composes(transform: Callable[..., Any], device: torch.device) -> None:
    x = rand(device, 3)
    assert relative_error(transform(cubes)(x), transform(written_out)(x)) < 1e-12


@pytest.mark.usefixtures("_with_rules")
def test_several_results_and_other_arguments(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        one, other = Halves.apply(x, 2.0)
        return (one.sin() * other).sum()

    x = rand(device, 4)
    assert (
        relative_error(hofunc.hessian(f)(x), nested_reverse(lambda x: ((2 * x[:2]).sin() * 2 * x[2:]).sum(), 2)(x))
        < 1e-12
    )


@pytest.mark.usefixtures("_with_rules")
def test_without_gradients_it_is_a_constant(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = Cube.apply(x)
        return (x * y).sum()

    x = rand(device, 3)
    assert torch.equal(hofunc.jacobian(f)(x), torch.func.jacrev(f)(x))


@pytest.mark.usefixtures("_with_rules")
def test_it_is_one_node(device: torch.device) -> None:
    graph = recorded(cubes, rand(device, 3)).graph
    assert [str(node.op) for node in graph.nodes][1:] == [
        "aten.sin.default",
        "Cube",
        "aten.mul.Tensor",
        "aten.sum.default",
    ]


@pytest.mark.usefixtures("_with_rules")
def test_outside_a_recording_it_is_as_it_was(device: torch.device) -> None:
    x = rand(device, 3).requires_grad_()
    (slope,) = torch.autograd.grad(Cube.apply(x).sum(), x)
    assert torch.equal(slope, 6 * x.detach() ** 2)
    assert torch.equal(torch.func.grad(lambda x: Cube.apply(x).sum())(x.detach()), slope)


@pytest.mark.usefixtures("_with_rules")
def test_a_transform_of_torch_inside_f_takes_its_own_backward(device: torch.device) -> None:
    x = rand(device, 3)
    got = hofunc.jacobian(torch.func.grad(sum_of_cubes))(x)
    assert torch.equal(got, torch.diag(12 * x))


@pytest.mark.usefixtures("_with_rules")
def test_it_has_no_graph(device: torch.device) -> None:
    x = rand(device, 3)
    with pytest.raises(hofunc.UnsupportedOpError, match="a plan as a graph: got Cube, a custom Function"):
        hofunc.hessian(cubes).plan(x).to_fx()
