"""Memory: what plans say that they hold against what torch's allocator hands out, whole and in chunks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import hofunc
from asv_benchmarks.memory import peak
from hofunc.graph.followed import is_followed
from hofunc.graph.functions import as_op
from hofunc.rules import define_elementwise
from hofunc.rules.registry import RULES
from hofunc.run.cache import forget
from tests.cases import rand
from verification.memory import (
    FUNCTIONS,
    IN_ROWS,
    SLACK,
    STRATEGIES,
    assert_keeps_to_max_bytes,
    assert_takes_what_it_says,
    network,
    stated,
    taken,
)
from verification.oracles import relative_error

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_plan_takes_what_it_says(name: str) -> None:
    f, shape, order = FUNCTIONS[name]
    strategy = STRATEGIES[len(name) % 3]  # verification has all of them, and float32
    x = rand(CPU, *shape)
    assert_takes_what_it_says(hofunc.hod(f, order, layout="compact", strategy=strategy), x)
    if name in IN_ROWS:
        assert_takes_what_it_says(hofunc.hod(f, order, layout="compact", strategy=strategy, chunk_size=30), x)


@pytest.mark.parametrize("layout", ["compact", "dense"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: ((x @ w).tanh() ** 2).sum(),
        lambda x, w: (x.sin().sum(), (w @ w.t()).exp()),
    ],
)
def test_so_it_is_by_several_arguments(f: Callable[..., Any], layout: str) -> None:
    """The second has derivatives that vanish, and dense ones take memory all the same."""
    x, w = rand(CPU, 20, 6), rand(CPU, 6, 6)
    plan = hofunc.hod(f, 2, (0, 1), layout=layout).plan(x, w)
    assert plan.peak_bytes == pytest.approx(taken(lambda: plan(x, w)), rel=0.02, abs=SLACK)


@pytest.mark.parametrize(
    ("name", "strategy"), [("softmax", "auto"), ("a network, order 3", "auto"), ("several outputs", "reverse")]
)
def test_no_more_is_taken_than_max_bytes(name: str, strategy: str) -> None:
    f, shape, order = FUNCTIONS[name]
    x = rand(CPU, *shape)
    assert_keeps_to_max_bytes(f, order, strategy, x)
    least = stated(hofunc.hod(f, order, layout="compact", strategy=strategy, max_bytes=1), x)
    call = hofunc.hod(f, order, layout="compact", strategy=strategy, max_bytes=least)
    assert relative_error(_dense(call(x)), _dense(hofunc.hod(f, order, layout="compact")(x))) < 1e-13


def _dense(result: Any) -> Any:
    return [each.dense(keep_batch=True) for each in (result if isinstance(result, tuple) else (result,))]


def test_dense_blocks_that_vanish_count_in_a_call() -> None:
    f, x, y = lambda x, y: x.sin().sum() + y.sum(), rand(CPU, 30), rand(CPU, 40)
    least = stated(hofunc.hessian(f, (0, 1), max_bytes=1), x, y)
    call = hofunc.hessian(f, (0, 1))
    assert least == pytest.approx(taken(lambda: call(x, y)), rel=0.02, abs=SLACK)
    assert least >= 8 * 70 * 70


def test_the_least_is_of_the_best_strategy() -> None:
    x = rand(CPU, 100, 3)
    each = {s: stated(hofunc.hod(network, 3, layout="compact", strategy=s, max_bytes=1), x) for s in STRATEGIES}
    assert stated(hofunc.hod(network, 3, layout="compact", max_bytes=1), x) == min(each.values())
    assert len({*each.values()}) == 3


# What a call that plans takes.


def _gated() -> tuple[Callable[..., Any], Any]:
    lstm, x = torch.nn.LSTM(2, 4).double(), rand(CPU, 4, 2, 2)
    p = {name: rand(CPU, *each.shape, seed=seed) / 2 for seed, (name, each) in enumerate(lstm.named_parameters())}
    return partial(hofunc.hessian, lambda p: torch.func.functional_call(lstm, p, (x,))[0].square().sum()), p


def _packed() -> tuple[Callable[..., Any], Any]:
    weight = rand(CPU, 12, 16)
    return partial(hofunc.hod, lambda x: ((x @ weight).tanh() @ weight.T).sin().sum(), 4), rand(CPU, 12)


def _edges() -> tuple[Callable[..., Any], Any]:
    i, j = torch.triu_indices(60, 60, 1)
    return partial(hofunc.hessian, lambda x: ((x[i] - x[j]).square().sum(-1) ** -3).sin().sum()), rand(CPU, 60, 3)


@pytest.mark.parametrize("planning", ["quick", "full"])
@pytest.mark.parametrize("case", [_gated, _packed, _edges])
def test_a_call_that_plans_keeps_to_max_bytes(case: Callable[[], Any], planning: Literal["quick", "full"]) -> None:
    """Tables of places would be many times as large, of all strategies together, and f runs no second time."""
    transform, x = case()
    expected = transform()(x)
    with hofunc.options(planning=planning):
        limit = stated(transform(max_bytes=1), x)
        for call in (transform(max_bytes=limit), hofunc.jit(transform(max_bytes=limit))):
            forget()
            with torch.no_grad():
                assert peak(lambda: call(x)) <= 1.05 * limit + 8 * SLACK  # noqa: B023 - called at once
            assert relative_error(call(x), expected) < 1e-11


def test_a_plan_whose_tables_are_not_made_is_saved_compiled_and_followed(tmp_path: Path) -> None:
    transform, x = _packed()
    whole = transform().plan(x)
    for limit in (whole.peak_bytes * 3 // 4, whole.peak_bytes * 3 // 2):
        plan = transform(max_bytes=limit, strategy="forward").plan(x)
        plan.save(tmp_path / "plan")
        assert relative_error(hofunc.load_plan(tmp_path / "plan")(x), whole(x)) < 1e-13
        slope = torch.func.grad(lambda x: plan(x).square().sum())(x)  # noqa: B023 - called at once
        assert relative_error(slope, torch.func.grad(lambda x: whole(x).square().sum())(x)) < 1e-12
        if plan.peak_bytes > whole.peak_bytes // 2 and "chunks of" not in plan.explain():
            assert relative_error(plan.to_fx()(x)[0], whole(x)) < 1e-13


# What follows a computation.


def test_chunks_are_laid_together_where_something_follows_them() -> None:
    x = rand(CPU, 20, 3)
    hessian = hofunc.hod(network, 2, layout="compact", chunk_size=6)

    def energy(x: Tensor) -> Tensor:
        return hessian(x).dense(keep_batch=True).pow(2).sum()

    expected = torch.func.grad(lambda x: hofunc.hod(network, 2)(x).pow(2).sum())(x)
    leaf = x.clone().requires_grad_()
    energy(leaf).backward()
    assert leaf.grad is not None
    plan = hessian.plan(x)
    other = x.clone().requires_grad_()
    plan(other).dense(keep_batch=True).pow(2).sum().backward()
    assert other.grad is not None
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        slope = torch.autograd.forward_ad.unpack_dual(plan(dual).dense(keep_batch=True).pow(2).sum()).tangent
    assert relative_error(leaf.grad, expected) < 1e-12
    assert relative_error(other.grad, expected) < 1e-12
    assert relative_error(torch.func.grad(energy)(x), expected) < 1e-12
    assert relative_error(hofunc.jacobian(energy)(x), expected) < 1e-12
    assert slope is not None
    assert relative_error(slope, expected.sum()) < 1e-12


def test_what_follows_a_computation() -> None:
    x = rand(CPU, 3)
    assert not is_followed([x])
    leaf = x.clone().requires_grad_()
    assert is_followed([x, leaf])
    with torch.no_grad():
        assert not is_followed([leaf])
    with torch.autograd.forward_ad.dual_level():
        assert is_followed([x])
    seen = []

    def noted(x: Tensor) -> Tensor:
        seen.append(is_followed([x]))
        return x.sin()

    torch.func.vmap(noted)(x)
    hofunc.jacobian(noted)(x)
    assert seen == [True, True]


# Compiled plans and graphs run all rows at once.


def test_a_plan_in_chunks_for_max_bytes_is_not_compiled() -> None:
    x = rand(CPU, 100, 3)
    whole = hofunc.hod(network, 3, layout="compact", strategy="mixed").plan(x)
    plan = hofunc.hod(network, 3, layout="compact", strategy="mixed", max_bytes=whole.peak_bytes // 2).plan(x)
    for call in (plan.compile, plan.to_fx):
        with pytest.raises(hofunc.ArgumentError, match="runs all rows at once") as caught:
            call()
        assert f"got {whole.peak_bytes} bytes at once" in str(caught.value)
        assert str(caught.value).endswith("Make it without max_bytes, or run it as it is.")
    kept = hofunc.hod(network, 3, layout="compact", strategy="mixed", max_bytes=whole.peak_bytes).plan(x)
    kept.to_fx()
    sized = hofunc.hod(network, 3, layout="compact", strategy="mixed", chunk_size=10).plan(x)
    got, *_ = sized.to_fx()(x)
    assert relative_error(got, whole.to_fx()(x)[0]) < 1e-13
    assert sized.compile(backend="eager").peak_bytes == whole.peak_bytes > sized.peak_bytes


# What cannot be looked at without values.


class _Squared(torch.autograd.Function):
    """Squares, and notes where."""

    devices: list[str] = []  # noqa: RUF012 - it is one for all

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        _Squared.devices.append(x.device.type)
        return x * x


def _needs_values(x: Tensor, y: Tensor, r: int) -> Tensor:
    if r == 0:
        return y
    return torch.from_numpy(2 * x.detach().numpy()) if r == 1 else torch.full_like(x, 2)


def test_a_rule_that_needs_values_counts_as_declared() -> None:
    """And a custom Function, which may do anything, is not called to plan."""
    define_elementwise(_Squared, _needs_values, degree=2)
    try:
        plan = hofunc.hessian(lambda x: _Squared.apply(x).exp().sum()).plan(rand(CPU, 4))
    finally:
        del RULES[as_op(_Squared)]
    assert {*_Squared.devices} == {"cpu"}
    assert plan.peak_bytes >= 8 * 4 * 4


class _TooSlowError(Exception):
    """What somebody raises from outside who does not want to wait any longer."""


def test_who_interrupts_planning_is_heard() -> None:
    def interrupted(x: Tensor, y: Tensor, r: int) -> Tensor:
        if x.is_meta:
            raise _TooSlowError
        return _needs_values(x, y, r)

    define_elementwise(_Squared, interrupted, degree=2)
    try:
        with pytest.raises(_TooSlowError):
            hofunc.hessian(lambda x: _Squared.apply(x).exp().sum()).plan(rand(CPU, 4))
    finally:
        del RULES[as_op(_Squared)]


def test_what_f_computed_is_given_up_where_it_is_not_needed_any_more() -> None:
    """Of pairs at the peak: the result, one block of entries for each and one that is laid out, and their places."""
    i, j = torch.triu_indices(64, 64, 1)
    x = rand(CPU, 64, 3)

    def f(x: Tensor) -> Tensor:
        return (1 + (x[i] - x[j]).square().sum(-1)).log().sum()

    call = hofunc.hessian(f)
    result, blocks, places = 8 * (3 * 64) ** 2, 8 * 9 * len(i), 2 * 8 * len(i)
    call(x)
    with torch.no_grad():
        assert taken(lambda: call(x)) <= 1.05 * (result + 2 * blocks + places)
