"""Derivatives that functions take by transforms of hofunc, in later recordings, which go by calls."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.utils._pytree import tree_leaves

import hofunc
from tests.cases import rand
from tests.checks import assert_equal
from tests.graph.recordings import Ways, ways_of
from verification.oracles import relative_error

CPU = torch.device("cpu")
MET = 4  # calls until recordings go by calls, of those that take tensors of plans
X, WEIGHT = rand(CPU, 4, 3, seed=1), rand(CPU, 3, 5, seed=2)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return ways_of(monkeypatch, "recorded_by_calls")


def field(w: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.tanh((x * w) @ WEIGHT).pow(3).sum(-1)


def flow(w: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.tanh((x * w) @ WEIGHT) @ WEIGHT.T


def slope(f: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Return the gradient of a function, as torch has it where the function takes its derivatives by torch."""
    return torch.func.jacrev(f)(w)


def laplacian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.func.vmap(lambda x: torch.func.hessian(lambda x: f(x[None])[0])(x).trace())(x)


def hessian(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.func.jacfwd(torch.func.jacrev(lambda x: f(x).sum()))(x)


LAPLACIAN = hofunc.jit(hofunc.laplacian(lambda x, w: field(w)(x)))
Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]  # by hofunc, and by torch


def third(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.func.jacfwd(lambda x: hessian(f, x))(x)


INSIDE: dict[str, Pair] = {
    "a Laplacian": (
        lambda w: hofunc.laplacian(field(w))(X).square().sum(),
        lambda w: laplacian(field(w), X).square().sum(),
    ),
    "a Hessian": (
        lambda w: hofunc.hessian(lambda x: field(w)(x).sum())(X).square().sum(),
        lambda w: hessian(field(w), X).square().sum(),
    ),
    "all up to the third": (
        lambda w: sum(each.square().sum() for each in hofunc.derivatives(lambda x: field(w)(x).sum(), order=3)(X)),
        lambda w: (
            field(w)(X).sum().square()
            + slope(lambda x: field(w)(x).sum(), X).square().sum()
            + hessian(field(w), X).square().sum()
            + third(field(w), X).square().sum()
        ),
    ),
    "several patterns": (
        lambda w: torch.stack(hofunc.einsum(field(w), ("b -> b", "b, b i, b i -> b"))(X)).sin().sum(),
        lambda w: torch.stack([field(w)(X), laplacian(field(w), X)]).sin().sum(),
    ),
    "one of tensors that a plan keeps": (
        lambda w: hofunc.biharmonic(field(w))(X).sum(),
        lambda w: laplacian(lambda x: laplacian(field(w), x), X).sum(),
    ),
    "a product": (
        lambda w: hofunc.hvp(lambda x: field(w)(x).sum())(X, vector=X * w).sin().sum(),
        lambda w: torch.einsum("aibj,bj->ai", hessian(field(w), X), X * w).sin().sum(),
    ),
    "a Gauss-Newton product": (
        lambda w: hofunc.ggnvp(flow(w), lambda y: y.pow(4).sum())(X, vector=X * w).sin().sum(),
        lambda w: _gauss_newton(flow(w), X, X * w).sin().sum(),
    ),
    "one inside of another": (
        lambda w: hofunc.laplacian(lambda y: hofunc.laplacian(field(w))(y) * y.sum(-1))(X).sum(),
        lambda w: laplacian(lambda y: laplacian(field(w), y) * y.sum(-1), X).sum(),
    ),
    "two": (
        lambda w: (hofunc.laplacian(field(w))(X) * hofunc.divergence(flow(w))(X)).sum(),
        lambda w: (laplacian(field(w), X) * _divergence(flow(w), X)).sum(),
    ),
    "one by jit": (lambda w: LAPLACIAN(X, w).sin().sum(), lambda w: laplacian(field(w), X).sin().sum()),
    "attention": (
        lambda w: hofunc.hessian(lambda x: _attended(x * w).sum())(X).square().sum(),
        lambda w: hessian(lambda x: _attended(x * w), X).square().sum(),
    ),
    "by what f computes": (
        lambda w: hofunc.jacobian(lambda y: torch.outer(y, y).tanh().sum(-1))(w * w).sin().sum(),
        lambda w: torch.func.jacfwd(lambda y: torch.outer(y, y).tanh().sum(-1))(w * w).sin().sum(),
    ),
}


def _divergence(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.func.vmap(lambda x: torch.func.jacfwd(lambda x: f(x[None])[0])(x).trace())(x)


def _gauss_newton(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    y, tangent = torch.func.jvp(f, (x,), (v,))[:2]
    return torch.func.vjp(f, x)[1](12 * y.square() * tangent)[0]


def _attended(x: Tensor) -> Tensor:
    weights = torch.softmax(x @ x.T, -1)
    return weights @ x


@pytest.mark.parametrize("name", INSIDE)
def test_later_recordings_go_by_calls_and_are_right(name: str, ways: Ways) -> None:
    ours, theirs = INSIDE[name]
    for order, by_torch in ((1, slope), (2, lambda f, w: torch.func.jacfwd(torch.func.jacrev(f))(w))):
        derivative = hofunc.hod(ours, order=order)
        for call in range(MET + 2):
            w = rand(CPU, 3, seed=call) + 0.5
            assert relative_error(derivative(w), by_torch(theirs, w)) < 1e-9
        assert ways[-1]


def met(f: Callable[[Tensor], Tensor], ways: Ways, w: Tensor) -> Callable[[Tensor], Any]:
    """Return what computes gradients of a function, which goes by calls from now on."""
    gradient = hofunc.jacobian(f)
    for _ in range(MET + 1):
        gradient(w)
    assert ways[-1]
    return gradient


def _patterns(w: Tensor, other: bool) -> Tensor:
    return hofunc.einsum(field(w), "b, b 1, b 1 -> b" if other else "b, b 0, b 0 -> b")(X)


def _transforms(w: Tensor, other: bool) -> Tensor:
    return (hofunc.hessian_diagonal if other else hofunc.gradient)(field(w))(X)


def _orders(w: Tensor, other: bool) -> Tensor:
    return hofunc.hod(lambda x: field(w)(x).sum(), order=2 if other else 1)(X[0:1])


def _functions(w: Tensor, other: bool) -> Tensor:
    return hofunc.laplacian(lambda x: torch.sin(x * w).sum(-1) if other else torch.cos(x * w).sum(-1))(X)


def _numbers(w: Tensor, other: bool) -> Tensor:
    return hofunc.laplacian(lambda x: field(w)(x) ** (3 if other else 2))(X)


def _points(w: Tensor, other: bool) -> Tensor:
    return hofunc.laplacian(field(w))(w[None] ** 2 if other else w[None] * 3)


def _captured(w: Tensor, other: bool) -> Tensor:
    return hofunc.laplacian(field(w))(_OTHER if other else X)


def _weights(w: Tensor, other: bool) -> Tensor:
    return hofunc.laplacian(field(w))(X, weight=w * w if other else w)


def _argnums(w: Tensor, other: bool) -> Tensor:
    return hofunc.jacobian(lambda a, b: a**3 * b**2, argnums=int(other))(w, w)


def _nesting(w: Tensor, other: bool) -> Tensor:
    found = hofunc.jacobian(lambda y: (y**3, y**2) if other else {"b": y**3, "a": y**2})(w)
    return found[0] if other else found["a"]


def _order_of_outputs(w: Tensor, other: bool) -> Tensor:
    return hofunc.jacobian(lambda y: (y**3, y**2) if other else (y**2, y**3))(w)[0]


def _twice(w: Tensor, other: bool) -> Tensor:
    y = hofunc.laplacian(field(w))(X)
    return hofunc.laplacian(field(w))(X * y[:, None]) if other else y


def _none(w: Tensor, other: bool) -> Tensor:
    return field(w)(X) if other else hofunc.laplacian(field(w))(X)


def _aux(w: Tensor, other: bool) -> Tensor:
    y, aux = hofunc.laplacian(lambda x: (field(w)(x), 2.0 if other else 3.0), has_aux=True)(X)
    return y * aux


def _tapped(w: Tensor, other: bool) -> Tensor:
    return hofunc.laplacian(lambda x: hofunc.tap("h", x * w if other else x + w).pow(3).sum(-1), wrt="h")(X)


def _drawn(w: Tensor, other: bool) -> Tensor:
    torch.manual_seed(int(other))
    return hofunc.laplacian(field(w), samples=2)(X)


def _blocked(w: Tensor, other: bool) -> Tensor:
    blocks: Any = [(0, 0)] if other else [(1, 1)]
    found = hofunc.hod(lambda a, b: (a**2 * b**2).sum(), order=2, argnums=(0, 1), blocks=blocks)(w, w + 1)
    return torch.stack(tree_leaves(found))


_OTHER = rand(CPU, 4, 3, seed=8)
OTHERWISE = [
    *(_patterns, _transforms, _orders, _functions, _numbers, _points, _captured, _weights, _argnums, _nesting),
    *(_order_of_outputs, _twice, _none, _aux, _tapped, _drawn, _blocked),
]


@pytest.mark.parametrize("function", OTHERWISE)
def test_what_does_something_else_is_recorded_as_ever(function: Callable) -> None:
    w, other = rand(CPU, 3) * 0.5 + 1, False
    gradient = hofunc.jacobian(lambda w: function(w, other).sin().sum())
    for other in (*[False] * (MET + 1), True, False, *[True] * (MET + 2), False):
        step = 1e-6
        expected = torch.stack(
            [
                (function(w + step * e, other).sin().sum() - function(w - step * e, other).sin().sum()) / (2 * step)
                for e in torch.eye(3, dtype=w.dtype)
            ]
        )
        assert relative_error(gradient(w), expected) < 1e-6


def test_options_are_part_of_what_is_expected(ways: Ways) -> None:
    strategy = "forward"

    def f(w: Tensor) -> Tensor:
        return hofunc.laplacian(field(w), strategy=strategy)(X).sum()

    w = rand(CPU, 3)
    gradient, expected = met(f, ways, w), slope(lambda w: laplacian(field(w), X).sum(), w)
    strategy = "reverse"
    assert relative_error(gradient(w), expected) < 1e-12
    assert not ways[-1]


def test_patterns_are_told_by_what_is_known_of_them_itself() -> None:
    """Of which the id might be that of other patterns once it is dropped."""
    one, same, other = (hofunc.einsum(field(X[0]), f"b, b {label} -> b") for label in (0, 0, 1))
    keys = [each._key_of(each._split((X,), {})) for each in (one, same, other)]
    assert keys[0] == keys[1]
    assert keys[0] != keys[2]
    assert keys[0] is not None
    assert any(each is one._forms for each in keys[0])


def test_an_error_of_the_function_inside_is_raised(ways: Ways) -> None:
    fails = False

    def inside(x: Tensor) -> Tensor:
        if fails:
            raise ValueError("fails")
        return x.pow(3).sum(-1)

    def f(w: Tensor) -> Tensor:
        return hofunc.laplacian(inside)(w[None]).sum()

    w = rand(CPU, 3)
    gradient = met(f, ways, w)
    fails = True
    with pytest.raises(ValueError, match="fails"):
        gradient(w)
    fails = False
    assert_equal(gradient(w), torch.full_like(w, 6.0))
    assert not torch._C._len_torch_function_stack()


def test_wrong_arguments_are_refused(ways: Ways) -> None:
    keyword = "weight"

    def f(w: Tensor) -> Tensor:
        return hofunc.laplacian(field(w))(X, **{keyword: w}).sum()

    w = rand(CPU, 3)
    gradient = met(f, ways, w)
    keyword = "wieght"
    with pytest.raises(TypeError):
        gradient(w)
    assert not torch._C._len_torch_function_stack()


def test_what_swallows_all_errors_is_right(ways: Ways) -> None:
    other = False

    def f(w: Tensor) -> Tensor:
        try:
            y = w.sin() if other else w.cos()
        except BaseException:
            y = w
        return (hofunc.laplacian(field(w))(X).sum() * y).sum()

    w = rand(CPU, 3)
    gradient = met(f, ways, w)
    other = True
    expected = slope(lambda w: (laplacian(field(w), X).sum() * w.sin()).sum(), w)
    assert relative_error(gradient(w), expected) < 1e-12
    assert not ways[-1]


def test_training_steps_through_residuals(ways: Ways) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(2, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1)).double()
    parameters = {name: each.detach() for name, each in network.named_parameters()}
    x = rand(CPU, 5, 2)

    def loss(parameters: dict[str, Tensor], derive: Callable[..., Any]) -> Tensor:
        return functional.mse_loss(derive(lambda x: functional_call(network, parameters, (x,)).squeeze(-1), x), x[:, 0])

    step = hofunc.hod(lambda p: loss(p, lambda f, x: hofunc.laplacian(f)(x)), order=1)
    for _ in range(MET + 2):
        slopes = step(parameters)
        expected = torch.func.grad(lambda p: loss(p, laplacian))(parameters)
        for name in parameters:
            assert relative_error(slopes[name], expected[name]) < 1e-12
        parameters = {name: parameters[name] - 0.1 * slopes[name] for name in parameters}
    assert ways[-1]


def test_parameters_that_require_gradients() -> None:
    """What is computed then has histories, of which the ops inside say too little."""
    weight = rand(CPU, 3).requires_grad_()

    def f(w: Tensor) -> Tensor:
        return hofunc.laplacian(lambda x: torch.tanh(x * w * weight).pow(3).sum(-1))(X * weight).sum()

    def g(w: Tensor) -> Tensor:
        return laplacian(lambda x: torch.tanh(x * w * weight).pow(3).sum(-1), X * weight).sum()

    gradient, w = hofunc.jacobian(f), rand(CPU, 3)
    (expected,) = torch.autograd.grad(torch.func.jacfwd(g)(w).sum(), weight)
    for _ in range(MET + 2):
        (found,) = torch.autograd.grad(gradient(w).sum(), weight)
        assert relative_error(found, expected) < 1e-12
