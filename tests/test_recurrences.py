"""Recurrences: all their steps as one batch, beside nested torch.func and beside plans node by node."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hofunc
from asv_benchmarks.benchmarks.problem import Problem
from hofunc.graph.node import Call
from hofunc.graph.record import record
from hofunc.plan import batched, planner, recurrences, states, strategies
from hofunc.plan.blocks import local_blocks
from hofunc.plan.blueprint import Limits
from hofunc.plan.following import regions
from hofunc.plan.program import AsStep
from hofunc.plan.rates import RATES
from hofunc.rules.lower import lower
from hofunc.run.cache import forget

STEPS = 24


def drawn(*shape: int, seed: int = 0, scale: float = 0.4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator)


def module(kind: type[nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args, **kwargs).double().requires_grad_(False)


LSTM, GRU = module(nn.LSTM, 2, 3), module(nn.GRU, 2, 2)
LOWER, UPPER = module(nn.LSTMCell, 2, 2), module(nn.LSTMCell, 2, 2)


def lstm(x: Tensor) -> Tensor:
    return LSTM(x)[0].square().sum()


def gru(x: Tensor) -> Tensor:
    return GRU(x)[0][-1].sum()


def cells(x: Tensor) -> Tensor:
    """Two layers of LSTM cells, one after the other at every step."""
    lower = upper = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for each in x:
        lower = LOWER(each, lower)
        upper = UPPER(lower[0], upper)
    return upper[0].sum()


def runge_kutta(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    def slope(y: Tensor) -> Tensor:
        return weight.T @ torch.tanh(weight @ y + bias)

    for _ in range(STEPS):
        k1 = slope(y)
        k2 = slope(y + 0.05 * k1)
        k3 = slope(y + 0.05 * k2)
        y = y + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + slope(y + 0.1 * k3))
    return y.square().sum()


def filtered(logarithms: Tensor) -> Tensor:
    """The log-likelihood of a Kalman filter of two states, by the logarithms of its variances."""
    seen = drawn(STEPS, seed=1)
    noise, error = torch.diag(logarithms[:2].exp()), logarithms[2].exp()
    transition = torch.tensor([[1.0, 0.1], [0.0, 1.0]], dtype=torch.float64)
    state, spread = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for step in range(STEPS):
        state, spread = transition @ state, transition @ spread @ transition.T + noise
        variance, surprise = spread[0, 0] + error, seen[step] - state[0]
        gain = spread[0] / variance
        total = total + surprise * surprise / variance + variance.log()
        state, spread = state + gain * surprise, spread - torch.outer(gain, spread[0])
    return total


SEEN, READS = drawn(STEPS, 2, seed=1), drawn(2, 2, seed=2, scale=1.0)


def solved(logarithms: Tensor) -> Tensor:
    """The log-likelihood of a Kalman filter with a gain from torch.linalg.solve, by the logarithms of its variances."""
    noise, error = torch.diag(logarithms[:2].exp()), torch.diag(logarithms[1:].exp())
    state, spread = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for step in range(STEPS):
        state, spread = state + 0.1 * state.sin(), 1.1 * spread + noise
        variance, surprise = READS @ spread @ READS.T + error, SEEN[step] - READS @ state
        gain = torch.linalg.solve(variance, READS @ spread).T
        total = total + surprise @ torch.linalg.solve(variance, surprise) + torch.logdet(variance)
        state, spread = state + gain @ surprise, spread - gain @ variance @ gain.T
    return total


def factored(x: Tensor) -> Tensor:
    """Steps of which each factors a matrix."""
    y, eye = drawn(3, 2, seed=1), torch.eye(3, dtype=torch.float64)
    for _ in range(STEPS):
        root = torch.linalg.cholesky(eye + x * y @ y.T)
        y = torch.linalg.solve_triangular(root, y, upper=False).tanh() + 0.1 * torch.linalg.inv(root.T + eye) @ y
    return y.square().sum()


def logistic(x: Tensor, rate: Tensor) -> Tensor:
    states = []
    for _ in range(STEPS):
        x = rate * x * (1 - x)
        states.append(x)
    return torch.stack(states)


def scheduled(x: Tensor) -> Tensor:
    """Steps of lengths of their own, of which all states are returned."""
    states = []
    for step in range(STEPS):
        x = x + 0.1 / (step + 1) * torch.sin(x * x) * x.flip(0)
        states.append(x)
    return torch.stack(states)


def bent(x: Tensor) -> Tensor:
    """Steps with a mask, of which some elements are left out."""
    weight = drawn(3, 3, seed=2)
    for _ in range(STEPS):
        x = torch.relu(weight @ x) * 1.1 + torch.tanh(x) * x * 0.5
    return x


def apart(x: Tensor) -> Tensor:
    """Two recurrences, the second of what the first ends in."""
    for _ in range(STEPS):
        x = torch.sin(x) * x.sum() * 0.3 + x
    y = x
    for _ in range(STEPS):
        y = torch.cos(y) / (1 + y * y) + 0.1 * y.flip(0)
    return y + x


def summed(x: Tensor) -> Tensor:
    """Rosenbrock's function, of which a sum is all that is handed on."""
    total = torch.zeros((), dtype=torch.float64)
    for step in range(len(x) - 1):
        total = total + 100 * (x[step + 1] - x[step] ** 2) ** 2 + (1 - x[step]) ** 2
    return total


def clipped(x: Tensor, weight: Tensor) -> Tensor:
    """Sums, of which one is clipped: its slope is a mask of it, though nothing is bent by it."""
    lower = upper = torch.zeros((), dtype=torch.float64)
    for each in x:
        lower = torch.relu(lower + each - weight * each * each) - 0.3 * each.relu()
        upper = upper + lower + weight + each * each * each
    return lower + upper


def far(x: Tensor) -> Tensor:
    """Each state from the last two, which is no step of one state."""
    before = x
    for _ in range(STEPS):
        before, x = x, torch.sin(x) * before + 0.5 * x * x
    return x.sum()


def attention(x: Tensor) -> Tensor:
    """Layers of a transformer, each of weights of its own."""
    for layer in range(9):
        normed = nn.functional.layer_norm(x, (4,))
        parts = (normed @ drawn(4, 4, seed=3 * layer + part) for part in range(3))
        query, key, value = (part.view(3, 2, 2).transpose(0, 1) for part in parts)
        x = x + ((query @ key.mT).softmax(-1) @ value).transpose(0, 1).reshape(3, 4)
        x = nn.functional.layer_norm(x + nn.functional.gelu(x @ drawn(4, 4, seed=layer)), (4,))
    return x.square().sum() + x[0, 0]


FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], int]] = {
    "lstm": (lstm, (drawn(STEPS, 2),), 2),
    "gru": (gru, (drawn(STEPS, 2),), 2),
    "cells": (cells, (drawn(STEPS, 2),), 2),
    "runge_kutta": (runge_kutta, (drawn(2), drawn(3, 2, seed=1), drawn(3, seed=2)), 2),
    "filtered": (filtered, (drawn(3),), 2),
    "solved": (solved, (drawn(3),), 2),
    "factored": (factored, (drawn(),), 2),
    "factored, order 3": (factored, (drawn(),), 3),
    "logistic": (logistic, (drawn(seed=3).abs(), 2 + drawn(seed=4)), 3),
    "scheduled": (scheduled, (drawn(2),), 3),
    "bent": (bent, (drawn(3),), 2),
    "apart": (apart, (drawn(3),), 2),
    "summed": (summed, (drawn(STEPS),), 2),
    "summed, order 3": (summed, (drawn(STEPS),), 3),
    "clipped": (clipped, (drawn(STEPS, scale=2.0), drawn()), 2),
    "attention": (attention, (drawn(3, 4, scale=1.0),), 2),
    "far": (far, (drawn(2),), 2),
}


def noting(monkeypatch: pytest.MonkeyPatch, found: list[Any]) -> None:
    """Note the graphs in which steps are batches, None where there are none."""

    def noted(function: Callable) -> Callable:
        def called(*args: Any, **kwargs: Any) -> Any:
            found.append(function(*args, **kwargs))
            return found[-1]

        return called

    monkeypatch.setattr(planner, "with_recurrences", noted(recurrences.with_recurrences))


@pytest.fixture
def by_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Take all steps as batches however short a recurrence is; gives the graphs in which they are."""
    found: list[Any] = []
    noting(monkeypatch, found)
    monkeypatch.setattr(planner, "LONG_RECURRENCE", 0)
    forget()
    yield found
    forget()


def nested(f: Callable, args: tuple[Tensor, ...], order: int) -> list[Tensor]:
    places = tuple(range(len(args)))
    for _ in range(order):
        f = torch.func.jacrev(f, argnums=places)
    return torch.utils._pytree.tree_leaves(f(*args))


def leaves(tree: Any) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(tree)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_recurrences_are_derived_as_nested_transforms_do(name: str, by_steps: list[Any]) -> None:
    f, args, order = FUNCTIONS[name]
    derivative = hofunc.hod(f, order=order, argnums=tuple(range(len(args))))
    want = nested(f, args, order)
    for found in (leaves(derivative(*args)), leaves(derivative.plan(*args)(*args))):
        for one, other in zip(found, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert by_steps
    assert (by_steps[0] is not None) == (name not in ("far", "scheduled"))


def of_steps(f: Callable, args: tuple[Tensor, ...]) -> Any:
    return hofunc.hod(f, order=2, argnums=tuple(range(len(args)))).plan(*args)


@pytest.mark.usefixtures("by_steps")
def test_few_calls_are_left_of_a_step() -> None:
    def per_step(**options: Any) -> float:
        few, many = (hofunc.hessian(lstm, **options).plan(drawn(count, 2)) for count in (STEPS, 2 * STEPS))
        return (len(many.to_fx().graph.nodes) - len(few.to_fx().graph.nodes)) / STEPS

    assert per_step() < 0.4 * per_step(strategy="mixed")


@pytest.mark.usefixtures("by_steps")
def test_steps_are_not_propagated_in_pairs() -> None:
    x = drawn(60, 2)
    explanation = str(hofunc.hessian(lambda x: LSTM(x)[0][-1].sum()).plan(x).explain())
    assert "by the strategy mixed" in explanation  # by reverse it would hold ten times as much
    assert "stepped" in explanation


def test_wide_steps_are_batches_without_matrices_of_second_derivatives(by_steps: list[Any]) -> None:
    wide, x = module(nn.GRU, 2, 9), drawn(STEPS, 2)

    def f(x: Tensor) -> Tensor:
        return wide(x)[0].square().sum()

    torch.testing.assert_close(hofunc.hessian(f)(x), torch.func.hessian(f)(x), rtol=1e-9, atol=1e-11)
    (batches,) = by_steps
    assert {node.op for node in batches.graph.nodes} & {states.added, states.stepped} == {states.added}


WIDE = module(nn.GRU, 2, 9), module(nn.LSTM, 2, 9)
INTO, AMONG = drawn(9, 2, seed=4), drawn(9, 9, seed=5)


def wide_cells(x: Tensor) -> Tensor:
    """What each step takes is a matrix, of which a gate is made beside the state."""
    h = x.new_zeros(9)
    for each in x:
        gate = torch.sigmoid(each @ INTO.T).sum(0)
        h = torch.tanh(AMONG @ h) * gate + gate.sin() * h
    return h.square().sum()


def wide_lstm(x: Tensor, h: Tensor, c: Tensor) -> Tensor:
    out, (h, c) = WIDE[1](x, (h, c))
    return out.square().sum() + (h * c).sum()


def wide_by_a_weight(x: Tensor, weight: Tensor) -> Tensor:
    """The weight is shared by all steps, which are no rows of it."""
    h = x.new_zeros(9)
    for each in x:
        h = torch.tanh(weight @ h + INTO @ each) * h.cos()
    return h.square().sum()


WIDE_FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "cells": (wide_cells, (drawn(STEPS, 3, 2),)),
    "states": (wide_lstm, (drawn(STEPS, 2), drawn(1, 9, seed=1), drawn(1, 9, seed=2))),
    "shared": (wide_by_a_weight, (drawn(STEPS, 2), drawn(9, 9, seed=3))),
}


@pytest.mark.parametrize("name", WIDE_FUNCTIONS)
def test_wide_steps_are_differentiated_by_what_they_take(name: str, by_steps: list[Any]) -> None:
    f, args = WIDE_FUNCTIONS[name]
    derivative = hofunc.hessian(f, argnums=tuple(range(len(args))))
    want = nested(f, args, 2)
    for found in (leaves(derivative(*args)), leaves(derivative.plan(*args)(*args))):
        for one, other in zip(found, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    batches = by_steps[0]
    local = local_blocks(batches, 2)
    ends = [node for node in local if batches.graph.nodes[node].op is states.added]
    flat = [region for region in regions(batches.graph, local) if region.is_flat]
    assert ends
    assert [each.ends for each in flat] == [(end,) for end in ends if name != "shared"]


def test_wide_steps_take_a_third_of_the_products(by_steps: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(3 * STEPS, 2)
    hessian = hofunc.hessian(lambda x: WIDE[0](x)[0].square().sum(), strategy="auto")
    flops = hessian.plan(x).flops
    monkeypatch.setattr(strategies, "regions", lambda graph, local: [])
    assert by_steps
    assert flops < 0.5 * hessian.plan(x).flops


def test_steps_of_a_program_in_a_graph_are_steps(by_steps: list[Any]) -> None:
    """So is what is known of them: their shapes without a call on meta tensors, and that they may be written over."""
    f, args, _ = FUNCTIONS["lstm"]
    made = of_steps(f, args)
    assert by_steps
    assert not [step for step in made.to_fx().graph.nodes if isinstance(step.target, AsStep)]
    ops = {node.op for node in by_steps[0].graph.nodes}
    assert any(isinstance(op, AsStep) for op in ops)


def test_all_steps_but_the_first_are_of_the_batch(by_steps: list[Any]) -> None:
    f, args, _ = FUNCTIONS["runge_kutta"]
    of_steps(f, args)
    nodes = by_steps[0].graph.nodes
    assert sum(node.op is torch.ops.aten.tanh.default and node.active for node in nodes) == 4


@pytest.mark.usefixtures("by_steps")
def test_what_is_read_of_steps_is_the_same_in_float32() -> None:
    f, args, _ = FUNCTIONS["lstm"]
    (x,) = args
    single = module(nn.LSTM, 2, 3).float()
    found = hofunc.hessian(lambda x: single(x)[0].square().sum())(x.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), torch.func.hessian(f)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("by_steps")
def test_steps_are_derived_under_transforms_and_through_them() -> None:
    f, (y, *others), _ = FUNCTIONS["runge_kutta"]

    def energy(y: Tensor) -> Tensor:
        return f(y, *others)

    several = torch.stack([y, 2 * y])
    mapped = torch.func.vmap(hofunc.hessian(energy))(several)
    torch.testing.assert_close(mapped, torch.func.vmap(torch.func.hessian(energy))(several))

    def summed(several: Tensor) -> Tensor:
        return torch.func.vmap(energy)(several).sum()

    torch.testing.assert_close(hofunc.hessian(summed)(several), torch.func.hessian(summed)(several))
    third = torch.func.grad(lambda y: hofunc.hessian(energy)(y).sum())(y)
    torch.testing.assert_close(third, torch.func.grad(lambda y: torch.func.hessian(energy)(y).sum())(y))
    leaf = y.clone().requires_grad_()
    hofunc.hessian(energy)(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, third)


def test_slopes_of_steps_that_solve_equations_are_differentiable(by_steps: list[Any]) -> None:
    x, weights = drawn(3), drawn(3, 3, seed=5)
    plan = hofunc.hessian(solved).plan(x)
    assert by_steps[0] is not None
    (third,) = nested(solved, (x,), 3)
    want = torch.einsum("ij,ijk->k", weights, third)
    for found in (hofunc.hessian(solved), plan):
        slope = torch.func.grad(lambda x, found=found: (weights * found(x)).sum())(x)
        torch.testing.assert_close(slope, want, rtol=1e-9, atol=1e-9)


def test_plans_of_steps_travel_and_are_kept_by_jit(tmp_path: Path) -> None:
    f, args, _ = FUNCTIONS["runge_kutta"]
    plan = of_steps(f, args)
    plan.save(tmp_path / "plan")
    moved = tuple(2 * arg for arg in args)
    want = leaves(torch.func.hessian(f, argnums=(0, 1, 2))(*moved))
    jitted = hofunc.jit(hofunc.hessian(f, argnums=(0, 1, 2)))
    jitted(*args)
    for found in (hofunc.load_plan(tmp_path / "plan")(*moved), jitted(*moved), plan.to_fx()(*moved)):
        for one, other in zip(leaves(found), want, strict=True):
            torch.testing.assert_close(one, other)
    assert "joined" in str(plan.explain())


def test_steps_whose_derivatives_are_infinite_are_as_node_by_node(by_steps: list[Any]) -> None:
    def rooted(x: Tensor) -> Tensor:
        for _ in range(STEPS):
            x = torch.sqrt(x * x) * 0.5 + torch.sin(x) * x * 0.1 + torch.where(x > 0, x.sqrt(), x * x) * 0.1
        return x

    x = torch.tensor([0.0, 0.7], dtype=torch.float64)
    found = hofunc.hessian(rooted)(x)
    assert by_steps[0] is not None
    forget()
    alone = hofunc.hod(rooted, order=2, strategy="reverse")(x)
    assert not alone.isfinite().all()
    torch.testing.assert_close(found, alone, equal_nan=True)


@pytest.mark.usefixtures("by_steps")
def test_numbers_and_tensors_of_each_step_are_values() -> None:
    def driven(x: Tensor, rates: list[float], pushes: Tensor) -> Tensor:
        for rate, push in zip(rates, pushes, strict=True):
            x = x + rate * torch.sin(x * push) * torch.cos(x.flip(0)) / (1 + x * x)
        return x

    x, pushes = drawn(2), drawn(STEPS, 2, seed=5)
    derivative = hofunc.hessian(driven)
    for seed in range(3):
        rates = [0.01 * (seed + 1) * (step + 1) for step in range(STEPS)]
        args = (x, rates, pushes * (seed + 1))
        torch.testing.assert_close(derivative(*args), torch.func.hessian(driven)(*args))


def test_short_recurrences_are_planned_node_by_node_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    f, args, _ = FUNCTIONS["scheduled"]
    found: list[Any] = []
    noting(monkeypatch, found)
    forget()
    hofunc.hessian(f)(*args)
    assert found == [None]


# Contractions, for which no matrix of second derivatives is made.


def hvp(f: Callable, args: tuple[Tensor, ...], vectors: tuple[Tensor, ...]) -> list[Tensor]:
    places = tuple(range(len(args)))
    gradient = torch.func.jacrev(f, argnums=places)
    return leaves(torch.func.jvp(lambda *x: leaves(gradient(*x)), args, vectors)[1])


def alike(args: tuple[Tensor, ...], seed: int = 7) -> tuple[Tensor, ...]:
    return tuple(drawn(*x.shape, seed=seed + place) for place, x in enumerate(args))


def assert_all_close(found: Any, want: Any) -> None:
    for one, other in zip(leaves(found), leaves(want), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_contractions_of_recurrences_are_those_of_nested_transforms(name: str, by_steps: list[Any]) -> None:
    f, args, _ = FUNCTIONS[name]
    places, vectors = tuple(range(len(args))), alike(args)
    product, want = hofunc.hvp(f, argnums=places), hvp(f, args, vectors)
    assert_all_close(product(*args, vector=vectors), want)
    assert (by_steps[0] is not None) == (name not in ("far", "scheduled"))
    assert_all_close(product.plan(*args, vector=vectors)(*args, vector=vectors), want)
    moved = tuple(1.1 * x for x in args)
    assert_all_close(product(*moved, vector=vectors), hvp(f, moved, vectors))
    second = hofunc.directional(f, order=2, argnums=places)(*args, vector=vectors)

    def along(length: Tensor) -> Tensor:
        return f(*(x + length * vector for x, vector in zip(args, vectors, strict=True)))

    # By reverse mode, as torch's second derivatives of layer_norm by forward mode are wrong.
    assert_all_close(second, torch.func.jacrev(torch.func.jacrev(along))(torch.zeros((), dtype=torch.float64)))


@pytest.mark.usefixtures("by_steps")
def test_contractions_of_order_three_go_through_recurrences(by_steps: list[Any]) -> None:
    f, (y, *others), _ = FUNCTIONS["runge_kutta"]

    def energy(y: Tensor) -> Tensor:
        return f(y, *others)

    u, v = alike((y, y))
    third = torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(energy)))(y)
    assert_all_close(
        hofunc.einsum(energy, ", i, j, k, i, j -> k")(y, operands=(u, v)), torch.einsum("ijk,i,j->k", third, u, v)
    )
    assert by_steps[0] is not None


@pytest.mark.parametrize("name", ["filtered", "solved", "logistic", "apart", "bent"])
def test_traces_and_sums_with_operands_go_through_recurrences(name: str, by_steps: list[Any]) -> None:
    f, args, _ = FUNCTIONS[name]
    x, others = torch.atleast_1d(args[0]), args[1:]

    def g(x: Tensor) -> Tensor:
        return f(x if args[0].dim() else x[0], *others).sum()

    hessian, weights = torch.autograd.functional.hessian(g, x), drawn(len(x), len(x), seed=3)
    assert_all_close(hofunc.laplacian(g)(x), hessian.trace())
    assert_all_close(hofunc.einsum(g, ", i, j, i j ->")(x, operands=(weights,)), (hessian * weights).sum())
    assert_all_close(hofunc.einsum(g, ", i, j, i k -> j k")(x, operands=(weights,)), hessian.T @ weights)
    assert all(each is not None for each in by_steps)


@pytest.mark.usefixtures("by_steps")
def test_products_with_hessians_of_recurrences_are_differentiable() -> None:
    f, args, _ = FUNCTIONS["runge_kutta"]
    vectors = alike(args)

    def found(*x: Tensor) -> Tensor:
        return sum(each.sin().sum() for each in hofunc.hvp(f, argnums=(0, 1, 2))(*x, vector=vectors))

    def want(*x: Tensor) -> Tensor:
        return torch.stack([each.sin().sum() for each in hvp(f, x, vectors)]).sum()

    assert_all_close(torch.func.grad(found, argnums=(0, 1, 2))(*args), torch.func.grad(want, argnums=(0, 1, 2))(*args))
    parts = [x.clone().requires_grad_() for x in args]
    found(*parts).backward()
    assert_all_close([x.grad for x in parts], torch.func.grad(want, argnums=(0, 1, 2))(*args))
    several = torch.stack([args[0], 2 * args[0]])
    mapped = torch.func.vmap(lambda y: hofunc.hvp(f)(y, *args[1:], vector=vectors[0]))(several)
    for one, y in zip(mapped, several, strict=True):
        assert_all_close(one, hvp(lambda y: f(y, *args[1:]), (y,), vectors[:1]))


@pytest.mark.usefixtures("by_steps")
def test_plans_of_batches_of_steps_travel_and_are_kept_by_jit(tmp_path: Path) -> None:
    f, args, _ = FUNCTIONS["lstm"]
    vectors = alike(args)
    product = hofunc.hvp(f)
    plan = product.plan(*args, vector=vectors[0])
    assert "passed_back" in str(plan.explain())
    plan.save(tmp_path / "plan")
    moved = (2 * args[0],)
    want = hvp(f, moved, vectors)
    jitted = hofunc.jit(product)
    jitted(*args, vector=vectors[0])
    for run in (hofunc.load_plan(tmp_path / "plan"), jitted):
        assert_all_close(run(*moved, vector=vectors[0]), want)
    assert_all_close(plan.to_fx()(*moved, *vectors), want)


def test_slopes_of_steps_that_are_infinite_are_as_node_by_node_along_vectors(by_steps: list[Any]) -> None:
    def rooted(x: Tensor) -> Tensor:
        for _ in range(STEPS):
            x = torch.sqrt(x * x) * 0.5 + torch.sin(x) * x * 0.1 + torch.where(x > 0, x.sqrt(), x * x) * 0.1
        return x.sum()

    x, v = torch.tensor([0.0, 0.7], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = hofunc.hvp(rooted)(x, vector=v)
    assert by_steps[0] is not None
    forget()
    torch.testing.assert_close(found, hofunc.hvp(rooted, strategy="reverse")(x, vector=v), equal_nan=True)


@pytest.mark.parametrize("wide", [3, 40])
def test_states_of_many_numbers_stay_with_their_nodes(wide: int, by_steps: list[Any]) -> None:
    weight, x, v = drawn(wide * 8, wide * 8, scale=0.1), drawn(wide * 8, seed=1), drawn(wide * 8, seed=2)

    def f(x: Tensor) -> Tensor:
        for _ in range(STEPS):
            x = torch.tanh(weight @ x) * torch.cos(x)
        return x.square().sum()

    assert_all_close(hofunc.hvp(f)(x, vector=v), hvp(f, (x,), (v,)))
    assert (by_steps[0] is None) == (wide == 40)


def test_plans_node_by_node_are_not_made_where_they_are_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    f, _, _ = FUNCTIONS["lstm"]
    x = drawn(100, 2)
    found: list[Any] = []
    noting(monkeypatch, found)
    made = []

    def noted(lowered: Any, *rest: Any, **kwargs: Any) -> Any:
        made.append(lowered)
        return strategies.propagated(lowered, *rest, **kwargs)

    monkeypatch.setattr(planner, "propagated", noted)
    hofunc.hvp(f).plan(x, vector=drawn(100, 2, seed=1))
    assert made
    assert all(each is found[0] for each in made)


def planned_again(f: Callable[..., Tensor], x: Tensor) -> tuple[bool, int]:
    """Plan in full after a quick plan; returns whether that is taken again, and how many others are tried."""
    recording = record(lambda inputs, _: f(*inputs), [x])
    lowered = lower(recording.graph, recording.values, 2)
    quick = planner.quickly(lowered, (2,), compact=False, limits=Limits(), looks=True).plan
    tried: list[str] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        tried.append(args[3])
        return strategies.propagated(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "propagated", noted)
        first, *_ = planner.plan(lowered, (2,), compact=False, looks=True, before=quick)
    return first.program.steps == quick.program.steps, len(tried)


def test_after_a_plan_of_batches_another_is_made_only_if_it_may_be_faster() -> None:
    assert planned_again(lambda x: WIDE[0](x)[0].square().sum(), drawn(100, 2)) == (True, 0)
    rnn = module(nn.RNN, 2, 12)
    assert planned_again(lambda x: rnn(x)[0].square().sum(), drawn(150, 2))[1] > 0


def test_steps_that_are_alike_are_derived_once(monkeypatch: pytest.MonkeyPatch, by_steps: list[Any]) -> None:
    torch.manual_seed(0)
    network = nn.LSTM(3, 3, num_layers=2, bidirectional=True).double().requires_grad_(False)
    made = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return recorded(*args, **kwargs)

    recorded = batched.as_batch
    monkeypatch.setattr(batched, "as_batch", noted)

    def f(x: Tensor) -> Tensor:
        return network(x)[0].square().sum()

    x = drawn(12, 3)
    found = hofunc.hessian(f)(x)
    assert sum(node.op is states.given for node in by_steps[0].graph.nodes) == 4  # both directions of both layers
    assert len(made) == 1
    assert_all_close([found], [torch.func.jacrev(torch.func.jacrev(f))(x)])


def test_steps_of_other_numbers_are_derived_apart(by_steps: list[Any]) -> None:
    def f(x: Tensor) -> Tensor:
        y = x
        for _ in range(STEPS):
            x = torch.sin(x * 0.9) * x + x.cos()
        for _ in range(STEPS):
            y = torch.sin(y * 0.8) * y + y.cos()
        return (x * y).sum()

    x = drawn(3, scale=0.3)
    found = hofunc.hessian(f)(x)
    assert by_steps[0] is not None
    assert_all_close([found], [torch.func.hessian(f)(x)])


def transport(steps: int) -> Callable[[Tensor], Tensor]:
    def f(costs: Tensor) -> Tensor:
        rows = torch.zeros(3, 1, dtype=torch.float64)
        for _ in range(steps):
            columns = -torch.logsumexp(rows - costs, 0, keepdim=True)
            rows = -torch.logsumexp(columns - costs, 1, keepdim=True)
        return ((rows + columns - costs).exp() * costs).sum()

    return f


def network_of(size: int, steps: int) -> Callable[[Tensor], Tensor]:
    weight = drawn(size, size, scale=0.3)

    def f(x: Tensor) -> Tensor:
        state = torch.zeros(size, dtype=torch.float64)
        for step in range(steps):
            state = torch.tanh(weight @ state + x[step])
        return state.square().sum()

    return f


@pytest.mark.parametrize("is_short", [False, True])
def test_short_recurrences_are_batches_where_nodes_run_longer(is_short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    noting(monkeypatch, found)
    forget()
    f, x = (network_of(8, 20), drawn(20, 8)) if is_short else (transport(20), drawn(3, 3, seed=1).abs())
    with hofunc.options(planning="quick"):
        got = hofunc.hessian(f)(x)
    forget()
    assert [each is not None for each in found] == [not is_short]
    assert_all_close([got], [torch.func.hessian(f)(x)])


def test_what_cannot_gain_by_batches_is_not_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(recurrences, "_batches", never)
    forget()
    with hofunc.options(planning="quick"):
        hofunc.hessian(network_of(8, 20))(drawn(20, 8))
    forget()


@pytest.mark.usefixtures("by_steps")
def test_passes_are_priced_by_the_calls_of_every_step() -> None:
    made = Problem(transport(STEPS), (drawn(3, 3).abs(),)).planned().plan
    priced = [
        (cost.seconds, cost.shape[-2])
        for step, cost in zip(made.program.steps, made.run_cost.steps, strict=True)
        if isinstance(step.function, Call) and step.function.op in (states.passed, states.passed_back)
    ]
    assert priced
    assert all(seconds > RATES["cpu"].call * states.calls_of_pass(count) for seconds, count in priced)
