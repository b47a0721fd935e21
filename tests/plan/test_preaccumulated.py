"""Derivatives by way of those by nodes that others follow, element by element."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import hofunc
from hofunc.plan.blocks import local_blocks
from hofunc.plan.builder import Builder
from hofunc.plan.following import regions
from hofunc.plan.preaccumulated import eliminated
from tests.cases import rand
from tests.plan.plans import lowered_plan
from verification.oracles import nested_forward, nested_reverse, relative_error

FIRST, SECOND = torch.tensor([0, 0, 1, 2, 3, 3]), torch.tensor([1, 2, 2, 0, 0, 1])
CENTRES = torch.linspace(0, 2, 5, dtype=torch.float64)


def line(*shape: int, start: float = -1) -> Tensor:
    return torch.linspace(start, 1, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def layers(x: Tensor) -> Tensor:
    """Two layers of messages, whose filters are of distances."""
    squared = (x[FIRST] - x[SECOND]).square().sum(-1)
    basis = (-((squared.sqrt()[:, None] - CENTRES) ** 2)).exp()
    features = line(4, 5)
    for weight in (line(5, 5), line(5, 5, start=2)):
        filters = (basis @ weight).tanh() @ line(5, 5, start=-2)
        features = features + torch.zeros_like(features).index_add(0, FIRST, features[SECOND] * filters).tanh()
    return features.sin().sum()


def activation(x: Tensor) -> Tensor:
    """Of an activation written out, twice."""

    def gelu(z: Tensor) -> Tensor:
        return 0.5 * z * (1 + (0.8 * (z + 0.04 * z**3)).tanh())

    return gelu(gelu(x @ line(3, 4)) @ line(4, 4, start=2)).square().sum()


def images(x: Tensor) -> Tensor:
    """Edges of periodic images: what follows a shift ends in the distance that what follows that starts from."""
    shifts = line(5, 3, start=3)
    squared = ((x[FIRST] - x[SECOND])[:, None] + shifts).square().sum(-1) + 1
    return (1 / squared**3 - 1 / squared**1.5).sum()


def turned(x: Tensor) -> Tensor:
    """What follows reads a node at two places, and at one that nothing follows."""
    z = x @ line(3, 4)[:, :4] @ line(4, 4, start=2)
    return (z.sin() * z.T.cos() + z.flip(0).tanh() + z.exp().relu()).tanh().sum()


def joined(x: Tensor) -> tuple[Tensor, Tensor]:
    """Some of what follows is returned, and takes another input too."""
    z = (x * x.sin()).sum(1)
    waves = (z[:, None] * CENTRES).cos().tanh()
    return waves * x[:, :1], waves.exp()


def of_two(x: Tensor, y: Tensor) -> Tensor:
    """Of a node that varies with two inputs, of which one is beside it."""
    z = (x @ y).sum(-1)
    waves = (z[:, None] * CENTRES).sin().exp().tanh()
    return (waves @ line(5, 2)).square() * y.sum() + waves.sum() * (x**2).sum()


def summed(x: Tensor) -> tuple[Tensor, Tensor]:
    """What follows is summed by edges, by features, as a whole, and before and after it is read."""
    squared = (x[FIRST] - x[SECOND]).square().sum(-1)
    waves = (squared[:, None] * CENTRES).sin().exp().tanh() @ line(5, 4)
    heard = torch.zeros(4, 4, dtype=x.dtype).index_add(0, SECOND, waves)
    return heard[FIRST].sin().sum() + heard.sum(0).square().sum(), (waves * squared[:, None]).sum(-1)


NESTED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "layers": (layers, (rand(torch.device("cpu"), 4, 3),)),
    "activation": (activation, (rand(torch.device("cpu"), 6, 3),)),
    "turned": (turned, (rand(torch.device("cpu"), 4, 3),)),
    "summed": (summed, (rand(torch.device("cpu"), 4, 3),)),
    "joined": (joined, (rand(torch.device("cpu"), 4, 3),)),
    "images": (images, (rand(torch.device("cpu"), 4, 3),)),
    "two inputs": (of_two, (rand(torch.device("cpu"), 4, 3), rand(torch.device("cpu"), 3, 2, seed=1))),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("layout", ["dense", "compact"])
def test_derivatives_are_those_of_nested_calls(name: str, layout: str) -> None:
    f, inputs = NESTED[name]
    argnums = tuple(range(len(inputs)))
    for order in (1, 2):
        derivative = hofunc.hod(f, order, argnums, strategy="mixed", layout=layout)
        wanted = nested_reverse(f, order, argnums)(*inputs)
        for made in (derivative(*inputs), derivative.plan(*inputs)(*inputs)):
            assert relative_error(tree_map(solid, made, is_leaf=is_derivative), wanted) < 1e-12


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("layout", ["dense", "compact"])
def test_from_order_three_on_they_are_eliminated_as_one(name: str, layout: str, strategy: str) -> None:
    f, inputs = NESTED[name]
    argnums = tuple(range(len(inputs)))
    wanted = nested_forward(f, 3, argnums)(*inputs)
    derivative = hofunc.hod(f, 3, argnums, strategy=strategy, layout=layout)
    for made in (derivative(*inputs), derivative.plan(*inputs)(*inputs)):
        assert relative_error(tree_map(solid, made, is_leaf=is_derivative), wanted) < 1e-12


def test_sums_of_messages_are_eliminated_with_them() -> None:
    """So that what is there of three edges is one number, of two a few, and has no three axes of features."""
    width = len(CENTRES)
    made = lowered_plan(layers, *NESTED["layers"][1], orders=(3,), compact=False, strategy="reverse")
    (start,) = [each.starts[0] for each in regions(made.lowered.graph, local_blocks(made.lowered, 3))]
    local = eliminated(Builder(made.lowered, torch.float64), local_blocks(made.lowered, 3), 3)
    summed = [node for node, each in local.items() if {*each} == {(start,) * order for order in (1, 2, 3)}]
    shapes = [made.lowered.graph.nodes[node].shape for node in summed]
    assert shapes == [(4, width), (len(FIRST), width)]  # of the second layer filters, as features vary too


def is_derivative(made: Any) -> bool:
    return isinstance(made, hofunc.Derivative)


def solid(made: Any) -> Tensor:
    return made.dense() if is_derivative(made) else made


def test_filters_have_one_derivative_for_an_edge_and_not_three() -> None:
    """Of sixteen features no tensor is there in three directions but for what messages are made of."""
    edges, width = len(FIRST), len(CENTRES)
    made = lowered_plan(layers, *NESTED["layers"][1], orders=(2,), compact=False, strategy="mixed")
    folded = [step for step in made.run_cost.steps if 2 * 3 * edges * width * width == step.flops]
    assert len(folded) <= 2


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
def test_a_chain_that_recursion_would_be_too_deep_for(strategy: str, order: int, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        for step in range(200):
            x = (x.sin() * 0.9 + x.cos() * 0.1) * (1 + step / 700)
        return x.exp().sum()

    x = rand(device, 3)
    expected = nested_reverse(f, order)(x[:1]).flatten()
    got = hofunc.hod(f, order, strategy=strategy)(x)
    assert relative_error(got[(0,) * order].reshape(1), expected) < 1e-10
    assert not got.reshape(-1)[1].any()
