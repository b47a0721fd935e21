"""Compiled plans of functions that read values: these are compared first, and the rest is compiled."""

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.run.looks import looks, parts_of
from tests.cases import rand
from tests.checks import assert_equal, refused
from verification.compiled import Cube

CPU = torch.device("cpu")
X = rand(CPU, 4)


def branches(x: Tensor) -> Tensor:
    return (x**3).sum() if x.sum() > 0 else (x**2).sum()


def scales(x: Tensor) -> Tensor:
    return (x.sin() * x.abs().max().item()).exp().sum()


def late(x: Tensor) -> Tensor:
    """Look at what is returned."""
    y = (x.sin() * x).cumsum(0).prod() / (x.cosh() + 2).prod()
    return y.exp() if x.sum() * y.cosh() > -9 else y


def masks(x: Tensor) -> Tensor:
    return (x[x > 0].exp() ** 2).sum() * x.prod()


def sorts(x: Tensor) -> Tensor:
    """Read one of two results of an op."""
    values, places = x.sort()
    return (values**3).sum() * (2 if places[0] > places[1] else 3) * places.to(x.dtype).sum()


def counts(x: Tensor) -> Tensor:
    """Read what an op returns of which values decide the shape."""
    values, times = (x > 0).unique(return_counts=True)
    return (x**3).sum() * times[0] * values.sum()


def iterates(x: Tensor) -> Tensor:
    """Find the square root of a sum by Newton's method."""
    total, root = x.square().sum() + 1, torch.ones((), dtype=x.dtype)
    while (root * root - total).abs() > 1e-3:
        root = (root + total / root) / 2
    return root * x.sum()


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [branches, scales, late, masks, sorts, counts, iterates]


@pytest.mark.parametrize("f", FUNCTIONS)
def test_the_rest_is_compiled_and_is_right(f: Callable[[Tensor], Tensor], graphs: list[GraphModule]) -> None:
    transform = hofunc.derivatives(f, 2)
    compiled = transform.plan(X).compile(backend="none")
    assert_equal(compiled(X), transform(X))
    assert not graphs, "nobody knows whether the values come again"
    for _ in range(2):
        assert_equal(compiled(X), transform(X))
        assert len(graphs) == 1


@pytest.mark.parametrize("f", FUNCTIONS)
def test_gradients(f: Callable[[Tensor], Tensor], graphs: list[GraphModule]) -> None:
    plan, leaf = hofunc.derivatives(f, 2).plan(X), X.clone().requires_grad_()
    compiled = plan.compile(backend="none")

    def gradient(called: hofunc.Plan) -> Tensor:
        total = torch.stack([each.sin().sum() for each in tree_leaves(called(leaf)) if each.requires_grad]).sum()
        return torch.autograd.grad(total, leaf)[0]

    for _ in range(3):
        assert_equal(gradient(compiled), gradient(plan))
    assert graphs


@pytest.mark.parametrize("f", [branches, scales, masks, late])
def test_what_does_not_fit_is_refused_as_by_the_plan(f: Callable[[Tensor], Tensor], graphs: list[GraphModule]) -> None:
    plan, other = hofunc.hessian(f).plan(X.abs()), -9 * X.abs()
    compiled = plan.compile(backend="none")
    for _ in range(3):
        told = []
        for each in (plan, compiled):
            with pytest.raises(hofunc.PlanMismatchError) as error:
                each(other)
            told.append(str(error.value))
        assert told[0] == told[1]
        assert_equal(compiled(X.abs()), plan(X.abs()))
    assert len(graphs) == 1


def test_checks_come_before_the_derivatives_and_in_their_order(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sin() if x.sum() > -99 else x
        z = y.exp() if y.sum() > -99 else y
        return z.prod()

    program = hofunc.hessian(f).plan(rand(device, 4))._steps.program
    parts = parts_of(program)
    assert [step for step in program.steps if step in (*parts.looks.steps,)] == [*parts.looks.steps]
    assert not any(map(looks, parts.steps))
    assert sum(map(looks, parts.looks.steps)) == 2
    assert looks(parts.looks.steps[-1]), "nothing follows what is looked at"
    assert {*parts.looks.steps, *parts.steps} == {*program.steps}


def test_a_program_that_reads_nothing_is_one_part() -> None:
    program = hofunc.hessian(lambda x: x.prod()).plan(X)._steps.program
    parts = parts_of(program)
    assert not parts.looks.steps
    assert parts.steps == program.steps


@pytest.mark.parametrize("place", [0, 1])
def test_random_numbers_are_drawn_in_their_order(place: int, graphs: list[GraphModule]) -> None:
    def f(x: Tensor) -> Tensor:
        drawn = [torch.rand_like(x), torch.rand_like(x), torch.rand_like(x)]
        weight = drawn[0] * 2 + drawn[1] * 3 + drawn[2] * 5
        return (weight * x**3).sum() if drawn[place].sum() > 0 else x.sum()

    plan = hofunc.hessian(f).plan(X)
    compiled = plan.compile(backend="none")
    for seed in range(3):
        torch.manual_seed(seed)
        expected = plan(X)
        torch.manual_seed(seed)
        assert_equal(compiled(X), expected)
    assert graphs


def test_captured_tensors_that_are_trained(graphs: list[GraphModule]) -> None:
    first = nn.Linear(4, 3)
    network = nn.Sequential(first, nn.Tanh(), nn.Linear(3, 1)).double()

    def f(x: Tensor) -> Tensor:
        return network(x).sum() if first.weight.sum() < 99 else x.sum()

    transform, optimiser = hofunc.hessian(f), torch.optim.SGD(network.parameters(), 0.1)
    compiled = transform.plan(X).compile(backend="none")
    for _ in range(4):
        assert_equal(compiled(X).detach(), transform(X).detach())
        compiled(X).square().sum().backward()
        optimiser.step()
    assert len(graphs) == 1
    with torch.no_grad():
        first.weight.fill_(99.0)
    refused(lambda: compiled(X), hofunc.PlanMismatchError, "reads values of tensors: got False")


def test_under_transforms_it_runs_as_the_plan_does(graphs: list[GraphModule]) -> None:
    plan, rows = hofunc.hessian(lambda x, y: branches(x) * y.sum()).plan(X, X), torch.stack([X, 2 * X])
    compiled = plan.compile(backend="none")
    for _ in range(3):
        mapped = torch.vmap(compiled, (None, 0))(X, rows)
        assert_equal(mapped, torch.vmap(plan, (None, 0))(X, rows))
        refused(lambda: torch.vmap(compiled)(rows, rows), hofunc.BranchError, "reads values", "a batch of them")
        assert_equal(compiled(X, X), plan(X, X))
    inner = torch.func.grad(lambda x: compiled(x, X).sin().sum())(X)
    assert_equal(inner, torch.func.grad(lambda x: plan(x, X).sin().sum())(X))
    assert len(graphs) == 1


def test_from_several_threads(graphs: list[GraphModule]) -> None:
    plan, results = hofunc.hessian(scales).plan(X), list[Tensor]()
    compiled = plan.compile(backend="none")
    threads = [Thread(target=lambda: results.append(compiled(X))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_equal(results, 8 * [plan(X)])
    assert len(graphs) == 1


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_what_no_graph_has_is_refused_before_a_call() -> None:
    plan = hofunc.jacobian(lambda x: (Cube.apply(x) ** 2).sum() if x.sum() > -99 else x.sum()).plan(X)
    refused(lambda: plan.compile(backend="eager"), hofunc.UnsupportedOpError, "a custom Function")
    plan = hofunc.jacobian(lambda z: z**2 if z.real.sum() > -99 else z, holomorphic=True).plan(torch.complex(X, X))
    refused(lambda: plan.compile(backend="eager"), hofunc.UnsupportedOpError, "holomorphic=True")


def test_by_torch_in_the_background() -> None:
    transform = hofunc.hessian(scales)
    compiled: Any = transform.plan(X).compile(backend="eager", background=True)
    for _ in range(3):
        assert_equal(compiled(X), transform(X))
    for task in compiled._run._run._tasks.values():
        task.result()
    assert_equal(compiled(X), transform(X))
    refused(lambda: compiled(2 * X), hofunc.PlanMismatchError, "reads values")
    assert not compiled._run._run._errors
