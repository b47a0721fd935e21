"""Ops that are recorded in parts: what draws noise, differentiated for what was drawn, and ops on lists of tensors."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

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


# Ops on lists of tensors.


def _in_place(*calls: tuple[Any, ...]) -> F:
    """Return a function that calls ops in place on two tensors, of which it then takes the product."""

    def f(x: Tensor) -> Tensor:
        y = [x * x, x.exp()]
        for op, *args in calls:
            op(y, *(arg(x) if callable(arg) else arg for arg in args))
        return (y[0] ** 2 * y[1]).sum()

    return f


def _overlapping(x: Tensor) -> Tensor:
    y = x * x
    torch._foreach_mul_([y[:2], y[1:]], [x[:2], x[1:]])
    return (y**2).sum()


def _clipped(x: Tensor) -> Tensor:
    y = [x * x, x.exp()]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(y)))
    return sum(((t**3).sum() for t in torch._foreach_mul(y, 1 / norm)), x.new_zeros(()))


def _sum(lists: Callable[[list[Tensor], Tensor], Sequence[Tensor]]) -> F:
    return lambda x: sum(((t**2).sum() for t in lists([x * x, x.exp()], x)), x.new_zeros(()))


LISTS: dict[str, tuple[F, F]] = {
    "by a number": (_sum(lambda y, x: torch._foreach_mul(y, 3.0)), _sum(lambda y, x: [3 * y[0], 3 * y[1]])),
    "by numbers": (_sum(lambda y, x: torch._foreach_sub(y, [1.0, 2.0])), _sum(lambda y, x: [y[0] - 1, y[1] - 2])),
    "by a tensor": (_sum(lambda y, x: torch._foreach_mul(y, x[0])), _sum(lambda y, x: [y[0] * x[0], y[1] * x[0]])),
    "by tensors": (_sum(lambda y, x: torch._foreach_div(y, [x, x])), _sum(lambda y, x: [y[0] / x, y[1] / x])),
    "of three": (
        _sum(lambda y, x: torch._foreach_addcdiv(y, y, [x, x], [2.0, 3.0])),
        _sum(lambda y, x: [y[0] + 2 * y[0] / x, y[1] + 3 * y[1] / x]),
    ),
    "powers": (_sum(lambda y, x: torch._foreach_pow(2.0, y)), _sum(lambda y, x: [2 ** y[0], 2 ** y[1]])),
    "largest": (_sum(lambda y, x: torch._foreach_max(y)), _sum(lambda y, x: [y[0].max(), y[1].max()])),
    "norms": (_clipped, lambda x: (x**6 + (3 * x).exp()).sum() / ((x**4).sum() + (2 * x).exp().sum()) ** 1.5),
    "in place": (
        _in_place((torch._foreach_add_, lambda x: [x, x.sin()]), (torch._foreach_mul_, 2.0), (torch._foreach_sqrt_,)),
        lambda x: (2 * (x * x + x) * (2 * (x.exp() + x.sin())).sqrt()).sum(),
    ),
    "copied": (_in_place((torch._foreach_copy_, lambda x: [x**2, x**3])), lambda x: (x**7).sum()),
    "zeroed": (
        _in_place((torch._foreach_zero_,), (torch._foreach_add_, lambda x: [x, x])),
        lambda x: (x**3).sum(),
    ),
    "overlapping": (_overlapping, lambda x: (x**6).sum() - x[1] ** 6 + x[1] ** 8),
}


@pytest.mark.parametrize("name", LISTS)
def test_ops_on_lists_are_those_on_their_tensors(name: str, device: torch.device) -> None:
    f, same = LISTS[name]
    x = rand(device, 3).abs() + 0.5
    for order in (1, 2, 3):
        expected = nested_reverse(same, order)(x)
        with hofunc.options(fallback="error"):
            assert relative_error(hofunc.hod(f, order)(x), expected) < 1e-12
        assert relative_error(hofunc.hod(f, order).plan(x)(x), expected) < 1e-12
    assert relative_error(torch.func.vmap(hofunc.hod(f, 3))(x[None])[0], expected) < 1e-12


def test_lists_of_results_cannot_be_told_apart(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = [x * 1, x.exp()]
        found = torch.zeros(1, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(y, found, torch.full((), 0.5, device=device))
        return (y[0] * y[1]).sum()

    with pytest.raises(hofunc.errors.UntracedError, match=r"_amp_foreach_non_finite.*Compute a new tensor"):
        hofunc.hessian(f)(rand(device, 3).float())


def _complex(x: Tensor) -> Tensor:
    return torch.complex(x, x.flip(-1) * x) + 2 * torch.eye(3, dtype=x.dtype, device=x.device)


class _Inverse(torch.autograd.Function):
    """The inverse of a complex matrix by its pseudo-inverse, as real numbers."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.view_as_real(torch.linalg.pinv(torch.view_as_complex(x)))

    @staticmethod
    def setup_context(ctx: Any, _: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        adjoint = torch.view_as_complex(ctx.saved_tensors[0]).mH
        return torch.view_as_real(-adjoint @ torch.view_as_complex(grads[0]) @ adjoint)


CONJUGATED: dict[str, Callable[[Tensor], Tensor]] = {
    "pseudo-inverse": torch.linalg.pinv,
    "pseudo-inverse in a custom Function": lambda a: torch.view_as_complex(_Inverse.apply(torch.view_as_real(a))),
    "least squares": lambda a: torch.linalg.lstsq(a, torch.eye(3, dtype=a.dtype, device=a.device)).solution,
}


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("name", CONJUGATED)
def test_what_conjugates_lazily_inside_is_right_whatever_modes_look_on(
    name: str, looks: bool, device: torch.device
) -> None:
    """torch forgets it in each dispatch mode: where calls are noted, where lines are, and in custom Functions."""
    inverse = CONJUGATED[name]

    def loss(inverse: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.view_as_real(inverse(_complex(x))).pow(3).sum()

    slopes = hofunc.hod(loss(inverse), 1)
    for seed in range(5):
        x = rand(device, 3, 3, seed=seed)
        with hofunc.detect_anomaly() if looks else nullcontext():
            found = slopes(x)
        assert relative_error(found, nested_reverse(loss(torch.linalg.inv), 1)(x)) < 1e-10, seed
