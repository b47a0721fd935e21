"""Hyperbolic tangents of compiled plans in single precision: how far they are off, and which are left alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from hofunc.run.quotients import BOUND, put_quotients
from tests.checks import assert_equal

EPS = torch.finfo(torch.float32).eps


def quotient(f: Callable[[Tensor], Tensor], x: Tensor) -> GraphModule:
    module: GraphModule = make_fx(f, tracing_mode="fake")(x)
    put_quotients(module)
    return module


@pytest.fixture(scope="module")
def tanh() -> GraphModule:
    return quotient(torch.tanh, torch.zeros(1))


def test_four_eps_at_most_and_two_below_one(tanh: GraphModule) -> None:
    """The oracle is tanh in double precision, of which the error is nothing here."""
    near = torch.logspace(-30, 1, 400_001, dtype=torch.float64).float()
    x = torch.cat([near, torch.linspace(1e-4, 12, 1_000_001)])
    for signed in (x, -x):
        expected = signed.double().tanh()
        off = ((tanh(signed).double() - expected) / expected).abs()
        assert off.max() < 4 * EPS
        assert off[x < 1].max() < 2 * EPS


def test_it_is_odd_and_never_beyond_one(tanh: GraphModule) -> None:
    x = torch.linspace(0, 20, 1_000_001)
    assert torch.equal(tanh(-x), -tanh(x))
    assert tanh(x).max() == 1
    assert (tanh(x[x >= BOUND]) == 1).all()


def test_what_is_no_number_or_has_no_end(tanh: GraphModule) -> None:
    inf = float("inf")
    assert tanh(torch.tensor(float("nan"))).isnan()
    assert tanh(torch.tensor([inf, -inf, 0.0])).tolist() == [1, -1, 0]
    assert tanh(torch.tensor(-0.0)).signbit()
    tiny = torch.tensor([1e-20, 1e-40])
    assert torch.equal(tanh(tiny), tiny)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_other_precisions_are_left_alone(dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 9).to(dtype)
    module: GraphModule = make_fx(torch.tanh, tracing_mode="fake")(x)
    assert not put_quotients(module)
    assert torch.equal(module(x), x.tanh())


def test_what_is_around_them_stays() -> None:
    def f(x: Tensor) -> Tensor:
        return (x.exp().tanh() * x).tanh().sum() + x.sin().prod()

    x = torch.linspace(-2, 2, 9)
    module = quotient(f, x)
    assert torch.ops.aten.tanh.default not in [node.target for node in module.graph.nodes]
    assert_equal(module(x), f(x))
