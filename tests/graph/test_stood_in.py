"""Later recordings under transforms of torch.func, of functions that make the calls which they made before."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jvp, vjp, vmap
from torch.nn import functional

import hofunc
from tests.cases import rand
from tests.graph.recordings import Ways, ways_of
from verification.oracles import relative_error

CPU = torch.device("cpu")
MET = 4  # calls until recordings go by calls
POINTS, WEIGHT = rand(CPU, 5, 3), rand(CPU, 3, 4, seed=1)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return ways_of(monkeypatch, "stood_in_by_calls")


def expected(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The Laplacian of a field, at all points, by torch."""
    return lambda x: torch.einsum("bbibi->b", torch.func.jacfwd(torch.func.jacrev(f))(x))


Field = Callable[[Tensor], Tensor]
Derivative = Callable[[Field], Callable[[Tensor], Tensor]]


def field(weight: Tensor) -> Field:
    return lambda x: (x @ weight).tanh().square().sum(-1)


def of_weight(derivative: Derivative, weight: Tensor, x: Tensor) -> Tensor:
    return derivative(field(weight))(x).square().sum()


OUTER: dict[str, Callable[[Any, Tensor], Any]] = {
    "grad": lambda d, w: grad(lambda w: of_weight(d, w, POINTS))(w),
    "vjp": lambda d, w: vjp(lambda w: d(field(w))(POINTS), w)[1](torch.ones(5, dtype=w.dtype))[0],
    "jvp": lambda d, w: jvp(lambda w: d(field(w))(POINTS), (w,), (w.cos(),))[1],
    "grad of grad": lambda d, w: grad(lambda w: grad(lambda w: of_weight(d, w, POINTS))(w).square().sum())(w),
    "jvp of grad": lambda d, w: jvp(lambda w: grad(lambda w: of_weight(d, w, POINTS))(w), (w,), (w.cos(),))[1],
    "vmap": lambda d, w: vmap(lambda x: d(field(w))(x[None])[0])(POINTS),
    "vmap of weights": lambda d, w: vmap(lambda w: d(field(w))(POINTS))(torch.stack([w, w.cos()])),
    "vmap of both": lambda d, w: vmap(lambda x, w: d(field(w))(x[None]))(POINTS[:2], torch.stack([w, w.cos()])),
    "vmap of grad": lambda d, w: vmap(lambda x: grad(lambda w: of_weight(d, w, x[None]))(w))(POINTS),
    "grad of vmap": lambda d, w: grad(lambda w: vmap(lambda x: d(field(w))(x[None])[0])(POINTS).square().sum())(w),
    "grad by points": lambda d, w: grad(lambda x: d(field(w))(x).square().sum())(POINTS * w.sum()),
    "grad by both": lambda d, w: grad(lambda w: d(field(w))(POINTS * w.sum()).square().sum())(w),
}


@pytest.mark.parametrize("name", OUTER)
def test_later_recordings_go_by_calls_and_are_right(name: str, ways: Ways) -> None:
    for number in range(MET + 3):
        weight = WEIGHT * (1 + 0.3 * number)
        got, right = OUTER[name](hofunc.laplacian, weight), OUTER[name](expected, weight)
        assert relative_error(got, right) < 1e-11
    assert ways[-1]


def by_grad(f: Callable[[Tensor], Field], weight: Tensor, *, is_right: bool = False) -> Tensor:
    """Return a gradient by the weight of the Laplacian of a field that is made of it."""
    derivative: Derivative = expected if is_right else hofunc.laplacian
    return grad(lambda w: (derivative(f(w))(POINTS) * torch.arange(5)).sum())(weight)


class Changing:
    """Makes a field that does something else at some calls."""

    def __init__(self) -> None:
        self.flag = False
        self.other = WEIGHT.sin()
        self.number = 2.0
        self.kept: list[Tensor] = []

    def swapped(self, w: Tensor) -> Field:
        a, b = w * 2, w.cos()
        return lambda x: ((x @ (b if self.flag else a)).tanh() + (x @ (a if self.flag else b)).sin()).sum(-1)

    def one_of_both(self, w: Tensor) -> Field:
        a, b = w * 2, w.cos()
        return lambda x: ((x @ a).tanh() + (x @ (a if self.flag else b)).sin()).sum(-1)

    def other_shape(self, w: Tensor) -> Field:
        factor = w[0, 0] if self.flag else w[0]
        return lambda x: (x @ w * factor).tanh().sum(-1)

    def number_of_closure(self, w: Tensor) -> Field:
        return lambda x: ((x @ w) * self.number).tanh().sum(-1)

    def branch(self, w: Tensor) -> Field:
        return lambda x: (x @ w).tanh().sum(-1) if bool(w.sum() > self.number) else (x @ w).sin().sum(-1)

    def number_read(self, w: Tensor) -> Field:
        return lambda x: ((x @ w) * float(self.other.sum())).tanh().sum(-1)

    def plain_or_wrapped(self, w: Tensor) -> Field:
        return lambda x: (x @ (self.other if self.flag else w)).tanh().sum(-1)

    def plain_replaced(self, w: Tensor) -> Field:
        return lambda x: (x @ w * self.other.sum()).tanh().sum(-1)

    def unseen(self, w: Tensor) -> Field:
        points = POINTS * w.sum()

        def f(x: Tensor) -> Tensor:
            factor = points
            if self.flag:
                with torch._C.DisableTorchFunction():
                    factor = x.exp()
            return (factor * x * w.mean()).sin().sum(-1)

        return f

    def detached(self, w: Tensor) -> Field:
        return lambda x: (x @ (w.detach() if self.flag else w)).tanh().sum(-1)

    def without_gradients(self, w: Tensor) -> Field:
        def f(x: Tensor) -> Tensor:
            with torch.set_grad_enabled(not self.flag):
                factor = w.exp()
            return (x @ factor).tanh().sum(-1)

        return f

    def written(self, w: Tensor) -> Field:
        def f(x: Tensor) -> Tensor:
            y = x @ w
            if self.flag:
                y.sin_()
            return y.tanh().sum(-1)

        return f

    def shape_of_captured(self, w: Tensor) -> Field:
        long = w.repeat(3 if self.flag else 2, 1)
        return lambda x: (x @ w).tanh().sum(-1) * long.shape[0] + (x @ long[:3]).sum(-1) ** 2


NAMES = [name for name in vars(Changing) if not name.startswith("_")]


@pytest.mark.parametrize("name", NAMES)
def test_what_does_something_else_is_recorded_as_ever(name: str, ways: Ways) -> None:
    changing = Changing()
    for number in range(MET + 1):
        weight = WEIGHT * (1 + 0.1 * number)
        f = getattr(changing, name)
        assert relative_error(by_grad(f, weight), by_grad(f, weight, is_right=True)) < 1e-11
    went = ways[-1]
    for change in range(4):
        changing.flag, changing.number = not changing.flag, changing.number - 3 * (-1) ** change
        changing.other = changing.other.cos()
        for weight in (WEIGHT, WEIGHT * 2):
            assert relative_error(by_grad(f, weight), by_grad(f, weight, is_right=True)) < 1e-11
    assert went or name in {"shape_of_captured"}


def test_an_input_that_is_captured_too(ways: Ways) -> None:
    """What is captured is a constant, though it is the very tensor that is differentiated by."""

    def of(derivative: Derivative, w: Tensor, *, is_captured: bool) -> Tensor:
        points = POINTS * w.sum()
        return derivative(lambda x: (x * (points if is_captured else x)).sin().sum(-1))(points).square().sum()

    for is_captured in (*[True] * (MET + 2), False, True, *[False] * (MET + 2), True, False):
        got = grad(lambda w, c=is_captured: of(hofunc.laplacian, w, is_captured=c))(WEIGHT)
        right = grad(lambda w, c=is_captured: of(expected, w, is_captured=c))(WEIGHT)
        assert relative_error(got, right) < 1e-11
    assert any(ways)


def test_a_written_weight(ways: Ways) -> None:
    """What was captured may be written to between calls."""
    weight, factor = WEIGHT.clone(), POINTS.clone()

    def f(w: Tensor) -> Field:
        return lambda x: (x @ w * factor.sum()).tanh().sum(-1)

    for _ in range(MET + 3):
        assert relative_error(by_grad(f, weight), by_grad(f, weight, is_right=True)) < 1e-11
        weight.mul_(1.1)
        factor.mul_(0.9)
    assert ways[-1]


def test_whether_what_was_captured_is_mapped(ways: Ways) -> None:
    """A weight for all points, and then one for each."""

    def of_each(derivative: Derivative, weights: Tensor, dim: int | None) -> Tensor:
        return vmap(lambda x, w: derivative(field(w))(x[None])[0], in_dims=(0, dim))(POINTS, weights)

    each = torch.stack([WEIGHT * number for number in range(1, 6)])
    for dim, weights in [(None, WEIGHT)] * MET + [(0, each), (0, each * 2), (None, WEIGHT.cos()), (0, each.cos())]:
        got, right = of_each(hofunc.laplacian, weights, dim), of_each(expected, weights, dim)
        assert relative_error(got, right) < 1e-11
    assert any(ways)


def test_modules_whose_parameters_are_given(ways: Ways) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()

    def loss(derivative: Derivative, parameters: dict[str, Tensor]) -> Tensor:
        found = derivative(lambda x: functional_call(model, parameters, (x,)).squeeze(-1))(POINTS)
        return (found - 1).square().mean()

    parameters = {name: value.detach() for name, value in model.named_parameters()}
    for _ in range(MET + 3):
        got = grad(lambda p: loss(hofunc.laplacian, p))(parameters)
        right = grad(lambda p: loss(expected, p))(parameters)
        assert all(relative_error(got[name], right[name]) < 1e-11 for name in right)
        parameters = {name: value - 0.1 * got[name] for name, value in parameters.items()}
    assert ways[-1]


def test_parameters_that_require_gradients_under_vmap(ways: Ways) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()

    def u(x: Tensor) -> Tensor:
        return model(x).squeeze(-1)

    for _ in range(MET + 3):
        found = []
        for derivative in (hofunc.laplacian, expected):
            values = vmap(lambda x, d=derivative: d(u)(x[None])[0])(POINTS)
            found.append(torch.autograd.grad(values.square().sum(), [*model.parameters()][:3]))
        for got, right in zip(*found, strict=True):
            assert relative_error(got, right) < 1e-11
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    assert ways[-1]


def test_random_numbers_are_those_of_a_call(ways: Ways) -> None:
    for seed in range(MET + 3):
        torch.manual_seed(seed)
        got = by_grad(lambda w: lambda x: functional.dropout(x @ w, 0.5).tanh().sum(-1), WEIGHT)
        torch.manual_seed(seed)
        mask = functional.dropout(torch.ones(5, 4, dtype=WEIGHT.dtype), 0.5)
        right = by_grad(lambda w, m=mask: lambda x: (x @ w * m).tanh().sum(-1), WEIGHT, is_right=True)  # type: ignore[misc]
        assert relative_error(got, right) < 1e-11
    assert not any(ways)


def test_gradients_are_off_outside(ways: Ways) -> None:
    for number in range(MET + 3):
        weight = WEIGHT * (1 + number)
        with torch.no_grad():
            got = vmap(lambda x, w=weight: hofunc.laplacian(field(w))(x[None])[0])(POINTS)
        assert relative_error(got, expected(field(weight))(POINTS)) < 1e-11
        assert not got.requires_grad
    assert not any(ways)


def test_what_is_returned_beside(ways: Ways) -> None:
    """Aux of a call is that of the call, as the transform around sees it."""

    def f(w: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        return lambda x: ((x @ w).tanh().sum(-1), w.exp() * x.sum())

    def added(w: Tensor) -> Tensor:
        value, aux = hofunc.laplacian(f(w), has_aux=True)(POINTS)
        return value.sum() + aux.sum()

    for number in range(MET + 3):
        weight = WEIGHT * (1 + number)
        right = grad(lambda w: expected(lambda x: f(w)(x)[0])(POINTS).sum() + f(w)(POINTS)[1].sum())(weight)
        assert relative_error(grad(added)(weight), right) < 1e-11
    assert ways[-1]
