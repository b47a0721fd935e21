"""Operators that take functions: recorded as the Python that they stand for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch._ops import HigherOrderOperator

import hofunc
from hofunc import hod
from hofunc.graph import control
from tests.cases import rand
from tests.checks import assert_equal, check_hod, refused
from verification.oracles import nested_reverse

higher_order: Any = torch.ops.higher_order
map_rows: Any = torch._higher_order_ops.map
CPU = torch.device("cpu")
WEIGHT = rand(CPU, 3, seed=7)
ONE = torch.ones((), dtype=torch.float64)

Scalar = Callable[[Tensor], Tensor]


def squash(x: Tensor) -> Tensor:
    return (x.tanh() * WEIGHT * x.sum()).sum()


def wave(x: Tensor) -> Tensor:
    return (x.sin() ** 2 * x.roll(1)).sum()


def branching(x: Tensor) -> Tensor:
    result: Tensor = torch.cond(x.sum() > 0, squash, wave, (x,))
    return result


def branching_by_python(x: Tensor) -> Tensor:
    return squash(x) if x.sum() > 0 else wave(x)


def nested(x: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        result: Tensor = torch.cond(x[0] > x[1], wave, squash, (x,))
        return result * x[2]

    result: Tensor = torch.cond(x.sum() > 0, inner, wave, (x,))
    return result


def nested_by_python(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return (wave(x) if x[0] > x[1] else squash(x)) * x[2]
    return wave(x)


def halved(x: Tensor) -> Tensor:
    state = while_loop(lambda _, y: (y**2).sum() > 0.1, lambda n, y: (n + 1, (y * y.cos()) / 2), (0, x))
    return (state[1] * WEIGHT).sum() * state[0]


def halved_by_python(x: Tensor) -> Tensor:
    n, y = 0, x
    while (y**2).sum() > 0.1:
        n, y = n + 1, (y * y.cos()) / 2
    return (y * WEIGHT).sum() * n


def carried_in_a_dict(x: Tensor) -> Tensor:
    start = {"n": torch.tensor(0), "y": x}
    state = while_loop(lambda s: s["n"] < 2, lambda s: ({"n": s["n"] + 1, "y": s["y"].sin() * x},), (start,))
    return (state[0]["y"] ** 2).sum()


def carried_by_python(x: Tensor) -> Tensor:
    return ((x.sin() * x).sin() * x).square().sum()


def without_a_step(x: Tensor) -> Tensor:
    state = while_loop(lambda s: s["n"] < 0, lambda s: ({"n": s["n"] + 1, "y": s["y"]},), ({"n": 0, "y": x},))
    return (state[0]["y"] ** 3).sum()


def recurrence(x: Tensor) -> Tensor:
    last, (sines, rest) = scan(
        lambda c, rows: ({"a": c["a"] * rows[0].cos() + rows[1]}, (c["a"].sin(), {"r": c["a"] * rows[1]})),
        {"a": ONE},
        (x, WEIGHT),
        reverse=True,
    )
    return last["a"] ** 2 + (sines * rest["r"]).sum()


def recurrence_by_python(x: Tensor) -> Tensor:
    c, total = ONE, ONE * 0
    for a, b in zip(x.flip(0), WEIGHT.flip(0), strict=True):
        total = total + c.sin() * c * b
        c = c * a.cos() + b
    return c**2 + total


def mapped(x: Tensor) -> Tensor:
    first, second = map_rows(lambda row, w: (row * x.sum(), [row.sin() * w]), x, WEIGHT)
    return (first * second[0].sum(1)).sum()


def mapped_by_python(x: Tensor) -> Tensor:
    return (x * x.sum() * (x.sin() * WEIGHT.sum())).sum()


def products(x: Tensor) -> Tensor:
    return (associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic") * WEIGHT).sum()


def products_of_one_op(x: Tensor) -> Tensor:
    (result,) = higher_order.associative_scan(lambda a, b: [a * b], [x], ())
    return (result * WEIGHT).sum()


def products_by_python(x: Tensor) -> Tensor:
    return x[0] * WEIGHT[0] + x[0] * x[1] * WEIGHT[1] + x.prod() * WEIGHT[2]


def strict(x: Tensor) -> Tensor:
    (result,) = higher_order.strict_mode(lambda x: (wave(x),), (x,))
    return result


def hinted(x: Tensor) -> Tensor:
    result: Tensor = higher_order.hints_wrapper(wave, (x,), {}, {"fast": True})
    return result


def invoked(x: Tensor) -> Tensor:
    result: Tensor = higher_order.invoke_subgraph(wave, "wave", x)
    return result


CASES: dict[str, tuple[Scalar, Scalar]] = {
    "cond": (branching, branching_by_python),
    "cond in cond": (nested, nested_by_python),
    "while_loop": (halved, halved_by_python),
    "while_loop of a dict": (carried_in_a_dict, carried_by_python),
    "while_loop without a step": (without_a_step, lambda x: (x**3).sum()),
    "scan": (recurrence, recurrence_by_python),
    "map": (mapped, mapped_by_python),
    "associative_scan": (products, products_by_python),
    "associative_scan of one op": (products_of_one_op, products_by_python),
    "strict_mode": (strict, wave),
    "hints_wrapper": (hinted, wave),
    "invoke_subgraph": (invoked, wave),
}
POSITIVE = torch.tensor([0.4, 0.9, 0.7], dtype=torch.float64)
INPUTS = {"positive": POSITIVE, "negative": -POSITIVE}


@pytest.mark.parametrize("x", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize(("f", "by_python"), CASES.values(), ids=CASES)
def test_operators_are_python(f: Scalar, by_python: Scalar, x: Tensor) -> None:
    for order in (1, 2, 3):
        check_hod(f, (x,), order, reference=by_python)


@pytest.mark.parametrize(("f", "by_python"), CASES.values(), ids=CASES)
def test_operators_in_plans(f: Scalar, by_python: Scalar) -> None:
    plan = hod(f, 2).plan(POSITIVE)
    near = POSITIVE * 1.001
    assert_equal(plan(near), nested_reverse(by_python, 2)(near))


@pytest.mark.parametrize("f", [branching, nested, halved])
def test_plans_refuse_another_branch(f: Scalar) -> None:
    refused(lambda: hod(f, 2).plan(POSITIVE)(-POSITIVE * 3), hofunc.errors.ArgumentError, "reads values of tensors")


@pytest.mark.parametrize("f", [branching, nested, halved])
def test_branches_under_vmap_have_no_single_value(f: Scalar) -> None:
    rows = torch.stack([POSITIVE, -POSITIVE])
    refused(lambda: torch.vmap(hod(f, 2))(rows), hofunc.errors.BranchError, "needs a single value")
    flags = torch.tensor([True, False])
    by_flag = hod(lambda x, flag: torch.cond(flag, squash, wave, (x,)), 2)
    refused(lambda: torch.vmap(by_flag, (None, 0))(POSITIVE, flags), hofunc.errors.BranchError)
    by_captured = torch.vmap(lambda flag: hod(lambda x: torch.cond(flag, squash, wave, (x,)), 2)(POSITIVE))
    refused(lambda: by_captured(flags), hofunc.errors.BranchError)


@pytest.mark.parametrize("f", [recurrence, mapped, products, carried_in_a_dict])
def test_steps_without_a_choice_under_vmap(f: Scalar) -> None:
    rows = rand(CPU, 4, 3)
    assert_equal(torch.vmap(hod(f, 2))(rows), torch.stack([hod(f, 2)(row) for row in rows]))


def test_a_vmap_inside_computes_both_branches() -> None:
    rows = torch.stack([POSITIVE, -POSITIVE])

    def pair(f: Scalar, g: Scalar) -> Callable[[Tensor], Any]:
        return lambda x: torch.cond(x.sum() > 0, lambda y: (f(y), {"n": 1}), lambda y: (g(y), {"n": 1}), (x,))[0]

    check_hod(torch.vmap(branching), (rows,), 2, reference=lambda x: torch.stack([*map(branching_by_python, x)]))
    check_hod(torch.vmap(pair(squash, wave)), (rows,), 2, reference=lambda x: torch.stack([squash(x[0]), wave(x[1])]))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, in forward mode
def test_transforms_inside_and_outside() -> None:
    slope, slope_by_python = torch.func.grad(branching), torch.func.grad(branching_by_python)
    check_hod(lambda x: slope(x) * x, (POSITIVE,), 2, reference=lambda x: slope_by_python(x) * x)
    check_hod(hod(branching, 1), (POSITIVE,), 1, reference=slope_by_python)
    outer = torch.func.grad(lambda x: (hod(branching, 2)(x) * WEIGHT).sum())
    expected = torch.func.grad(lambda x: (nested_reverse(branching_by_python, 2)(x) * WEIGHT).sum())
    assert_equal(outer(POSITIVE), expected(POSITIVE))
    assert_equal(torch.func.jacfwd(hod(branching, 1))(POSITIVE), nested_reverse(branching_by_python, 2)(POSITIVE))


@pytest.mark.parametrize("is_planned", [False, True])
def test_gradients_by_what_branches_and_steps_capture(is_planned: bool) -> None:
    weight = WEIGHT.clone().requires_grad_()

    def f(x: Tensor) -> Tensor:
        chosen = torch.cond(weight.sum() > -9, lambda x: (x * weight).sin(), lambda x: x, (x,))
        carried = while_loop(lambda n, _: n < 2, lambda n, y: (n + 1, y * weight), (0, chosen))[1]
        return (carried * map_rows(lambda row: row * weight, x).sum(1)).sum()

    def by_python(x: Tensor) -> Tensor:
        return ((x * weight).sin() * weight * weight * x * weight.sum()).sum()

    hessian = hod(f, 2).plan(POSITIVE) if is_planned else hod(f, 2)
    (got,) = torch.autograd.grad((hessian(POSITIVE) ** 2).sum(), weight)
    (expected,) = torch.autograd.grad((nested_reverse(by_python, 2)(POSITIVE) ** 2).sum(), weight)
    assert_equal(got, expected)


def test_captured_wrappers_of_outer_transforms() -> None:
    def by_scale(scale: Tensor) -> Tensor:
        result: Tensor = hod(lambda x: torch.cond(x.sum() > 0, lambda x: (scale * x).sin().sum(), wave, (x,)), 2)(
            POSITIVE
        )
        return result

    scales = rand(CPU, 4, seed=5)
    expected = [nested_reverse(lambda x, s=scale: (s * x).sin().sum(), 2)(POSITIVE) for scale in scales]
    assert_equal(torch.vmap(by_scale)(scales), torch.stack(expected))


def test_plans_compare_what_branches_read() -> None:
    scale = [2.0]
    plan = hod(lambda x: torch.cond(x.sum() > 0, lambda x: (x * scale[0]).sin().sum(), wave, (x,)), 2).plan(POSITIVE)
    scale[0] = 3.0
    refused(lambda: plan(POSITIVE), hofunc.errors.ArgumentError, "got 3.0, expected 2.0")
    plan = hod(lambda x: torch.cond(x.sum() > 0, lambda x: (x.detach().tolist()[0] * x**3).sum(), wave, (x,)), 2).plan(
        POSITIVE
    )
    refused(lambda: plan(2 * POSITIVE), hofunc.errors.ArgumentError, "torch.Tensor.tolist")


def test_the_branch_that_is_taken_decides_the_shape() -> None:
    check_hod(lambda x: torch.cond(x.sum() > 0, lambda x: x**3, wave, (x,)), (POSITIVE,), 2, reference=lambda x: x**3)


@pytest.mark.parametrize("other", [lambda x: x, lambda x: wave(x).float(), lambda x: (wave(x),)])
def test_branches_that_differ_under_a_vmap_inside(other: Scalar) -> None:
    f = torch.vmap(lambda x: torch.cond(x.sum() > 0, squash, other, (x,)))
    refused(lambda: hod(f, 2)(rand(CPU, 2, 3)), hofunc.errors.UnsupportedOpError, "torch.cond under a vmap inside f")


def test_a_condition_of_a_loop_under_a_vmap_inside() -> None:
    refused(lambda: hod(torch.vmap(halved), 2)(rand(CPU, 2, 3)), hofunc.errors.BranchError, "a while_loop under a vmap")


def test_a_loop_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_STEPS", 50)
    f = hod(lambda x: while_loop(lambda _: x.sum() < 9, lambda y: (y.sin(),), (x,))[0].sum(), 2)
    refused(lambda: f(POSITIVE), hofunc.errors.UnsupportedOpError, "a while_loop that does not end", "50 steps")


def test_steps_that_carry_something_else() -> None:
    f = hod(lambda x: while_loop(lambda n, _: n < 3, lambda n, y: (n + 1, y, y), (0, x))[1].sum(), 2)
    refused(lambda: f(POSITIVE), hofunc.errors.UnsupportedOpError, "while_loop carries something else", "got 3 values")
    f = hod(lambda x: scan(lambda c, y: (c[0] * y, y), (ONE, ONE), x)[1].sum(), 2)
    refused(lambda: f(POSITIVE), hofunc.errors.UnsupportedOpError, "scan carries something else", "got 1 values")


def test_other_operators_are_refused_by_name() -> None:
    f = hod(lambda x: higher_order.out_dtype(torch.ops.aten.mul.Tensor, x.dtype, x, x).sum(), 2)
    for call in (lambda: f(POSITIVE), lambda: f.plan(POSITIVE), lambda: torch.vmap(f)(rand(CPU, 2, 3))):
        refused(call, hofunc.errors.UnsupportedOpError, "out_dtype inside f")


def test_torch_has_its_own_operators_outside_of_recordings() -> None:
    hod(branching, 2)(POSITIVE)
    assert_equal(branching(POSITIVE), squash(POSITIVE))  # through torch.compile
    assert_equal(halved(POSITIVE), halved_by_python(POSITIVE))
    assert isinstance(higher_order.cond, HigherOrderOperator)
    with pytest.raises(TypeError, match="abstract"):
        type("Abstract", (HigherOrderOperator,), {})("abstract")


def test_nothing_is_compiled_in_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", None)
    hod(branching, 1)(POSITIVE)
