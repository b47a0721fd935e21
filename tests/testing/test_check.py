"""hodcheck: it confirms what is right, finds what is wrong whoever is wrong, and says which entry."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import hofunc
from hofunc import hodcheck
from hofunc.rules.kinds import Elementwise
from hofunc.rules.registry import RULES
from hofunc.run import cache
from hofunc.testing import oracles
from tests.cases import mixed, rand

CPU = torch.device("cpu")


@pytest.fixture
def x() -> Tensor:
    return rand(CPU, 2, 3)


def dense(x: Tensor) -> Tensor:
    """Return numbers that depend on all entries of x, with all derivatives."""
    return (x @ rand(CPU, 3, 2, seed=1)).tanh() * x.sin().sum()


@pytest.fixture
def break_hod(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes hod return something else, given the order from which on and the change."""

    def plant(first: int, change: Callable[[Tensor], Tensor]) -> None:
        def broken(f: Callable, order: int, argnums: Any, **options: Any) -> Callable:
            right = hofunc.hod(f, order, argnums, **options)
            return (lambda *args: torch.utils._pytree.tree_map(change, right(*args))) if order >= first else right

        monkeypatch.setattr(oracles, "hod", broken)

    return plant


def untraceable(x: Tensor) -> Tensor:
    """Multiply in a way that torch.func refuses."""
    result = torch.empty_like(x)
    torch.mul(x.abs(), x.sin(), out=result)
    return result * x.sum()


# What is right.


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_function_is_confirmed_at_every_order(order: int, x: Tensor) -> None:
    assert hodcheck(mixed, x, order)


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_by_every_strategy(strategy: str, x: Tensor) -> None:
    assert hodcheck(dense, x, 3, strategy=strategy)


def test_pytrees_and_several_arguments(x: Tensor) -> None:
    def f(parameters: dict[str, Tensor], scale: float, x: Tensor) -> dict[str, Any]:
        y = (x @ parameters["w"] + parameters["b"]).tanh() * scale
        return {"y": y, "sums": (y.sum(0), [mixed(y)])}

    parameters = {"w": rand(CPU, 3, 2, seed=1), "b": rand(CPU, 2, seed=2)}
    assert hodcheck(f, (parameters, 2.0, x), 2, (0, 2))
    assert hodcheck(f, [parameters, 2.0, x], 2, [-1])


def test_single_precision_has_looser_tolerances(x: Tensor) -> None:
    weight = rand(CPU, 3, 2, seed=1).float()
    assert hodcheck(lambda x: ((x @ weight).tanh() * x.sin().sum()).sum(), x.float(), 3)
    with pytest.raises(hofunc.HodcheckError):
        hodcheck(lambda x: ((x @ weight).tanh() * x.sin().sum()).sum(), x.float(), 3, rtol=1e-12, atol=0)


def test_torch_is_wrong_and_differences_see_that_hod_is_right(x: Tensor) -> None:
    weight = rand(CPU, 3, seed=1)
    assert hodcheck(lambda x, w: F.layer_norm(x, (3,), w).tanh(), (x, weight), 2, (0, 1))
    assert hodcheck(lambda x: F.layer_norm(x, (3,)).tanh(), x, 3)


def test_torch_cannot_follow_and_differences_confirm(x: Tensor) -> None:
    with pytest.raises(RuntimeError):
        torch.func.jacrev(untraceable)(x)
    assert hodcheck(untraceable, x, 3)


def test_functions_that_differences_cannot_judge_are_confirmed_by_torch() -> None:
    assert hodcheck(torch.relu, torch.zeros(2, dtype=torch.float64), 2)
    assert hodcheck(lambda x: x.log(), torch.tensor([1e-3, 0.02], dtype=torch.float64), 3)
    assert hodcheck(lambda x: x * 3, torch.ones(2, dtype=torch.float64), 3)


def test_inputs_without_entries_and_scalars() -> None:
    assert hodcheck(torch.sum, torch.ones(0, 2, dtype=torch.float64), 2)
    assert hodcheck(torch.exp, torch.tensor(0.5, dtype=torch.float64), 5)
    assert hodcheck(lambda x, y: x.sin(), (torch.ones((), dtype=torch.float64), torch.ones(0).double()), 2, (0, 1))


def test_a_function_that_sets_its_own_seed_is_a_function(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        torch.manual_seed(1)
        return x * torch.rand(2, 3)

    assert hodcheck(f, x, 2)


# What is wrong.


def test_a_wrong_rule_is_found_and_the_entry_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RULES[torch.ops.aten.sin.default]
    assert isinstance(right, Elementwise)

    def wrong(x: Tensor, y: Tensor, r: int) -> Tensor:
        return -right.derivative(x, y, r) if r == 3 else right.derivative(x, y, r)

    monkeypatch.setitem(RULES, torch.ops.aten.sin.default, replace(right, derivative=wrong, factors=None))
    monkeypatch.setattr(cache, "_plans", type(cache._plans)())
    point = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert hodcheck(torch.sin, point, 2)
    with pytest.raises(hofunc.HodcheckError) as caught:
        hodcheck(torch.sin, point, 3)
    pattern = (
        r"hodcheck: d\^3 f\(\*args\)\[0\] / d args\[0\]\[0\] d args\[0\]\[0\] d args\[0\]\[0\] is 2 off, \S+ allowed; "
        r"2 of 16 entries differ: got 1, expected -(1|0\.9999\d+) by differences of order 2, which are good to \S+; "
        r"nested torch.func.jacrev has -1 \(called at test_check\.py:\d+\)\. If f is smooth there .*report it\."
    )
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)
    assert hodcheck(torch.sin, point, 3, raise_exception=False) is False


@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_order_is_checked(order: int, x: Tensor, break_hod: Callable) -> None:
    break_hod(order, lambda d: d * (1 + 1e-6))
    assert not hodcheck(dense, x, 3, raise_exception=False)
    assert order == 1 or hodcheck(dense, x, order - 1)


def test_the_entry_is_named_in_pytrees(x: Tensor, break_hod: Callable) -> None:
    def f(parameters: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = (x @ parameters["w"]).tanh()
        return y.sum(), {"rows": y.prod(1) * parameters["b"]}

    def change(d: Tensor) -> Tensor:
        if d.shape != (2, 3, 2, 2, 3):  # the rows by w and x
            return d
        d = d.clone()
        d[1, 2, 0, 1, 2] += 0.25
        return d

    break_hod(2, change)
    parameters = {"w": rand(CPU, 3, 2, seed=1), "b": rand(CPU, 2, seed=2)}
    with pytest.raises(hofunc.HodcheckError) as caught:
        hodcheck(f, (parameters, x), 2, (0, 1))
    name = "d^2 f(*args)[1]['rows'][1] / d args[0]['w'][2, 0] d args[1][1, 2] is 0.25 off"
    assert name in str(caught.value)


def test_what_torch_has_wrong_too_is_found() -> None:
    """An op without a rule is taken from torch, so that torch alone would confirm it whatever it said."""

    class Wrong(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Tensor], _: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 2 * ctx.saved_tensors[0] ** 2

    point = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = torch.func.jacrev(Wrong.apply)(point)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracles, "hod", lambda f, order, argnums, strategy: lambda x: found)
        with pytest.raises(
            hofunc.HodcheckError, match=r"got 8, expected 12\S* by differences of order 0.*jacrev has 8 "
        ):
            hodcheck(Wrong.apply, point, 1)


def test_wrong_shapes(x: Tensor, break_hod: Callable) -> None:
    break_hod(1, lambda d: d[..., :1])
    with pytest.raises(hofunc.HodcheckError, match=re.escape("order 1: got tensors of shapes [(2, 2, 2, 1)]")):
        hodcheck(dense, x, 1)


def test_nan_is_off(x: Tensor, break_hod: Callable) -> None:
    break_hod(2, lambda d: torch.where(d == d.max(), torch.nan, d))
    with pytest.raises(hofunc.HodcheckError, match="got nan, expected"):
        hodcheck(dense, x, 2)


KINK = torch.tensor([0.0, 0.7, 1.3], dtype=torch.float64)


def slanted(x: Tensor) -> Tensor:
    """Return a sum of powers of which nobody has the derivative at zero: to hod and to torch it is nan."""
    return (x.abs().sqrt() * x).sum()


def test_nan_that_all_have_is_no_mismatch() -> None:
    assert hofunc.hod(slanted, 1)(KINK).isnan().tolist() == [True, False, False]
    assert hodcheck(slanted, KINK, 2)


@pytest.mark.parametrize("order", [1, 2])
def test_nan_that_all_have_hides_no_wrong_entry_beside_it(
    order: int, break_hod: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which torch has too, as it may have: only differences know."""
    monkeypatch.setattr(oracles.Subject, "nested", lambda subject, order: subject.derivative(order))
    assert hodcheck(slanted, KINK, 2)
    break_hod(order, lambda d: torch.where(d == d.nan_to_num(-torch.inf).max(), 1.01 * d, d))
    with pytest.raises(hofunc.HodcheckError, match=rf"d\^{order} .* by differences"):
        hodcheck(slanted, KINK, 2)


def test_nan_that_all_have_is_off_where_differences_know_better() -> None:
    with pytest.raises(hofunc.HodcheckError, match=r"got nan, expected .* by differences"):
        hodcheck(lambda x: ((x * x).sqrt() ** 2).sum(), KINK, 1)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_tolerances_follow_the_scale_of_the_function(scale: float, x: Tensor, break_hod: Callable) -> None:
    assert hodcheck(lambda x: mixed(x) * scale, x, 2)
    break_hod(2, lambda d: d * (1 + 1e-6))
    assert not hodcheck(lambda x: mixed(x) * scale, x, 2, raise_exception=False)


def test_what_no_oracle_can_confirm() -> None:
    def f(x: Tensor) -> Tensor:
        return (untraceable(x)[1] * x[0]).abs()

    point = torch.tensor([0.0, 1.0], dtype=torch.float64)
    with pytest.raises(hofunc.HodcheckError) as caught:
        hodcheck(f, point, 1)
    pattern = (
        r"hodcheck: no oracle confirms d\^1 f\(\*args\) / d args\[0\]\[0\]: got 0, expected a second opinion, but "
        r"nested torch\.func\.jacrev fails with \w+ \(.*\), and differences of order 0 have \S+, good to 0\.8 only "
        r"\(called at test_check\.py:\d+\)\. Pass float64, and args .*\."
    )
    assert re.fullmatch(pattern, str(caught.value)), str(caught.value)
    assert hodcheck(f, point, 1, raise_exception=False) is False


def test_what_is_detached_is_no_constant_to_differences(x: Tensor) -> None:
    with pytest.raises(hofunc.HodcheckError, match=r"has no \.detach\(\)"):
        hodcheck(lambda x: x * x.detach(), x, 1)


# What cannot be checked.


@pytest.mark.parametrize("order", [0, -1, True, 1.5])
def test_order(order: Any, x: Tensor) -> None:
    with pytest.raises(hofunc.ArgumentError, match=rf"hodcheck: order: got {order}, expected an int of at least 1"):
        hodcheck(mixed, x, order, raise_exception=False)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.int64, "a floating-point or complex dtype"),
        (torch.bfloat16, "torch.float64, or torch.float32"),
        (torch.float16, "torch.float64, or torch.float32"),
    ],
)
def test_dtypes(dtype: torch.dtype, expected: str, x: Tensor) -> None:
    match = f"hodcheck: an input to differentiate by.*: got dtype {dtype}, expected {expected}"
    with pytest.raises(hofunc.ArgumentError, match=match):
        hodcheck(lambda x: x * x, x.to(dtype), 1, raise_exception=False)


def test_outputs(x: Tensor) -> None:
    with pytest.raises(
        hofunc.ArgumentError, match=r"an output of f: got dtype torch\.bfloat16, expected torch\.float64"
    ):
        hodcheck(lambda x: x.bfloat16(), x)
    with pytest.raises(hofunc.ArgumentError, match=r"hodcheck: an output of f: got dtype torch\.bool"):
        hodcheck(lambda x: x > 0, x)


def test_a_point_at_which_f_is_not_finite(x: Tensor) -> None:
    with pytest.raises(hofunc.ArgumentError, match=r"hodcheck: f\(\*args\): got an entry that is not finite"):
        hodcheck(torch.log, -x.abs())


def test_too_many_entries() -> None:
    x = torch.ones(300, dtype=torch.float64)
    with pytest.raises(hofunc.ArgumentError) as caught:
        hodcheck(torch.sin, x, 3)
    got = "got 3, at which the derivative has 300 x 300^3 = 8100000000 entries, expected at most max_entries=1000000"
    assert got in str(caught.value)
    with pytest.raises(hofunc.ArgumentError, match="max_entries=7"):
        hodcheck(torch.sin, x[:2], 2, max_entries=7)
    assert hodcheck(torch.sin, x[:2], 2, max_entries=8)


def test_random_numbers(x: Tensor) -> None:
    with pytest.raises(hofunc.ArgumentError, match="hodcheck: f is not pure: got random numbers drawn"):
        hodcheck(lambda x: F.dropout(x, 0.5), x)


def test_a_function_that_counts_its_calls(x: Tensor) -> None:
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    with pytest.raises(hofunc.ArgumentError, match=r"got f\(\*args\)\[\d, \d\] of \S+ and of \S+ at the second call"):
        hodcheck(f, x)
    with pytest.raises(hofunc.ArgumentError, match="a result of another structure at its second call"):
        hodcheck(lambda x: f(x)[: len(calls) % 2], x)


def test_writing_to_an_argument(x: Tensor) -> None:
    before = x.clone()
    with pytest.raises(hofunc.MutationError, match=r"hodcheck: f is not pure: got args\[0\] with other values"):
        hodcheck(lambda x: x.add_(1), x)
    with pytest.raises(hofunc.MutationError, match=re.escape("got args[1]['n'] with other values after a call")):
        hodcheck(lambda x, other: x * other["n"].add_(1), (x, {"n": torch.tensor([2])}))
    assert torch.equal(x, before)


def test_differences_of_a_number_by_a_number_have_its_shape() -> None:
    """In single precision torch is not confirmed to the last digits along a direction, so that differences decide."""
    assert hofunc.hodcheck(lambda x: (x**3).sum(), torch.tensor(1.0))
