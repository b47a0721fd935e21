"""Writes that autograd does not see, under torch.no_grad or through a detached alias, change a value and no more."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.func import jacrev, jvp, vmap
from torch.nn import functional

from hofunc import hod, jit
from tests.cases import rand
from tests.graph.recordings import check_replay
from verification.oracles import nested_autograd, nested_reverse, relative_error

TOLERANCE = 1e-10
UNSEEN: list[Callable[[Tensor], Tensor]] = []


def unseen(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Enter a function of a tensor of shape (3,)."""
    UNSEEN.append(f)
    return f


@unseen
def clamped(x: Tensor) -> Tensor:
    y = x.sin()
    with torch.no_grad():
        y.clamp_min_(0.2)
    return x / (y + 2)


@unseen
def a_constant_filled(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    with torch.no_grad():
        y.copy_(x)
    return x * y * x


@unseen
def through_views(x: Tensor) -> Tensor:
    y = x * x
    before = y[1:]
    with torch.no_grad():
        y[:2].mul_(x[1:])
    y[1:].mul_(x[1:])
    return (y * y).sum() + (before * x[:2]).sum()


@unseen
def read_between_writes(x: Tensor) -> Tensor:
    y = x * x
    with torch.no_grad():
        y[0] = y[1] * 3
    z = y + x
    y.mul_(2)
    with torch.no_grad():
        y.neg_()
    return y * z


@unseen
def similarity(x: Tensor) -> Tensor:
    return functional.cosine_similarity(x, x.sin().flip(0), dim=0, eps=0.5)  # torch clamps the norms under no_grad


@unseen
def through_a_detached_alias(x: Tensor) -> Tensor:
    y = x * x
    y.detach().mul_(2)
    return y * y


@unseen
def a_detached_alias_that_becomes_active(x: Tensor) -> Tensor:
    y = x * x
    alias = y.detach()
    row = alias[1:]
    alias[:2].mul_(x[1:])
    z = y + x
    y.add_(x)
    return (z * z).sum() + (alias * x).sum() + (row * row).sum() + (y * y).sum()


@unseen
def through_data(x: Tensor) -> Tensor:
    y = x * x
    y.data[1:].mul_(2)
    return y * y


@unseen
def integers(x: Tensor) -> Tensor:
    order = (x * 10).long()
    with torch.no_grad():
        order.clamp_(0, 2)
    return x[order] * x


# A tensor that was no node before is written to through an alias that autograd does not relate to it.


@unseen
def a_constant_by_data(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y.data.copy_(x)
    return y * x * x


@unseen
def a_constant_detached(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y.detach()[1:].copy_(x[1:])
    return y * x * x


@unseen
def a_parameter_by_data(x: Tensor) -> Tensor:
    p = torch.nn.Parameter(torch.zeros_like(x))
    p.data[1:].copy_(x[1:])
    return p * x * x


@unseen
def data_of_what_is_written(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    alias = y.data
    y.copy_(x)
    return alias * x * x


@unseen
def data_that_is_written_and_read(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    alias, other = y.data, y.data
    alias.copy_(x)
    y.mul_(2)
    return alias * y * other * x


OF_DATA = {
    *("through_data", "a_constant_by_data", "a_parameter_by_data", "data_of_what_is_written"),
    "data_that_is_written_and_read",
}
each = pytest.mark.parametrize("f", UNSEEN, ids=lambda f: f.__name__)


@each
@pytest.mark.parametrize("order", [1, 2, 3])
def test_it_is_what_autograd_takes_it_for(f: Callable, order: int, device: torch.device) -> None:
    x = rand(device, 3)
    got = hod(f, order)(x)
    assert relative_error(got, nested_autograd(f, order)(x)) < TOLERANCE
    if f.__name__ not in OF_DATA:  # torch.func's wrappers leave .data alone
        assert relative_error(got, nested_reverse(f, order)(x)) < TOLERANCE


@each
def test_the_graph_computes_what_f_does(f: Callable, device: torch.device) -> None:
    check_replay(f, [rand(device, 3)], [rand(device, 3, seed=1)])


def test_a_value_that_was_not_finite_leaves_no_trace(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = 1 / x
        with torch.no_grad():
            y[1] = 3
        return y

    x = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64, device=device)
    check_replay(f, [rand(device, 3)], [x])
    slopes = torch.func.vjp(f, x)[1](torch.ones_like(x))[0]  # a whole Jacobian of torch has nan beside it
    assert hod(f, 1)(x).equal(slopes.diag())


@pytest.mark.filterwarnings("ignore:hofunc. no rule for aten.as_strided")  # a backward pass through a written view
@each
def test_it_does_so_inside_of_transforms_and_around_them(f: Callable, device: torch.device) -> None:
    def once(f: Callable[..., Any]) -> Callable[..., Any]:
        return hod(f, 1)

    x, v = rand(device, 3), rand(device, 3, seed=2)
    expected = nested_autograd(f, 2)(x)
    nestings = [once(once(f)), jacrev(once(f)), lambda x: vmap(hod(f, 2))(x[None])[0]]
    if f.__name__ not in OF_DATA:
        nestings.append(once(jacrev(f)))
    for nested in nestings:
        assert relative_error(nested(x), expected) < TOLERANCE
    assert relative_error(jvp(once(f), (x,), (v,))[1], expected @ v) < TOLERANCE
    leaf = x.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(hod(f, 1)(leaf).sum(), leaf)
    assert relative_error(by_autograd, expected.reshape(-1, 3).sum(0)) < TOLERANCE


# A constant of the function's own, to which something was added that the function captured, with a history.
CAPTURED: list[Callable[[Tensor, Tensor], Tensor]] = []


def captured(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Enter a function of a tensor of shape (3,) and of a captured one."""
    CAPTURED.append(f)
    return f


def _holding(c: Tensor) -> Tensor:
    """Return a constant with the history of what was captured."""
    return torch.zeros_like(c.detach()).add_(c)


@captured
def added(x: Tensor, c: Tensor) -> Tensor:
    y = _holding(c)
    with torch.no_grad():
        y.mul_(x.sum())
    return y * x.sin() * x.sum()


@captured
def an_element_of_several(x: Tensor, c: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[1] = c[0]
    with torch.no_grad():
        y[0] = x[1]
        y.copy_(y * x)
    return y * x.sin() * x.sum()


@captured
def seen_and_not(x: Tensor, c: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    with torch.no_grad():
        y.add_(x.sum())
    y.add_(c)
    view = y[1:]
    with torch.no_grad():
        y[:2].mul_(x[1:])
    view.add_(c[:2] * x[1:])
    return y * x.sin() + view.sum() * x.sum() ** 3


@captured
def by_data(x: Tensor, c: Tensor) -> Tensor:
    y = _holding(c)
    y.data[1:].mul_(x.sum())
    return y * x.sin() * x.sum()


@captured
def by_a_detached_alias(x: Tensor, c: Tensor) -> Tensor:
    y = _holding(c)
    view = y[1:]
    y.detach()[:2].mul_(x[1:])
    return y * x.sin() * view.sum()


@captured
def as_out(x: Tensor, c: Tensor) -> Tensor:
    y = _holding(c)
    with torch.no_grad():
        torch.mul(x, x, out=y)
    return y * x.sin() * x.sum()


@captured
def computed(x: Tensor, c: Tensor) -> Tensor:
    y, z = c * 2, _holding(c).view(3, 1)
    with torch.no_grad():
        z.t_().mul_(x)
        y.mul_(x.sum())
    return y * x.sin() * z[0]


@captured
def complex_numbers(x: Tensor, c: Tensor) -> Tensor:
    y = torch.zeros(3, dtype=torch.complex128, device=x.device)
    y.real.add_(c)
    with torch.no_grad():
        y.mul_(x.sum() * 1j + 1)
    return (y * y).real * x.sin()


def _nested(f: Callable[[Tensor], Tensor], order: int) -> Callable[[Tensor], Tensor]:
    """Nest derivatives by autograd, each with the history of what was captured."""
    for _ in range(order):
        f = partial(jacobian, f, create_graph=True)
    return f


def _slope(derivative: Tensor, leaf: Tensor) -> Tensor:
    weights = torch.linspace(0.5, 1.5, derivative.numel(), dtype=derivative.dtype, device=derivative.device)
    return torch.autograd.grad(derivative.flatten() @ weights, leaf)[0]


@pytest.mark.parametrize("f", CAPTURED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_constant_keeps_the_history_of_what_was_captured(f: Callable, order: int, device: torch.device) -> None:
    leaf = rand(device, 3, seed=5).requires_grad_()
    derivative = hod(lambda x: f(x, leaf), order)
    calls: list[Any] = [derivative] * 3 + [derivative.plan(rand(device, 3)), jit(derivative)]
    for seed, called in enumerate(calls):
        x = rand(device, 3, seed=seed)
        got, expected = called(x), _nested(lambda x: f(x, leaf), order)(x)
        assert relative_error(got, expected) < TOLERANCE
        assert relative_error(_slope(got, leaf), _slope(expected, leaf)) < TOLERANCE


def test_a_route_is_left_after_a_constant_got_a_history(device: torch.device) -> None:
    leaf = rand(device, 3, seed=5).requires_grad_()
    functions: list[Any] = [torch.sin] * 3 + [torch.cos] * 2

    def f(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        with torch.no_grad():
            y.add_(x.sum())
        y.add_(leaf)
        with torch.no_grad():
            y.mul_(x)
        return functions[0](x) * y * x

    while functions:
        x = rand(device, 3, seed=len(functions))
        got, expected = hod(f, 2)(x), _nested(f, 2)(x)
        assert relative_error(got, expected) < TOLERANCE
        assert relative_error(_slope(got, leaf), _slope(expected, leaf)) < TOLERANCE
        functions.pop(0)
