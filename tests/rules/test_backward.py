"""Tests of custom Functions by the ops of their backward passes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

Function = Callable[[Tensor], Tensor]


class Floored(torch.autograd.Function):
    """A logarithm of which the backward pass is another one near zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] / ctx.saved_tensors[0].clamp(min=0.3)


def floored(x: Tensor) -> Tensor:
    """Have the derivatives of Floored."""
    return torch.where(x > 0.3, x.clamp(min=0.3).log(), x / 0.3)


class Grown(torch.autograd.Function):
    """Scales an exponential by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return scale * x.exp()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return ctx.scale * grads[0] * ctx.saved_tensors[0].exp(), None


class Kept(torch.autograd.Function):
    """The size of a number, of which the backward pass says that it grows as an exponential does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.abs()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * ctx.saved_tensors[0]


class Form(torch.autograd.Function):
    """A product of two matrices, squared, by both of them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return (x @ w) ** 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, w = ctx.saved_tensors
        outer = 2 * grads[0] * (x @ w)
        return outer @ w.T, x.T @ outer


class Twisted(torch.autograd.Function):
    """Has a backward pass that is no derivative: the order in which it is differentiated matters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * x.roll(1) * x


class Hiding(torch.autograd.Function):
    """Hides from autograd that its slope depends on x, where that is above one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x > 1, x * x, 2 * x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            slope = torch.where(x > 1, 2 * x, 2)
        return grads[0] * slope


SCALES = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


class Outside(torch.autograd.Function):
    """Takes a tensor that is no argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return SCALES * x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * grads[0] * SCALES * ctx.saved_tensors[0]


BY_OPS: dict[str, tuple[Function, Function]] = {
    "elementwise": (lambda x: Floored.apply(x * x).sum(), lambda x: floored(x * x).sum()),
    "a number": (lambda x: Grown.apply(x.sin(), 1.5).prod(), lambda x: (1.5 * x.sin().exp()).prod()),
    "two arguments": (
        lambda x: Form.apply(x.outer(x), x.sin()[:, None]).sum(),
        lambda x: ((x.outer(x) @ x.sin()[:, None]) ** 2).sum(),
    ),
}


@pytest.mark.filterwarnings("error::hofunc.FallbackWarning")
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("name", BY_OPS)
def test_a_backward_pass_of_ops_is_differentiated_as_ops(name: str, order: int, device: torch.device) -> None:
    f, written = BY_OPS[name]
    x = rand(device, 3)
    expected = nested_reverse(written, order)(x)
    assert relative_error(hofunc.hod(f, order)(x), expected) < 1e-12
    plan = hofunc.hod(f, order).plan(x.cos())
    assert relative_error(plan(x), expected) < 1e-12
    assert "fallback" not in plan.explain()


def test_its_structure_is_known(device: torch.device) -> None:
    derivative = hofunc.hessian(lambda x: Floored.apply(x * x), layout="compact")(rand(device, 5))
    assert derivative.pattern == "b, b, b"


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_what_a_forward_made_does_not_have_the_derivative_of_the_forward(device: torch.device) -> None:
    x = rand(device, 3)
    assert relative_error(hofunc.jacobian(lambda x: Kept.apply(x).sum())(x), x.abs()) < 1e-12
    with pytest.raises(hofunc.UnsupportedOpError, match="no rule for Kept"):
        hofunc.hessian(lambda x: Kept.apply(x).sum())(x)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_what_is_no_derivative_is_differentiated_in_order_and_told_of(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hofunc.rules.opaque._WARNED", set())
    x = rand(device, 3)
    with pytest.warns(hofunc.FallbackWarning, match="the backward pass of Twisted is no derivative"):
        plan = hofunc.hessian(Twisted.apply).plan(x)
    assert "fallback" in plan.explain()
    expected = torch.autograd.functional.jacobian(lambda x: x.roll(1) * x, x)
    assert relative_error(plan(x), expected) < 1e-12


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_what_is_hidden_at_other_values_is_refused_there(device: torch.device) -> None:
    below = rand(device, 3) / 4
    plan = hofunc.hessian(lambda x: Hiding.apply(x).sum()).plan(below)
    assert not plan(below).any()
    with pytest.raises(hofunc.UnsupportedOpError, match="of which autograd does not see all"):
        plan(below + 2)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_what_a_backward_pass_takes_from_elsewhere_is_no_constant_of_a_plan(device: torch.device) -> None:
    x = rand(device, 3)
    f, before = (lambda x: Outside.apply(x).sum()), SCALES.clone()
    plan = hofunc.hessian(f).plan(x)
    try:
        SCALES.mul_(2)
        assert relative_error(plan(x), (2 * SCALES).diag()) < 1e-12
        assert relative_error(hofunc.hessian(f)(x), (2 * SCALES).diag()) < 1e-12
    finally:
        SCALES.copy_(before)


def _scaled(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return scale * x**2 @ y


def _grown(x: Tensor) -> Tensor:
    return x.exp()


def _kept(ctx: Any, inputs: Any, output: Any) -> None:
    tensors = [each for each in inputs if isinstance(each, Tensor)]
    ctx.save_for_backward(*tensors, output)
    ctx.scale = inputs[-1]


def _scaled_back(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    x, y, _ = ctx.saved_tensors
    return 2 * ctx.scale * x * (grad @ y.mT), ctx.scale * (x**2).mT @ grad, None


def _op(function: Callable[..., Tensor], backward: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return an op of a library of its own, with a backward pass."""
    op = torch.library.custom_op(f"tests_backward::{backward.__name__.strip('_')}", function, mutates_args=())
    op.register_autograd(backward, setup_context=_kept)
    return op


def _grown_back(ctx: Any, grad: Tensor) -> Tensor:
    return grad * ctx.saved_tensors[1]  # what the forward made


def _detached_back(ctx: Any, grad: Tensor) -> Tensor:
    return grad * ctx.saved_tensors[0].detach().exp()


def test_an_op_of_a_library_is_differentiated_by_the_ops_of_its_backward_pass() -> None:
    scaled = _op(_scaled, _scaled_back)
    x = rand(torch.device("cpu"), 2, 2)

    def f(x: Tensor, product: Callable[..., Tensor]) -> Tensor:
        return (product(x.tanh(), x, 1.5) ** 2).sum()

    for order in (1, 2, 3):  # without a warning, and so without the fallback
        hod = hofunc.hod(lambda x: f(x, scaled), order)
        expected = nested_reverse(lambda x: f(x, _scaled), order)(x)
        assert relative_error(hod(x), expected) < 1e-12
        assert relative_error(hod.plan(x)(x), expected) < 1e-12
        assert relative_error(hofunc.jit(hod)(x), expected) < 1e-12
    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(hofunc.hessian(lambda x: f(x, scaled))(leaf).sin().sum(), leaf)
    (expected,) = torch.autograd.grad(torch.func.hessian(lambda x: f(x, _scaled))(leaf).sin().sum(), leaf)
    assert relative_error(got, expected) < 1e-12


def test_one_whose_backward_pass_takes_what_the_forward_made_is_nested_by_autograd() -> None:
    grown, x = _op(_grown, _grown_back), rand(torch.device("cpu"), 3)
    with pytest.warns(hofunc.FallbackWarning, match=r"no rule for tests_backward.grown_back.*nested torch.autograd"):
        got = hofunc.hod(lambda x: grown(x).sum() ** 2, 3)(x)
    assert relative_error(got, nested_reverse(lambda x: x.exp().sum() ** 2, 3)(x)) < 1e-12


@pytest.mark.filterwarnings("ignore:hofunc. no rule")
def test_one_whose_backward_pass_hides_what_it_depends_on_is_refused() -> None:
    hidden, x = _op(_grown, _detached_back), rand(torch.device("cpu"), 3)
    assert torch.allclose(hofunc.jacobian(lambda x: hidden(x).sum())(x), x.exp())
    with pytest.raises(hofunc.UnsupportedOpError, match="autograd does not see all that it depends on"):
        hofunc.hessian(lambda x: hidden(x).sum())(x)
