"""Operators on fields: that they are what calculus says, on any field and on those with closed forms."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import assert_equal
from verification.oracles import contraction, nested_slots

vmap, jacrev = torch.func.vmap, torch.func.jacrev
ROUNDING = 1e-11


def scalar_field(x: Tensor) -> Tensor:
    """A number for every point."""
    return (x @ _weights(x, 4)).tanh().sum(-1) * x.sum(-1).cos()


def vector_field(x: Tensor) -> Tensor:
    """As many numbers for every point as it has coordinates."""
    return (x @ _weights(x, x.shape[-1])).sin() * x.flip(-1)


def _weights(x: Tensor, columns: int) -> Tensor:
    rows = x.shape[-1]
    return torch.arange(1.0, rows * columns + 1, dtype=x.dtype, device=x.device).cos().reshape(rows, columns)


OPERATORS: list[tuple[Callable, Callable, str]] = [
    (hofunc.gradient, scalar_field, "b, b i -> b i"),
    (hofunc.gradient, vector_field, "b o, b i -> b o i"),
    (hofunc.divergence, vector_field, "b i, b i -> b"),
    (hofunc.laplacian, scalar_field, "b, b i, b i -> b"),
    (hofunc.laplacian, vector_field, "b o, b i, b i -> b o"),
    (hofunc.hessian_diagonal, scalar_field, "b, b i, b i -> b i"),
    (hofunc.biharmonic, scalar_field, "b, b i, b i, b j, b j -> b"),
    (lambda f, **options: hofunc.partial(f, (0, 2), **options), scalar_field, "b, b 0, b 2 -> b"),
]
each_operator = pytest.mark.parametrize(("operator", "f", "pattern"), OPERATORS)


@each_operator
def test_operators_are_contractions(operator: Callable, f: Callable, pattern: str, device: torch.device) -> None:
    x, order = rand(device, 2, 3), pattern.count(",")
    expected = contraction(nested_slots(f, [0] * order)(x), pattern)
    assert_equal(operator(f)(x), expected)
    assert_equal(operator(f)(x.reshape(2, 1, 3)), expected.unsqueeze(1))
    assert_equal(operator(f)(x[0]), expected[0])
    assert_equal(vmap(operator(f))(x), expected)
    assert_equal(operator(f).plan(x.cos())(x), expected)
    assert_equal(operator(lambda t, x: (t * f(x), t), argnums=1, has_aux=True, chunk_size=1)(2.0, x)[0], 2 * expected)


@pytest.mark.parametrize("size", [2, 3])
def test_curl(size: int, device: torch.device) -> None:
    x = rand(device, 4, size)
    jacobian = vmap(jacrev(vector_field))(x)
    turns = [(0, 1)] if size == 2 else [(1, 2), (2, 0), (0, 1)]
    parts = [jacobian[:, second, first] - jacobian[:, first, second] for first, second in turns]
    expected = parts[0] if size == 2 else torch.stack(parts, -1)
    assert_equal(hofunc.curl(vector_field)(x), expected)
    assert_equal(hofunc.curl(vector_field)(x.reshape(2, 2, size)), expected.reshape(2, 2, *expected.shape[1:]))
    assert_equal(hofunc.curl(vector_field).plan(2 * x)(x), expected)
    assert_equal(vmap(hofunc.curl(vector_field))(x), expected)
    assert_equal(hofunc.curl(lambda x: (vector_field(x), x), has_aux=True)(x), (expected, x))
    assert hofunc.curl(vector_field)(x.float()).dtype == torch.float32


@pytest.mark.parametrize("of", [hofunc.laplacian, hofunc.biharmonic, hofunc.hessian_diagonal, hofunc.gradient])
def test_points_without_coordinates_or_rows(of: Callable, device: torch.device) -> None:
    cubes = of(lambda x: (x**3).sum(-1))
    for shape in ((2, 0), (0, 3), (0, 0)):
        x = rand(device, *shape)
        expected = x.sum(-1) if of in (hofunc.laplacian, hofunc.biharmonic) else x
        for call in (cubes, cubes.plan(x), hofunc.jit(cubes)):
            assert_equal(call(x), torch.zeros_like(expected))


def test_a_weighted_laplacian(device: torch.device) -> None:
    x = rand(device, 4, 3)
    hessian = vmap(jacrev(jacrev(scalar_field)))(x)
    laplacian = hofunc.laplacian(scalar_field)
    matrix, of_rows = rand(device, 3, 3, seed=1), rand(device, 4, 3, 3, seed=2)
    assert_equal(laplacian(x, weight=matrix), torch.einsum("bij,ij->b", hessian, matrix))
    assert_equal(laplacian(x, weight=of_rows), torch.einsum("bij,bij->b", hessian, of_rows))
    assert_equal(laplacian(x, weight=matrix[0]), torch.einsum("bii,i->b", hessian, matrix[0]))
    assert_equal(laplacian.plan(x, weight=matrix)(x, weight=matrix.T), laplacian(x, weight=matrix.T))
    by_weight = torch.func.grad(lambda weight: laplacian(x, weight=weight).sum())(matrix)
    assert_equal(by_weight, hessian.sum(0))


def test_harmonic_and_biharmonic_functions(device: torch.device) -> None:
    x = rand(device, 5, 2)
    harmonic = hofunc.laplacian(
        lambda x: x[..., 0].exp() * x[..., 1].sin() + x[..., 0] ** 3 - 3 * x.prod(-1) * x[..., 1]
    )
    assert harmonic(x).abs().max() < ROUNDING
    newton = hofunc.laplacian(lambda x: 1 / (x**2).sum(-1).sqrt())
    assert newton(rand(device, 5, 3) + 2).abs().max() < ROUNDING

    def clamped(x: Tensor) -> Tensor:
        square = (x**2).sum(-1)
        return square * square.log() / 2

    assert hofunc.biharmonic(clamped)(x + 3).abs().max() < ROUNDING
    assert_equal(hofunc.laplacian(clamped)(x + 3), 4 * ((x + 3) ** 2).sum(-1).log() / 2 + 4)


def test_a_gradient_has_no_curl_and_a_curl_no_divergence(device: torch.device) -> None:
    x = rand(device, 4, 3)
    assert hofunc.curl(hofunc.gradient(scalar_field))(x).abs().max() < ROUNDING
    assert hofunc.divergence(hofunc.curl(vector_field))(x).abs().max() < ROUNDING
    assert_equal(hofunc.divergence(hofunc.gradient(scalar_field))(x), hofunc.laplacian(scalar_field)(x))
    assert hofunc.curl(hofunc.gradient(scalar_field))(x[:, :2]).abs().max() < ROUNDING


def test_partial_derivatives_of_a_polynomial(device: torch.device) -> None:
    x = rand(device, 4, 2)
    first, second = x.unbind(-1)
    power = hofunc.partial(lambda x: x[..., 0] ** 4 * x[..., 1] ** 2, (0, 1, 0))
    assert_equal(power(x), 24 * first**2 * second)
    assert_equal(hofunc.partial(lambda x: x[..., 0] ** 4 * x[..., 1] ** 2, [0] * 4)(x), 24 * second**2)


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda x: hofunc.laplacian(torch.sin)(x.sum()), r"args\[0\]: got a tensor of shape \(\), expected points"),
        (
            lambda x: hofunc.laplacian(lambda x: x.sum())(x),
            r"the output of f: got a tensor of shape \(\), expected \(4, ...\), as args\[0\] has shape \(4, 3\)",
        ),
        (lambda x: hofunc.gradient(lambda p: scalar_field(p["x"]))({"x": x}), "a pytree of 1 tensors"),
        (
            lambda x: hofunc.gradient(lambda p: p["x"].sum())({"x": x}),
            "a loss by parameters, differentiate with hofunc.jacobian or hofunc.vjp",
        ),
        (
            lambda x: hofunc.gradient(lambda x: x.sum())(x),
            r"write .sum\(-1\)\. By whole tensors .* with hofunc.jacobian or hofunc.vjp",
        ),
        (lambda x: hofunc.laplacian(lambda p: p["x"].sum(-1))({"x": x}), "one tensor, or write a pattern for einsum"),
        (lambda x: hofunc.gradient(scalar_field, (0,))(x), r"argnums: got \(0,\)"),  # type: ignore[arg-type]
        (
            lambda x: hofunc.divergence(lambda x: x[..., :2])(x),
            r"got a tensor of shape \(4, 2\), expected \(4, ..., 3\)",
        ),
        (
            lambda x: hofunc.divergence(scalar_field)(x),
            r"got a tensor of shape \(4,\), expected \(4, ..., 3\), as .* A field has a vector",
        ),
        (lambda x: hofunc.curl(lambda x: x[..., :1])(x), r"got a tensor of shape \(4, 1\), expected a vector field"),
        (lambda x: hofunc.curl(lambda x: x.sum())(x), r"curl: the output of f: got a tensor of shape \(\)"),
        (lambda x: hofunc.curl(lambda x: x, has_aux=True)(x), "curl: the result of f: got Tensor, expected a pair"),
        (
            lambda x: hofunc.partial(scalar_field, (0, 3))(x),
            r"coordinates: got 3, expected numbers below 3, as args\[0\]",
        ),
        (lambda x: hofunc.partial(scalar_field, (-1,)), r"coordinates: got \(-1,\)"),
        (lambda x: hofunc.partial(scalar_field, ()), r"coordinates: got \(\)"),
        (lambda x: hofunc.partial(scalar_field, 1), "coordinates: got 1"),  # type: ignore[arg-type]
        (
            lambda x: hofunc.laplacian(scalar_field)(x, weight=x[:2]),
            r"weight: got a tensor of shape \(2, 3\), expected \(3,\) or \(3, 3\) or \(4, 3, 3\)",
        ),
        (
            lambda x: hofunc.laplacian(scalar_field)(x, weight=2.0),
            "got float, expected a floating-point or complex tensor",
        ),
        (lambda x: hofunc.laplacian(scalar_field)(x, weight=x.sum()), r"weight: got a tensor of shape \(\)"),
        (lambda x: hofunc.laplacian(scalar_field)(x, weight={"w": x}), "weight: got dict"),
        (
            lambda x: hofunc.curl(lambda x: x[:2])(x),
            r"curl: the output of f: got a tensor of shape \(2, 3\), .* All axes",
        ),
        (
            lambda x: hofunc.laplacian(lambda x: x.sum(), samples=2)(x),
            r"laplacian: the output of f: .* write .sum\(-1\)",
        ),
        (
            lambda x: hofunc.laplacian(torch.sin, samples=2)(x.sum()),
            r"laplacian: args\[0\]: got a tensor of shape \(\)",
        ),
        (lambda x: hofunc.biharmonic(scalar_field, samples=0), "biharmonic: samples: got 0, expected an int"),
        (lambda x: hofunc.laplacian(scalar_field, x), r"laplacian: argnums: .* is returned: laplacian\(f\)\(x\)"),
        (lambda x: hofunc.laplacian(lambda x, weight: x)(x), "a parameter called weight"),
        (lambda x: hofunc.biharmonic(scalar_field, strategy="best")(x), "biharmonic: strategy: got 'best'"),
    ],
)
def test_what_is_refused(call: Callable[[Tensor], Any], got: str, device: torch.device) -> None:
    with pytest.raises(hofunc.ArgumentError, match=got) as caught:
        call(rand(device, 4, 3))
    assert "pattern\n" not in str(caught.value)


def test_curls_of_modules_by_names_of_parameters(device: torch.device) -> None:
    class Turned(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([-x[..., 1], x[..., 0]], -1)

    assert torch.equal(hofunc.curl(Turned(), wrt="x")(rand(device, 4, 2)), 2 + torch.zeros_like(rand(device, 4)))


def test_options_that_there_are_not_are_refused() -> None:
    with pytest.raises(TypeError, match="chunks"):
        hofunc.laplacian(scalar_field, chunks=2)  # type: ignore[call-overload]
