"""Products with the generalised Gauss-Newton matrix, against J^T H J written out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from tests.cases import rand
from tests.checks import assert_equal

Parameters = dict[str, Tensor]


def model(parameters: Parameters, x: Tensor) -> Tensor:
    return (x @ parameters["w"]).tanh() + parameters["b"]


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output, targets.softmax(-1))


def written_out(parameters: Parameters, x: Tensor, vector: Parameters, targets: Tensor) -> Parameters:
    of_parameters: Callable[[Parameters], Tensor] = lambda p: model(p, x)  # noqa: E731
    hessian = torch.func.hessian(loss)(model(parameters, x), targets)
    tangent = torch.func.jvp(of_parameters, (parameters,), (vector,))[1]
    return torch.func.vjp(of_parameters, parameters)[1](torch.einsum("aibj,bj->ai", hessian, tangent))[0]


@pytest.fixture
def given(device: torch.device) -> tuple[Parameters, Tensor, Parameters, Tensor]:
    parameters = {"w": rand(device, 3, 2), "b": rand(device, 2, seed=1)}
    vector = {"w": rand(device, 3, 2, seed=2), "b": rand(device, 2, seed=3)}
    return parameters, rand(device, 4, 3, seed=4), vector, rand(device, 4, 2, seed=5)


def test_the_product(given: Any) -> None:
    parameters, x, vector, targets = given
    product, expected = hofunc.ggnvp(model, loss), written_out(*given)
    assert_equal(product(parameters, x, vector=vector, targets=targets), expected)
    assert_equal(hofunc.ggnvp(model, lambda z: loss(z, targets))(parameters, x, vector=vector), expected)
    plan = product.plan(vector, x, vector=parameters, targets=x[:, :2])
    assert_equal(plan(parameters, x, vector=vector, targets=targets), expected)
    with_aux = hofunc.ggnvp(lambda p, x: (model(p, x), x.sum()), loss, has_aux=True)
    assert_equal(with_aux(parameters, x, vector=vector, targets=targets), (expected, x.sum()))
    of_one = hofunc.ggnvp(lambda x, p: model(p, x), loss, (1,))(x, parameters, vector=(vector,), targets=targets)
    assert_equal(of_one, (expected,))


def test_the_model_is_called_once(given: Any) -> None:
    parameters, x, vector, targets = given
    calls: list[None] = []

    def counted(p: Parameters, x: Tensor) -> Tensor:
        calls.append(None)
        return model(p, x) if x.sum() > 0 else model(p, x).sin()

    def sines(p: Parameters, x: Tensor) -> Tensor:
        return model(p, x).sin()

    of_sines = hofunc.ggnvp(sines, loss)(parameters, -x.abs(), vector=vector, targets=targets)
    product, followed = hofunc.ggnvp(counted, loss), {name: leaf.clone() for name, leaf in parameters.items()}
    for of, number in ((parameters, None), (parameters, 1), (followed, None), (followed, 1)):
        calls.clear()
        got = product(of, x.abs(), vector=vector, targets=targets)
        assert_equal(got, written_out(of, x.abs(), vector, targets))
        assert number is None or len(calls) == number
        assert_equal(product(of, -x.abs(), vector=vector, targets=targets), of_sines)
        for leaf in followed.values():
            leaf.requires_grad_()
    norms = [
        sum((leaf**2).sum() for leaf in each.values()) for each in (got, written_out(followed, x.abs(), *given[2:]))
    ]
    assert_equal(*[torch.autograd.grad(norm, [*followed.values()]) for norm in norms])  # type: ignore[arg-type]


def test_models_that_write_or_draw(given: Any) -> None:
    parameters, x, vector, targets = given

    def writing(p: Parameters, x: Tensor) -> Tensor:
        return (x @ p["w"]).clone().tanh_().add_(p["b"])

    def drawing(p: Parameters, x: Tensor) -> Tensor:
        return model(p, x) * torch.rand(()).round()

    for _ in range(4):
        got = hofunc.ggnvp(writing, loss)(parameters, x, vector=vector, targets=targets)
        assert_equal(got, written_out(*given))
    products = [hofunc.ggnvp(drawing, loss)(parameters, x, vector=vector, targets=targets)["b"] for _ in range(20)]
    expected = [written_out(*given)["b"].abs().sum(), torch.zeros(())]
    of_both = {min((0, 1), key=lambda place: float((each.abs().sum() - expected[place]).abs())) for each in products}
    assert of_both == {0, 1}
    assert all(abs(each.abs().sum() - expected[0]) < 1e-12 or not each.any() for each in products[2:])


def test_vmap_and_gradients(given: Any) -> None:
    parameters, x, vector, targets = given
    product = hofunc.ggnvp(model, loss)
    vectors = {name: torch.stack([leaf, 2 * leaf]) for name, leaf in vector.items()}
    mapped = torch.func.vmap(lambda v: product(parameters, x, vector=v, targets=targets))(vectors)
    assert_equal({name: leaf[1] / 2 for name, leaf in mapped.items()}, written_out(*given))

    def norm(of: Callable) -> Callable:
        return lambda p, v: sum((leaf**2).sum() for leaf in of(p, v).values())

    ours = norm(lambda p, v: product(p, x, vector=v, targets=targets))
    theirs = norm(lambda p, v: written_out(p, x, v, targets))
    assert_equal(torch.func.grad(ours, (0, 1))(parameters, vector), torch.func.grad(theirs, (0, 1))(parameters, vector))


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda p, x: hofunc.ggnvp(model, torch.sum)(p, x), "ggnvp: vector: got none"),
        (lambda p, x: hofunc.ggnvp(model, torch.sum)(p, x, vector=x), r"ggnvp: vector: got .* a pytree like args\[0\]"),
        (lambda p, x: hofunc.ggnvp(model, torch.sum, 2)(p, x, vector=p), "ggnvp: argnums"),
        (
            lambda p, x: hofunc.ggnvp(lambda p: p.sin(), torch.cos)(x, vector=x),
            r"ggnvp: the result of the loss: got a tensor of shape \(\d, \d\), expected a tensor of shape \(\)",
        ),
        (
            lambda p, x: hofunc.ggnvp(lambda p: p.sin(), lambda y: (y.sum(),))(x, vector=x),
            "ggnvp: the result of the loss: got tuple",
        ),
        (lambda p, x: hofunc.ggnvp(model, 3), "f: got int"),  # type: ignore[arg-type]
        (lambda p, x: hofunc.ggnvp(lambda p, targets: p, torch.sum), "a parameter called targets"),
        (lambda p, x: hofunc.ggnvp(model, torch.sum, "p"), "argnums: got 'p'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(call: Callable, got: str, given: Any) -> None:
    with pytest.raises(hofunc.ArgumentError, match=got):
        call(*given[:2])


@pytest.mark.parametrize("names", ["h", "w", ("w", "h"), ("h", "x")])
def test_by_names_of_parameters_and_of_what_the_model_taps(names: str | tuple[str, ...], device: torch.device) -> None:
    start = {"w": rand(device, 4, 3), "x": rand(device, 5, 3, seed=1), "h": torch.zeros(5, 4).double().to(device)}
    readout, targets = rand(device, 2, 4, seed=2), rand(device, 5, 2, seed=3)
    listed = (names,) if isinstance(names, str) else names

    def tapped(w: Tensor, x: Tensor) -> Tensor:
        return hofunc.tap("h", (x @ w.T).tanh()) @ readout.T

    def moved(*given: Tensor) -> Tensor:
        at = {**start, **dict(zip(listed, given, strict=True))}
        return ((at["x"] @ at["w"].T).tanh() + at["h"]) @ readout.T

    def quartic(y: Tensor, targets: Tensor) -> Tensor:
        return ((y - targets) ** 4).sum()

    vector = tuple(rand(device, *start[name].shape, seed=4) for name in listed)
    numbers = tuple(range(len(listed)))
    expected = hofunc.ggnvp(moved, quartic, numbers)(*(start[name] for name in listed), vector=vector, targets=targets)
    given: Any = vector[0] if isinstance(names, str) else vector
    product, arguments = hofunc.ggnvp(tapped, quartic, wrt=names), (start["w"], start["x"])
    got = product(*arguments, vector=given, targets=targets)
    assert_equal((got,) if isinstance(names, str) else got, expected)
    planned = product.plan(*arguments, vector=given, targets=targets)
    assert_equal(planned(*arguments, vector=given, targets=targets), got)
