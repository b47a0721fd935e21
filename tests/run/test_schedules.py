"""Numbers that change from call to call: one plan for all that are values, and never the plan of another number."""

import math
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.run import cache
from tests.cases import mixed, rand
from verification.oracles import nested_reverse, relative_error

Scheduled = Callable[[Tensor, float], Tensor]


@pytest.fixture(autouse=True)
def plans() -> OrderedDict:
    """Start every test with an empty cache."""
    cache.forget()
    return cache._plans


def in_place(x: Tensor, a: float) -> Tensor:
    y = x * x.sin() + 0
    y[0] *= a
    y += a
    return (y * y).sum() * a


# Functions of a number that is a value, and at most two plans are made of.
VALUES: dict[str, Scheduled] = {
    "mul": lambda x, a: (mixed(x) * a + x.exp() * a).sum(),
    "mul from the left": lambda x, a: (a * x.sin() * x).sum(),
    "div": lambda x, a: (x / a).softmax(0).square().sum(),
    "add": lambda x, a: ((x + a) ** 3).sum(),
    "sub": lambda x, a: ((x - a) ** 3).sum(),
    "rsub": lambda x, a: ((a - x) ** 3).sum(),
    "add alpha": lambda x, a: (torch.add(x.sin(), x, alpha=a) ** 3).sum(),
    "sub alpha": lambda x, a: (torch.sub(x.sin(), x, alpha=a) ** 3).sum(),
    "rsub alpha": lambda x, a: (torch.rsub(x.sin(), x, alpha=a) ** 3).sum(),
    "lerp": lambda x, a: (torch.lerp(x.sin(), x, a) ** 3).sum(),
    "masked_fill": lambda x, a: (x.masked_fill(x > 0, a) * x.exp()).sum(),
    "addcmul": lambda x, a: torch.addcmul(x, x, x.sin(), value=a).exp().sum(),
    "addcdiv": lambda x, a: torch.addcdiv(x, x, x.exp(), value=a).exp().sum(),
    "addmm": lambda x, a: torch.addmm(x.outer(x), x.outer(x), x.outer(x), beta=a, alpha=2 * a).exp().sum(),
    "baddbmm": lambda x, a: torch.baddbmm(*[x.outer(x)[None]] * 3, beta=a).exp().sum(),
    "comparison": lambda x, a: torch.where(x > a, x**3, x.exp() * x).sum(),
    "where": lambda x, a: (torch.where(x > 0, x, a) * x.exp()).sum(),
    "full_like": lambda x, a: (torch.full_like(x, a) * x.exp()).sum(),
    "a loss and a penalty": lambda x, a: torch.nn.functional.mse_loss(x.tanh(), 1.0 - x) + a * (x**4).sum(),
    "eps below a root": lambda x, a: (x * x + abs(a)).sqrt().sum(),
    "eps below a quotient": lambda x, a: (x / (x.abs() + abs(a))).sum(),
    "behind a mask": lambda x, a: torch.where(x > 0, (x.clamp(min=0) + abs(a)).log(), x * a).sum(),
    "in place": in_place,
    "whole numbers": lambda x, a: (x * round(10 * a) + round(20 * a)).exp().sum() / round(10 * a),
    "a copy of the same": lambda x, a: ((x + a) * (x - a) * a).exp().sum(),
}
NUMBERS = (0.37, 0.41, 1.0, -0.3, -0.61, 3e-7, 0.0, -0.0)


@pytest.mark.parametrize("name", VALUES)
def test_numbers_are_values(name: str, device: torch.device) -> None:
    f, x = VALUES[name], rand(device, 3)
    for a in NUMBERS:
        if (a and round(10 * a)) or name != "whole numbers":
            derivative = hofunc.hod(lambda x, a=a: f(x, a), 2, strategy="reverse")
            oracle = nested_reverse(lambda x, a=a: f(x, a), 2)(x)
            if oracle.isfinite().all():
                assert relative_error(derivative(x), oracle) < (1e-12 if abs(a) > 1e-6 else 1e-9), a


@pytest.mark.parametrize("name", VALUES)
def test_a_schedule_is_planned_twice(name: str, device: torch.device, plans: OrderedDict) -> None:
    f, x = VALUES[name], rand(device, 3)
    for step in range(5):
        a = 0.5 + step / 10
        assert relative_error(hofunc.hessian(lambda x: f(x, a))(x), nested_reverse(lambda x: f(x, a), 2)(x)) < 1e-12  # noqa: B023
    assert len(plans) <= 2


@pytest.mark.parametrize("name", VALUES)
def test_numbers_are_values_in_what_is_replayed(name: str, device: torch.device) -> None:
    f, xs = VALUES[name], rand(device, 2, 3)
    for a in (0.37, 0.43, -0.2):
        got = torch.func.vmap(hofunc.hessian(lambda x: f(x, a)))(xs)  # noqa: B023
        expected = torch.stack([nested_reverse(lambda x: f(x, a), 2)(x) for x in xs])  # noqa: B023
        assert relative_error(got, expected) < 1e-12
        through = torch.func.grad(lambda x: hofunc.hessian(lambda x: f(x, a))(x).sum())(xs[0])  # noqa: B023
        assert relative_error(through, nested_reverse(lambda x: f(x, a), 3)(xs[0]).sum((0, 1))) < 1e-12  # noqa: B023
        leaf = xs[0].clone().requires_grad_()
        (by_autograd,) = torch.autograd.grad(hofunc.hessian(lambda x: f(x, a))(leaf).sum(), leaf)  # noqa: B023
        assert relative_error(by_autograd, through) < 1e-12


# Numbers that rules or formulas read: never the plan of another.
STRUCTURE: dict[str, Scheduled] = {
    "exponent": lambda x, a: (x.exp() ** (2 + a)).sum(),
    "whole exponent": lambda x, a: (x ** round(2 + 10 * a)).sum(),
    "base": lambda x, a: ((1 + a) ** x).sum(),
    "clamp": lambda x, a: (x.clamp(-a, a) * x.exp()).sum(),
    "hardshrink": lambda x, a: (torch.nn.functional.hardshrink(x, a) ** 3).sum(),
    "softshrink": lambda x, a: (torch.nn.functional.softshrink(x, a) ** 3).sum(),
    "leaky_relu": lambda x, a: (torch.nn.functional.leaky_relu(x, a) ** 3).sum(),
    "leaky_relu that falls": lambda x, a: (torch.nn.functional.leaky_relu(x, -a) ** 3).sum(),
    "elu": lambda x, a: torch.nn.functional.elu(x, a).square().sum(),
    "softplus": lambda x, a: torch.nn.functional.softplus(x, beta=a, threshold=1).square().sum(),
    "threshold": lambda x, a: (torch.nn.functional.threshold(x, a, a) ** 3).sum(),
    "quantile": lambda x, a: (torch.quantile(x, a) ** 3).sum(),
    "huber": lambda x, a: torch.nn.functional.huber_loss(x, x.exp(), delta=a),
    "layer_norm": lambda x, a: (torch.nn.functional.layer_norm(x, (3,), eps=a) ** 3).sum(),
    "a norm and eps": lambda x, a: (x / (x.square().sum(-1, keepdim=True) + a).sqrt()).exp().sum(),
    "one less a sigmoid": lambda x, a: (
        (1.5 + a - x.sigmoid()).log().sum() + (round(a + 0.6) - x.sigmoid()).abs().log().sum()
    ),
    "p-norm": lambda x, a: torch.linalg.vector_norm(x, 1 + a),
    "nan filled in": lambda x, a: (x**3).masked_fill(x > a, math.nan).nansum(),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_numbers_are_structure(name: str, device: torch.device) -> None:
    f, x = STRUCTURE[name], rand(device, 3)
    for a in (0.37, 0.41, 0.8, 0.37, 0.5):
        got = hofunc.hessian(lambda x: f(x, a))(x)  # noqa: B023
        assert relative_error(got, nested_reverse(lambda x: f(x, a), 2)(x)) < 1e-10  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_promote_as_numbers(dtype: torch.dtype, device: torch.device) -> None:
    """Also where f returns no axes, so that a tensor without axes would promote."""
    x = rand(device).to(dtype)
    for a in (0.3, 0.5, 0.7, 3):
        got = hofunc.hessian(lambda x: torch.add(x * a, x**3, alpha=a) / a + a)(x)  # noqa: B023
        assert got.dtype is dtype
        assert torch.allclose(got, (6 * x.double()).to(dtype), rtol=1e-2)


def test_numbers_too_large_for_the_dtype(device: torch.device) -> None:
    x = torch.tensor([1e-3, 2e-3], dtype=torch.float16, device=device)
    for a in (1e5, 2e5, 4e5):
        got = hofunc.jacobian(lambda x: ((x * 1e-3) * a).sum())(x)  # noqa: B023
        assert torch.allclose(got, torch.full_like(got, a * 1e-3), rtol=1e-2)


def test_derivatives_of_derivatives_by_a_schedule(device: torch.device) -> None:
    x = rand(device, 3)
    for a in (0.3, 0.5, 0.7):

        def f(x: Tensor, a: float = a) -> Tensor:
            return (mixed(x) * a + a) ** 2

        got = hofunc.jacobian(lambda x: hofunc.hessian(f)(x))(x)
        assert relative_error(got, nested_reverse(f, 3)(x)) < 1e-12


def test_a_number_that_changes_later_is_a_value_too(device: torch.device, plans: OrderedDict) -> None:
    x = rand(device, 3)
    for a, b in ((0.1, 0.2), (0.1, 0.2), (0.3, 0.2), (0.4, 0.2), (0.4, 0.3), (0.5, 0.6), (0.7, 0.8), (0.1, 0.2)):
        got = hofunc.hessian(lambda x: (x**3 * a + x.exp() * b).sum())(x)  # noqa: B023
        assert relative_error(got, nested_reverse(lambda x: (x**3 * a + x.exp() * b).sum(), 2)(x)) < 1e-12  # noqa: B023
    assert len(plans) == 3
