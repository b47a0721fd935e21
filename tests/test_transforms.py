"""The public transforms: how they nest, commute, and what they return."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import hod
from hofunc.graph import recording
from hofunc.graph.node import Graph
from hofunc.graph.recording import replay
from tests.cases import distinct, mixed, rand
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


# Composition with torch.func.


@pytest.mark.parametrize("order", [1, 2, 3])
def test_vmap_of_hod(f: Callable, x: Tensor, order: int) -> None:
    assert_equal(vmap(hod(f, order))(x), vmap(nested_reverse(f, order))(x))


def test_hod_of_vmap(f: Callable, x: Tensor) -> None:
    assert_equal(hod(vmap(f), 2)(x), nested_reverse(vmap(f), 2)(x))


def test_grad_of_a_scalar_of_hod(f: Callable, x: Tensor) -> None:
    got = grad(lambda x: hod(f, 2)(x).sin().sum())(x[0])
    assert_equal(got, grad(lambda x: nested_reverse(f, 2)(x).sin().sum())(x[0]))


def test_jacfwd_and_jvp_of_hod(f: Callable, x: Tensor) -> None:
    assert_equal(torch.func.jacfwd(hod(f, 1))(x[0]), nested_reverse(f, 2)(x[0]))
    got = torch.func.jvp(hod(f, 2), (x[0],), (x[1],))
    assert_equal(got, torch.func.jvp(nested_reverse(f, 2), (x[0],), (x[1],)))


def test_hod_of_hod(f: Callable, x: Tensor) -> None:
    expected = hod(f, 3)(x[0])
    assert_equal(hod(hod(f, 2), 1)(x[0]), expected)
    assert_equal(hod(hod(f, 1), 2)(x[0]), expected)
    assert_equal(hod(hod(hod(f, 1), 1), 1)(x[0]), expected)
    assert_equal(expected, nested_reverse(f, 3)(x[0]))


def test_vmap_over_a_captured_tensor(x: Tensor) -> None:
    def g(x: Tensor, w: Tensor) -> Tensor:
        return mixed(x * w)

    got = vmap(lambda x, w: hod(lambda x: g(x, w), 2)(x))(x, x.cos())
    assert_equal(got, vmap(lambda x, w: nested_reverse(lambda x: g(x, w), 2)(x))(x, x.cos()))
    got = vmap(lambda w: hod(lambda x: g(x, w * w[0]), 2)(x[0]))(x)
    assert_equal(got, vmap(lambda w: nested_reverse(lambda x: g(x, w * w[0]), 2)(x[0]))(x))


def test_vmap_over_an_argument_that_is_not_differentiated(x: Tensor) -> None:
    def g(x: Tensor, w: Tensor, *, scale: Tensor) -> Tensor:
        return mixed(x * w) * scale

    got = vmap(lambda x, w: hod(g, 2)(x, w, scale=w[0]))(x, x.cos())
    assert_equal(got, vmap(lambda x, w: nested_reverse(lambda x: g(x, w, scale=w[0]), 2)(x))(x, x.cos()))


def test_a_transform_inside_f_captures_a_tensor_of_a_transform_outside(x: Tensor) -> None:
    def rows(inner: Callable[..., Any]) -> Callable[[Tensor], Any]:
        return lambda w: inner(lambda x: vmap(lambda row: mixed(row * w))(x).sum(), 2)(x)

    assert_equal(vmap(rows(hod))(x), vmap(rows(nested_reverse))(x))


@pytest.mark.parametrize(
    "inner",
    [
        lambda x: torch.func.vjp(torch.sigmoid, x)[1](x.sin())[0],
        lambda x: torch.func.hessian(lambda t: t.sin().prod() * t.sum())(x) @ x,
        lambda x: torch.func.jacrev(lambda t: t.exp() * t.sum())(x).sum(0),
        lambda x: torch.func.jvp(torch.tanh, (x,), (x,))[1],
    ],
)
def test_backward_passes_inside_f_under_a_transform_outside(inner: Callable, x: Tensor) -> None:
    """A vjp inside runs its backward pass after its level has ended, on wrappers that are not those of the outside."""
    for order in (1, 2):
        above = nested_reverse(inner, order + 1)(x[0])
        assert_equal(vmap(hod(inner, order))(x), vmap(nested_reverse(inner, order))(x))
        assert_equal(grad(lambda x, order=order: hod(inner, order)(x).sum())(x[0]), above.flatten(0, -2).sum(0))
        assert_equal(torch.func.jvp(hod(inner, order), (x[0],), (x[1],))[1], above @ x[1])


def test_wrappers_of_a_transform_inside_f_over_one_outside_are_refused(x: Tensor) -> None:
    def g(w: Tensor) -> Tensor:
        return hod(lambda x: vmap(lambda a, b: a * b)(x, w).sum(), 1)(x[0])

    with pytest.raises(hofunc.UntracedError, match="maps a transform of its own over a captured tensor"):
        vmap(g)(x)


def test_nested_levels_of_vmap_and_grad(x: Tensor) -> None:
    def g(derivative: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
        return grad(lambda w: derivative(lambda x: mixed(x * w), 2)(x[0]).sin().sum())

    assert_equal(vmap(g(hod))(x), vmap(g(nested_reverse))(x))


def test_forward_mode_of_plain_autograd(f: Callable, x: Tensor) -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = hod(f, 2)(torch.autograd.forward_ad.make_dual(x[0], x[1]))
        tangent = torch.autograd.forward_ad.unpack_dual(dual).tangent
    assert_equal(tangent, torch.func.jvp(nested_reverse(f, 2), (x[0],), (x[1],))[1])


def test_in_place_code_under_vmap(x: Tensor) -> None:
    def g(x: Tensor) -> Tensor:
        y = x.clone()
        y[0] = x[1] * 2
        z = torch.zeros_like(x)
        z[:2] = y[1:] * x[:2]
        return mixed(z)

    assert_equal(vmap(hod(g, 2))(x), vmap(nested_reverse(g, 2))(x))


# Composition with autograd.


@pytest.mark.parametrize("strategy", ["auto", "reverse"])
def test_autograd_goes_through_code_that_writes_in_place(strategy: str, x: Tensor, device: torch.device) -> None:
    """Autograd's own history of a tensor that was written to below it ends there."""

    def summed(w: Tensor, is_in_place: bool) -> Tensor:
        def in_place(x: Tensor) -> Tensor:
            y, z = w.sin(), torch.zeros_like(w)
            y.mul_(x)
            z[1:] = w[1:] * x[1:]
            z[0] = (w * w).sum()
            top = z[:2]
            top *= w[:2]
            return (z.exp_() * y).sum()

        def functional(x: Tensor) -> Tensor:
            z = torch.cat([(w * w).sum()[None], w[1:] * x[1:]])
            return (torch.cat([z[:2] * w[:2], z[2:]]).exp() * (w.sin() * x)).sum()

        parts = hofunc.derivatives(in_place if is_in_place else functional, 2, strategy=strategy)(x[0] + w)
        return sum((part.sin().sum() for part in parts), w.new_zeros(()))

    weight = rand(device, 3, seed=5).requires_grad_()
    (expected,) = torch.autograd.grad(summed(weight, False), weight)
    assert_equal(torch.autograd.grad(summed(weight, True), weight)[0], expected)
    assert_equal(grad(lambda w: summed(w, True))(weight.detach()), expected)
    assert_equal(hofunc.jacobian(lambda w: summed(w, True))(weight.detach()), expected)
    with torch.autograd.forward_ad.dual_level():
        dual = summed(torch.autograd.forward_ad.make_dual(weight.detach(), x[1]), True)
        assert_equal(torch.autograd.forward_ad.unpack_dual(dual).tangent, expected @ x[1])


def _over_zeros(x: Tensor, w: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    z.add_(x * w)
    return z.exp()


def _over_a_constant_that_was_used(x: Tensor, w: Tensor) -> Tensor:
    c = torch.full_like(x, 2.0)
    before = x * w * c
    c.mul_(x * w)
    return c * before


def _over_a_result_that_was_used(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).exp()
    before = y * y
    y.add_(x)
    return y * before


def _over_what_a_write_took(x: Tensor, w: Tensor) -> Tensor:
    y, c = torch.ones_like(x), torch.full_like(x, 2.0)
    y.mul_(x * w).mul_(c)
    c.add_(x)
    return y * c


def _in_parts(x: Tensor, w: Tensor) -> Tensor:
    z = torch.zeros(2, 3, dtype=x.dtype, device=x.device)
    z[0], z[1, :2], z[:, 2] = x * w, (w * x.sin())[1:], x[0] * w[1]
    return z[0] * 1 + z[1].exp()


def _in_parts_read_as_written(x: Tensor, w: Tensor) -> Tensor:
    z = torch.zeros(2, 3, dtype=x.dtype, device=x.device)
    z[0] = (x * w).exp()
    z[1] = 0
    return z[0]


def _across_memory(x: Tensor, w: Tensor) -> Tensor:
    z = torch.zeros(3, 2, dtype=x.dtype, device=x.device).t()
    z[0] = (x * w).exp()
    z[1, ::2] = (x * w)[:2]
    return z.sin().sum(0)


WRITES: list[tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = [
    (_over_zeros, lambda x, w: (x * w).exp()),
    (_over_a_constant_that_was_used, lambda x, w: (2 * x * w) * (2 * x * w)),
    (_over_a_result_that_was_used, lambda x, w: ((x * w).exp() + x) * (2 * x * w).exp()),
    (_over_what_a_write_took, lambda x, w: 2 * x * w * (2 + x)),
    (
        _in_parts,
        lambda x, w: (
            torch.stack([x[0] * w[0], x[1] * w[1], x[0] * w[1]])
            + torch.stack([w[1] * x[1].sin(), w[2] * x[2].sin(), x[0] * w[1]]).exp()
        ),
    ),
    (_in_parts_read_as_written, lambda x, w: (x * w).exp()),
    (
        _across_memory,
        lambda x, w: (x * w).exp().sin() + torch.stack([x[0] * w[0], 0 * x[0], x[1] * w[1]]).sin(),
    ),
]


@pytest.mark.parametrize(("writing", "written_out"), WRITES, ids=[name.__name__ for name, _ in WRITES])
def test_backward_through_what_was_written(
    writing: Callable[..., Tensor], written_out: Callable[..., Tensor], x: Tensor, device: torch.device
) -> None:
    weight = rand(device, 3, seed=5).requires_grad_()
    got = hod(lambda x: writing(x, weight), 2)(x[0])
    assert_equal(got, nested_reverse(lambda x: written_out(x, weight), 2)(x[0]))
    expected = grad(lambda w: nested_reverse(lambda x: written_out(x, w), 2)(x[0]).sin().sum())(weight.detach())
    assert_equal(torch.autograd.grad(got.sin().sum(), weight)[0], expected)


def test_only_what_depends_on_what_was_written_over_is_computed_again(
    x: Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, counts = rand(device, 3, seed=5).requires_grad_(), []

    def counted(graph: Graph, inputs: Any, known: Any) -> list[Tensor]:
        counts.append(len(graph.nodes) - len(known))
        return replay(graph, inputs, known)

    def f(x: Tensor, writes: bool) -> Tensor:
        z = torch.zeros_like(x)
        z.add_((x * weight).sin().exp())
        return z.exp().add_(x) if writes else z.exp()

    monkeypatch.setattr(recording, "replay", counted)
    hod(lambda x: f(x, False), 2)(x[0])
    assert not counts
    hod(lambda x: f(x, True), 2)(x[0])
    assert counts[-1] == 3  # what was written over, what autograd saved of it, and the sum


def test_backward_to_the_parameters_of_a_module(x: Tensor, device: torch.device) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    net = distinct(net.double().to(device))
    parameters = dict(net.named_parameters())

    def loss(derivative: Callable[..., Any], *tensors: Tensor) -> Tensor:
        named = dict(zip(parameters, tensors, strict=True))
        return derivative(lambda x: torch.func.functional_call(net, named, (x,)).sum(), 2)(x[0]).sin().sum()

    expected = grad(lambda *t: loss(nested_reverse, *t), argnums=tuple(range(4)))(*parameters.values())
    hod(lambda x: net(x).sum(), 2)(x[0]).sin().sum().backward()
    # the last bias does not matter to the second derivative, and so it gets no gradient
    got = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
    assert_equal(got, list(expected))


def test_backward_to_the_input(f: Callable, x: Tensor) -> None:
    leaf = x[0].clone().requires_grad_()
    (got,) = torch.autograd.grad(hod(f, 2)(leaf).sin().sum(), leaf)
    assert_equal(got, grad(lambda x: nested_reverse(f, 2)(x).sin().sum())(x[0]))


def test_nothing_has_a_history_where_gradients_are_off(f: Callable, x: Tensor) -> None:
    leaf = x[0].clone().requires_grad_()
    with torch.no_grad():
        results = hofunc.derivatives(lambda x: (f(x), x * 2), 2, has_aux=True)(leaf)
    assert not any(t.requires_grad for t in torch.utils._pytree.tree_leaves(results))
    with torch.inference_mode():
        assert_equal(hod(f, 2)(x[0]).clone(), nested_reverse(f, 2)(x[0]))


def test_functions_make_tensors_in_inference_mode(x: Tensor) -> None:
    f = lambda x: (x**3 * torch.tensor([x[0, 0], 2.0, 3.0]) + torch.tensor(2.0)).sum()  # noqa: E731
    expected = hod(f, 2)(x)
    with torch.inference_mode():
        assert_equal(hod(f, 2)(x), expected)
        assert_equal(hod(f, 2)(x * 1), expected)


def test_functions_have_weights_that_autograd_follows_in_inference_mode(x: Tensor) -> None:
    weight = torch.nn.Parameter(torch.stack([x[0], x[1].cos()]))

    def f(x: Tensor, scale: Tensor) -> Tensor:
        return (torch.nn.functional.linear(x, weight).sin() * torch.nn.functional.linear(scale, weight)).sum()

    def gradient(transform: Callable) -> Callable:
        return torch.func.grad(lambda x, scale: transform(x, scale).sin().sum())

    expected = nested_reverse(f, 2)(x, x.cos())
    third = gradient(nested_reverse(f, 2))(x, x.cos())
    with torch.inference_mode():
        x, scale = x.clone(), x.cos()
        jitted, plan = hofunc.jit(hod(f, 2)), hod(f, 2).plan(x, scale)
        for transform in (hod(f, 2), plan, jitted, jitted):
            assert_equal(transform(x, scale).clone(), expected)
        assert_equal(gradient(hod(f, 2))(x, scale).clone(), third)


# What is returned.


@pytest.mark.parametrize("layout", ["dense", "compact"])
def test_derivatives_returns_the_value_and_every_order(f: Callable, x: Tensor, layout: str) -> None:
    value, *orders = hofunc.derivatives(f, 3, layout=layout)(x[0])
    assert_equal(value, f(x[0]))
    for order, derivative in enumerate(orders, 1):
        dense = derivative.dense() if layout == "compact" else derivative
        assert_equal(dense, nested_reverse(f, order)(x[0]))


def test_named_orders(f: Callable, x: Tensor) -> None:
    assert_equal(hofunc.jacobian(torch.sin)(x), nested_reverse(torch.sin, 1)(x))
    assert_equal(hofunc.hessian(f)(x), nested_reverse(f, 2)(x))


def test_aux_may_be_anything(f: Callable, x: Tensor) -> None:
    got, aux = hod(lambda x: (f(x), {"twice": x * 2, "name": "f"}), 2, has_aux=True)(x[0])
    assert_equal(got, nested_reverse(f, 2)(x[0]))
    assert_equal(aux["twice"], x[0] * 2)
    assert aux["name"] == "f"
    got, aux = vmap(hod(lambda x: (f(x), x * 2), 2, has_aux=True))(x)
    assert_equal((got, aux), (vmap(nested_reverse(f, 2))(x), x * 2))
    (value, _), aux = hofunc.derivatives(lambda x: (f(x), x * 2), 1, has_aux=True)(x[0])
    assert_equal((value, aux), (f(x[0]), x[0] * 2))


def test_keyword_arguments_and_other_arguments_are_passed_on(x: Tensor) -> None:
    def g(scale: float, x: Tensor, names: tuple[str, ...], *, power: int = 1) -> Tensor:
        return (scale * len(names) * x**power).sum()

    got = hod(g, 2, argnums=1)(2.0, x[0], ("a", "b"), power=3)
    assert_equal(got, torch.diag(24 * x[0]))
    assert_equal(hod(g, 2, argnums=-2)(2.0, x[0], ("a", "b"), power=3), got)


def test_a_tuple_of_one_argnum_nests_one_deeper(f: Callable, x: Tensor) -> None:
    got = hod(f, 2, argnums=(0,))(x[0])
    assert isinstance(got, tuple)
    assert isinstance(got[0], tuple)
    assert_equal(got, nested_reverse(f, 2, (0,))(x[0]))


def test_the_result_is_nobody_elses_memory(device: torch.device) -> None:
    weight = rand(device, 2, 3)
    before = weight.clone()
    jacobian = hofunc.jacobian(lambda x: weight @ x)(rand(device, 3))
    jacobian.zero_()
    first, second = hofunc.jacobian(lambda x, y: weight @ x + weight @ y, argnums=(0, 1))(*rand(device, 2, 3))
    first.zero_()
    broadcast = hofunc.jacobian(torch.sum)(weight)
    broadcast[0, 0] = 5
    assert_equal(weight, before)
    assert_equal(second, before)
    assert broadcast.sum() == 5 + 5


def test_the_transform_is_named_after_the_function() -> None:
    def energy(x: Tensor) -> Tensor:
        return x

    assert hod(energy).__name__ == "energy"


def test_the_same_tensor_as_two_arguments(x: Tensor) -> None:
    def g(a: Tensor, b: Tensor) -> Tensor:
        return (a * b.exp()).sum()

    assert_equal(hod(g, 2)(x[0], x[0]), nested_reverse(g, 2)(x[0], x[0]))
    assert_equal(hod(g, 2, argnums=(0, 1))(x[0], x[0]), nested_reverse(g, 2, (0, 1))(x[0], x[0]))


def test_empty_inputs_and_outputs(device: torch.device) -> None:
    empty = rand(device, 0, 3)
    assert hod(lambda x: x.exp().sum(), 2)(empty).shape == (0, 3, 0, 3)
    assert hod(torch.sin, 2)(empty).shape == (0, 3) * 3
    assert hod(lambda x: x[:0] * x.sum(), 2)(rand(device, 2)).shape == (0, 2, 2)
    assert hod(lambda p, x: x, 2)({}, empty) == {}


# Other dtypes.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_dtypes_are_as_accurate_as_they_allow(dtype: torch.dtype, device: torch.device) -> None:
    weight = rand(device, 4, 4, seed=1)
    x = rand(device, 3, 4)

    def network(weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: (((x @ weight).tanh() @ weight).softmax(1) * x.sin()).sum()

    low_weight, low_x = weight.to(dtype), x.to(dtype)
    for order in (1, 2, 3):
        got = hod(network(low_weight), order)(low_x)
        expected = hod(network(low_weight.double()), order)(low_x.double())
        assert got.dtype == dtype
        assert relative_error(got.double(), expected) < 10 * torch.finfo(dtype).eps


def test_a_function_that_changes_the_dtype(device: torch.device) -> None:
    x = rand(device, 3)
    got = hod(lambda x: (x.double() ** 3).sum().float(), 2)(x.float())
    assert got.dtype == torch.float32
    assert relative_error(got.double(), torch.diag(6 * x)) < 1e-6


# Calls again.


def test_a_plan_is_used_again_only_for_the_same_structure(device: torch.device) -> None:
    weight = rand(device, 3, 3, seed=1)

    def g(x: Tensor) -> Tensor:
        y = x @ weight
        return mixed(y) if y.sum() > 0 else (y.tanh() * 0.0).sum() + (y**3).sum()

    for seed in range(6):
        point = rand(device, 2, 3, seed=seed)
        assert_equal(hod(g, 2)(point), nested_reverse(g, 2)(point))
    weight.mul_(2)
    point = rand(device, 4, 3)
    assert_equal(hod(g, 2)(point), nested_reverse(g, 2)(point))


@pytest.mark.parametrize("constant", [0.0, -0.0])
def test_a_negative_zero_is_another_constant(constant: float, device: torch.device) -> None:
    x = torch.tensor(2.0, dtype=torch.float64, device=device)
    assert hod(lambda x: x / constant, 1)(x).item() == (float("-inf") if str(constant) == "-0.0" else float("inf"))


def test_a_mask_of_another_size_is_another_plan(device: torch.device) -> None:
    x = rand(device, 6)
    for bound in (-1.0, 0.0, 1.0):

        def g(x: Tensor, bound: float = bound) -> Tensor:
            y = x.clone()
            y[x > bound] = y[x > bound] * 2
            return mixed(y)

        def same(x: Tensor, bound: float = bound) -> Tensor:
            return mixed(torch.where(x > bound, x * 2, x))

        assert_equal(hod(g, 2)(x), nested_reverse(same, 2)(x))


def test_f_is_called_once(x: Tensor) -> None:
    calls = []

    def g(x: Tensor) -> Tensor:
        calls.append(1)
        y = x.clone()
        y[0] = 0
        return mixed(y)

    hod(g, 2)(x[0])
    vmap(hod(g, 2))(x)
    assert len(calls) == 2


def test_threads_may_call_the_same_transform(f: Callable, x: Tensor) -> None:
    transform, expected = hod(f, 2), nested_reverse(f, 2)(x[0])
    results: dict[int, Tensor] = {}

    def work(number: int) -> None:
        for _ in range(5):
            results[number] = transform(x[0])

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results.values():
        assert_equal(result, expected)


def test_random_numbers_inside_f_are_fixed_within_a_call(device: torch.device) -> None:
    x = rand(device, 50)
    state = torch.random.get_rng_state()
    (value, slope, curvature) = hofunc.derivatives(lambda x: torch.nn.functional.dropout(x, 0.5).pow(3).sum(), 2)(x)
    torch.random.set_rng_state(state)
    if device.type == "cpu":
        kept = torch.nn.functional.dropout(torch.ones_like(x), 0.5)
        assert_equal(value, (kept * x).pow(3).sum())
        assert_equal((slope, curvature), (3 * kept**3 * x**2, torch.diag(6 * kept**3 * x)))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0])
def test_fused_dropout_is_fixed_within_a_call(p: float, device: torch.device) -> None:
    x = rand(device, 50)
    value, slope = hofunc.derivatives(lambda x: torch.native_dropout(x, p, True)[0], 1)(x)
    scales = slope.diagonal()
    assert_equal(value, scales * x)
    assert set(scales.unique().tolist()) == {0.0: {1.0}, 0.5: {0.0, 2.0}, 1.0: {0.0}}[p]
    assert_equal(hofunc.jacobian(lambda x: torch.native_dropout(x, p, False)[0])(x), torch.ones_like(x).diag())


def test_random_numbers_under_vmap(x: Tensor) -> None:
    def g(x: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = hofunc.derivatives(lambda x: torch.native_dropout(x, 0.5, True)[0], 1)(x)
        return value, slope.diagonal()

    values, scales = vmap(g, randomness="different")(x.repeat(5, 1))
    assert_equal(values, scales * x.repeat(5, 1))
    assert set(scales.unique().tolist()) == {0.0, 2.0}


def test_indices_that_are_not_batched_under_vmap(x: Tensor, device: torch.device) -> None:
    places = torch.tensor([2, 0], device=device)
    assert_equal(vmap(hod(lambda x: mixed(x[places]), 2))(x), vmap(nested_reverse(lambda x: mixed(x[places]), 2))(x))
    with pytest.raises(hofunc.BranchError, match=r"aten\.index\.Tensor, which needs a single value"):
        vmap(hod(lambda x: x[x > 0].sum(), 1))(x)


@pytest.mark.parametrize("way", ["call", "plan", "chunks", "compiled"])
@pytest.mark.parametrize("writes", [False, True])
def test_backward_where_only_a_captured_tensor_requires_gradients(writes: bool, way: str, device: torch.device) -> None:
    """One of two that f takes; the other, and the input, do not."""
    x, scale = rand(device, 6, 3), rand(device, 3, seed=1)
    weight = rand(device, 3, 3, seed=2).requires_grad_()

    def f(x: torch.Tensor) -> torch.Tensor:
        if not writes:
            return ((x @ weight).sin() * scale).prod(1)
        y, z = x @ weight, torch.empty_like(x)
        y.sin_()
        torch.mul(y.detach(), 0, out=z)
        z.add_(y).mul_(scale)
        return z.prod(1)

    def written_out(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).sin() * scale).prod(1)

    hessian = hofunc.hod(f, 2, layout="compact", chunk_size=4 if way == "chunks" else None)
    call: Any = hessian if way == "call" else hessian.plan(x)
    if way == "compiled":
        call = call.compile(backend="eager")
    call(x).dense(keep_batch=True).pow(2).sum().backward()
    expected = torch.func.grad(lambda weight: hofunc.hessian(lambda x: written_out(x, weight))(x).pow(2).sum())(
        weight.detach()
    )
    assert weight.grad is not None
    assert relative_error(weight.grad, expected) < 1e-11
    assert scale.grad is None
