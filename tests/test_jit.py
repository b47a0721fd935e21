"""jit: that it returns what the transform returns, whatever changes underneath, and plans no more than it has to."""

import copy
import gc
import pickle
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

import hofunc
from hofunc import hod, jit
from hofunc.jitted import MANY
from hofunc.rules.registry import RULES
from tests import checks
from tests.cases import rand
from tests.checks import Ops, refused
from verification.oracles import nested_reverse


def assert_equal(got: Any, expected: Any, tolerance: float = 1e-11) -> None:
    checks.assert_equal(got, expected, tolerance)


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 4, 3)


def cubed(x: Tensor) -> Tensor:
    return (x.sin() ** 3).sum()


def scaled(x: Tensor, scale: float = 2.0) -> Tensor:
    return scale * cubed(x)


# What it returns, and how many plans it makes.


@pytest.mark.parametrize(
    ("transform", "keywords"),
    [
        (hod(cubed, 3), ()),
        (hofunc.hessian(cubed, layout="compact"), ()),
        (hofunc.jacobian(lambda x: (x.exp(), {"a": x.cos()})), ()),
        (hofunc.derivatives(cubed, 2), ()),
        (hofunc.einsum(lambda x: x.sin().prod(-1), "b, b i, b i -> b"), ()),
        (hofunc.laplacian(lambda x: x.sin().prod(-1)), ()),
        (hofunc.hvp(cubed), ("vector",)),
        (hofunc.jvp(cubed), ("vector",)),
        (hofunc.ggnvp(torch.sin, cubed), ("vector",)),
        (hofunc.directional(cubed, 3), ("vector",)),
        (hod(cubed, 2, chunk_size=2), ()),
    ],
    ids=lambda value: value._options.name if hasattr(value, "_options") else "",
)
def test_every_transform(transform: Callable[..., Any], keywords: tuple[str, ...], x: Tensor) -> None:
    jitted: Any = jit(transform)
    for value in (x, x + 1, x.exp()):
        given = dict.fromkeys(keywords, value.cos())
        assert_equal(tree(jitted(value, **given)), tree(transform(value, **given)))
    assert len(jitted.plans) == 1


def tree(result: Any) -> Any:
    return result.dense() if isinstance(result, hofunc.Derivative) else result


def test_it_never_calls_the_function_again(x: Tensor) -> None:
    calls = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return cubed(x)

    jitted = jit(hod(f, 2))
    jitted(x)
    made = len(calls)
    for _ in range(5):
        jitted(x)
    assert len(calls) == made


def test_forms_of_arguments(x: Tensor) -> None:
    def f(tree: Any, *rest: Any, scale: Any = 1.0, power: int = 2) -> Tensor:
        return sum(cubed(leaf) ** power for leaf in tree.values()) * scale + sum(each.sum() for each in rest)

    calls: list[tuple[tuple, dict]] = [
        (({"a": x},), {}),
        (({"a": x[0]},), {}),
        (({"a": x.float()},), {}),
        (({"a": x, "b": x},), {}),
        (({"a": x}, x), {}),
        (({"a": x},), {"scale": x[0, 0]}),
        (({"a": x},), {"scale": 2.0}),
        (({"a": x},), {"scale": 2}),
        (({"a": x},), {"power": 3}),
    ]
    jitted = jit(hofunc.hessian(f))
    for _ in range(2):
        for args, kwargs in calls:
            assert_equal(jitted(*args, **kwargs), hofunc.hessian(f)(*args, **kwargs), 1e-5)
    assert len(jitted.plans) == len(calls)
    keywords = {"power": 3, "scale": 2.0}
    jitted({"a": x}, **keywords)
    jitted({"a": x}, **dict(reversed(keywords.items())))
    assert len(jitted.plans) == len(calls) + 1


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, True), (1, 1.0), ("a", "b"), (None, 0)])
def test_values_that_differ_to_a_function(one: Any, other: Any, x: Tensor) -> None:
    jitted = jit(hod(lambda x, mode: cubed(x) * (2 if repr(mode) == repr(one) else 3), 2))
    for mode in (one, other, one):
        assert_equal(jitted(x, mode), hod(cubed, 2)(x) * (2 if mode is one else 3))
    assert len(jitted.plans) == 2


def test_nan_is_the_same_as_nan(x: Tensor) -> None:
    jitted = jit(hod(lambda x, _: cubed(x), 1))
    jitted(x, float("nan")), jitted(x, float("nan"))
    assert len(jitted.plans) == 1


def test_numbers_that_are_differentiated_by_are_free(x: Tensor) -> None:
    f = hofunc.hessian(lambda a, tree, x: a**3 * tree["b"] ** 2 * x.sum(), argnums=(0, 1))
    jitted = jit(f)
    for a in (1.0, 2.0, -3.0):
        assert_equal(jitted(a, {"b": a + 1}, x.float()), f(a, {"b": a + 1}, x.float()), 1e-5)
    jitted(torch.tensor(4.0), {"b": 1.0}, x.float())
    assert len(jitted.plans) == 1


# What may change underneath.


def test_branches_on_values(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return cubed(x) if x.max() > 1.5 else (x**2).sum()
        return x.exp().sum() * x.abs().max().item()

    jitted, values = jit(hod(f, 2)), (x.abs(), x.abs() / 9, -x.abs())
    for _ in range(3):
        for value in values:
            assert_equal(jitted(value), hod(f, 2)(value))
    assert len(jitted.plans) == 3


def test_of_many_branches_two_plans_are_tried(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """That which was used last, and that which fits; what else reads other values is left out."""

    def f(x: Tensor) -> Tensor:
        drawn, turns = torch.rand_like(x).mean(), 1
        while x.abs().max() > 1:
            x, turns = x / (2 if x.sum() > 0 else 3), turns + 1
        return (x**turns).sum() + (x.exp().sum() if drawn > 0.5 else x.sum())

    jitted, tried, of_leaves = jit(hod(f, 2)), [], hofunc.Plan.of_leaves

    def counted(plan: hofunc.Plan, leaves: Any) -> Any:
        tried.append(plan)
        return of_leaves(plan, leaves)

    scales = [float(sign * 2.5**power) for power in range(4) for sign in (1, -1)]
    for twice in (False, True):
        monkeypatch.setattr(hofunc.Plan, "of_leaves", counted if twice else of_leaves)
        for scale in scales:
            for seed in range(3):
                torch.manual_seed(seed)
                expected = [hod(f, 2)(x.abs() * scale), torch.rand(3)]
                torch.manual_seed(seed)
                tried.clear()
                assert_equal([jitted(x.abs() * scale), torch.rand(3)], expected)
                assert len(tried) <= 2
    assert len(jitted.plans) > 12


def test_trees_of_branches_forget_plans_that_are_not_kept(x: Tensor) -> None:
    jitted = jit(hod(lambda x: x.prod() * x.sum().item(), 1), max_plans=2)
    for value in range(1, 9):
        jitted(value * x)
        jitted(x[:1])
    (entry,) = (each for each in jitted._kept.entries() if each.branches.count > 1)
    assert entry.branches.count <= 4


def test_python_that_the_function_reads(x: Tensor) -> None:
    box = SimpleNamespace(power=2, layers=[torch.sin], flag=False)

    def f(x: Tensor) -> Tensor:
        for layer in box.layers:
            x = layer(x)
        return (x**box.power).sum() * (3 if box.flag else 1)

    jitted = jit(hod(f, 2))

    def check() -> None:
        assert_equal(jitted(x), hod(f, 2)(x))

    check()
    for name, value in (("power", 3), ("flag", True), ("layers", [torch.cos, torch.exp]), ("power", 2)):
        setattr(box, name, value)
        check()
    box.layers.append(torch.tanh)
    check()
    planned = len(jitted.plans)
    box.layers.pop()
    check()
    assert len(jitted.plans) == planned


def test_captured_tensors(x: Tensor) -> None:
    module = nn.Linear(3, 3, dtype=x.dtype, device=x.device)
    f = hod(lambda x: (module(x).tanh() ** 2).sum(), 2)
    jitted = jit(f)
    with torch.no_grad():
        assert_equal(jitted(x), f(x))
        module.weight.mul_(2)
        assert_equal(jitted(x), f(x))
        assert len(jitted.plans) == 1
        module.weight = nn.Parameter(module.weight.exp())
        assert_equal(jitted(x), f(x))
        module.bias = None  # type: ignore[assignment]
        assert_equal(jitted(x), f(x))
        module.float()
        assert_equal(jitted(x.float()), f(x.float()), 1e-5)
        other = module.weight
        other.set_(torch.cat([other, other]))  # type: ignore[call-overload]
        assert_equal(jitted(x.float()), f(x.float()), 1e-5)


def test_the_state_of_torch(x: Tensor) -> None:
    weight = rand(x.device, 3, 3, seed=1).float()
    f = hod(lambda x: ((x @ weight) ** 3).sum() * torch.tensor(0.1), 2)
    jitted, value = jit(f), x.float()

    def check(tolerance: float) -> None:
        got, expected = jitted(value), f(value)
        assert got.dtype == expected.dtype
        assert_equal(got, expected, tolerance)

    for _ in range(2):
        check(1e-5)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            check(1e-1)
        torch.set_default_dtype(torch.float64)
        try:
            check(1e-5)
        finally:
            torch.set_default_dtype(torch.float32)
    assert len(jitted.plans) == 3


def test_gradients_on_or_off(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return cubed(x) * (2 if x.requires_grad else 1) * (3 if torch.is_grad_enabled() else 1)

    jitted = jit(hod(f, 2))
    for needs in (False, True, False):
        value = x.clone().requires_grad_(needs)
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                got, expected = jitted(value), hod(f, 2)(value)
                assert_equal(got, expected)
                assert got.requires_grad == expected.requires_grad


def test_gradients_through_it(x: Tensor) -> None:
    weight = rand(x.device, 3, 3, seed=2).requires_grad_()
    f = hod(lambda x: cubed(x @ weight), 2)
    jitted = jit(f)
    for _ in range(2):
        value = x.clone().requires_grad_()
        got = torch.autograd.grad(jitted(value).sin().sum(), (value, weight))
        assert_equal(got, torch.autograd.grad(f(value).sin().sum(), (value, weight)))


def test_inside_transforms_and_other_recordings(x: Tensor) -> None:
    jitted = jit(hod(scaled, 2))
    outer = lambda g: lambda x: (g(x, 3.0) * x.exp().sum()).sin().sum()  # noqa: E731
    rows = x.reshape(2, 6)
    assert_equal(vmap(lambda x: jitted(x, 3.0))(rows), vmap(lambda x: hod(scaled, 2)(x, 3.0))(rows))
    assert_equal(torch.func.grad(outer(jitted))(x), torch.func.grad(outer(hod(scaled, 2)))(x))
    assert_equal(hod(outer(jitted), 2)(x[0]), hod(outer(hod(scaled, 2)), 2)(x[0]))
    assert len(jitted.plans) == 0
    twice = jit(hod(outer(jitted), 2))
    assert_equal(twice(x[0]), nested_reverse(outer(nested_reverse(scaled, 2)), 2)(x[0]))


def test_options_and_rules(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = RULES[torch.ops.aten.cumprod.default]
    monkeypatch.delitem(RULES, torch.ops.aten.cumprod.default)
    f = hofunc.hessian(lambda x: x.cumprod(0).sum())
    jitted = jit(f)
    with hofunc.options(fallback="quiet"):
        assert_equal(jitted(x[0]), f(x[0]))
    with hofunc.options(fallback="error"), pytest.raises(hofunc.UnsupportedOpError):
        jitted(x[0])
    monkeypatch.setitem(RULES, torch.ops.aten.cumprod.default, rule)
    with hofunc.options(fallback="error"):
        assert_equal(jitted(x[0]), f(x[0]))


def test_random_numbers(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        dropped = nn.functional.dropout(x, 0.5)
        return (dropped**3).sum() if dropped[0, 0] == 0 else (dropped**2 + 1).prod()

    jitted = jit(hod(f, 2))
    for seed in range(8):
        torch.manual_seed(seed)
        expected = [hod(f, 2)(x), torch.rand(3)]
        torch.manual_seed(seed)
        assert_equal([jitted(x), torch.rand(3)], expected)
    assert len(jitted.plans) == 2


def _of_own_generator(x: Tensor) -> Tensor:
    drawn = torch.rand(3, generator=torch.Generator().manual_seed(3)).to(x)
    return (x**3 * drawn * torch.rand(3).to(x)).sum()


def _after_a_seed_is_set_back(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(3)
        seeded = torch.rand(3)
    return (x**3 * seeded.to(x) * torch.rand(3).to(x)).sum()


def _after_unneeded_ones(x: Tensor) -> Tensor:
    total = torch.rand_like(x).sum() + torch.rand(2).sum().to(x)
    return (x**3 * torch.rand_like(x) * torch.rand(3).to(x)).sum() + total


def _not_needed(x: Tensor) -> Tensor:
    return x.pow(3).sum() + torch.rand_like(x).sum()


# Functions that draw random numbers for no tensor that they are given.
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "made": lambda x: (x**3 * torch.rand(3).to(x)).sum(),
    "written": lambda x: (x**3 * torch.empty(3).normal_().to(x)).sum(),
    "permutation": lambda x: (x[:, torch.randperm(3)] ** 3 * torch.arange(3).to(x)).sum(),
    "branch": lambda x: x.pow(3).sum() if torch.rand(()) > 0.5 else x.pow(4).sum(),
    "branch on what is drawn for a tensor": lambda x: x.pow(3 if torch.rand_like(x[0, 0]) > 0.5 else 4).sum(),
    "mask": lambda x: (x[:, torch.rand(3) > 0.5] ** 3).sum(),
    "own generator too": _of_own_generator,
    "after a seed": _after_a_seed_is_set_back,
    "after unneeded ones": _after_unneeded_ones,
    "not needed": _not_needed,
}


@pytest.mark.filterwarnings("ignore::hofunc.PlanningWarning")
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_for_no_tensor(name: str, x: Tensor) -> None:
    transform = hod(DRAWS[name], 2)
    jitted = jit(transform)
    for seed in range(6):
        torch.manual_seed(seed)
        expected = [transform(x), transform(x), torch.rand(3)]
        torch.manual_seed(seed)
        assert_equal([jitted(x), jitted(x), torch.rand(3)], expected)


def test_random_numbers_that_a_function_seeds_itself(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return (x**3 * torch.rand(3).to(x)).sum()

    jitted = jit(hod(f, 2))
    for _ in range(2):
        assert_equal(jitted(x), hod(f, 2)(x))
    assert len(jitted.plans) == 1


def test_random_numbers_of_a_generator_that_is_captured(x: Tensor) -> None:
    generator = torch.Generator()

    def f(x: Tensor) -> Tensor:
        return (x**3 * torch.rand(3, generator=generator).to(x)).sum()

    jitted = jit(hod(f, 2))
    results: list[Any] = []
    for call in (jitted, hod(f, 2)):
        generator.manual_seed(5)
        results.append([call(x), call(x)])
    assert_equal(*results)
    assert len(jitted.plans) == 1


def test_an_estimate_draws_as_it_does_without(x: Tensor) -> None:
    def estimate(generator: torch.Generator) -> Any:
        return hofunc.laplacian(lambda x: x.sin().prod(-1), samples=2, generator=generator)

    def generator() -> torch.Generator:
        return torch.Generator(x.device).manual_seed(0)

    jitted, expected = jit(estimate(generator())), estimate(generator())
    for value in (x, x + 1, x[:2]):
        assert_equal(jitted(value), expected(value))


def test_aux_and_buffers(x: Tensor) -> None:
    module = nn.BatchNorm1d(3, dtype=x.dtype, device=x.device)

    def f(x: Tensor, buffers: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        buffers = {name: each.clone() for name, each in buffers.items()}
        return (functional_call(module, buffers, (x,)) ** 3).sum(), buffers

    transform = hofunc.hessian(f, has_aux=True)
    jitted, buffers, others = jit(transform), dict(module.named_buffers()), dict(module.named_buffers())
    for _ in range(3):
        got, buffers = jitted(x, buffers)
        expected, others = transform(x, others)
        assert_equal([got, buffers], [expected, others])
    assert len(jitted.plans) == 1


def test_functions_without_a_plan_are_recorded(x: Tensor) -> None:
    box = SimpleNamespace(state=0)

    def f(x: Tensor) -> Tensor:
        box.state += 1
        return cubed(x) * box.state

    jitted = jit(hod(f, 1))
    with pytest.warns(hofunc.PlanningWarning, match="<lambda>|f has no plan, and is recorded at every call"):
        jitted(x)
    for _ in range(2):
        before = box.state
        got = jitted(x)
        box.state = before
        assert_equal(got, hod(f, 1)(x))
    assert "looks at what its calls change" in jitted.explain_misses()


def test_writes_to_captured_tensors(x: Tensor) -> None:
    total = torch.zeros_like(x)
    jitted = jit(hod(lambda x: cubed(x + total.add_(1)), 1))
    with pytest.raises(hofunc.MutationError):
        jitted(x)
    assert not total.any()


# How far it plans.


def chained(x: Tensor) -> Tensor:
    """Return what several strategies take about as long for, so that some are left out at first."""
    if x.sum() > 1e6:
        return x.square().sum()
    for _ in range(3):
        x = (x @ x.T).sin() @ x
    return x.sum(0)


def branched(x: Tensor, **options: Any) -> Any:
    """Return a jitted Hessian of which the branch is planned that is not the one of an argument."""
    jitted = jit(hod(chained, 2), **options)
    jitted(x + 1e7)
    return jitted


def test_the_first_plan_is_made_in_full(x: Tensor) -> None:
    jitted = jit(hod(chained, 2))
    jitted(x)
    assert [plan._calls for plan in jitted.plans] == [float("inf")]


def test_branches_are_planned_quickly_and_in_full_where_they_are_called_often(x: Tensor) -> None:
    transform, jitted = hod(chained, 2), branched(x)
    (other,) = jitted.plans
    expected, full = transform(x), transform.plan(x)
    assert_equal(jitted(x), expected)
    first = jitted.plans[-1]
    assert 1 < first._calls < float("inf")
    entry = jitted._kept.entries()[0]
    entry.plans[0].due.calls = 3
    for _ in range(2):
        assert_equal(jitted(x), expected)
        assert {*jitted.plans} == {other, first}
    assert_equal(jitted(x), expected)
    (second,) = {*jitted.plans} - {other}
    assert second is not first
    assert (second.strategy, second.steps, second.flops) == (full.strategy, full.steps, full.flops)
    for _ in range(5):
        assert_equal(jitted(x), expected)
    assert {*jitted.plans} == {other, second}


def test_plans_by_hand_are_in_full(x: Tensor) -> None:
    quick = branched(x)
    quick(x)
    first = quick.plans[-1]
    assert quick.plan(x) is not first
    assert quick.plan(x) in quick.plans
    assert first not in quick.plans
    assert quick.plan(x)._calls == float("inf")
    with hofunc.options(planning="full"):
        full = branched(x)
        full(x)
    assert [each._calls for each in full.plans] == [float("inf")] * 2
    with hofunc.options(planning="quick"):
        never = branched(x)
        never(x)
    (entry,) = never._kept.entries()
    assert entry.plans[0].due.calls == float("inf")


def test_a_quick_plan_stays_where_none_can_be_made_in_full(x: Tensor) -> None:
    box = {"fails": False}

    def f(x: Tensor) -> Tensor:
        if box["fails"]:
            raise ValueError("not now")
        return chained(x)

    jitted = jit(hod(f, 2))
    jitted(x + 1e7)
    expected = jitted(x)
    (entry,) = jitted._kept.entries()
    entry.plans[0].due.calls = 1
    plan = jitted._transform.plan_of

    def failing(*args: Any, **options: Any) -> Any:
        box["fails"] = True
        try:
            return plan(*args, **options)
        finally:
            box["fails"] = False

    jitted._transform.plan_of = failing  # type: ignore[method-assign]
    for _ in range(3):
        assert_equal(jitted(x), expected)
    assert len(jitted.plans) == 2
    assert entry.plans[0].due.calls == float("inf")


# Static arguments.


def test_static_arguments(x: Tensor) -> None:
    def f(x: Tensor, widths: tuple[int, ...], *, mode: str = "sin") -> Tensor:
        return (getattr(x, mode)() ** len(widths)).sum()

    jitted = jit(hod(f, 2), static_argnames=("widths", "mode"))
    for widths, mode in (((1, 2), "sin"), ((1, 2, 3), "sin"), ((1, 2), "cos"), ((1, 2), "sin")):
        assert_equal(jitted(x, widths, mode=mode), hod(f, 2)(x, widths, mode=mode))
    jitted(x, widths=(1, 2))
    assert len(jitted.plans) == 4
    what = "jit of f: an argument that is no tensor"
    refused(lambda: jitted(x, [1, 2]), hofunc.ArgumentError, what, "got a list, which is not hashable", "expected")
    refused(lambda: jitted(x, (x, 2)), hofunc.ArgumentError, "jit: the static argument 'widths'", "got a tensor")
    refused(lambda: jitted(x, (1,), mode={"a"}), hofunc.ArgumentError, what, "got a set, which is not hashable")


def test_wrong_arguments(x: Tensor) -> None:
    wrong: list[tuple[tuple, dict, str]] = [
        ((cubed,), {}, "jit: transform: got function, expected a transform"),
        ((jit(hod(cubed)),), {}, "jit: transform: got Jitted, expected a transform"),
        ((hod(cubed),), {"max_plans": 0}, "jit: max_plans: got 0, expected an int of at least 1"),
        ((hod(cubed),), {"max_plans": True}, "jit: max_plans: got True"),
        ((hod(cubed),), {"on_miss": "raise"}, "jit: on_miss: got 'raise', expected one of"),
        ((hod(cubed),), {"compile": "later"}, "jit: compile: got 'later', expected one of"),
        ((hod(cubed),), {"static_argnames": "y"}, "jit: static_argnames: got 'y', expected names among x"),
        ((hod(cubed),), {"static_argnames": 1}, "jit: static_argnames: got 1, expected the name of an argument"),
    ]
    for args, kwargs, message in wrong:
        refused(lambda args=args, kwargs=kwargs: jit(*args, **kwargs), hofunc.ArgumentError, message)  # type: ignore[misc]
    jitted: Any = jit(hod(scaled, 1))
    for args in ((), (x.long(),), (None,)):
        with pytest.raises(hofunc.ArgumentError):
            jitted(*args)
    with pytest.raises(TypeError):
        jitted(x, 1.0, 2.0)


# Misses.


def test_misses_are_warned_of_or_refused(x: Tensor) -> None:
    warned, strict = jit(hod(scaled, 1), on_miss="warn"), jit(hod(scaled, 1), on_miss="error")
    warned(x), strict(x)
    difference = r"args\[0\] of a plan: got shape \(2, 3\), expected shape \(4, 3\), as planned"
    with pytest.warns(hofunc.PlanningWarning, match=f"scaled is planned once more: hod: {difference}"):
        warned(x[:2])
    with pytest.raises(hofunc.PlanMismatchError, match=f"a call that fits no plan: hod: {difference}"):
        strict(x[:2])
    strict(x + 1)
    strict.plan(x[:2])
    strict(x[:2]), warned(x[:2])
    assert len(strict.plans) == 2


def test_why_calls_fitted_no_plan(x: Tensor) -> None:
    def f(x: Tensor, scale: float) -> Tensor:
        return cubed(x) * scale if x.sum() > 0 else (x**2).sum()

    jitted = jit(hod(f, 1))
    jitted(x.abs(), 1.0), jitted(x.abs(), 2.0), jitted(-x.abs(), 2.0), jitted(x.abs()[:1], 2.0)
    text = jitted.explain_misses()
    assert text.splitlines()[0] == "64 plans at most of f, 4 made:"
    for part in (
        "args[0]: float64 (4, 3), args[1]: 1.0\n     it was the first",
        "args[1]: 2.0\n     hod: args[1] of a plan: got 2.0, expected 1.0, as planned",
        "reads values of tensors: got False from aten",
        "got shape (1, 3), expected shape (4, 3)",
        "The last call that fitted none: hod: args[0] of a plan: got shape (1, 3)",
    ):
        assert part in text
    assert repr(jitted) == "jit(f, plans=4)"
    jitted.clear()
    assert jitted.plans == ()


def test_the_plan_that_was_not_used_for_longest_goes(x: Tensor) -> None:
    jitted = jit(hod(scaled, 1), max_plans=3)
    shapes = [tuple(x[:rows].shape) for rows in (1, 2, 3, 4)]
    for rows in (1, 2, 3, 1, 4):
        jitted(x[:rows])
    assert [plan.takes for plan in jitted.plans] == [f"args[0]: float64 {shapes[n - 1]}" for n in (3, 1, 4)]


def test_the_branch_that_was_not_taken_for_longest_goes() -> None:
    jitted = jit(hod(lambda x: x.prod() * x.sum().item(), 1), max_plans=3)
    plans = {}
    for value in (1, 2, 3, 1, 4):
        plans[value] = jitted.plan(value * torch.ones(2))
    assert [*map(id, jitted.plans)] == [id(plans[value]) for value in (3, 1, 4)]


@pytest.mark.parametrize("kind", ["shapes", "numbers", "values"])
def test_calls_that_never_fit_a_plan(kind: str, x: Tensor) -> None:
    """They are recorded in the end, which takes less than planning, and give their place to none."""

    def f(x: Tensor, number: float) -> Tensor:
        return (x**3).sum() * number * (x.sum().item() if kind == "values" else 1)

    jitted = jit(hod(f, 1), max_plans=2 if kind == "shapes" else 64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(2 * MANY):
            value = torch.ones(1 + number) if kind == "shapes" else x * (1 + number if kind == "values" else 1)
            scale = float(number) if kind == "numbers" else 1.0
            before = jitted.plans
            assert_equal(jitted(value, scale), hod(f, 1)(value, scale))
            if number > 2 * MANY - 4:
                assert jitted.plans == before
    assert len(jitted.plans) == (2 if kind == "shapes" else MANY - 1)
    messages = [str(each.message) for each in caught if "jitted" in str(each.message)]
    assert len(messages) == 1
    assert re.search(r"f, jitted, was planned for 9 calls in a row, and is recorded from now on .*: got", messages[0])
    fitting = jitted.plans[-1]
    jitted(torch.ones(MANY + 1) if kind == "shapes" else value * 0 + x[:4], 0.5)
    assert fitting in jitted.plans


def test_from_several_threads(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return cubed(x) if x.sum() > 0 else (x**4).sum()

    jitted, errors = jit(hod(f, 2), max_plans=3), []
    values = [sign * x.abs()[:rows] for rows in (1, 2) for sign in (1, -1)]
    expected = [hod(f, 2)(value) for value in values]

    def run() -> None:
        try:
            for _ in range(5):
                for value, right in zip(values, expected, strict=True):
                    assert_equal(jitted(value), right)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(jitted.plans) <= 3


def test_what_is_read_changes_before_the_new_plan_runs(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    box = {"scale": 2.0}
    transform = hod(lambda x: (x**3 * box["scale"]).sum(), 2)
    jitted, planned = jit(transform), transform.plan_of

    def plan_of(*args: Any, **keywords: Any) -> Any:
        plan = planned(*args, **keywords)
        box["scale"] += 1  # as another thread may
        return plan

    monkeypatch.setattr(transform, "plan_of", plan_of)
    for _ in range(3):
        result = jitted(x)
        assert_equal(result, transform(x))


def test_nothing_holds_it(x: Tensor) -> None:
    jitted = jit(hod(lambda x: cubed(x * 1.5), 1))
    jitted(x)
    plan = weakref.ref(jitted._transform)
    del jitted
    gc.collect()
    assert plan() is None


def test_it_goes_when_the_interpreter_ends(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is left then goes after torch's modules are empty, by which structures of arguments have no hash.
    jitted = jit(hod(scaled, 1))
    wrong: list[Any] = []
    for scale in (1.0, 2.0):
        jitted(x, scale)
    monkeypatch.setattr(sys, "unraisablehook", wrong.append)
    monkeypatch.setattr(hofunc.internals.TreeSpec, "__hash__", None)
    del jitted
    gc.collect()
    monkeypatch.undo()
    assert wrong == []


def test_copies_start_without_plans(x: Tensor) -> None:
    jitted = jit(hod(cubed, 2), max_plans=3)
    jitted(x)
    for other in (copy.copy(jitted), copy.deepcopy(jitted), pickle.loads(pickle.dumps(jitted))):  # noqa: S301
        assert other.plans == ()
        assert_equal(other(x), jitted(x))
        assert len(other.plans) == 1


def test_a_call_that_fits_makes_no_op_of_its_own(x: Tensor) -> None:
    jitted = jit(hod(cubed, 2))
    plan = jitted.plan(x)
    with Ops() as expected:
        plan(x)
    with Ops() as seen:
        jitted(x)
    assert seen.ops == expected.ops


# Compiled.


def test_inside_torch_compile(x: Tensor) -> None:
    jitted = jit(hod(cubed, 2))

    def f(x: Tensor) -> Tensor:
        return jitted(x).sum() + jit(hod(scaled, 1))(x).sum()

    got = torch.compile(f, backend="eager", fullgraph=True)(x)
    assert_equal(got, f(x))


def test_compiled_plans(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hofunc.Plan, "compile", compile_eagerly)
    jitted = jit(hod(scaled, 2), compile=True)
    for value in (x, x[:1], x + 1):
        assert_equal(jitted(value), hod(scaled, 2)(value))
    assert all(plan.is_compiled for plan in jitted.plans)
    reading = hod(lambda x: cubed(x) * x.sum().item(), 1)
    jitted = jit(reading, compile=True)
    for _ in range(3):
        for value in (x, 2 * x):
            assert_equal(jitted(value), reading(value))
    assert [plan.is_compiled for plan in jitted.plans] == [True, True]


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_what_cannot_be_compiled_runs_uncompiled(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hofunc.Plan, "compile", compile_eagerly)
    checked = hod(lambda z: (z**3).sum(), holomorphic=True)
    jitted, z = jit(checked, compile=True), torch.complex(x, x)
    with pytest.warns(hofunc.PlanningWarning, match="runs uncompiled: .*holomorphic=True"):
        assert_equal(jitted(z), checked(z))


_compile = hofunc.Plan.compile


def compile_eagerly(plan: hofunc.Plan, **options: Any) -> hofunc.Plan:
    return _compile(plan, backend="eager", **options)


def test_compiled_in_the_background(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hofunc.Plan, "compile", compile_eagerly)
    weight = rand(x.device, 3, 3, seed=2).requires_grad_()
    f = hod(lambda x: cubed(x @ weight), 2)
    jitted = jit(f, compile="background")
    for _ in range(2):
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                got = jitted(x)
                assert_equal(got, f(x))
                assert got.requires_grad == enabled
        run: Any = jitted.plans[0]._run
        while not all(task.done() for task in run._tasks.values()):
            sleep(0.01)
    assert all(task.result() is run._compiled for task in run._tasks.values())
    assert len(run._tasks) == 2


def test_what_cannot_be_compiled_in_the_background_runs_uncompiled(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError("no compiler today")

    monkeypatch.setattr(hofunc.Plan, "compile", partial(_compile, backend=failing))
    monkeypatch.setattr(hofunc.Plan, "compile", lambda plan, **options: _compile(plan, backend=failing, **options))
    jitted = jit(hod(cubed, 2), compile="background")
    assert_equal(jitted(x), hod(cubed, 2)(x))
    run: Any = jitted.plans[0]._run
    while not all(task.done() for task in run._tasks.values()):
        sleep(0.01)
    with pytest.warns(hofunc.PlanningWarning, match="runs uncompiled, as compiling it in the background failed"):
        assert_equal(jitted(x), hod(cubed, 2)(x))
    assert_equal(jitted(x), hod(cubed, 2)(x))


def test_plans_keep_to_what_a_call_keeps_to() -> None:
    """The steps of a derivative stay in the order in which they hold little where those of f come before them."""
    draw = torch.Generator().manual_seed(0)
    first, second = torch.arange(100).repeat(4), torch.randint(100, (400,), generator=draw)
    before, after = (torch.randn(*sizes, generator=draw) for sizes in ((8, 16), (16, 4)))

    def convolved(x: Tensor) -> Tensor:
        def heard(values: Tensor) -> Tensor:
            return torch.zeros(100, values.shape[1]).index_add(0, first, values[second])

        return nn.functional.cross_entropy(heard(heard(x @ before).tanh() @ after), torch.arange(100) % 4)

    x, hessian = torch.randn(100, 8, generator=draw), hofunc.hessian(convolved, layout="compact", max_bytes=7_000_000)
    expected = hessian(x).dense()
    torch.testing.assert_close(hofunc.jit(hessian)(x).dense(), expected)
    assert hessian.plan(x).peak_bytes <= 7_000_000
