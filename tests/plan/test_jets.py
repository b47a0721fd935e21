"""Jets: what contractions cost, counted by hand: the vectors that nodes carry, operations, and the largest step."""

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import hofunc
from hofunc.outline import Subject
from hofunc.plan import symmetric

WIDTH = 16
LAPLACIAN, BIHARMONIC = "b, b i, b i -> b", "b, b i, b i, b j, b j -> b"
FOURTH, MIXED = "b, b 0, b 0, b 0, b 0 -> b", "b, b 0, b 0, b 1 -> b"


def network(d: int, device: torch.device) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(d)
    shapes = [(d, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH,)]
    first, second, third, last = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(device) for shape in shapes
    )
    return lambda x: torch.tanh(torch.tanh(torch.tanh(x @ first) @ second) @ third) @ last


def points(d: int, device: torch.device) -> Tensor:
    return torch.linspace(-1, 1, 4 * d, dtype=torch.float64, device=device).reshape(4, d)


def carried(made: hofunc.Plan, op: str) -> set[tuple[int, int]]:
    """Return how many vectors, and how many adjoints, the nodes of an op carry, the first and last of them left out."""
    assert isinstance(made._subject, Subject)
    chosen = made._subject.chosen
    nodes = [node.number for node in chosen.lowered.graph.nodes if op in str(node.op)]
    return {chosen.carried[number] for number in nodes[1:-1]}


@pytest.mark.parametrize(
    ("pattern", "d", "strategy", "vectors"),
    [
        (LAPLACIAN, 5, "mixed", (5, 1)),  # the top order by the adjoint
        (LAPLACIAN, 5, "forward", (5 + 1, 0)),
        (LAPLACIAN, 5, "reverse", (5, 1 + 5)),
        (BIHARMONIC, 5, "mixed", (1 + 5 + 15 + 5, 1)),
        (BIHARMONIC, 5, "forward", (1 + 5 + 15 + 5 + 1, 0)),
        (BIHARMONIC, 2, "mixed", (1 + 2 + 4 + 2, 1)),  # two places are too few to pack
        (FOURTH, 3, "mixed", (3, 1)),
        (FOURTH, 3, "forward", (4, 0)),
        (MIXED, 3, "forward", (5, 0)),  # x, y, xx, xy, xxy
        ("b, b i, b j -> b i j", 4, "forward", (4 + 10, 0)),
        ("b, b i, b j, b k -> b i j k", 3, "forward", (3 + 6 + 10, 0)),
    ],
)
def test_a_layer_carries_so_many_vectors(
    device: torch.device, pattern: str, d: int, strategy: str, vectors: tuple[int, int]
) -> None:
    plan = hofunc.einsum(network(d, device), pattern, strategy=strategy).plan(points(d, device))
    assert carried(plan, "mm") == {vectors}
    assert f"{vectors[0]}+{vectors[1]}" in plan.explain()


def test_a_product_with_a_vector_carries_one_direction_whatever_the_number_of_places(device: torch.device) -> None:
    d = 50
    plan = hofunc.einsum(network(d, device), "b, b i, b j, b j -> b i").plan(
        points(d, device), operands=(points(d, device),)
    )
    assert plan.strategy == "reverse"
    assert carried(plan, "mm") == {(1, 2)}


def classifier(device: torch.device) -> tuple[Callable[..., Tensor], dict[str, Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    parameters = {"first": drawn(20, 64), "bias": drawn(64), "second": drawn(64, 64), "last": drawn(64, 10)}

    def loss(p: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.tanh(torch.tanh(x @ p["first"] + p["bias"]) @ p["second"])
        return cross_entropy(hidden @ p["last"], y)

    return loss, parameters, drawn(128, 20), torch.arange(128, device=device) % 10


def test_a_hessian_times_a_vector_takes_at_most_two_and_a_half_gradients(device: torch.device) -> None:
    loss, parameters, x, y = classifier(device)
    vector = {name: torch.ones_like(parameter) for name, parameter in parameters.items()}
    gradient = hofunc.einsum(loss, "*o, *p -> *o *p").plan(parameters, x, y)
    product = hofunc.einsum(loss, "*o, *p, *q, *q -> *o *p").plan(parameters, x, y, operands=(vector,))
    assert product.flops <= 2.5 * gradient.flops


def test_no_step_is_larger_than_the_pattern_needs(device: torch.device) -> None:
    d, rows = 5, 4
    plan = hofunc.einsum(network(d, device), BIHARMONIC).plan(points(d, device))
    largest = max(prod(cost.shape) for cost in plan._subject.at_once.steps)
    assert largest <= d * d * rows * WIDTH  # pairs of directions, and never three at once


def test_the_value_and_lower_derivatives_come_along(device: torch.device) -> None:
    d = 3
    alone = hofunc.einsum(network(d, device), LAPLACIAN, strategy="mixed").plan(points(d, device))
    patterns = {"value": "b -> b", "gradient": "b, b i -> b i", "laplacian": LAPLACIAN}
    together = hofunc.einsum(network(d, device), patterns, strategy="mixed").plan(points(d, device))
    assert together.flops <= 1.05 * alone.flops


@pytest.mark.parametrize("pattern", [BIHARMONIC, "b, b i, b i, b j, b k -> b j k", "b, b i, b j, b k -> b i j k"])
@pytest.mark.parametrize("strategy", ["mixed", "forward", "reverse"])
def test_packed_coefficients_are_those_that_are_not(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, pattern: str, strategy: str
) -> None:
    d = 4
    f, x = network(d, device), points(d, device)
    packed = hofunc.einsum(f, pattern, strategy=strategy).plan(x)
    monkeypatch.setattr(symmetric, "LEAST", 100)
    whole = hofunc.einsum(f, pattern, strategy=strategy).plan(x)
    assert torch.allclose(packed(x), whole(x), rtol=1e-12, atol=1e-12)
    assert packed.flops < whole.flops


def test_inputs_that_enter_nonlinearly_are_not_packed_and_right(device: torch.device) -> None:
    x = points(4, device)
    found: Any = hofunc.einsum(lambda x: (x**3).sum(-1) * x.prod(-1), "b, b i, b j, b k -> b i j k")(x)
    dense = hofunc.hod(lambda x: (x**3).sum(-1) * x.prod(-1), order=3)(x)
    expected = torch.einsum("bbibjbk->bijk", dense)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
