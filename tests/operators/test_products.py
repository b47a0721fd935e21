"""Products of derivatives with vectors, against those of torch.func."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.contracted import STRATEGIES
from tests.cases import rand
from tests.checks import assert_equal

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
Parameters = dict[str, Tensor]


def model(parameters: Parameters, x: Tensor) -> Tensor:
    return (x @ parameters["w"] + parameters["b"]).tanh()


def loss(parameters: Parameters, x: Tensor) -> Tensor:
    return (model(parameters, x) ** 3).sum()


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 4, 3)


@pytest.fixture
def parameters(device: torch.device) -> Parameters:
    return {"w": rand(device, 3, 2), "b": rand(device, 2, seed=1)}


@pytest.fixture
def vector(device: torch.device) -> Parameters:
    return {"w": rand(device, 3, 2, seed=2), "b": rand(device, 2, seed=3)}


def along(f: Callable, vector: Any) -> Callable:
    """Return the derivative along a vector."""
    return lambda point: torch.func.jvp(f, (point,), (vector,))[1]


@each_strategy
def test_products_with_jacobians(strategy: str, parameters: Parameters, vector: Parameters, x: Tensor) -> None:
    expected = along(lambda p: model(p, x), vector)(parameters)
    assert_equal(hofunc.jvp(model, strategy=strategy)(parameters, x, vector=vector), expected)
    pulled = torch.func.vjp(lambda p: model(p, x), parameters)[1](expected)[0]
    assert_equal(hofunc.vjp(model, strategy=strategy)(parameters, x, cotangent=expected), pulled)


@each_strategy
def test_products_with_hessians(strategy: str, parameters: Parameters, vector: Parameters, x: Tensor) -> None:
    expected = along(torch.func.grad(partial(loss, x=x)), vector)(parameters)
    for product in (hofunc.hvp(loss, strategy=strategy), hofunc.vhp(loss, strategy=strategy)):
        assert_equal(product(parameters, x, vector=vector), expected)
        other = {name: 2 * leaf for name, leaf in parameters.items()}
        assert_equal(product.plan(other, x, vector=other)(parameters, x, vector=vector), expected)
    of_outputs = along(torch.func.jacrev(lambda p: model(p, x)), vector)(parameters)
    assert_equal(hofunc.hvp(model, strategy=strategy)(parameters, x, vector=vector), of_outputs)


@each_strategy
def test_several_arguments_are_one_vector(strategy: str, parameters: Parameters, vector: Parameters, x: Tensor) -> None:
    both, v = (vector, x.cos()), (parameters, x)
    expected = along(lambda p: torch.func.grad(loss, (0, 1))(*p), both)(v)
    assert_equal(hofunc.hvp(loss, (0, 1), strategy=strategy)(parameters, x, vector=both), expected)
    assert_equal(hofunc.hvp(loss, [0, 1], strategy=strategy)(parameters, x, vector=both), expected)
    assert_equal(
        hofunc.jvp(model, (0, 1), strategy=strategy)(parameters, x, vector=both), along(lambda p: model(*p), both)(v)
    )
    (of_x,) = hofunc.vjp(model, (1,), strategy=strategy)(parameters, x, cotangent=model(parameters, x))
    assert_equal(of_x, torch.func.vjp(lambda x: model(parameters, x), x)[1](model(parameters, x))[0])


@each_strategy
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_derivatives_along_a_vector(
    order: int, strategy: str, parameters: Parameters, vector: Parameters, x: Tensor
) -> None:
    expected: Callable = partial(loss, x=x)
    for _ in range(order):
        expected = along(expected, vector)
    got = hofunc.directional(loss, order, strategy=strategy)(parameters, x, vector=vector)
    assert_equal(got, expected(parameters))


def test_aux_vmap_and_gradients_by_the_vector(parameters: Parameters, vector: Parameters, x: Tensor) -> None:
    product = hofunc.hvp(lambda p, x: (loss(p, x), x.sum()), has_aux=True)
    expected = hofunc.hvp(loss)(parameters, x, vector=vector)
    assert_equal(product(parameters, x, vector=vector), (expected, x.sum()))
    vectors = {name: torch.stack([leaf, 2 * leaf]) for name, leaf in vector.items()}
    mapped = torch.func.vmap(lambda v: hofunc.hvp(loss)(parameters, x, vector=v))(vectors)
    assert_equal({name: leaf[1] / 2 for name, leaf in mapped.items()}, expected)

    def along_itself(v: Parameters) -> Tensor:
        return sum((v[n] * leaf).sum() for n, leaf in hofunc.hvp(loss)(parameters, x, vector=v).items()) / 2

    assert_equal(torch.func.grad(along_itself)(vector), expected)


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda p, x: hofunc.hvp(loss)(p, x), "hvp: vector: got none"),
        (lambda p, x: hofunc.vjp(model)(p, x), "vjp: cotangent: got none"),
        (
            lambda p, x: hofunc.hvp(loss)(p, x, vector=p["w"]),
            r"hvp: vector: got '\*', expected a pytree like args\[0\]",
        ),
        (lambda p, x: hofunc.hvp(loss, (0, 1))(p, x, vector=p), r"a pytree like args\[0\] and args\[1\]"),
        (lambda p, x: hofunc.vjp(model)(p, x, cotangent=p), "a pytree like the output of f"),
        (
            lambda p, x: hofunc.vjp(model)(p, x, cotangent=x),
            r"vjp: cotangent: got a tensor of shape \(.*, expected one of shape \(.* like the output of f",
        ),
        (lambda p, x: hofunc.hvp(torch.sum)(x, vector=x[:1]), r"hvp: vector: .* like args\[0\] \("),
        (lambda p, x: hofunc.hvp(torch.sum, x, x), r"hvp: arguments by position: got 3, .*: hvp\(f\)\(x\)"),  # type: ignore[call-arg]
        (lambda p, x: hofunc.jvp(lambda x, vector: x)(x), "jvp: f: got a parameter called vector"),
        (lambda p, x: hofunc.jvp(model, (0, 0))(p, x, vector=(p, p)), "every argument once"),
        (lambda p, x: hofunc.jvp(model, 2)(p, x, vector=p), "for 2 positional arguments"),
        (lambda p, x: hofunc.jvp(model, "p")(p, x, vector=p), "argnums: got 'p'"),  # type: ignore[arg-type]
        (lambda p, x: hofunc.directional(loss, 0), "directional: order: got 0"),
        (lambda p, x: hofunc.directional(loss, True), "directional: order: got True"),
        (lambda p, x: hofunc.jvp(3), "jvp: f: got int"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(call: Callable, got: str, parameters: Parameters, x: Tensor) -> None:
    with pytest.raises(hofunc.ArgumentError, match=got):
        call(parameters, x)


def scaled(parameters: Parameters, x: Tensor) -> Tensor:
    """Return a loss by parameters of which two are numbers."""
    state = (x @ parameters["w"] * parameters["rate"].exp()).tanh() + parameters["shift"]
    return (state**3).sum() * parameters["rate"].cos()


@each_strategy
def test_leaves_without_axes_are_multiplied_by_their_own_part_of_the_vector(
    strategy: str, x: Tensor, device: torch.device
) -> None:
    point = {"w": rand(device, 3, 2), "rate": rand(device, seed=1), "shift": rand(device, seed=2)}
    vector = {"w": rand(device, 3, 2, seed=3), "rate": rand(device, seed=4), "shift": rand(device, seed=5)}
    first = along(partial(scaled, x=x), vector)
    assert_equal(hofunc.jvp(scaled, strategy=strategy)(point, x, vector=vector), first(point))
    products = along(torch.func.grad(partial(scaled, x=x)), vector)(point)
    assert_equal(hofunc.hvp(scaled, strategy=strategy)(point, x, vector=vector), products)
    assert_equal(hofunc.vhp(scaled, strategy=strategy)(point, x, vector=vector), products)
    third = along(along(first, vector), vector)(point)
    assert_equal(hofunc.directional(scaled, 3, strategy=strategy)(point, x, vector=vector), third)


def test_leaves_without_axes_cost_no_more_directions(device: torch.device) -> None:
    """All leaves are varied at once: twice as many of them take no more operations for each."""

    def f(leaves: list[Tensor]) -> Tensor:
        total = leaves[0]
        for leaf in leaves[1:]:
            total = (total * leaf).sin()
        return total

    flops = []
    for count in (5, 10, 20):
        leaves = [rand(device, seed=number) for number in range(count)]
        flops.append(hofunc.jvp(f, strategy="forward").plan(leaves, vector=leaves).flops)
    assert flops[2] - flops[1] <= 2 * (flops[1] - flops[0])


@pytest.mark.parametrize("argnums", [0, (0,)])
@pytest.mark.parametrize("of_output", [lambda y: y, lambda y: {"y": y}, lambda y: (y,)], ids=["plain", "dict", "tuple"])
def test_pytrees_of_one_leaf_are_pytrees_like_any(of_output: Callable, argnums: Any, device: torch.device) -> None:
    def loss(point: Parameters) -> Tensor:
        return point["w"].sin().sum()

    def f(point: Parameters) -> Any:
        return of_output(loss(point))

    def of_slot(part: Any) -> Any:
        return part if argnums == 0 else (part,)

    point, vector, cotangent = {"w": rand(device, 3)}, {"w": rand(device, 3, seed=1)}, rand(device, seed=2)
    slope = along(loss, vector)
    assert_equal(hofunc.jvp(f, argnums)(point, vector=of_slot(vector)), of_output(slope(point)))
    second = of_output(along(slope, vector)(point))
    assert_equal(hofunc.directional(f, 2, argnums)(point, vector=of_slot(vector)), second)
    pulled = of_slot({"w": cotangent * point["w"].cos()})
    assert_equal(hofunc.vjp(f, argnums)(point, cotangent=of_output(cotangent)), pulled)
    products = of_output(of_slot(along(torch.func.grad(loss), vector)(point)))
    for product in (hofunc.hvp, hofunc.vhp):
        assert_equal(product(f, argnums)(point, vector=of_slot(vector)), products)
    assert_equal(hofunc.einsum(f, "*o, *p, *p ->")(point, operands=(vector,)), slope(point))
