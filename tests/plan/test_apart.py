"""Contractions by some entries at a time of labels that they sum over, whatever asks for them."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from tests.cases import rand
from verification.memory import SLACK, stated, taken
from verification.oracles import nested_reverse, relative_error

CPU = torch.device("cpu")
WIDE, MIXED = rand(CPU, 7, 24, seed=5), rand(CPU, 24, 24, seed=6) / 3


def field(x: Tensor) -> Tensor:
    """Return a number for a point, or one for each of several."""
    return (((x @ WIDE[: x.shape[-1]].to(x)).tanh() @ MIXED.to(x)).tanh()).square().sum(-1)


def flow(x: Tensor) -> Tensor:
    """Return a vector for a point, or one for each of several."""
    return ((x @ WIDE[: x.shape[-1]].to(x)).tanh() @ MIXED.to(x)).sin()[..., :7]


CASES: dict[str, tuple[Callable[..., Any], str, tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
    "a trace": (field, ", i, i ->", (), (7,)),
    "a trace at every point": (field, "b, b i, b i -> b", (), (5, 7)),
    "the sum of traces": (lambda x: field(x).sum(), ", b i, b i ->", (), (3, 7)),
    "a trace over some of the axes": (lambda x: field(x).sum().square(), ", b i, c i -> b c", (), (3, 7)),
    "a trace of traces": (field, ", i, i, j, j ->", (), (7,)),
    "the gradient of a trace": (field, ", i, j, j -> i", (), (7,)),
    "a sum over a diagonal": (field, ", i, i, i ->", (), (7,)),
    "a diagonal that is weighted": (field, ", i, i, i ->", ((7,),), (7,)),
    "a trace by a metric": (field, ", i, j, i j ->", ((7, 7),), (7,)),
    "a trace by directions": (field, ", i, j, i k, j k ->", ((7, 6), (7, 6)), (7,)),
    "a trace by weighted directions": (field, ", i, j, i k, j k, k ->", ((7, 6), (7, 6), (6,)), (7,)),
    "directions that the output has": (flow, "k, i, i k, k ->", ((7, 7), (7,)), (7,)),
    "traces by directions of each point": (field, "b, b i, b j, b i k, b j k -> b", ((4, 7, 6), (4, 7, 6)), (4, 7)),
    "a divergence": (flow, "i, i ->", (), (7,)),
    "divergences": (flow, "b i, b i -> b", (), (4, 7)),
    "gradients of divergences": (flow, "b i, b i, b j -> b j", (), (4, 7)),
    "the Hessian of a divergence": (flow, "i, i, j, k -> j k", (), (7,)),
    "a number of several indices": (flow, "i, j, i, j -> ", (), (7,)),
    "an axis at one place": (field, ", i, i, 2 ->", (), (7,)),
}


def _by_hand(f: Callable[..., Any], pattern: str, operands: Any, x: Tensor) -> Tensor:
    """Contract the whole derivative, or one for each point where the pattern has a label of points."""
    head, result = pattern.split("->")
    output, *others = [each.split() for each in head.split(",")]
    slots = others[: len(others) - len(operands)]
    derivative = nested_reverse(f, len(slots))(x)
    for place, index in enumerate(slots):
        if index == ["2"]:
            derivative = derivative.select(len(output) + place, 2)
    used = [*output, *(name for slot in slots for name in slot if name != "2")]
    subscripts = ",".join("".join(names) for names in (used, *others[len(slots) :]))
    return torch.einsum(f"{subscripts}->{''.join(result.split())}", derivative, *operands)


@pytest.mark.parametrize("name", CASES)
def test_some_entries_at_a_time_make_the_whole(name: str, device: torch.device) -> None:
    f, pattern, shapes, shape = CASES[name]
    x = rand(device, *shape) / 2
    operands = tuple([rand(device, *each, seed=seed) for seed, each in enumerate(shapes)])
    expected = _by_hand(f, pattern, operands, x)
    least = stated(partial(hofunc.einsum(f, pattern, max_bytes=1).plan, operands=operands), x)
    whole = hofunc.einsum(f, pattern).plan(x, operands=operands)
    assert least < whole.peak_bytes
    for limit in (least, (least + whole.peak_bytes) // 2):
        transform = hofunc.einsum(f, pattern, max_bytes=limit)
        plan = transform.plan(x, operands=operands)
        assert plan.peak_bytes <= limit
        assert relative_error(plan(x, operands=operands), expected) < 1e-12
        if device.type == "cpu":
            assert taken(lambda: plan(x, operands=operands)) <= limit + SLACK  # noqa: B023 - called at once
    for size in (1, 3):
        with suppress(hofunc.ArgumentError):  # rows of points, where there are some, may have no chunks of so many
            got = hofunc.einsum(f, pattern, chunk_size=size)(x, operands=operands)
            assert relative_error(got, expected) < 1e-12


def _limited(transform: Callable[..., Any], *args: Any) -> Any:
    """Return a transform that may hold a third of what a plan of the whole does, or the least that it names."""
    whole = transform().plan(*args).peak_bytes
    smallest = transform(max_bytes=1)
    return transform(max_bytes=max(whole // 3, stated(smallest, *args), stated(smallest.plan, *args)))


def test_named_operators_and_patterns_together_are_kept_small(device: torch.device) -> None:
    x = rand(device, 7) / 2
    for operator in (hofunc.laplacian, hofunc.biharmonic):
        assert relative_error(_limited(partial(operator, field), x).plan(x)(x), operator(field)(x)) < 1e-12
    assert relative_error(_limited(partial(hofunc.divergence, flow), x).plan(x)(x), hofunc.divergence(flow)(x)) < 1e-12
    patterns = {"u": "->", "slope": ", i -> i", "trace": ", i, i ->", "all": ", i, j -> i j"}
    transform = _limited(partial(hofunc.einsum, field, patterns), x)
    got, expected = transform.plan(x)(x), hofunc.einsum(field, patterns)(x)
    assert "chunks of" in transform.plan(x).explain()
    for key in patterns:
        assert relative_error(got[key], expected[key]) < 1e-12
        assert got[key].shape == expected[key].shape


def _of_several(p: dict[str, Tensor], y: Tensor) -> Tensor:
    return (((WIDE[:5].T.to(y) @ p["a"]).tanh() * p["b"].sin()) @ MIXED.to(y)).square().sum() * y.exp().sum()


@pytest.mark.parametrize("pattern", [", *p, *p ->", ", *p, *p, *q -> *q"])
def test_entries_of_several_inputs_are_added_up(pattern: str, device: torch.device) -> None:
    p, y = {"a": rand(device, 5), "b": rand(device, 24, seed=1)}, rand(device, 2)
    transform = _limited(partial(hofunc.einsum, _of_several, pattern), p, y)
    plan = transform.plan(p, y)
    assert plan.peak_bytes < hofunc.einsum(_of_several, pattern).plan(p, y).peak_bytes
    for got, expected in zip(
        tree_leaves(plan(p, y)), tree_leaves(hofunc.einsum(_of_several, pattern)(p, y)), strict=True
    ):
        assert relative_error(got, expected) < 1e-12
    trace = hofunc.hessian(lambda flat: _of_several({"a": flat[:5], "b": flat[5:]}, y))(torch.cat([p["a"], p["b"]]))
    if pattern == ", *p, *p ->":
        assert relative_error(plan(p, y), trace.trace()) < 1e-12


def test_chunks_that_are_added_up_are_followed_by_whatever_follows(device: torch.device) -> None:
    x, xs = rand(device, 7) / 2, rand(device, 3, 7) / 2
    call = _limited(partial(hofunc.laplacian, field), x)
    plan, whole = call.plan(x), hofunc.laplacian(field)
    slope = torch.func.grad(whole)(x)
    leaf = x.clone().requires_grad_()
    for each in (call, plan, hofunc.jit(call)):
        assert relative_error(torch.func.vmap(each)(xs), torch.func.vmap(whole)(xs)) < 1e-12
        assert relative_error(torch.func.grad(each)(x), slope) < 1e-12
        assert relative_error(torch.autograd.grad(each(leaf), leaf)[0], slope) < 1e-12
        assert relative_error(hofunc.jacobian(each)(x), slope) < 1e-12
        assert relative_error(torch.func.hessian(each)(x), torch.func.hessian(whole)(x)) < 1e-11


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_chunks_are_added_up_in_the_dtype_of_the_computation(dtype: torch.dtype, device: torch.device) -> None:
    x = rand(device, 7) / 2
    f = lambda x: field(x.to(torch.float64)).to(dtype)  # noqa: E731 - as short as it can be
    x = x.to(dtype)
    call = hofunc.laplacian(f, max_bytes=stated(hofunc.laplacian(f, max_bytes=1), x))
    assert "chunks of" in call.plan(x).explain()
    assert call(x).dtype == dtype
    assert relative_error(call(x).double(), hofunc.laplacian(field)(x.double())) < 2 * torch.finfo(dtype).eps


def test_samples_are_taken_some_at_a_time(device: torch.device) -> None:
    x = rand(device, 7) / 2

    def estimate(**limits: Any) -> Any:
        drawing = torch.Generator(device).manual_seed(0)
        return hofunc.einsum(field, ", i, i ->", estimate={"i": 40}, generator=drawing, **limits)

    limit = stated(estimate(max_bytes=1), x)
    assert limit < taken(lambda: estimate()(x)) / 3
    assert relative_error(estimate(max_bytes=limit)(x), estimate()(x)) < 1e-12


def test_complex_numbers_are_summed_some_at_a_time(device: torch.device) -> None:
    x = rand(device, 7) / 2
    f = lambda x: torch.complex(field(x), field(x.sin()))  # noqa: E731 - as short as it can be
    call = _limited(partial(hofunc.laplacian, f), x)
    assert relative_error(call.plan(x)(x), call(x)) < 1e-12
    expected = hofunc.laplacian(field)(x) + 1j * hofunc.laplacian(lambda x: field(x.sin()))(x)
    assert relative_error(call(x), expected) < 1e-12


def test_a_product_with_a_vector_has_nothing_to_sum(device: torch.device) -> None:
    """Entries of its vector would each be as much to compute as the product is."""
    x, v = rand(device, 7), rand(device, 7, seed=1)
    call = hofunc.einsum(field, ", i, j, i, j ->", chunk_size=2)
    with pytest.raises(hofunc.ArgumentError, match="cannot be taken apart"):
        call(x, operands=(v, v))
