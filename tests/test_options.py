"""Options: the fallback, allowed, quiet or ruled out, for a block or from now on."""

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.errors import FallbackWarning
from hofunc.options import (
    FALLBACKS,
    PASSES,
    PLANNINGS,
    RATES,
    cache_bytes,
    fallback,
    max_plan_seconds,
    options,
    planning,
    rates_by,
    records_forward,
)
from hofunc.rules import opaque
from hofunc.rules.registry import RULES


def f(x: Tensor) -> Tensor:
    """Call an op whose rule is taken away."""
    return x.cumprod(1)


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.ones(2, 3, dtype=torch.float64, device=device)


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(RULES, torch.ops.aten.cumprod.default)
    monkeypatch.setattr(opaque, "_WARNED", set())
    monkeypatch.setattr("hofunc.run.cache._plans", OrderedDict())
    before = fallback()
    yield
    options(fallback=before)


def test_a_fallback_warns_once_by_default(x: Tensor) -> None:
    with pytest.warns(FallbackWarning, match="cumprod"):
        expected = hofunc.hessian(f)(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(hofunc.hessian(lambda x: f(x) * 1)(x), expected)


def test_a_quiet_fallback(x: Tensor) -> None:
    with warnings.catch_warnings(), options(fallback="quiet"):
        warnings.simplefilter("error")
        assert hofunc.hessian(f)(x).shape == (2, 3) * 3


@pytest.mark.parametrize("planned", [False, True])
def test_no_fallback(x: Tensor, planned: bool) -> None:
    """Also where a plan with the fallback is in the cache."""
    transform = hofunc.hessian(f)
    if planned:
        with options(fallback="quiet"):
            transform(x)
    with options(fallback="error"), pytest.raises(hofunc.UnsupportedOpError) as caught:
        transform(x)
    assert "no rule for aten.cumprod.default: got an op that only nested torch.func could" in str(caught.value)
    with options(fallback="quiet"):
        transform(x)


def test_a_frozen_plan_stays_as_it_is(x: Tensor) -> None:
    with options(fallback="quiet"):
        plan = hofunc.hessian(f).plan(x)
        expected = plan(x)
    with options(fallback="error"):
        assert torch.equal(plan(x), expected)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "1 MiB"])
def test_bytes_of_the_cache_are_a_number(wrong: Any) -> None:
    with pytest.raises(hofunc.ArgumentError, match=r"hofunc.options: cache_bytes: got .*, expected a number of bytes"):
        options(cache_bytes=wrong)


def test_bytes_of_the_cache_hold_for_a_block() -> None:
    before = cache_bytes()
    with options(cache_bytes=1000):
        assert cache_bytes() == 1000
        with options(fallback="quiet"):
            assert cache_bytes() == 1000
    assert cache_bytes() == before == 256 << 20


def test_blocks_nest_and_end_with_errors() -> None:
    assert fallback() == "warn"
    with options(fallback="quiet"):
        with pytest.raises(ZeroDivisionError), options(fallback="error"):
            raise ZeroDivisionError
        assert fallback() == "quiet"
    assert fallback() == "warn"
    options(fallback="quiet")
    assert fallback() == "quiet"


@pytest.mark.parametrize("wrong", ["no", True, ""])
def test_an_unknown_choice(wrong: str) -> None:
    with pytest.raises(hofunc.ArgumentError, match=r"hofunc.options: fallback: got .*, expected one of") as caught:
        options(fallback=wrong)
    assert str(FALLBACKS) in str(caught.value)
    assert fallback() == "warn"


@pytest.mark.parametrize("wrong", ["no", "", 3, [1]])
def test_an_unknown_choice_of_passes(wrong: Any) -> None:
    with pytest.raises(hofunc.ArgumentError, match=r"hofunc.options: functions: got .*, expected one of") as caught:
        options(functions=wrong)
    assert str(PASSES) in str(caught.value)
    assert not records_forward(torch.autograd.Function)


@pytest.mark.parametrize("wrong", ["no", "", 3])
def test_an_unknown_choice_of_rates(wrong: Any) -> None:
    with pytest.raises(hofunc.ArgumentError, match=r"hofunc.options: rates: got .*, expected one of") as caught:
        options(rates=wrong)
    assert str(RATES) in str(caught.value)
    assert rates_by() == "standard"  # as all tests have it


@pytest.mark.parametrize("wrong", ["no", "", 3])
def test_an_unknown_choice_of_planning(wrong: Any) -> None:
    with pytest.raises(hofunc.ArgumentError, match=r"hofunc.options: planning: got .*, expected one of") as caught:
        options(planning=wrong)
    assert str(PLANNINGS) in str(caught.value)
    assert planning() == "auto"


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), "1"])
def test_no_time_to_plan(wrong: Any) -> None:
    with pytest.raises(
        hofunc.ArgumentError, match=r"max_plan_seconds: got .*, expected a number of seconds above zero"
    ):
        options(max_plan_seconds=wrong)
    with options(max_plan_seconds=3, planning="full"):
        assert (max_plan_seconds(), planning()) == (3, "full")
    assert (max_plan_seconds(), planning()) == (float("inf"), "auto")


def test_options_that_are_not_named_stay() -> None:
    with options(functions="forward"):
        with options(fallback="quiet"):
            assert records_forward(torch.autograd.Function)
        assert fallback() == "warn"
    with options(functions=[torch.autograd.Function]):
        assert records_forward(torch.autograd.Function)
        assert not records_forward(type)
    assert not records_forward(torch.autograd.Function)
