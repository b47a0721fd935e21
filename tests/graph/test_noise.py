"""Ops that draw noise and multiply by it: their derivatives are those of what was drawn."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import hofunc
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

aten = torch.ops.aten
F = Callable[[Tensor], Tensor]


def _of_native(x: Tensor) -> Tensor:
    noise = torch.zeros(2, 3, dtype=x.dtype, device=x.device)
    return aten.rrelu_with_noise(x, noise[0], 0.1, 0.3, True) + noise.sum()


RRELUS: dict[str, tuple[F, bool]] = {
    "evaluated": (lambda x: functional.rrelu(x, 0.1, 0.5), False),
    "evaluated in place": (lambda x: functional.rrelu(x * 1, 0.1, 0.5, inplace=True), False),
    "evaluated by a module": (torch.nn.RReLU().eval(), False),
    "trained": (lambda x: functional.rrelu(x, 0.1, 0.3, training=True), True),
    "trained in place": (lambda x: functional.rrelu(x * 1, 0.1, 0.3, training=True, inplace=True), True),
    "trained, and the noise used": (_of_native, True),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", RRELUS)
def test_rrelu_is_differentiated_for_the_slopes_that_were_drawn(name: str, order: int, device: torch.device) -> None:
    rrelu, draws = RRELUS[name]
    x = torch.tensor([-1.5, 0.7, -0.2], dtype=torch.float64, device=device)
    torch.manual_seed(0)
    drawn = rrelu(x)
    offset = drawn[1] - x[1]  # of the noise that is added, none elsewhere
    slopes = (drawn - offset) / x

    def f(x: Tensor) -> Tensor:
        return rrelu(x * x.abs()).exp()

    def same(x: Tensor) -> Tensor:
        return (slopes * x * x.abs() + offset).exp()

    torch.manual_seed(0)
    value, *_, got = hofunc.derivatives(f, order)(x)
    assert torch.allclose(value, same(x), rtol=1e-14)
    assert relative_error(got, nested_reverse(same, order)(x)) < 1e-12
    assert draws == (not torch.equal(hofunc.derivatives(f, order)(x)[0], value))


@pytest.mark.parametrize("training", [False, True])
def test_at_zero_the_slope_of_rrelu_is_that_of_the_left(training: bool) -> None:
    torch.manual_seed(0)
    slope = hofunc.jacobian(lambda x: functional.rrelu(x, 0.1, 0.3, training=training))(torch.tensor(0.0))
    assert 0.1 <= slope <= 0.3


def test_a_plan_draws_slopes_anew(device: torch.device) -> None:
    x = -rand(device, 5).abs()
    plan = hofunc.derivatives(lambda x: functional.rrelu(x, 0.1, 0.3, training=True) ** 2, 2).plan(x)
    (value, _, first), (_, _, second) = plan(x), plan(x)
    slopes = (value / x**2).sqrt()
    expected = torch.zeros(5, 5, 5, dtype=x.dtype, device=device)
    expected[range(5), range(5), range(5)] = 2 * slopes**2
    assert torch.allclose(first, expected)
    assert not torch.equal(first, second)


def test_autograd_follows_the_slopes_that_were_drawn() -> None:
    x = -rand(torch.device("cpu"), 4).abs().requires_grad_()
    value, slope = hofunc.derivatives(lambda x: functional.rrelu(x, training=True) ** 3, 1)(x)
    (gradient,) = torch.autograd.grad(slope.diagonal().sum(), x)
    assert torch.allclose(gradient, 6 * value / x**2)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: aten._standard_gamma.out(x, out=torch.empty_like(x)),
        lambda x: aten.native_dropout.out(x, 0.5, True, out0=torch.empty_like(x), out1=x > 0)[0],
    ],
)
def test_what_is_drawn_of_a_tensor_into_another_is_refused(draw: F) -> None:
    with pytest.raises(hofunc.errors.UnsupportedOpError, match="draws random numbers"):
        hofunc.hessian(lambda x: draw(x * 1).square().sum())(torch.ones(3))
