"""Frozen plans: that they return what the transform returns, and refuse what they were not made for."""

import pickle
import random
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from operator import getitem
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map

import hofunc
from hofunc import hod
from tests import checks
from tests.cases import CASES, Case, distinct, mixed, rand
from tests.checks import Ops, has_compiler, refused
from verification.oracles import nested_reverse, relative_error
from verification.waits import Waits

pytestmark = [
    pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning"),
]
assert_equal = partial(checks.assert_equal, tolerance=1e-11)
READING = {"a branch that is taken", "a branch that is not taken"}  # cases of functions that look at values
NUMBERS = {"a loop of as many steps as the values say", "what leaves torch is a constant"}
vmap, grad = torch.func.vmap, torch.func.grad


def dense(result: Any) -> Any:
    """Turn every Derivative into a tensor."""

    def is_leaf(value: Any) -> bool:
        return isinstance(value, hofunc.Derivative)

    return tree_map(lambda leaf: leaf.dense() if is_leaf(leaf) else leaf, result, is_leaf=is_leaf)


def moved(args: Any) -> Any:
    """Return other values of the same shapes, near enough to take the same branches."""
    return tree_map(lambda leaf: leaf * 1.01 if isinstance(leaf, Tensor) else leaf, args)


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 4, 3)


# What it returns.


@pytest.mark.parametrize("layout", ["dense", "compact"])
@pytest.mark.parametrize("case", [case for case in CASES if case.name not in NUMBERS], ids=lambda case: case.name)
def test_a_plan_returns_what_the_transform_returns(case: Case, layout: str, device: torch.device) -> None:
    f, args = case.build(device)
    for order in case.orders[:2]:
        transform = hod(f, order, case.argnums, layout=layout)
        plan = transform.plan(*args)
        pickled = pickle.loads(pickle.dumps(plan))  # noqa: S301 - what was pickled here
        for point in (args, moved(args)):
            assert_equal(dense(plan(*point)), dense(transform(*point)))
            same = zip(tree_leaves(pickled(*point)), tree_leaves(plan(*point)), strict=True)
            assert all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in same)
        with Waits(device) as waits:
            plan(*args)
        assert not waits.ops or case.name in READING


@pytest.mark.parametrize("case", [case for case in CASES if case.name not in NUMBERS | READING], ids=lambda c: c.name)
def test_the_graph_returns_the_tensors_of_the_plan(case: Case, device: torch.device) -> None:
    f, args = case.build(device)
    plan = hod(f, 2, case.argnums).plan(*args)
    module = plan.to_fx()
    point = moved(args)
    assert_equal(list(module(*tree_leaves(point))), tree_leaves(plan(*point)))
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not getitem:
            assert isinstance(node.target, torch._ops.OpOverload)
            assert not node.target._schema.is_mutable
        else:
            assert node.op in {"placeholder", "get_attr", "output", "call_function"}


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_values_and_all_orders_by_every_strategy(strategy: str, device: torch.device) -> None:
    weight = rand(device, 3, 3, seed=1)

    def f(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = (x @ weight).tanh().sum(1)
        return y, {"sum": y.sum()}

    transform = hofunc.derivatives(f, 3, strategy=strategy)
    plan = transform.plan(rand(device, 2, 3))
    assert plan.strategy == strategy
    assert plan.orders == (1, 2, 3)
    point = rand(device, 2, 3, seed=2)
    assert_equal(plan(point), transform(point))


@pytest.mark.parametrize("transform", [hofunc.jacobian, hofunc.hessian, hofunc.derivatives])
def test_every_transform_has_plans(transform: Callable[..., Any], x: Tensor) -> None:
    assert_equal(transform(mixed).plan(x[0])(x[1]), transform(mixed)(x[1]))


def test_aux_holds_tensors_anew_and_all_else_as_it_was(x: Tensor) -> None:
    calls: list[float] = []

    def f(x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        calls.append(random.random())  # noqa: S311
        return mixed(x), {"twice": x * 2, "input": x, "drawn": random.random()}  # noqa: S311

    plan = hod(f, 2, has_aux=True).plan(x[0])
    made = len(calls)
    got, aux = plan(x[1])
    assert_equal((got, aux["twice"], aux["input"]), (nested_reverse(mixed, 2)(x[1]), 2 * x[1], x[1]))
    assert plan(x[1])[1]["drawn"] == aux["drawn"]
    assert len(calls) == made, "f is not called again"


def test_arguments_that_are_not_differentiated_are_inputs(x: Tensor, device: torch.device) -> None:
    def f(scale: Tensor, x: Tensor, places: Tensor, power: int, *, weights: dict[str, Tensor]) -> Tensor:
        return ((x[places] @ weights["w"].exp()).sin() ** power * scale).sum()

    transform = hod(f, 2, argnums=1)
    places, others = torch.tensor([2, 0], device=device), torch.tensor([1, 3], device=device)
    plan = transform.plan(x.sum(), x, places, 3, weights={"w": x[:3]})
    for point in ((x[0, 0], x.cos(), others, 3), (x[0, 0], x, others, 3)):
        assert_equal(plan(*point, weights={"w": x[1:]}), transform(*point, weights={"w": x[1:]}))
    assert tuple(plan.to_fx().meta["inputs"]) == ("args[0]", "args[1]", "args[2]", "kwargs['weights']['w']")


def test_the_same_tensor_as_two_arguments(x: Tensor) -> None:
    def g(a: Tensor, b: Tensor) -> Tensor:
        return (a * b.exp()).sum()

    plan = hod(g, 2).plan(x[0], x[0])
    assert_equal(plan(x[0], x[1]), hod(g, 2)(x[0], x[1]))
    plan = hod(g, 2, argnums=(1, 0)).plan(x[0], x[0])
    assert_equal(plan(x[0], x[1]), hod(g, 2, argnums=(1, 0))(x[0], x[1]))


def test_inputs_that_lie_in_memory_in_another_way(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.reshape(-1) * x.view(-1).sin()).sum() + mixed(x.view(2, 6)[0])

    plan = hod(f, 2).plan(x)
    other = rand(x.device, 3, 4, seed=1).t()
    assert_equal(plan(other), hod(f, 2)(other.contiguous()))


def test_fused_attention_of_inputs_that_lie_in_memory_in_another_way(device: torch.device) -> None:
    """Its kernel, which torch calls only where the last axis has no gaps, computes something else where it has."""

    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x.sin())

    x, other = rand(device, 1, 1, 2, 3), rand(device, 1, 1, 2, 3, seed=1)
    plan = hofunc.derivatives(f, 2).plan(x)
    apart = torch.stack([other, other], -1)[..., 0]
    for same in (other.mT.contiguous().mT, apart):
        assert_equal(plan(same), plan(other))


def test_results_of_two_calls_share_no_memory(x: Tensor) -> None:
    weight = x.clone()
    plan = hofunc.jacobian(lambda x: (weight @ x, x * 1)).plan(x[0])
    first, second = plan(x[0]), plan(x[0])
    for tensor in first:
        tensor.zero_()
    assert_equal(second, hofunc.jacobian(lambda x: (weight @ x, x * 1))(x[0]))


def test_empty_and_constant_outputs(device: torch.device) -> None:
    empty = rand(device, 0, 3)
    assert hod(torch.sin, 2).plan(empty)(empty).shape == (0, 3) * 3
    assert hod(lambda p, x: x, 2).plan({}, empty)({}, empty) == {}
    x = rand(device, 2)
    assert torch.equal(hod(lambda x: x.new_ones(3), 1).plan(x)(x), x.new_zeros(3, 2))


def test_half_precision_is_as_accurate_as_in_the_transform(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.softmax(1) * x.sin()).sum()

    low, other = x.bfloat16(), x.cos().bfloat16()
    plan = hofunc.derivatives(f, 2).plan(low)
    assert all(map(torch.equal, plan(other), hofunc.derivatives(f, 2)(other)))


@pytest.mark.parametrize("layout", ["dense", "compact"])
def test_a_plan_runs_in_chunks_as_the_transform_does(layout: str, device: torch.device) -> None:
    weight = rand(device, 3, 3, seed=1)

    def f(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ weight).tanh() * scale
        return (y @ weight).sin().sum(1), y

    x, scale = rand(device, 7, 3), rand(device, 7, 1, seed=2)
    options: dict[str, Any] = {"has_aux": True, "layout": layout, "chunk_size": 3 if layout == "compact" else None}
    transform = hofunc.derivatives(f, 2, strategy="mixed", **options)
    plan = transform.plan(x, scale)
    assert ("run in 3 chunks of 3 rows" in plan.explain()) == (layout == "compact")
    got, expected = plan(x.cos(), scale), transform(x.cos(), scale)
    assert_equal(dense(got), dense(expected))
    leaf = x.clone().requires_grad_()
    (derivative,) = torch.autograd.grad(sum_of(plan(leaf, scale)), leaf)
    assert_equal(derivative, torch.autograd.grad(sum_of(transform(leaf, scale)), leaf)[0])
    compiled = plan.compile(backend="eager")
    assert_equal(dense(compiled(x.cos(), scale)), dense(expected))


def sum_of(result: Any) -> Tensor:
    return torch.stack([leaf.sin().sum() for leaf in tree_leaves(result)]).sum()


def test_chunks_with_values_read_and_results_arranged(device: torch.device) -> None:
    """Values that only what comes after the chunks needs are passed by them."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        power = 3 if x.sum() < 100 else 2
        return (x**power * y).sum(1), x + y

    x, y = rand(device, 6, 2), rand(device, 6, 2, seed=1)
    transform = hofunc.derivatives(f, 2, argnums=(1, 0), has_aux=True, layout="compact", chunk_size=4)
    plan = transform.plan(x, y)
    assert_equal(dense(plan(y, x)), dense(transform(y, x)))
    refused(lambda: plan(x + 100, y), hofunc.ArgumentError, "got False", "expected True, as planned")


def test_a_plan_keeps_to_a_bound_on_memory(device: torch.device) -> None:
    x = rand(device, 4, 3)
    refused(
        lambda: hod(torch.sin, 3, max_bytes=100).plan(x),
        hofunc.ArgumentError,
        "hofunc: a derivative that takes more memory than allowed",
    )
    text = hod(torch.sin, 2, max_bytes=100_000).plan(x).explain()
    assert text.startswith("hod(sin): order 2")


# What a plan holds on to.


def test_captured_tensors_are_seen_as_they_are(device: torch.device) -> None:
    """In whatever the function computes of them, and by the graph too."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    net = distinct(net.double().to(device))
    scale = rand(device, 2, seed=1)

    def f(x: Tensor) -> Tensor:
        made = torch.zeros(2, dtype=x.dtype, device=device)
        made += scale.exp()
        return (net(x).squeeze(1) * made).sum() * torch.tensor(2.0)

    x = rand(device, 2, 3)
    plan = hod(f, 2).plan(x)
    module = plan.to_fx()
    with torch.no_grad():
        for tensor in (*net.parameters(), scale):
            tensor.mul_(1.5)
    assert_equal(plan(x), hod(f, 2)(x))
    assert_equal(module(x)[0], hod(f, 2)(x))


@pytest.mark.parametrize("used", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_random_numbers_are_drawn_in_the_order_of_the_function(used: tuple[int, ...], device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        draws = [torch.rand_like(x) for _ in used]
        y = x.sum()
        for number in used:
            y = (y + number) * ((draws[number] * x).sin() + 2).prod()
        return y

    x = rand(device, 3)
    for strategy in ("reverse", "mixed"):
        plan = hod(f, 2, strategy=strategy).plan(x)
        torch.manual_seed(1)
        expected = hod(f, 2, strategy=strategy)(x)
        torch.manual_seed(1)
        assert relative_error(plan(x), expected) < 1e-12


def test_random_numbers_are_drawn_anew(device: torch.device) -> None:
    x = rand(device, 50)
    plan = hofunc.derivatives(lambda x: torch.native_dropout(x, 0.5, True)[0], 1).plan(x)
    value, slope = plan(x)
    other, _ = plan(x)
    assert_equal(value, slope.diagonal() * x)
    assert not torch.equal(value, other)


def test_several_outputs_of_one_op(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        values, _ = (x * x).sort(1)
        first, _, third = values.exp().split(1, 1)
        again = values.exp().split(1, 1)
        return (first * third + again[1]).sum()

    assert_equal(hod(f, 2).plan(x)(x.cos()), hod(f, 2)(x.cos()))


# What it refuses.


def plan_of(x: Tensor) -> hofunc.Plan:
    return hod(lambda p, q, n, *, flag: (p["a"] * q[0]).sin().sum() * n, 2).plan({"a": x}, [x], 2.0, flag=True)


@pytest.mark.parametrize(
    ("change", "what", "got", "expected"),
    [
        (lambda x: (x[:2], x, 2.0, True), "args[0]['a']", "shape (2, 3)", "shape (4, 3)"),
        (lambda x: (x, x.float(), 2.0, True), "args[1][0]", "dtype torch.float32", "dtype torch.float64"),
        (lambda x: (x, x.to("meta"), 2.0, True), "args[1][0]", "device meta", "device "),
        (lambda x: (x, 1.0, 2.0, True), "args[1][0]", "1.0", "a tensor"),
        (lambda x: (x, x, 3.0, True), "args[2]", "3.0", "2.0"),
        (lambda x: (x, x, 2, True), "args[2]", "2", "2.0"),
        (lambda x: (x, x, x[0], True), "args[2]", "a tensor of shape (3,)", "2.0"),
        (lambda x: (x, x, 2.0, False), "kwargs['flag']", "False", "True"),
    ],
)
def test_other_arguments(change: Callable[[Tensor], tuple], what: str, got: str, expected: str, x: Tensor) -> None:
    p, q, n, flag = change(x)
    refused(
        lambda: plan_of(x)({"a": p}, [q], n, flag=flag),
        hofunc.ArgumentError,
        f"hod: {what} of a plan: got {got}, expected {expected}",
        ", as planned (called at",
        "Make another plan for such arguments, or call the transform itself.",
    )


def test_another_structure(x: Tensor) -> None:
    expected = "expected ({'a': *}, [*], *) and {'flag': *}, as planned"
    plan = plan_of(x)
    refused(lambda: plan({"b": x}, [x], 2.0, flag=True), hofunc.ArgumentError, "got ({'b': *}, [*], *) and {", expected)
    refused(lambda: plan({"a": x}, [x], 2.0), hofunc.ArgumentError, "hod: the arguments of a plan", expected)
    flat = hofunc.hessian(mixed).plan(x)
    refused(lambda: flat(x, x), hofunc.ArgumentError, "got (*, *), expected (*,), as planned")
    refused(lambda: flat(x=x), hofunc.ArgumentError, "got () and {'x': *}, expected (*,)")
    refused(lambda: flat([x]), hofunc.ArgumentError, "args[0] of a plan: got [tensor([[", "expected a tensor")
    refused(lambda: flat(3), hofunc.ArgumentError, "args[0] of a plan: got 3, expected a tensor")
    refused(lambda: flat(3.0), hofunc.ArgumentError, "got shape (), expected shape (4, 3)")
    refused(lambda: flat(x[0]), hofunc.ArgumentError, "got shape (3,), expected shape (4, 3)")


def test_keys_in_another_order(device: torch.device) -> None:
    def f(p: dict[str, Tensor], q: Any, *, scale: Tensor, flag: bool) -> Tensor:
        return (p["a"] ** 2 * p["b"] * q[0]["d"] * scale).sum() if flag else p["a"]

    a, b, c, d, scale = (rand(device, 3, seed=seed) for seed in range(5))
    plan = hofunc.hessian(f).plan({"a": a, "b": b}, [OrderedDict(c=c, d=d)], scale=scale, flag=True)
    expected = hofunc.hessian(f)({"a": d, "b": c}, [OrderedDict(c=b, d=a)], scale=scale, flag=True)
    got = plan({"b": c, "a": d}, [OrderedDict(d=a, c=b)], flag=True, scale=scale)
    for first in "ab":
        for second in "ab":
            assert torch.equal(got[first][second], expected[first][second])
    refused(
        lambda: plan({"b": c, "a": d}, [OrderedDict(d=a, c=b)], flag=False, scale=scale),
        hofunc.ArgumentError,
        "kwargs['flag'] of a plan: got False, expected True",
    )
    for other in ({"b": c}, {"b": c, "a": d, "e": d}, {"b": c, "a": [d]}, [c, d]):
        refused(
            lambda other=other: plan(other, [OrderedDict(d=a, c=b)], flag=True, scale=scale),  # type: ignore[misc]
            hofunc.ArgumentError,
            "the arguments of a plan",
        )


@pytest.mark.parametrize(("planned", "other"), [(0.0, -0.0), (1, True), (1, 1.0), ("a", "b"), ((), [])])
def test_values_that_differ_to_a_function(planned: Any, other: Any, x: Tensor) -> None:
    plan = hod(lambda x, _: mixed(x), 2).plan(x, planned)
    with pytest.raises(hofunc.ArgumentError, match="as planned"):
        plan(x, other)


def test_values_that_are_the_same_to_a_function(x: Tensor) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise TypeError

        __hash__ = None  # type: ignore[assignment]

    odd = Odd()
    for planned, same in ((float("nan"), float("nan")), ("sum", "".join(["su", "m"])), (odd, odd), (None, None)):
        assert_equal(hod(lambda x, _: mixed(x), 2).plan(x, planned)(x, same), hod(mixed, 2)(x))
    refused(
        lambda: hod(lambda x, _: mixed(x), 2).plan(x, odd)(x, Odd()), hofunc.ArgumentError, "args[1] of a plan: got <"
    )


@pytest.mark.parametrize(
    "is_plain", [Tensor.is_contiguous, lambda x: x.stride()[-1] == 1, lambda x: x.sin().is_contiguous()]
)
def test_strides_matter_to_a_function_that_asks_for_them(is_plain: Callable[[Tensor], bool]) -> None:
    def f(x: Tensor) -> Tensor:
        return (x**3).sum() if is_plain(x) else (x**2).sum()

    plain = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    hessian, jitted = hofunc.hessian(f), hofunc.jit(hofunc.hessian(f))
    plan = hessian.plan(plain)
    refused(lambda: plan(plain.T), hofunc.ArgumentError, "got strides (1, 2), expected strides (2, 1), as planned")
    for x, slope in ((plain, 6 * plain), (plain.T, torch.full((2, 2), 2.0)), (plain, 6 * plain)):
        want = torch.diag(slope.flatten()).reshape(2, 2, 2, 2)
        torch.testing.assert_close(jitted(x), want)
        torch.testing.assert_close(hessian(x), want)


def test_strides_matter_to_a_function_of_them(x: Tensor) -> None:
    plan = hod(lambda x: mixed(x.as_strided((2, 3), (6, 1))), 1).plan(x)
    assert_equal(plan(x.cos()), hod(lambda x: mixed(x[::2]), 1)(x.cos()))
    other = rand(x.device, 3, 4).t()
    refused(lambda: plan(other), hofunc.ArgumentError, "args[0] of a plan: got strides (1, 4), expected strides (3, 1)")


def test_a_branch_that_would_go_the_other_way(x: Tensor) -> None:
    plan = hod(lambda x: mixed(x) if x.sum() > 0 else x.exp().sum(), 2).plan(x.abs())
    assert_equal(plan(x.cos().abs()), hod(mixed, 2)(x.cos().abs()))
    refused(
        lambda: plan(-x.abs()),
        hofunc.ArgumentError,
        "hofunc: a plan of a function that reads values of tensors: got False from aten._local_scalar_dense.default, "
        "expected True, as planned",
        "Make another plan for these values, or call the transform itself, which records them anew.",
    )
    refused(
        lambda: vmap(plan)(torch.stack([x.abs(), x.abs()])),
        hofunc.BranchError,
        "got a batch of them under vmap, for aten._local_scalar_dense.default, expected one value",
        "Call the plan outside of vmap, or use torch.where in place of a branch.",
    )


def test_what_does_not_fit_is_told_before_derivatives_are_computed(x: Tensor) -> None:
    plan = hofunc.hessian(lambda x: (x.sin() if x.sum() > 0 else x.exp()).prod()).plan(x.abs())
    other = -x.abs()
    with Ops() as seen, pytest.raises(hofunc.PlanMismatchError, match=r"got False from .*, expected True"):
        plan(other)
    assert {str(op) for op in seen.ops} <= {"aten.sum.default", "aten.gt.Scalar", "aten._local_scalar_dense.default"}


def test_a_number_that_was_read_from_a_captured_tensor(x: Tensor) -> None:
    bound = x.new_ones(())
    plan = hod(lambda x: mixed(x) * bound.item(), 2).plan(x)
    assert_equal(plan(x), hod(mixed, 2)(x))
    bound.mul_(2)
    refused(lambda: plan(x), hofunc.ArgumentError, "got 2.0 from aten._local_scalar_dense.default, expected 1.0")


def test_a_shape_that_values_decide(x: Tensor) -> None:
    plan = hod(lambda x: mixed(x[x > 0]), 2).plan(x)
    assert_equal(plan(x * 1.01), hod(lambda x: mixed(torch.where(x > 0, x, 0)), 2)(x * 1.01))
    count = int((x > 0).sum())
    refused(
        lambda: plan(x.abs()),
        hofunc.ArgumentError,
        "hofunc: a plan of a function in which values decide a shape",
        f"expected shape ({count},",
        "Make another plan for these values, or call the transform itself.",
    )


@pytest.mark.parametrize(
    ("f", "got"),
    [
        (lambda x: mixed(x[x > 0]), "where values decide a shape"),
        (lambda x: torch.linalg.lstsq(x, x[:, :1]).solution, "got a shape, where a value of a tensor is read"),
        (
            lambda x: mixed(x) if x.sum() < 99 else x,
            "aten._local_scalar_dense.default, where a value of a tensor is read",
        ),
    ],
)
def test_graphs_of_functions_that_look_at_values(f: Callable[[Tensor], Tensor], got: str, x: Tensor) -> None:
    refused(
        hod(f, 1).plan(x).to_fx,
        hofunc.UnsupportedOpError,
        "hofunc: a plan as a graph",
        got,
        "expected a function whose ops and shapes are the same for all values",
        "Call the plan as it is, or write f with ops that do without.",
    )


def test_planning_inside_a_transform(x: Tensor) -> None:
    refused(
        lambda: vmap(lambda x: hod(mixed, 2).plan(x)(x))(x),
        hofunc.ArgumentError,
        "hod: plan: got a call inside torch.func.vmap, grad or another transform, expected one outside",
        "Make the plan first; calling it inside a transform is fine.",
    )


def test_planning_checks_arguments_as_a_call_does(x: Tensor) -> None:
    for wrong in (lambda: hod(mixed, 2).plan(), lambda: hod(mixed, 2, 1).plan(x), lambda: hod(mixed).plan(x.int())):
        refused(wrong, hofunc.ArgumentError, "hod: ")
    refused(lambda: hod(lambda x: x.add_(1), 2).plan(x), hofunc.MutationError, "f is not pure")
    captured = x.clone()
    refused(lambda: hod(lambda x: captured.add_(x), 2).plan(x), hofunc.MutationError, "f is not pure")
    refused(lambda: hod(lambda x, y: y.add_(x), 2).plan(x, captured), hofunc.MutationError, "f is not pure")
    refused(lambda: hod(lambda x: 3.0, 2).plan(x), hofunc.ArgumentError, "hod: an output of f")


# Composition.


def test_under_vmap_and_grad(x: Tensor) -> None:
    plan, transform = hod(mixed, 2).plan(x[0]), hod(mixed, 2)
    assert_equal(vmap(plan)(x), vmap(transform)(x))
    assert_equal(grad(lambda x: plan(x).sin().sum())(x[0]), grad(lambda x: transform(x).sin().sum())(x[0]))
    assert_equal(torch.func.jacfwd(plan)(x[0]), transform_of_next_order(x[0]))
    assert_equal(hod(plan, 1)(x[0]), transform_of_next_order(x[0]))
    assert_equal(hod(plan, 1).plan(x[1])(x[0]), transform_of_next_order(x[0]))


def transform_of_next_order(x: Tensor) -> Tensor:
    return nested_reverse(mixed, 3)(x)


def test_vmap_over_an_argument_that_is_not_differentiated(x: Tensor) -> None:
    def g(x: Tensor, w: Tensor) -> Tensor:
        return mixed(x * w)

    plan = hod(g, 2).plan(x[0], x[1])
    assert_equal(vmap(plan, (None, 0))(x[0], x), vmap(hod(g, 2), (None, 0))(x[0], x))


def test_backward_through_a_plan_again_and_again(x: Tensor) -> None:
    weight = rand(x.device, 3, seed=1).requires_grad_()

    def f(x: Tensor) -> Tensor:
        return mixed(x * weight.exp())

    plan = hod(f, 2).plan(x[0])
    for point in x[:2]:
        leaf = point.clone().requires_grad_()
        got = torch.autograd.grad(plan(leaf).sin().sum(), (leaf, weight))
        assert_equal(got, torch.autograd.grad(hod(f, 2)(leaf).sin().sum(), (leaf, weight)))
    with torch.no_grad():
        assert not plan(leaf).requires_grad


def test_a_plan_made_without_gradients_or_in_inference_mode_has_them(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return mixed(x) * torch.arange(1.0, 3.0).sum()

    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            plan = hod(f, 1).plan(x[0])
        leaf = x[0].clone().requires_grad_()
        (got,) = torch.autograd.grad(plan(leaf).sum(), leaf)
        assert_equal(got, nested_reverse(f, 2)(x[0]).sum(0))


# What it says of itself.


def test_figures(device: torch.device) -> None:
    weight = rand(device, 3, 5)
    plan = hofunc.jacobian(lambda x: (x @ weight).sin()).plan(rand(device, 2, 3))
    # x @ weight, cos, the product with weight for each row, and its place on the diagonal
    assert plan.flops >= 2 * 2 * 3 * 5 + 2 * 5 + 2 * 5 * 3
    assert plan.peak_bytes >= 8 * 2 * 5 * 2 * 3
    assert plan.bytes > plan.peak_bytes
    assert repr(plan) == (
        f"Plan(jacobian(<lambda>), strategy={plan.strategy!r}, steps={plan.steps}, flops={plan.flops}, "
        f"bytes={plan.bytes}, peak_bytes={plan.peak_bytes})"
    )
    with pytest.raises(AttributeError):
        plan.strategy = "other"  # type: ignore[misc]


def test_a_plan_computes_only_what_is_needed(x: Tensor) -> None:
    used = hod(lambda x: (x**2).sum(), 2).plan(x)
    unused = hod(lambda x: ((x**2).sum(), x.exp().cumsum(0))[0], 2).plan(x)
    assert unused.steps == used.steps
    value = hofunc.derivatives(lambda x: (x**2).sum(), 2).plan(x)
    assert value.steps > used.steps


def test_the_module_says_what_it_takes(x: Tensor) -> None:
    module = hod(lambda a, *, b: (a * b).sum(), 1).plan(x, b=x).to_fx()
    assert module.meta["inputs"] == ("args[0]", "kwargs['b']")
    assert module.__doc__ is not None
    assert "0: args[0]\n    1: kwargs['b']" in module.__doc__


# Compilers.


def test_compile_passes_options_to_torch(x: Tensor) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    weight = x.clone()
    transform = hofunc.derivatives(lambda x: (x @ weight.t()).sin(), 2, layout="compact")
    plan = transform.plan(x)
    compiled = plan.compile(backend=backend)
    assert not graphs
    assert_equal(dense(compiled(x.cos())), dense(transform(x.cos())))
    weight.mul_(2)
    assert_equal(dense(compiled(x)), dense(transform(x)))
    assert len(graphs) == 1
    assert compiled.is_compiled
    assert not plan.is_compiled
    assert repr(compiled) == repr(plan)[:-1] + ", compiled)"
    assert compiled.explain() == plan.explain()
    refused(lambda: compiled(x[0]), hofunc.ArgumentError, "got shape (3,), expected shape (4, 3)")


@pytest.mark.filterwarnings("ignore")  # of inductor
def test_compile(x: Tensor) -> None:
    weight = x.clone().requires_grad_()
    plan = hod(lambda x: mixed(x * weight), 2).plan(x)
    if not has_compiler():
        with pytest.raises(hofunc.CompilerError):
            plan.compile()
        return
    compiled = plan.compile()
    with torch.no_grad():
        assert_equal(compiled(x), plan(x))
        weight.mul_(2)
        assert_equal(compiled(x.cos()), plan(x.cos()))
        # of other strides
        assert_equal(compiled(x.t().contiguous().t()), plan(x))
        # where something follows its ops
        for follow in (vmap, torch.func.jacfwd, lambda g: lambda x: hod(g)(x[0]), lambda g: lambda x: tangent(g, x[0])):
            rows = torch.stack([x, x.cos()])
            assert_equal(
                follow(lambda x: compiled(x.view(4, 3)))(rows[:1]), follow(lambda x: plan(x.view(4, 3)))(rows[:1])
            )
    # with gradients, also where only what f captures requires them
    variable = x.clone().requires_grad_()
    for at, leaf in ((x, weight), (variable, variable)):
        (got,) = torch.autograd.grad(compiled(at).sin().sum(), leaf)
        assert_equal(got, torch.autograd.grad(plan(at).sin().sum(), leaf)[0])


def tangent(g: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the derivative along a tensor of ones, by forward mode."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(g(forward_ad.make_dual(x, torch.ones_like(x)))).tangent.clone()


def test_no_compiler(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder, exc  # noqa: PLC0415 - slow to import

    def missing() -> str:
        raise exc.InvalidCxxCompiler("c++")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    plan = hod(mixed, 2).plan(x)
    refused(
        plan.compile,
        hofunc.CompilerError,
        "hofunc: plan.compile: got no C++ compiler, expected one that torch.compile finds",
        "Install g++, or name one in the environment variable CXX; a plan runs without it, uncompiled.",
    )
    plan.compile(backend="eager")


def test_writing_to_a_result_leaves_the_plan_as_it_is(x: Tensor) -> None:
    plan = hofunc.hessian(lambda x: (x.pow(3).sum(), torch.ones(2).to(x)), has_aux=True).plan(x)
    expected = tuple(result.clone() for result in plan(x))
    for result in plan(x):
        result.add_(1)
    assert_equal(plan(x), expected)
