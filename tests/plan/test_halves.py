"""Ways of mixed at order two: wide nodes are replaced, or halves are led on; where that may pay, and exactly."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import leading, planner, wide
from hofunc.plan.blocks import local_blocks
from hofunc.plan.strategies import PLAIN, Way
from hofunc.plan.widths import Directions
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


def convolved(x: Tensor) -> Tensor:
    """An image, of which pixels are pooled, behind a mask."""
    h = x.reshape(1, 1, COUNT, WIDTH)
    h = F.avg_pool2d(F.conv2d(h, weight(3, 9).reshape(3, 1, 3, 3), padding=1).tanh(), (2, 1))
    return F.conv2d(torch.where(h > 0, h.exp(), h), weight(2, 9).reshape(1, 3, 3, 2)).sin().sum((0, 1, 3))


def shared(x: Tensor, scale: Tensor) -> Tensor:
    """Nodes that many others take, by two inputs of which one is a number."""
    h = (x * scale).sin()
    for step in range(3):
        h = h + (h @ weight(WIDTH, WIDTH, step)).tanh() * h.sum() / scale
    return (h * x).prod(-1).exp()


FUNCTIONS |= {convolved: ((COUNT, WIDTH),), shared: ((COUNT, WIDTH), ())}

NODES: dict[str, Callable[[Any, Any], Way]] = {
    "wide": lambda graph, local: Way(wide=wide.wide(Directions(graph, local), 2)),
    "leading": lambda graph, local: Way(leading=leading.leading(Directions(graph, local), 2)),
}


@pytest.fixture(params=NODES)
def asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Way]]:
    """Let mixed go one way wherever it can, and tell how often that was."""
    found: list[Way] = []

    def ways(lowered: Any, local: Any, _: Any, name: str, *__: Any) -> list[Way]:
        way = NODES[request.param](lowered.graph, local) if name == "mixed" else PLAIN
        found.extend([] if way == PLAIN else [way])
        return [way]

    for module in (wide, leading):
        monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(wide, "TIMES", 0)
    monkeypatch.setattr(wide, "MORE", 1)
    monkeypatch.setattr(planner, "_ways", ways)
    forget()
    yield found
    forget()


@pytest.mark.parametrize("far", [0, 1])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_derivatives_are_exact(
    f: Callable[..., Tensor], far: int, asked: list[Way], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """However far halves are led, and whichever products are made."""
    monkeypatch.setattr("hofunc.plan.replaced.FAR", 3 * far)
    monkeypatch.setattr(leading, "TIMES", far)
    inputs, argnums = [rand(device, *shape) for shape in FUNCTIONS[f]], tuple(range(len(FUNCTIONS[f])))
    _, *got = hofunc.derivatives(f, 2, argnums, strategy="mixed")(*inputs)
    assert asked or far or f in (convolved, shared)
    assert relative_error(got, [nested_reverse(f, order, argnums)(*inputs) for order in (1, 2)]) < 1e-10


def test_chosen_blocks_are_exact(asked: list[Way], monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setattr(leading, "TIMES", 0)
    inputs = [rand(device, *shape) for shape in FUNCTIONS[of_two]]
    (got,) = hofunc.hod(of_two, 2, (0, 1), strategy="mixed", blocks=[(0, 1)])(*inputs)
    assert asked
    assert relative_error(got, nested_reverse(of_two, 2, (0, 1))(*inputs)[0][1]) < 1e-10


@pytest.mark.parametrize("layout", ["dense", "compact"])
def test_weights_and_rows_are_exact(
    layout: str, asked: list[Way], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """Of inputs that are varied jointly, and of rows that do not mix."""
    monkeypatch.setattr(leading, "TIMES", 0)
    inputs = [rand(device, *shape) for shape in ((5, 3), (3, 8), (8,))]

    def f(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return ((x @ w).tanh() * v).sin() @ v

    found = hofunc.hessian(f, (0, 1, 2), strategy="mixed", layout=layout)(*inputs)
    whole = found if layout == "dense" else found.dense()
    assert asked
    assert relative_error(whole, nested_reverse(f, 2, (0, 1, 2))(*inputs)) < 1e-10


def replaced(f: Callable[..., Any], *inputs: Tensor) -> set[tuple[int, ...]]:
    """Return the shapes of what is replaced."""
    recording = recorded(f, *inputs)
    lowered = lower(recording.graph, recording.values, 2)
    found = wide.wide(Directions(lowered.graph, local_blocks(lowered, 2)), 2)
    return {tuple(lowered.graph.nodes[node].shape) for node in found}


def test_scores_are_replaced_up_to_the_tokens(device: torch.device) -> None:
    shapes = replaced(attention, rand(device, 64, WIDTH))
    assert (64, 64) in shapes
    assert all(prod(shape) >= 64 * WIDTH for shape in shapes)


@pytest.mark.parametrize("f", [lambda x: (x @ weight(40, 60)).tanh().sum(), lambda x: x.sin().exp().sum(), causal])
def test_what_is_no_wider_or_small_is_not(f: Callable[..., Tensor], device: torch.device) -> None:
    assert not replaced(f, rand(device, 20, WIDTH if f is causal else 40))


def by_ways(
    monkeypatch: pytest.MonkeyPatch, f: Callable[..., Tensor], x: Tensor, kind: str
) -> tuple[hofunc.Plan, hofunc.Plan]:
    """Return the plan by a kind of way that there is, and the plain one, whichever is estimated to be faster here."""
    every, found = planner._ways, []
    for chosen in (lambda way: bool(getattr(way, kind)), lambda way: way == PLAIN):

        def ways(*asked: Any, chosen: Callable[[Way], bool] = chosen) -> list[Way]:
            return [*filter(chosen, every(*asked))]

        monkeypatch.setattr(planner, "_ways", ways)
        forget()
        found.append(hofunc.hessian(f, strategy="mixed").plan(x))
    made, plain = found
    return made, plain


def test_it_takes_a_part_of_what_directions_by_each_score_take(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, plain = by_ways(monkeypatch, attention, rand(device, 64, 8), "wide")
    assert 2 * made.flops < plain.flops
    assert made.peak_bytes < plain.peak_bytes


def led(f: Callable[..., Any], *inputs: Tensor) -> set[tuple[int, ...]]:
    """Return the shapes of what halves are led on through."""
    recording = recorded(f, *inputs)
    lowered = lower(recording.graph, recording.values, 2)
    found = leading.leading(Directions(lowered.graph, local_blocks(lowered, 2)), 2)
    return {tuple(lowered.graph.nodes[node].shape) for node in found}


def pixels(x: Tensor) -> Tensor:
    h = x[None, None]
    for _ in range(3):
        h = F.conv2d(h, weight(4 * h.shape[1], 9).reshape(4, h.shape[1], 3, 3), padding=1).tanh()
    return h.square().mean()


def test_halves_of_many_pixels_are_led_to_the_image_and_those_of_few_units_are_not(device: torch.device) -> None:
    assert (1, 4, 24, 24) in led(pixels, rand(device, 24, 24))
    assert not led(lambda x: ((x @ weight(400, 60)).tanh() @ weight(60, 60)).tanh().sum(), rand(device, 400))


def test_they_take_a_part_of_what_directions_by_each_pixel_take(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "LARGE", 0)
    made, plain = by_ways(monkeypatch, pixels, rand(device, 16, 16), "leading")
    assert 2 * made.flops < plain.flops
