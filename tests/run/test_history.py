"""Derivatives that are constant have a history where the value has one: gradients are zero, not an error."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.structured.anchors import with_history

net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).double()
x = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
parameters = tuple(net.parameters())


def energy(x: Tensor) -> Tensor:
    """Return what is linear in pieces, the value of a network."""
    return net(x).sum()


def calls(transform: Any) -> dict[str, Callable[[], Any]]:
    """Return the ways in which a transform runs, the first call of which each makes before."""
    plan, quick, batch = transform.plan(x), hofunc.jit(transform), torch.stack([x, -x])
    ways = {
        "first": lambda: transform(x),
        "later": lambda: transform(x),
        "plan": lambda: plan(x),
        "jit": lambda: quick(x),
        "jit later": lambda: quick(x),
        "pickled": lambda: pickle.loads(pickle.dumps(plan))(x),  # noqa: S301 - it wrote it
        "vmap": lambda: torch.func.vmap(transform)(batch),
        "vmap of a plan": lambda: torch.func.vmap(plan)(batch),
    }
    compact = isinstance(transform(x), hofunc.Derivative)
    return ways if compact else ways | {"graph": lambda: plan.to_fx()(x)[0]}


def check(result: Any, wanted: tuple[Tensor, ...] = parameters) -> None:
    """Check that a backward pass leads to zeros, and one through it as well."""
    y = result.dense() if isinstance(result, hofunc.Derivative) else result
    assert y.requires_grad
    assert not y.any()
    first = torch.autograd.grad(y.pow(2).sum() + y.sum() ** 2, wanted, create_graph=True)
    assert not any(each.any() for each in first)
    second = torch.autograd.grad([each.sum() for each in first], wanted)
    assert not any(each.any() for each in second)


TRANSFORMS = {
    "laplacian": hofunc.laplacian(energy),
    "hessian": hofunc.hessian(energy),
    "third": hofunc.hod(energy, order=3),
    "einsum": hofunc.einsum(energy, ", i, j -> i j"),
    "compact": hofunc.hod(energy, order=2, layout="compact"),
    "twice": hofunc.hessian(lambda x: hofunc.laplacian(energy)(x)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_backward_of_what_is_zero_everywhere(name: str) -> None:
    for way, call in calls(TRANSFORMS[name]).items():
        result = call()
        if way != "pickled":  # which has copies of the parameters
            check(result[0] if isinstance(result, tuple) else result)


def test_a_training_step_of_a_network_of_relus() -> None:
    batch = torch.stack([x, 2 * x])
    for _ in range(3):
        net.zero_grad()
        loss = torch.func.vmap(hofunc.laplacian(energy))(batch).pow(2).mean()
        loss.backward()
        assert all(each.grad is not None and not each.grad.any() for each in parameters)
    net.zero_grad()


STEPS = {
    "relu": lambda x: net(x),
    "abs": lambda x: x.abs(),
    "clamp": lambda x: x.clamp(-1, 1) * 2,
    "amax": lambda x: x.amax(-1),
    "maximum": lambda x: torch.maximum(x, -2 * x),
    "leaky relu": lambda x: torch.nn.functional.leaky_relu(x, 0.2),
    "sort": lambda x: x.sort()[0],
}


@pytest.mark.parametrize("name", STEPS)
def test_backward_of_slopes_that_are_read_off_signs(name: str) -> None:
    net.requires_grad_(False)
    given = x.clone().requires_grad_()
    transform = hofunc.jacobian(STEPS[name])
    for call in (transform, transform, transform.plan(x), hofunc.jit(transform)):
        (gradient,) = torch.autograd.grad(call(given).pow(2).sum(), given)
        assert not gradient.any()
    net.requires_grad_()


@pytest.mark.parametrize("name", STEPS)
def test_backward_that_is_planned_where_slopes_are_read_off_signs(name: str) -> None:
    net.requires_grad_(False)
    given = x.clone().requires_grad_()
    transform = hofunc.gradient(lambda x: STEPS[name](x).sum())
    with hofunc.options(planning="full"):
        for call in (transform, transform.plan(x), hofunc.jit(transform)):
            for _ in range(3):
                (gradient,) = torch.autograd.grad(call(given).pow(2).sum(), given)
                assert not gradient.any()
    net.requires_grad_()


def test_arguments_and_constant_results() -> None:
    matrix = torch.eye(3, dtype=torch.float64)
    given = x.clone().requires_grad_()
    transform = hofunc.hessian(lambda x: x @ matrix @ x)
    plan = transform.plan(x)
    for call in (transform, transform, plan, hofunc.jit(transform), lambda x: plan.to_fx()(x)[0], plan.compile()):
        result = call(given)
        torch.testing.assert_close(result.detach(), 2 * matrix, rtol=0, atol=0)
        (gradient,) = torch.autograd.grad(result.sum(), given)
        assert not gradient.any()


def test_structured_derivatives_without_a_core() -> None:
    given = x.clone().requires_grad_()
    square = hofunc.hod(lambda x: (x**2).sum(), order=2, layout="compact")
    for result in (square(given), square(given), square.plan(x)(given)):
        y = result.dense()
        torch.testing.assert_close(y.detach(), 2 * torch.eye(3, dtype=torch.float64))
        assert not torch.autograd.grad(y.sum(), given)[0].any()


def test_structured_derivatives_that_vanish_have_no_entries() -> None:
    result = hofunc.hod(energy, order=2, layout="compact")(x)
    assert result.nbytes == 0
    assert result.to_sparse().coalesce().values().numel() == 0
    check(result.contract(x))
    check(result.contract(x, x))
    check((2 * result + result).dense(keep_batch=True))
    check(result.packed())
    check(result.trace())
    check(result.diagonal())
    for matrix in (result.to_sparse(), result.to_sparse_csr()):
        assert not torch.autograd.grad(matrix.to_dense().sum(), parameters, retain_graph=True)[0].any()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_rows_of_structured_derivatives_that_vanish(order: int) -> None:
    batch = torch.stack([x, -x, 2 * x])
    result = hofunc.hod(lambda x: net(x).squeeze(-1) * 0 + net(x.detach()).sum(), order=order, layout="compact")(batch)
    assert result.to_sparse().coalesce().values().numel() == 0
    check(result)
    check(result.packed())
    check(result.diagonal())


def test_what_is_left_of_a_structured_derivative() -> None:
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)
    result = hofunc.hessian(lambda x: weight * x[0] * x[1], layout="compact")(x)
    for y in (result.trace(), result.diagonal().dense()):
        assert not torch.autograd.grad(y.sum(), weight, retain_graph=True)[0].any()
    rows = hofunc.hessian(lambda x: (weight * x.prod(1)).sum(), layout="compact")(torch.stack([x, x]))
    assert not torch.autograd.grad(rows[0:0].dense().sum(), weight)[0].any()


def test_nothing_is_multiplied_by_zero() -> None:
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    inverse = hofunc.hessian(lambda x: (x.abs() * weight.reciprocal()).sum())
    linear = hofunc.hessian(lambda x: (x * weight).sum().relu())
    for given in (x, x):
        (gradient,) = torch.autograd.grad(linear(given).sum(), weight)
        assert not gradient.any()
    assert inverse(x).requires_grad


def test_an_empty_batch() -> None:
    batch = torch.zeros(0, 3, dtype=torch.float64)
    for _ in range(2):
        net.zero_grad()
        hofunc.laplacian(lambda x: net(x).tanh().sum(-1))(batch).sum().backward()
        assert all(each.grad is not None and not each.grad.any() for each in parameters)
    net.zero_grad()


def test_aux_and_each_output_have_their_own_history() -> None:
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def both(x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        return (x.sum(), (weight * x).sum()), (x * 2)

    transform = hofunc.hessian(both, has_aux=True)
    for call in (transform, transform, transform.plan(x)):
        (first, second), aux = call(x)
        assert [each.requires_grad for each in (first, second, aux)] == [False, True, False]


def test_without_gradients_nothing_has_a_history() -> None:
    for name, transform in TRANSFORMS.items():
        plan = transform.plan(x)
        with torch.no_grad():
            for result in (transform(x), plan(x)):
                assert not (result.dense() if name == "compact" else result).requires_grad
    plain = hofunc.hessian(lambda x: (x**2).sum())
    assert not plain(x).requires_grad
    assert not plain.plan(x)(x).requires_grad


def test_under_grad_of_torch() -> None:
    def loss(given: dict[str, Tensor]) -> Tensor:
        return hofunc.laplacian(lambda x: torch.func.functional_call(net, given, (x,)).sum())(x).pow(2)

    given = {name: each.detach() for name, each in net.named_parameters()}
    for _ in range(2):
        assert not any(each.any() for each in torch.func.grad(loss)(given).values())


def test_in_a_compiled_function() -> None:
    transform = hofunc.laplacian(energy)
    compiled = torch.compile(lambda x: transform(x).pow(2), backend="aot_eager")
    for _ in range(2):
        gradients = torch.autograd.grad(compiled(x), parameters)
        assert not any(each.any() for each in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.bfloat16])
def test_of_tensors_of_other_dtypes(dtype: torch.dtype) -> None:
    origin = torch.ones(2, 3, dtype=dtype, requires_grad=True)
    result = with_history(torch.ones(2, dtype=torch.float64), [origin, origin.mT.conj()])
    assert result.dtype == torch.float64
    assert not torch.autograd.grad(result.sum(), origin)[0].any()


@pytest.mark.parametrize("options", [{"chunk_size": 1}, {"max_bytes": 10**6}])
def test_in_chunks_and_within_a_memory(options: dict[str, Any]) -> None:
    batch = torch.stack([x, -x])
    transform = hofunc.hessian(lambda x: net(x).sum(), **options)
    for call in (transform, transform, transform.plan(batch)):
        check(call(batch))


def test_where_what_is_saved_is_packed_or_results_are_checked() -> None:
    transform = hofunc.hessian(energy)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        check(transform(x))
    with hofunc.detect_anomaly():
        check(transform(x))


def test_what_is_detached_has_no_part_in_it() -> None:
    weight, other = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    transform = hofunc.hessian(lambda x: (x.relu() * weight).sum() + ((other * x).detach() * x).sum())
    for way, call in calls(transform).items():
        if way != "pickled":  # which has copies
            found: tuple[Tensor | None, ...] = torch.autograd.grad(call().sum(), (weight, other), allow_unused=True)
            assert [each is None or bool(each.any()) for each in found] == [False, True]


def test_parameters_that_are_frozen_and_thawed() -> None:
    transform, quick = hofunc.hessian(energy), hofunc.jit(hofunc.hessian(energy))
    try:
        for is_on in (True, False, True):
            net.requires_grad_(is_on)
            assert all(each(x).requires_grad is is_on for each in (transform, quick))
    finally:
        net.requires_grad_()
