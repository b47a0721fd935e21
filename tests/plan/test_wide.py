"""What has far more elements than what it is made of is replaced before directions are multiplied, and nothing else."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import planner, wide
from hofunc.plan.blocks import local_blocks
from hofunc.plan.strategies import Way
from hofunc.rules.lower import lower
from hofunc.run.cache import forget
from tests.cases import rand
from tests.graph.recordings import recorded
from verification.oracles import nested_reverse, relative_error

F = torch.nn.functional

COUNT, WIDTH = 7, 2


def weight(rows: int, columns: int, start: float = -1) -> Tensor:
    return torch.linspace(start, 1, rows * columns, dtype=torch.float64).sin().reshape(rows, columns)


def attention(x: Tensor) -> Tensor:
    """Two layers, the second of what the first one made, with residuals."""
    width = x.shape[1]
    for start in (-1.0, -0.4):
        query, key, value = (x @ weight(width, width, start + shift) for shift in (0, 0.1, 0.3))
        x = x + (query @ key.T).softmax(-1) @ value
    return x.tanh().sum()


def causal(x: Tensor) -> Tensor:
    """With a mask, a norm and heads as torch has them."""
    x = F.layer_norm(x, (WIDTH,))
    query, key, value = (x @ weight(WIDTH, 6)).reshape(1, len(x), 3, WIDTH).unbind(2)
    return (F.scaled_dot_product_attention(query, key, value, is_causal=True) @ weight(WIDTH, 3)).sin().sum()


def by_hand(x: Tensor) -> Tensor:
    """A softmax that is written out, where sums are as many as tokens."""
    h = (x @ weight(WIDTH, WIDTH)).tanh()
    weights = (h @ h.T - (h @ h.T).amax(-1, keepdim=True).detach()).exp()
    return ((weights / weights.sum(-1, keepdim=True)) @ h).square().prod(-1).sum()


def edges(x: Tensor) -> Tensor:
    """Edges that keep a state of their own from layer to layer."""
    h, state = x.tanh(), torch.zeros(len(x), len(x), 3, dtype=x.dtype)
    for _ in range(3):
        state = state + (state @ weight(3, 3) + (h @ weight(WIDTH, 3))[:, None] * (h @ weight(WIDTH, 3))[None]).tanh()
        h = h + state.sum(1) @ weight(3, WIDTH)
    return h.sin().sum()


def filters(x: Tensor) -> Tensor:
    """Filters of the distances of all pairs, each of which is followed row by row."""
    distance = ((x[:, None] - x[None]).square().sum(-1) + 0.1).sqrt()
    h = x.new_ones(len(x), 3)
    for _ in range(2):
        made = (distance[..., None] * torch.linspace(0.5, 1, 8, dtype=x.dtype)).sin().tanh() @ weight(8, 3)
        h = h + (made * h[None]).sum(1).tanh()
    return h.prod(-1).sum()


def process(x: Tensor) -> Tensor:
    """The likelihood of a Gaussian process of learned features."""
    z = (x @ weight(WIDTH, 2)).tanh()
    covariance = (-(z[:, None] - z[None]).square().sum(-1)).exp() + 0.5 * torch.eye(len(x), dtype=x.dtype)
    factor, y = torch.linalg.cholesky(covariance), torch.linspace(-1, 1, len(x), dtype=x.dtype)[:, None]
    return (y * torch.cholesky_solve(y, factor)).sum() + factor.diagonal().log().sum()


def batched(x: Tensor) -> Tensor:
    """Of several sequences, an output for each."""
    rows = x.reshape(-1, 1, WIDTH) * torch.linspace(0.5, 1.5, 5, dtype=x.dtype)[:, None]
    return ((rows @ rows.transpose(1, 2)).softmax(-1) @ rows.sin()).sum((1, 2))


def of_two(x: Tensor, keys: Tensor) -> Tensor:
    """Queries and keys of two inputs."""
    return ((x.tanh() @ keys.exp().T).softmax(-1) @ keys).sin().sum()


FUNCTIONS: dict[Callable[..., Tensor], tuple[tuple[int, ...], ...]] = {
    attention: ((COUNT, WIDTH),),
    causal: ((COUNT, WIDTH),),
    by_hand: ((COUNT, WIDTH),),
    edges: ((COUNT, WIDTH),),
    filters: ((COUNT, WIDTH),),
    process: ((COUNT, WIDTH),),
    batched: ((3, WIDTH),),
    of_two: ((COUNT, WIDTH), (COUNT + 1, WIDTH)),
}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Way]]:
    """Replace wide nodes wherever there are any, and tell how often that was."""
    found: list[Way] = []

    def ways(lowered: Any, local: Any, _: Any, name: str) -> list[Way]:
        nodes = wide.wide(lowered.graph, local, 2) if name == "mixed" else frozenset[int]()
        found.extend([nodes] if nodes else [])
        return [nodes or None]

    monkeypatch.setattr(wide, "LARGE", 0)
    monkeypatch.setattr(wide, "TIMES", 0)
    monkeypatch.setattr(wide, "MORE", 1)
    monkeypatch.setattr(planner, "_ways", ways)
    forget()
    yield found
    forget()


@pytest.mark.parametrize("far", [0, 3])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_derivatives_are_exact(
    f: Callable[..., Tensor], far: int, always: list[Way], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    monkeypatch.setattr("hofunc.plan.replaced.FAR", far)
    inputs, argnums = [rand(device, *shape) for shape in FUNCTIONS[f]], tuple(range(len(FUNCTIONS[f])))
    _, *got = hofunc.derivatives(f, 2, argnums, strategy="mixed")(*inputs)
    assert always
    assert relative_error(got, [nested_reverse(f, order, argnums)(*inputs) for order in (1, 2)]) < 1e-10


def test_chosen_blocks_are_exact(always: list[Way], device: torch.device) -> None:
    inputs = [rand(device, *shape) for shape in FUNCTIONS[of_two]]
    (got,) = hofunc.hod(of_two, 2, (0, 1), strategy="mixed", blocks=[(0, 1)])(*inputs)
    assert always
    assert relative_error(got, nested_reverse(of_two, 2, (0, 1))(*inputs)[0][1]) < 1e-10


def replaced(f: Callable[..., Any], *inputs: Tensor) -> set[tuple[int, ...]]:
    """Return the shapes of what is replaced."""
    recording = recorded(f, *inputs)
    lowered = lower(recording.graph, recording.values, 2)
    return {tuple(lowered.graph.nodes[node].shape) for node in wide.wide(lowered.graph, local_blocks(lowered, 2), 2)}


def test_scores_are_replaced_up_to_the_tokens(device: torch.device) -> None:
    shapes = replaced(attention, rand(device, 64, WIDTH))
    assert (64, 64) in shapes
    assert all(prod(shape) >= 64 * WIDTH for shape in shapes)


@pytest.mark.parametrize("f", [lambda x: (x @ weight(40, 60)).tanh().sum(), lambda x: x.sin().exp().sum(), causal])
def test_what_is_no_wider_or_small_is_not(f: Callable[..., Tensor], device: torch.device) -> None:
    assert not replaced(f, rand(device, 20, WIDTH if f is causal else 40))


def test_it_takes_a_part_of_what_directions_by_each_score_take(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = rand(device, 64, 8)
    made = hofunc.hessian(attention).plan(x)
    monkeypatch.setattr(planner, "wide", lambda *_: frozenset())
    forget()
    plain = hofunc.hessian(attention, strategy="mixed").plan(x)
    assert 2 * made.flops < plain.flops
    assert made.peak_bytes < plain.peak_bytes
