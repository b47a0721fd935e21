"""Estimates of contractions: means, the law of the error, standard errors, what is drawn, and bad input."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import assert_equal

N = 5
LAPLACIAN, BIHARMONIC, FOURTH = "b, b i, b i -> b", "b, b i, b i, b j, b j -> b", "b, b i, b i, b i, b i -> b"


def weights(device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((N, 7), (7,))]
    return numbers[0].to(device), numbers[1].to(device)


def network(device: torch.device) -> Callable[[Tensor], Tensor]:
    first, last = weights(device)
    return lambda x: torch.tanh(x @ first) @ last


def points(device: torch.device) -> Tensor:
    return torch.linspace(-1, 1, 3 * N, dtype=torch.float64, device=device).reshape(3, N)


def estimates(device: torch.device, pattern: str, times: int, **options: Any) -> Tensor:
    """Return that many estimates, one after the other, from one seed."""
    generator = torch.Generator(device).manual_seed(1)
    plan = hofunc.einsum(network(device), pattern, generator=generator, **options).plan(points(device))
    return torch.stack([plan(points(device)) for _ in range(times)])


KINDS = [
    (LAPLACIAN, {"i": 4}, "rademacher"),
    (LAPLACIAN, {"i": 4}, "gaussian"),
    (LAPLACIAN, {"i": 3}, "coordinates"),
    (BIHARMONIC, {"i": 4, "j": 4}, "rademacher"),
    (BIHARMONIC, {"j": 4}, "gaussian"),
    (FOURTH, {"i": 2}, "coordinates"),
    ("..., ... i, ... i -> ...", {"i": 4}, "rademacher"),
]


@pytest.mark.parametrize(("pattern", "estimate", "directions"), KINDS)
def test_the_mean_of_estimates_is_the_sum(
    device: torch.device, pattern: str, estimate: dict[str, int], directions: str
) -> None:
    found = estimates(device, pattern, 300, estimate=estimate, directions=directions)
    exact = hofunc.einsum(network(device), pattern)(points(device))
    error = (found.mean(0) - exact).abs()
    assert (error <= 4 * found.std(0) / 300**0.5).all()
    assert (found.std(0) > 1e-3 * exact.abs()).all()  # it is an estimate


@pytest.mark.parametrize("directions", ["rademacher", "gaussian"])
def test_the_error_falls_as_one_over_the_root_of_the_number_of_samples(device: torch.device, directions: str) -> None:
    few, many = (
        estimates(device, LAPLACIAN, 300, estimate={"i": count}, directions=directions).std(0) for count in (2, 32)
    )
    assert torch.allclose(few / many, torch.full_like(few, 4.0), rtol=0.25)


@pytest.mark.parametrize(
    ("pattern", "estimate", "directions"),
    [(LAPLACIAN, {"i": 8}, "rademacher"), (LAPLACIAN, {"i": 3}, "coordinates"), (FOURTH, {"i": 3}, "coordinates")],
)
def test_the_standard_error_is_that_of_estimates(
    device: torch.device, pattern: str, estimate: dict[str, int], directions: str
) -> None:
    generator = torch.Generator(device).manual_seed(2)
    options: Any = {"estimate": estimate, "directions": directions, "generator": generator}
    pairs = hofunc.einsum(network(device), pattern, with_error=True, **options).plan(points(device))
    means, errors = (torch.stack(each) for each in zip(*(pairs(points(device)) for _ in range(300)), strict=True))
    assert torch.allclose((errors**2).mean(0).sqrt(), means.std(0), rtol=0.2)


def test_all_places_once_are_the_sum(device: torch.device) -> None:
    found = estimates(device, LAPLACIAN, 1, estimate={"i": N}, directions="coordinates")
    assert torch.allclose(found[0], hofunc.einsum(network(device), LAPLACIAN)(points(device)), rtol=1e-12)


def test_a_divergence_is_sampled_along_output_and_slot(device: torch.device) -> None:
    first, _ = weights(device)

    def field(x: Tensor) -> Tensor:
        return torch.tanh(x @ first) @ first.T

    generator = torch.Generator(device).manual_seed(3)
    options: Any = {"estimate": {"o": 400}, "generator": generator, "with_error": True}
    found, error = hofunc.einsum(field, "b o, b o -> b", **options)(points(device))
    exact = hofunc.einsum(field, "b o, b o -> b")(points(device))
    assert ((found - exact).abs() <= 4 * error).all()


def test_one_seed_gives_one_estimate(device: torch.device) -> None:
    options: Any = {"estimate": {"i": 3}}
    assert torch.equal(estimates(device, LAPLACIAN, 2, **options), estimates(device, LAPLACIAN, 2, **options))


def test_a_plan_draws_anew_and_keeps_to_the_memory_of_its_samples(device: torch.device) -> None:
    generator = torch.Generator(device).manual_seed(4)
    estimate = hofunc.einsum(network(device), LAPLACIAN, estimate={"i": 3}, generator=generator)
    plan = estimate.plan(points(device))
    one, other = plan(points(device)), plan(points(device))
    assert not torch.equal(one, other)
    wide = torch.zeros(3, 4000, dtype=torch.float64, device=device)
    matrix = torch.full((4000, 7), 1e-3, dtype=torch.float64, device=device)
    made: Any = hofunc.einsum(lambda x: torch.tanh(x @ matrix).sum(-1), LAPLACIAN, estimate={"i": 3}).plan(wide)
    assert made.plan.peak_bytes < 64 * 3 * 7 * 8  # not of 4,000 directions


def test_operands_and_gradients_go_through_an_estimate(device: torch.device) -> None:
    scale = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, device=device, requires_grad=True)
    estimate = hofunc.einsum(network(device), "b, b i, b i, b -> b", estimate={"i": N}, directions="coordinates")
    found = estimate(points(device), operands=(scale,))
    exact = hofunc.einsum(network(device), LAPLACIAN)(points(device))
    assert torch.allclose(found, scale * exact, rtol=1e-12)
    (slope,) = torch.autograd.grad(found.sum(), scale)
    assert torch.allclose(slope, exact, rtol=1e-12)


BAD: list[tuple[str, Any, Any, str]] = [
    (FOURTH, {"i": 4}, {}, "'i' on 4 axes, to be estimated along random directions"),
    ("b, b i, b i -> b i", {"i": 4}, {}, "expected a label that only the output and slots bear"),
    (LAPLACIAN, {"k": 4}, {}, "expected a label that a slot bears"),
    (LAPLACIAN, 4, {}, "estimate: got 4"),
    (LAPLACIAN, {"i": 0}, {}, "estimate: got {'i': 0}"),
    (BIHARMONIC, {"i": 2, "j": 3}, {}, "expected one number for all labels"),
    (LAPLACIAN, {"i": 1}, {"with_error": True}, "expected two samples at least"),
    (LAPLACIAN, {"i": 4}, {"directions": "sobol"}, "directions: got 'sobol'"),
    (LAPLACIAN, {"i": 4}, {"generator": 3}, "generator: got int"),
    (LAPLACIAN, {"i": 4}, {"has_aux": True}, "has_aux: got an estimate"),
]


@pytest.mark.parametrize(("pattern", "estimate", "options", "message"), BAD)
def test_what_cannot_be_estimated(
    device: torch.device, pattern: str, estimate: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(hofunc.ArgumentError) as raised:
        hofunc.einsum(network(device), pattern, estimate=estimate, **options)(points(device))
    assert message in str(raised.value)


@pytest.mark.parametrize("operator", [hofunc.laplacian, hofunc.biharmonic])
def test_named_operators_are_estimated(device: torch.device, operator: Callable[..., Any]) -> None:
    generator = torch.Generator(device).manual_seed(5)
    estimate = operator(network(device), samples=500, generator=generator, with_error=True)
    found, error = estimate(points(device))
    assert ((found - operator(network(device))(points(device))).abs() <= 4 * error).all()


@pytest.mark.parametrize("directions", ["rademacher", "gaussian", "coordinates"])
def test_divergences_are_estimated(device: torch.device, directions: str) -> None:
    first, _ = weights(device)
    generator = torch.Generator(device).manual_seed(5)

    def flow(x: Tensor) -> Tensor:
        return torch.tanh(x @ first) @ first.T

    estimate = hofunc.divergence(flow, samples=4, directions=directions, generator=generator, with_error=True)
    found = torch.stack([estimate(points(device))[0] for _ in range(300)])
    error = (found.mean(0) - hofunc.divergence(flow)(points(device))).abs()
    assert (error <= 4 * found.std(0) / 300**0.5).all()
    with pytest.raises(hofunc.ArgumentError, match=r"got a tensor of shape \(3,\), expected \(3, ..., 5\)"):
        hofunc.divergence(network(device), samples=4)(points(device))


@pytest.mark.parametrize("directions", ["rademacher", "coordinates"])
def test_estimates_by_names(directions: str, device: torch.device) -> None:
    """Of sums of cubes along coordinates or signs nothing is left to chance where all Hessians are diagonal."""
    weight = rand(device, 4, 3)

    def f(x: Tensor) -> Tensor:
        return (hofunc.tap("h", (x @ weight.T).tanh()) ** 3).sum(-1)

    options: Any = {"estimate": {"i": 4}, "directions": directions}
    by_tap = hofunc.einsum(f, LAPLACIAN, wrt="h", **options)
    for rows in (5, 2):
        x = rand(device, rows, 3, seed=rows)
        expected = 6 * (x @ weight.T).tanh().sum(-1)
        assert_equal(by_tap(x), expected)
        assert_equal(by_tap.plan(x)(x), expected)
    x = rand(device, 5, 3)
    by_name = hofunc.einsum(f, LAPLACIAN, wrt="x", estimate={"i": 3}, directions="coordinates")
    assert_equal(by_name(x), hofunc.laplacian(f)(x))
    assert_equal(hofunc.laplacian(f, wrt="h", samples=3)(x), 6 * (x @ weight.T).tanh().sum(-1))


@pytest.mark.parametrize("option", [{"directions": "gaussian"}, {"generator": torch.Generator()}, {"with_error": True}])
def test_options_of_an_estimate_without_one(option: dict[str, Any], device: torch.device) -> None:
    (name,) = option
    for call, needed in (
        (lambda: hofunc.einsum(network(device), LAPLACIAN, **option), "estimate"),
        (lambda: hofunc.laplacian(network(device), **option), "samples"),
        (lambda: hofunc.biharmonic(network(device), **option), "samples"),
        (lambda: hofunc.divergence(network(device), **option), "samples"),
    ):
        with pytest.raises(hofunc.ArgumentError, match=f"{name}: got {name} without {needed}, expected it with"):
            call()
