"""Tests of running without what is seldom asked for: history, and care for what is not finite."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.run import again, asked
from tests.checks import assert_equal

DTYPE = torch.float64
Function = Callable[[Tensor], Tensor]


def vector(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=DTYPE)


def squared(weight: Tensor) -> Function:
    return lambda x: ((x @ weight).tanh() ** 3).sum()


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often results were looked at, and how often steps were run again for a backward pass."""
    counts, looks, run_again = [0, 0], asked._are_finite, again._Again.backward

    def looked(results: list[Tensor]) -> bool:
        counts[0] += 1
        return looks(results)

    def backward(ctx: object, *gradients: Tensor | None) -> object:
        counts[1] += 1
        return run_again(ctx, *gradients)

    monkeypatch.setattr(asked, "_are_finite", looked)
    monkeypatch.setattr(again._Again, "backward", staticmethod(backward))
    return counts


@pytest.mark.parametrize("is_planned", [False, True], ids=["transform", "plan"])
def test_history_is_made_once_a_backward_pass_asks_for_it_and_kept_from_then_on(
    passes: list[int], *, is_planned: bool
) -> None:
    weight, x = torch.rand(3, 2, dtype=DTYPE).requires_grad_(), vector(0.3, -0.2, 0.5)
    hessian = hofunc.hessian(squared(weight))
    call = hessian.plan(x) if is_planned else hessian
    expected = torch.func.hessian(squared(weight))(x)
    (slope,) = torch.autograd.grad((expected**2).sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad((slope**2).sum(), weight)
    for times in (1, 0, 0):
        result = call(x)
        assert_equal(result, expected)
        before = passes[1]
        (got,) = torch.autograd.grad((result**2).sum(), weight, create_graph=True)
        assert passes[1] - before == times
        assert_equal(got, slope)
        assert_equal(torch.autograd.grad((got**2).sum(), weight)[0], second)


def test_a_gradient_by_what_depends_on_another_argument_counts_every_way_once() -> None:
    x, y = vector(0.3, 0.4).requires_grad_(), vector(1.0, 2.0)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x * y * y).sin().sum()

    plan = hofunc.hessian(f).plan(x, y)
    got = torch.autograd.grad(plan(x, x * x).sum(), x)[0]
    again = torch.autograd.grad(plan(x, x * x).sum(), x)[0]
    expected = torch.autograd.grad(torch.func.hessian(f)(x, x * x).sum(), x)[0]
    assert_equal(got, expected)
    assert_equal(again, expected)


def test_a_write_between_a_call_and_its_backward_pass_is_noticed() -> None:
    weight, x = torch.rand(3, 2, dtype=DTYPE).requires_grad_(), vector(0.3, -0.2, 0.5)
    result = hofunc.hessian(squared(weight)).plan(x)(x)
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_what_f_returns_as_it_was_given_keeps_its_own_history() -> None:
    weight, x = torch.rand(3, dtype=DTYPE).requires_grad_(), vector(0.3, -0.2, 0.5)
    plan = hofunc.hod(lambda x: ((x * weight).prod(), weight), order=1, has_aux=True).plan(x)
    for _ in range(2):
        slope, aux = plan(x)
        (got,) = torch.autograd.grad(slope.sum() + (aux**2).sum(), weight)
        expected = torch.autograd.functional.jacobian(
            lambda w: torch.func.grad(lambda x: (x * w).prod())(x).sum() + (w**2).sum(), weight
        )
        assert_equal(got, expected)


def singular(x: Tensor) -> Tensor:
    """Have an infinite slope where the clamp is constant."""
    return x.clamp(-1, 1).acos().sum()


@pytest.mark.parametrize("is_planned", [False, True], ids=["transform", "plan"])
@pytest.mark.parametrize("strategy", ["auto", "reverse", "forward", "mixed"])
def test_what_is_not_finite_is_computed_with_care(passes: list[int], strategy: str, *, is_planned: bool) -> None:
    inner, outer = vector(0.3, -0.2, 0.9), vector(0.3, -2.0, 1.5)
    hessian = hofunc.hod(singular, order=2, strategy=strategy)
    call = hessian.plan(inner) if is_planned else hessian
    for _ in range(2):
        assert_equal(call(inner), torch.diag(-inner * (1 - inner**2) ** -1.5))
    assert passes[0] == 2
    slopes = torch.where(outer.abs() < 1, -outer * (1 - outer.clamp(-0.9, 0.9) ** 2) ** -1.5, 0)
    for _ in range(2):
        assert_equal(call(outer), torch.diag(slopes))
    assert passes[0] == 3, "from then on it is computed with care at once"
    assert_equal(call(inner), torch.diag(-inner * (1 - inner**2) ** -1.5))


@pytest.mark.parametrize("is_planned", [False, True], ids=["transform", "plan"])
def test_a_gradient_of_what_is_finite_is_finite_where_a_higher_slope_is_not(*, is_planned: bool) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.clamp(min=0) ** 1.5).sum()

    x = vector(4.0, -1.0).requires_grad_()
    call = hofunc.jacobian(f).plan(x) if is_planned else hofunc.jacobian(f)
    for _ in range(2):
        (got,) = torch.autograd.grad(call(x).sum(), x)
        assert_equal(got, vector(0.375, 0.0))


def test_a_plan_inside_a_transform_takes_care_at_once(passes: list[int]) -> None:
    x = torch.stack([vector(0.3, -0.2), vector(0.5, 2.0)])
    plan = hofunc.hessian(singular).plan(x[0])
    got = torch.func.vmap(plan)(x)
    assert_equal(got[0], torch.func.hessian(singular)(x[0]))
    assert got.isfinite().all()
    assert passes == [0, 0]


def test_what_draws_random_numbers_runs_once() -> None:
    weight, x = torch.rand(3, dtype=DTYPE).requires_grad_(), torch.ones(3, dtype=DTYPE)
    plan = hofunc.hessian(lambda x: (torch.rand_like(x) * weight * x**2).sum()).plan(x)
    torch.manual_seed(0)
    drawn = torch.rand(3, dtype=DTYPE)
    torch.manual_seed(0)
    result = plan(x)
    assert_equal(result.detach(), torch.diag(2 * drawn * weight.detach()))
    (got,) = torch.autograd.grad(result.sum(), weight)
    assert_equal(got, 2 * drawn)


def test_a_plan_with_two_ways_is_saved_with_both(passes: list[int], tmp_path: object) -> None:
    inner, outer = vector(0.3, -0.2), vector(0.3, -2.0)
    plan = hofunc.hessian(singular).plan(inner)
    plan.save(f"{tmp_path}/plan")
    loaded = hofunc.load_plan(f"{tmp_path}/plan")
    assert_equal(loaded(inner), plan(inner))
    assert_equal(loaded(outer), plan(outer))
    assert passes[0] == 4


def test_a_plan_leaves_what_it_is_given_as_it_was(device: torch.device) -> None:
    x = torch.rand(3, device=device)
    for f in (lambda x: (x**3).sum(), singular):
        plan, given = hofunc.hessian(f).plan(x), [x]
        plan._run(given)
        assert given == [x]


def test_marks_are_planned_once_a_backward_pass_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plan = [], asked._in_order

    def counted(*args: Any) -> asked.Way:
        made.append(args)
        return plan(*args)

    monkeypatch.setattr(asked, "_in_order", counted)
    weight, x = vector(0.5, 2.0, 1.5).requires_grad_(), vector(-1.0, 4.0, 1.0)

    def f(x: Tensor) -> Tensor:
        return (torch.where(x > 0, weight * x, 1).sqrt() * x).sum()

    hessian = hofunc.hessian(f)
    expected = torch.func.hessian(f)(x)
    for _ in range(2):
        assert_equal(hessian(x), expected)
        assert not made
    (got,) = torch.autograd.grad((hessian(x) ** 2).sum(), weight)
    assert len(made) == 1
    assert_equal(got, torch.autograd.grad((expected**2).sum(), weight)[0])


@pytest.mark.parametrize("asks", [False, True], ids=["not finite", "differentiated"])
def test_several_contractions_whose_results_need_care(*, asks: bool) -> None:
    """Their numbers are no numbers of nodes."""
    weight = torch.eye(3, dtype=DTYPE).add(0.3).requires_grad_()

    def f(x: Tensor) -> Tensor:
        return (x.sqrt().masked_fill(x <= 0, 1.0) @ weight).sum() ** 2

    several = hofunc.einsum(f, (", i -> i", ", i, i ->", ", i, i, i ->"))
    inner, outer = vector(0.3, 0.2, 0.4), vector(0.0, 0.2, 0.4)
    several(inner)
    x = inner if asks else outer
    first, second, third = [hofunc.hod(f, order)(x) for order in (1, 2, 3)]
    for got, want in zip(several(x), (first, second.trace(), torch.einsum("iii->", third)), strict=True):
        assert_equal(got, want)
        slopes = [torch.autograd.grad(y.sum(), weight, retain_graph=True)[0] for y in (got, want) if asks]
        assert_equal(slopes[:1], slopes[1:])


@pytest.mark.parametrize("is_planned", [False, True], ids=["transform", "plan"])
def test_what_depends_on_nothing_that_is_followed_has_no_history(*, is_planned: bool) -> None:
    weight, x = vector(2.0).requires_grad_(), vector(0.5)
    both = hofunc.hessian(lambda x: (x**3, (weight * x**3).sum()))
    got = (both.plan(x) if is_planned else both)(x)
    assert [y.requires_grad for y in got] == [False, True]
    (slope,) = torch.autograd.grad(got[1].sum(), weight)
    assert_equal(slope, 6 * x)


def test_what_is_computed_and_not_needed_has_no_part_in_histories() -> None:
    """Of that torch may have no derivative, as of the ops of its own that derivatives inside of f make and leave."""

    def f(x: Tensor) -> Tensor:
        torch.heaviside(x, x)
        return (x * torch.func.hessian(torch.prod)(x) @ x.sqrt()).sum()

    x = vector(0.3, 0.2, 0.5).requires_grad_()
    (got,) = torch.autograd.grad(hofunc.hessian(f)(x).sin().sum(), x)
    pairs = lambda x: x.prod() / (x[:, None] * x) * (1 - torch.eye(3, dtype=DTYPE))  # noqa: E731
    by_hand = torch.func.hessian(lambda x: (x * pairs(x) @ x.sqrt()).sum())
    (expected,) = torch.autograd.grad(by_hand(x).sin().sum(), x)
    assert_equal(got, expected)
