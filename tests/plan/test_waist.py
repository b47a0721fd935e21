"""The waist of a function, and derivatives by way of those by its waist."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import planner
from hofunc.plan.blocks import local_blocks
from hofunc.plan.blueprint import Limits
from hofunc.plan.strategies import PLAIN
from hofunc.plan.waist import waist
from hofunc.rules.lower import lower
from tests.cases import rand
from tests.graph.recordings import recorded
from verification.oracles import nested_reverse, relative_error

FIRST, SECOND = torch.tensor([0, 0, 1, 2, 3, 3]), torch.tensor([1, 2, 2, 0, 0, 1])


def radial(x: Tensor) -> Tensor:
    """Of the distances of some pairs of points."""
    distance = ((x[FIRST] - x[SECOND]) ** 2).sum(-1).sqrt()
    messages = (distance[:, None] * torch.linspace(1, 2, 3, dtype=x.dtype)).tanh()
    return messages.new_zeros(len(x), 3).index_add(0, FIRST, messages).sin().prod(-1).sum()


def bottleneck(x: Tensor) -> Tensor:
    """Of two numbers for each row."""
    codes = x.sin() @ torch.linspace(-1, 1, 8, dtype=x.dtype).reshape(4, 2)
    return (codes.tanh() @ torch.linspace(-2, 1, 10, dtype=x.dtype).reshape(2, 5)).exp()


def norm(x: Tensor) -> Tensor:
    """Of one number."""
    return (x.square().sum().sqrt() * torch.linspace(1, 2, 5, dtype=x.dtype)).tanh().prod()


def weighed(x: Tensor, weight: Tensor) -> Tensor:
    """Of two inputs, by one number for each row."""
    return ((x @ weight).tanh()[:, None] * torch.linspace(1, 3, 6, dtype=x.dtype)).sin().prod(-1)


FUNCTIONS: dict[Callable[..., Tensor], tuple[tuple[int, ...], ...]] = {
    radial: ((4, 3),),
    bottleneck: ((2, 4),),
    norm: ((4,),),
    weighed: ((2, 3), (3,)),
}


def narrowest(f: Callable[..., Any], *inputs: Tensor) -> tuple[int, ...] | None:
    """Return the shape of the waist of a function."""
    recording = recorded(f, *inputs)
    lowered = lower(recording.graph, recording.values, 2)
    found = waist(lowered.graph, local_blocks(lowered, 2))
    return None if found is None else tuple(lowered.graph.nodes[found].shape)


NAMES = ["radial", "bottleneck", "norm", "weighed"]


@pytest.mark.parametrize(
    ("f", "shape"),
    [(radial, (6, 1)), (bottleneck, (2, 2)), (norm, ()), (weighed, (2, 1))],
    ids=NAMES,
)
def test_the_waist_is_the_narrowest_node_on_all_paths(
    f: Callable[..., Any], shape: tuple[int, ...], device: torch.device
) -> None:
    assert narrowest(f, *(rand(device, *each) for each in FUNCTIONS[f])) == shape


NONE: dict[str, Callable[[Tensor], Tensor]] = {
    "another path goes around it": lambda x: (x.sum(1)[:, None] * x).sin().prod(),
    "nothing is wider after it": lambda x: x.sin().sum(1).exp().prod(),
    "it is a part of the input": lambda x: (x[:, 0].unsqueeze(-1) * torch.ones(9, dtype=x.dtype)).sin().prod(),
    "nothing is wider before it": lambda x: (x.sin()[..., None] * x.new_ones(3)).cos().prod(),
}


@pytest.mark.parametrize("why", NONE)
def test_there_is_none_where(why: str, device: torch.device) -> None:
    assert narrowest(NONE[why], rand(device, 4, 3)) is None


@pytest.mark.parametrize("layout", ["dense", "compact"])
@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_derivatives_by_the_waist_become_those_by_the_inputs(
    f: Callable[..., Tensor], order: int, layout: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside nested torch.func, and at order 4, of which that takes minutes, beside another strategy."""
    args = [rand(device, *shape, seed=seed) for seed, shape in enumerate(FUNCTIONS[f], 1)]
    argnums = 0 if len(args) == 1 else (0, 1)
    if order < 4:
        expected = nested_reverse(f, order, argnums)(*args)
    else:
        expected = hofunc.hod(f, order, argnums, strategy="reverse")(*args)
    every, ways = planner._ways, []

    def by_waist(*asked: Any) -> Any:
        ways.append(every(*asked)[-1])
        return ways[-1:]

    monkeypatch.setattr(planner, "_ways", by_waist)
    got = hofunc.hod(f, order, argnums, strategy="mixed", layout=layout).plan(*args)(*args)
    assert relative_error(got.dense() if layout == "compact" else got, expected) < 1e-10
    assert ways, "it was asked for"
    assert PLAIN not in ways, "there is one"


def test_what_a_waist_is_made_of_is_carried_no_further(device: torch.device) -> None:
    """By the points, three numbers for each feature of a message are carried; by distances one."""
    x, (first, second) = rand(device, 12, 3), torch.triu_indices(12, 12, 1).to(device)
    weight = rand(device, 8, 8)

    def energy(x: Tensor) -> Tensor:
        distance = ((x[first] - x[second]) ** 2).sum(-1)
        messages = ((distance[:, None] * weight[0]).tanh() @ weight).tanh()
        return messages.new_zeros(12, 8).index_add(0, first, messages).tanh().sum()

    made = hofunc.hessian(energy, strategy="mixed").plan(x)
    shapes = {tuple(each.shape) for each in made._subject.cost.steps}
    assert (3, 66, 8) not in shapes
    assert (66, 8) in shapes


def test_a_waist_that_takes_more_to_plan_than_it_could_save_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All goes through what a layer of a recurrence hands to the next one, by which there are as many derivatives."""
    torch.manual_seed(0)
    layers = torch.nn.LSTM(3, 4, num_layers=2, dtype=torch.float64)
    recording = recorded(lambda x: layers(x)[0].sum(), rand(torch.device("cpu"), 10, 3))
    lowered = lower(recording.graph, recording.values, 2)
    with_waist = planner.quickly(lowered, (2,), compact=False, limits=Limits())
    assert waist(lowered.graph, local_blocks(lowered, 2)) is not None
    monkeypatch.setattr(planner, "_ways", lambda *_: (PLAIN,))
    without = planner.quickly(lowered, (2,), compact=False, limits=Limits())
    assert with_waist.plan.run_cost.price == without.plan.run_cost.price
    assert without.effort < with_waist.effort < 2 * without.effort
