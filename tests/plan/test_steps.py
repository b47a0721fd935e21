"""Steps of a recurrence in several batches: what a step depends on is left out of those before it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import hofunc
from asv_benchmarks.benchmarks.problem import Problem
from hofunc.plan import planner, recurrences, states
from hofunc.run.cache import forget

STEPS = 29  # of which all but the first are in batches


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Take all steps as batches, in as many as may be, however short a recurrence is; gives the graphs."""
    found: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(recurrences.with_recurrences(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(planner, "with_recurrences", noted)
    monkeypatch.setattr(planner, "LONG_RECURRENCE", 0)
    monkeypatch.setattr(recurrences, "WORK", 1)
    forget()
    yield found
    forget()


def batches(lowered: Any) -> list[int]:
    """Return of how many steps each of the batches is whose nodes are propagated.

    It is told three times for steps that are differentiated by all that they take first, all of which are one batch.
    """
    found = [node for node in lowered.graph.nodes if node.op is states.given]
    return [node.shape[0] for node in found]


def network(kind: type[nn.RNNBase], *args: Any, **kwargs: Any) -> Callable[..., Tensor]:
    torch.manual_seed(0)
    module = kind(*args, **kwargs).double().requires_grad_(False)
    return lambda x, *state: module(x, *state)[0].square().sum() * x.sum()


def by_a_bias(kind: type[nn.RNNBase], *args: Any, **kwargs: Any) -> Callable[..., Tensor]:
    """A network by a bias that all steps share too, so that they are not differentiated by all that they take first."""
    torch.manual_seed(0)
    module = kind(*args, **kwargs).double().requires_grad_(False)
    return lambda x, bias: functional_call(module, {"bias_hh_l0": bias}, (x,))[0].square().sum() * x.sum()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int, list[int]]] = {
    "RNN": (by_a_bias(nn.RNN, 3, 14), (drawn(STEPS, 1, 3), drawn(14)), 2, [9] * 3),
    "GRU": (by_a_bias(nn.GRU, 3, 12), (drawn(STEPS, 1, 3), drawn(36)), 2, [9] * 3),
    "LSTM": (by_a_bias(nn.LSTM, 3, 12), (drawn(STEPS, 1, 3), drawn(48)), 2, [9] * 3),
    "LSTM of two layers both ways": (
        network(nn.LSTM, 2, 10, num_layers=2, bidirectional=True),
        (drawn(18, 1, 2),),
        2,
        [17] * 12,
    ),
    "GRU by its first state too": (network(nn.GRU, 2, 10), (drawn(26, 1, 2), drawn(1, 1, 10)), 2, [25] * 3),
    "order 3": (network(nn.RNN, 2, 15), (drawn(18, 1, 2),), 3, [8] * 2),
}


@pytest.mark.parametrize("name", CASES)
def test_several_batches_have_the_derivatives_of_one(name: str, graphs: list[Any]) -> None:
    f, args, order, expected = CASES[name]
    places, nested = tuple(range(len(args))), f
    for _ in range(order):
        nested = torch.func.jacrev(nested, argnums=places)
    found = torch.utils._pytree.tree_leaves(hofunc.hod(f, order, places)(*args))
    for one, other in zip(found, torch.utils._pytree.tree_leaves(nested(*args)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert batches(graphs[0]) == expected


def test_most_zeros_are_left_out_between_batches(graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def flops(parts: int) -> float:
        monkeypatch.setattr(recurrences, "PARTS", parts)
        problem = Problem(by_a_bias(nn.LSTM, 3, 12), (drawn(61, 1, 3), drawn(48)))
        return problem.planned().plan.run_cost.flops

    assert flops(3) < 0.7 * flops(1)
    assert [len(batches(each)) for each in graphs] == [3, 1]


def test_steps_that_take_nothing_of_their_own_are_one_batch(graphs: list[Any]) -> None:
    weight, start = drawn(14, 14) / 4, drawn(14)

    def f(weight: Tensor, state: Tensor) -> Tensor:
        for _ in range(STEPS):
            state = (weight @ state).tanh()
        return state.sum()

    found = hofunc.hessian(f, argnums=1)(weight, start)
    torch.testing.assert_close(found, torch.func.hessian(f, argnums=1)(weight, start), rtol=1e-9, atol=1e-11)
    assert len(batches(graphs[0])) == 1
