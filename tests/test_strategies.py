"""Strategies: each composes, nests and returns as the others do; test_exactness.py compares them on all cases."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import hofunc
from hofunc import hod
from hofunc.plan.strategies import STRATEGIES
from hofunc.rules.registry import RULES
from tests.cases import mixed, rand
from tests.checks import assert_equal
from verification.oracles import nested_reverse, relative_error

# torch's forward mode compiles a helper with what it deprecates itself
vmap, grad = torch.func.vmap, torch.func.grad


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 4, 3)


@pytest.fixture
def f(device: torch.device) -> Callable[[Tensor], Tensor]:
    weight = rand(device, 3, 3, seed=1)
    return lambda x: ((x @ weight).tanh() * x.sin()).sum()


# Composition.


@pytest.fixture(params=["auto", "reverse", "forward", "mixed"])
def by(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Hod by one strategy."""
    return partial(hod, strategy=request.param)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_vmap_of_every_strategy(by: Callable, order: int, f: Callable, x: Tensor) -> None:
    assert_equal(vmap(by(f, order))(x), vmap(nested_reverse(f, order))(x))


def test_vmap_of_every_strategy_over_a_captured_weight(by: Callable, x: Tensor) -> None:
    def rows(derivative: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
        return lambda w: derivative(lambda x: (x @ w[:, None] * x[:, :1]).tanh().sum(), 2)(x[:2])

    assert_equal(vmap(rows(by))(x), vmap(rows(nested_reverse))(x))


def test_grad_of_a_scalar_of_every_strategy(by: Callable, f: Callable, x: Tensor) -> None:
    got = grad(lambda x: by(f, 2)(x).sin().sum())(x[0])
    assert_equal(got, grad(lambda x: nested_reverse(f, 2)(x).sin().sum())(x[0]))
    leaf = x[0].clone().requires_grad_()
    (backward,) = torch.autograd.grad(by(f, 2)(leaf).sin().sum(), leaf)
    assert_equal(backward, got)


def test_every_strategy_of_every_strategy(by: Callable, f: Callable, x: Tensor) -> None:
    expected = nested_reverse(f, 3)(x[0])
    for inner in STRATEGIES:
        assert_equal(by(hod(f, 2, strategy=inner), 1)(x[0]), expected)
        assert_equal(by(hod(f, 1, strategy=inner), 2)(x[0]), expected)


def test_jvp_of_every_strategy(by: Callable, f: Callable, x: Tensor) -> None:
    got = torch.func.jvp(by(f, 2), (x[0],), (x[1],))
    assert_equal(got, torch.func.jvp(nested_reverse(f, 2), (x[0],), (x[1],)))


# What is returned.


def test_aux_of_every_strategy(by: Callable, f: Callable, x: Tensor) -> None:
    got, aux = by(lambda x: (f(x), {"twice": x * 2}), 2, has_aux=True)(x)
    assert_equal(got, nested_reverse(f, 2)(x))
    assert_equal(aux["twice"], x * 2)


@pytest.mark.parametrize("layout", ["dense", "compact"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_orders_at_once_by_every_strategy(layout: str, strategy: str, x: Tensor) -> None:
    def g(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        rows = (x * w).sin().prod(1)
        return rows, rows.sum() * w

    args = x[:2], x[2]
    value, *orders = hofunc.derivatives(g, 3, (0, 1), layout=layout, strategy=strategy)(*args)
    assert_equal(value, g(*args))
    for order, derivative in enumerate(orders, 1):
        dense = tree_map(lambda d: d.dense() if isinstance(d, hofunc.Derivative) else d, derivative, is_leaf=is_compact)
        assert_equal(dense, nested_reverse(g, order, (0, 1))(*args))


def is_compact(value: Any) -> bool:
    return isinstance(value, hofunc.Derivative)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_keeps_the_batch(strategy: str, x: Tensor, device: torch.device) -> None:
    first, second = rand(device, 3, 5, seed=1), rand(device, 5, seed=2)

    def row(x: Tensor) -> Tensor:
        return (x @ first).tanh() @ second

    for order in (1, 2, 3):
        compact = hod(lambda x: row(x).sum(), order, layout="compact", strategy=strategy)(x)
        assert_equal(compact.dense(keep_batch=order > 1), vmap(nested_reverse(row, order))(x))
        assert compact.nbytes == 8 * 4 * 3**order
        rows = hod(row, order, layout="compact", strategy=strategy)(x)
        assert_equal(rows.dense(keep_batch=True), vmap(nested_reverse(row, order))(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_other_dtypes_by_every_strategy(dtype: torch.dtype, strategy: str, x: Tensor) -> None:
    def g(weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: ((x @ weight).tanh() * x.sin()).sum(1)

    weight = rand(x.device, 3, 3, seed=1).to(dtype)
    low = x.to(dtype)
    for order in (1, 2, 3):
        got = hod(g(weight), order, strategy=strategy)(low)
        expected = nested_reverse(g(weight.double()), order)(low.double())
        assert got.dtype == dtype
        assert relative_error(got.double(), expected) < 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_strategy_returns_somebody_elses_memory(strategy: str, device: torch.device) -> None:
    weight = rand(device, 3, 3)
    before = weight.clone()
    for order in (1, 2):
        hod(lambda x: (weight @ x, (x * x) @ weight), order, strategy=strategy)(rand(device, 3))[0].fill_(7)
        first, second = hod(lambda x: ((x * x) @ weight, (x * x) @ weight), order, strategy=strategy)(rand(device, 3))
        kept = second.clone()
        first.zero_()
        assert_equal(second, kept)
    assert_equal(weight, before)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_input_has_an_axis_without_elements_or_none_at_all(strategy: str, device: torch.device) -> None:
    empty = rand(device, 0, 3)
    assert hod(lambda x: x.exp().sum(), 2, strategy=strategy)(empty).shape == (0, 3, 0, 3)
    assert hod(lambda x: (x.sin() @ x.new_ones(3, 2)).tanh(), 3, strategy=strategy)(empty).shape == (0, 2) + (0, 3) * 3
    assert hod(lambda x: x.prod(1), 2, strategy=strategy)(rand(device, 3, 0)).shape == (3, 3, 0, 3, 0)
    assert hod(lambda x: x[:0] * x.sum(), 2, strategy=strategy)(rand(device, 2)).shape == (0, 2, 2)
    assert hod(lambda p, x: x, 2, strategy=strategy)({}, empty) == {}
    constant = hod(lambda x: torch.ones(2, dtype=x.dtype, device=device), 2, strategy=strategy)(rand(device, 3))
    assert_equal(constant, torch.zeros(2, 3, 3, dtype=torch.float64, device=device))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_in_place_code_and_branches_by_every_strategy(strategy: str, x: Tensor) -> None:
    def g(x: Tensor) -> Tensor:
        y = x.clone()
        y[0] = x[1] * x[2]
        y[:, 1:].mul_(x[:, :1])
        return mixed(y) if x.sum() < 99 else y.sum()

    def same(x: Tensor) -> Tensor:
        y = torch.cat([(x[1] * x[2])[None], x[1:]])
        return mixed(torch.cat([y[:, :1], y[:, 1:] * x[:, :1]], 1))

    for order in (2, 3):
        assert_equal(hod(g, order, strategy=strategy)(x[:3]), nested_reverse(same, order)(x[:3]))


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_op_without_a_rule_by_every_strategy(strategy: str, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, torch.ops.aten.linalg_inv_ex.default)
    monkeypatch.setattr("hofunc.run.cache._plans", OrderedDict())

    def g(x: Tensor) -> Tensor:
        return torch.linalg.inv(x @ x.t() + torch.eye(2, dtype=x.dtype, device=x.device)) * x.sin().sum(1)

    for order in (1, 2, 3):
        assert_equal(hod(g, order, strategy=strategy)(x[:2, :2]), nested_reverse(g, order)(x[:2, :2]))
