"""Recordings without histories, where backward passes are planned: gradients are the same, whatever comes next."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.graph import record
from hofunc.graph.trail import Trail
from tests import checks
from tests.cases import rand
from verification.oracles import relative_error

pytestmark = pytest.mark.usefixtures("learns_at_once")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note of every recording that may be bare whether it is, op by op or by calls."""
    found: list[bool] = []
    recorded = record._record_values

    def noting(*args: Any) -> Any:
        (*_, trail, is_allowed) = args
        if not (is_allowed and trail.is_bare):
            return recorded(*args)
        found.append(False)
        recording = recorded(*args)
        found[-1] = recording.is_bare
        return recording

    def noting_again(f: Any, inputs: Any, others: Any, trail: Trail) -> Any:
        may_be = trail.is_bare and torch.is_grad_enabled()
        recording = record.recorded_again(f, inputs, others, trail)
        if recording is not None and may_be:
            found.append(recording.is_bare)
        return recording

    monkeypatch.setattr(record, "_record_values", noting)
    monkeypatch.setattr("hofunc.transform.recorded_again", noting_again)
    return found


def product(f: Callable[..., Tensor], w: Tensor, v: Tensor) -> Tensor:
    """Return the product of a Hessian and a vector, with its history."""
    (slope,) = torch.autograd.grad(f(w), w, create_graph=True)
    (found,) = torch.autograd.grad(slope, w, v, create_graph=True)
    return found


def agree(f: Callable[..., Tensor], call: Callable[[Tensor, Tensor], Tensor], device: torch.device, times: int) -> None:
    """Compare gradients by what is differentiated by and by the vector, of several calls."""
    for seed in range(times):
        w, v = (rand(device, 5, seed=2 * seed + each).requires_grad_() for each in range(2))
        want = torch.autograd.grad((product(f, w, v) ** 2).sum(), (w, v))
        got = torch.autograd.grad((call(w, v) ** 2).sum(), (w, v))
        for one, other in zip(got, want, strict=True):
            assert relative_error(one, other) < checks.TOLERANCE


def wave(w: Tensor) -> Tensor:
    return (w.sin() * w.exp()).sum()


def test_a_backward_pass_that_is_planned_needs_no_history_of_what_is_recorded(
    bare: list[bool], device: torch.device
) -> None:
    transform = hofunc.hvp(wave)
    agree(wave, lambda w, v: transform(w, vector=v), device, 5)
    assert bare == [True, True, True]


def test_calls_between_training_steps_need_no_history_either(bare: list[bool], device: torch.device) -> None:
    def f(w: Tensor) -> Tensor:
        return (w.cos() * w.exp()).sum()

    transform, w, v = hofunc.hvp(f), rand(device, 5), rand(device, 5, seed=1)
    for _ in range(5):
        agree(f, lambda w, v: transform(w, vector=v), device, 1)
        assert relative_error(transform(w, vector=v), product(f, w.clone().requires_grad_(), v)) < checks.TOLERANCE
    assert bare == [True, True, True]  # those of the steps: what is recorded bare may have to be computed again


def test_what_leads_to_the_inputs_is_followed(bare: list[bool], device: torch.device) -> None:
    captured, before = rand(device, 5, seed=8).requires_grad_(), rand(device, 5, seed=9).requires_grad_()
    v = rand(device, 5)

    def f(w: Tensor) -> Tensor:
        return (w.sin() * captured.exp() * w).sum()

    for _ in range(5):
        want = torch.autograd.grad(product(f, before.tanh(), v).square().sum(), (before, captured))
        got = torch.autograd.grad(hofunc.hvp(f)(before.tanh(), vector=v).square().sum(), (before, captured))
        for one, other in zip(got, want, strict=True):
            assert relative_error(one, other) < checks.TOLERANCE
    assert bare == [True, True, True]


def test_another_branch_is_recorded_again_and_after_it_nothing_bare(bare: list[bool], device: torch.device) -> None:
    calls = []

    def f(w: Tensor) -> Tensor:
        calls.append(1)
        return (w.sin() if way[0] else w.cos() * w).prod()

    way, transform = [True], hofunc.hvp(f)
    agree(f, lambda w, v: transform(w, vector=v), device, 4)
    assert bare == [True, True]
    way[0] = False
    agree(f, lambda w, v: transform(w, vector=v), device, 1)
    assert bare == [True, True, False]
    calls.clear()
    for _ in range(6):
        way[0] = not way[0]
        agree(f, lambda w, v: transform(w, vector=v), device, 1)
    assert bare == [True, True, False]
    assert len(calls) == 12  # once by hofunc and once by autograd


def test_other_derivatives_of_the_same_function_have_their_histories(bare: list[bool], device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.sin() * x.exp()).sum(-1)

    x, laplacian = rand(device, 4, 3).requires_grad_(), hofunc.laplacian(f)
    for _ in range(4):
        (got,) = torch.autograd.grad(laplacian(x).square().sum(), x)
    assert True in bare
    whole = (torch.func.vmap(torch.func.hessian(f))(x).diagonal(0, 1, 2).sum(-1)).square().sum()
    assert relative_error(got, torch.autograd.grad(whole, x)[0]) < checks.TOLERANCE
    value, slope = hofunc.derivatives(f, order=1)(x)
    (got,) = torch.autograd.grad(value.square().sum() + slope.square().sum(), x)
    whole = f(x).square().sum() + torch.func.jacrev(f)(x).square().sum()
    assert relative_error(got, torch.autograd.grad(whole, x)[0]) < checks.TOLERANCE
    with torch.no_grad():
        assert not laplacian(x).requires_grad
    assert torch.func.grad(lambda x: laplacian(x).sum())(x.detach()).shape == x.shape


def test_a_backward_pass_may_be_differentiated(bare: list[bool], device: torch.device) -> None:
    w, v, transform = rand(device, 5).requires_grad_(), rand(device, 5), hofunc.hvp(wave)

    def twice(found: Tensor) -> Tensor:
        (first,) = torch.autograd.grad(found.square().sum(), w, create_graph=True)
        return torch.autograd.grad(first.square().sum(), w)[0]

    for _ in range(4):
        assert relative_error(twice(transform(w, vector=v)), twice(product(wave, w, v))) < checks.TOLERANCE
    assert bare


def test_a_write_to_an_input_is_noticed(bare: list[bool], device: torch.device) -> None:
    transform, v = hofunc.hvp(wave), rand(device, 5)
    for _ in range(3):
        w = rand(device, 5).requires_grad_()
        found = transform(w, vector=v)
        found.sum().backward()
    found = transform(w, vector=v)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()
    assert bare


def test_random_numbers_are_drawn_once(bare: list[bool], device: torch.device) -> None:
    """Also by a function that draws on another branch only, and that catches errors."""
    branches = deque([False] * 4 + [True, False, True])

    def f(w: Tensor) -> Tensor:
        try:
            return (torch.rand_like(w) * w.sin()).sum() if branches[0] else wave(w)
        except Exception:
            return wave(w)

    transform, v = hofunc.hvp(f), rand(device, 5)
    while branches:
        w = rand(device, 5).requires_grad_()
        torch.manual_seed(1)
        got, after = transform(w, vector=v), torch.rand(2, device=device)
        torch.manual_seed(1)
        expected = product(f, w, v)
        assert torch.equal(after, torch.rand(2, device=device))
        slopes, expected_slopes = (torch.autograd.grad((each**2).sum(), w) for each in (got, expected))
        torch.testing.assert_close((got, slopes), (expected, expected_slopes))
        branches.popleft()
    assert bare.count(True) > 1
    assert bare.count(False) == 1


def test_an_error_of_the_function_is_raised_as_it_is(bare: list[bool], device: torch.device) -> None:
    def f(w: Tensor) -> Tensor:
        if fails[0]:
            raise ValueError("of f")
        return wave(w)

    fails, transform = [False], hofunc.hvp(f)
    agree(f, lambda w, v: transform(w, vector=v), device, 3)
    fails[0] = True
    with pytest.raises(ValueError, match="of f"):
        agree(wave, lambda w, v: transform(w, vector=v), device, 1)
    fails[0] = False
    agree(f, lambda w, v: transform(w, vector=v), device, 3)
    assert bare == [True, False]


def test_a_function_that_differentiates_by_autograd_itself(device: torch.device) -> None:
    def f(w: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(wave(w), w, create_graph=True)
        return slope.square().sum()

    transform = hofunc.hvp(f)
    agree(f, lambda w, v: transform(w, vector=v), device, 5)


def test_a_write_inside_of_the_function(device: torch.device) -> None:
    def f(w: Tensor) -> Tensor:
        y = w.sin()
        y[1:3] = w[:2].exp()
        return (y * w).prod()

    transform = hofunc.hvp(f)
    agree(f, lambda w, v: transform(w, vector=v), device, 5)
