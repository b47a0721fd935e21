"""Compiled plans: for which tensors they are compiled, by which thread, and what is shown meanwhile."""

import os
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule

import hofunc
from hofunc.internals import compiling
from hofunc.run import background, compiler
from hofunc.run.regions import regions
from tests.cases import rand
from tests.checks import assert_equal, has_compiler

CPU = torch.device("cpu")
X = rand(CPU, 3, 2)
SCALE = rand(CPU, 3, 2, seed=1)


def f(x: Tensor) -> Tensor:
    return (x.sin() * SCALE).exp().tanh().sum()


@pytest.fixture
def graphs(graphs: list[GraphModule], monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """Return where graphs are put as they are compiled, in regions of a few ops."""
    monkeypatch.setattr(compiler, "regions", lambda module: regions(module, 1, 2))
    return graphs


def test_progress_counts_regions(graphs: list[GraphModule]) -> None:
    shown: list[tuple[int, int]] = []
    compiled = hofunc.hessian(f).plan(X).compile(progress=lambda *numbers: shown.append(numbers), backend="none")
    assert not shown
    assert_equal(compiled(X), hofunc.hessian(f)(X))
    count = shown[0][1]
    assert count > len(graphs) > 1, "some are equal"
    assert shown == [(done, count) for done in range(1, count + 1)]
    compiled(X)
    assert len(shown) == count


def test_a_bar_is_of_tqdm(graphs: list[GraphModule], monkeypatch: pytest.MonkeyPatch) -> None:
    plan = hofunc.hessian(f).plan(X)
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    expected = "hessian.*: plan.compile: got progress=True where tqdm is not installed, expected tqdm, a function"
    with pytest.raises(hofunc.ArgumentError, match=expected):
        plan.compile(progress=True, backend="none")
    assert not graphs


def test_threads_share_what_is_compiled(graphs: list[GraphModule]) -> None:
    plan = hofunc.hessian(f).plan(X)
    compiled, results = plan.compile(backend="none"), list[Tensor]()
    threads = [Thread(target=lambda: results.append(compiled(X))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_equal(results, 8 * [plan(X)])
    count = len(graphs)
    compiled(X)
    assert len(graphs) == count
    alone = len(graphs)
    graphs.clear()
    plan.compile(backend="none")(X)
    assert len(graphs) == alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forked_meanwhile_compiles_by_itself() -> None:
    begun, done = Event(), Event()

    def compile_long() -> None:
        with compiling():
            begun.set()
            done.wait()

    background._compiler.submit(compile_long)
    begun.wait()
    child = os.fork()
    if not child:
        free: Any = compiling()
        try:
            answer = free.acquire(timeout=5) and background._compiler.submit(lambda: 7).result(timeout=5)
            os._exit(answer)
        finally:
            os._exit(1)
    done.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_it_is_compiled_anew_for_a_few_kinds_of_tensors_only(graphs: list[GraphModule]) -> None:
    captured = [rand(CPU, 1, 1, 1, 1, seed=seed) for seed in range(4)]
    transform = hofunc.hessian(lambda x: sum(tensor.sum() * x.sin().sum() for tensor in captured))
    plan = transform.plan(X)
    compiled, counts = plan.compile(backend="none"), list[int]()
    for kind in range(16):
        for place, tensor in enumerate(captured):
            tensor.requires_grad_(bool(kind >> place & 1))
        assert_equal(compiled(X).detach(), plan(X).detach())
        assert compiled(X).requires_grad == plan(X).requires_grad
        counts.append(len(graphs))
    assert len(set(counts[: compiler.KINDS])) > 1
    assert len(set(counts[compiler.KINDS - 1 :])) == 1


@pytest.mark.parametrize("by", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_or_none(by: Callable[[], Any], graphs: list[GraphModule]) -> None:
    plan = hofunc.hessian(f).plan(X)
    compiled, leaf = plan.compile(backend="none"), X.clone().requires_grad_()
    for _ in range(2):
        with by():
            assert compiled(leaf).requires_grad == plan(leaf).requires_grad
        assert compiled(leaf).requires_grad
        assert not compiled(X).requires_grad
    assert graphs


@pytest.mark.filterwarnings("ignore")  # of inductor
@pytest.mark.parametrize("factors", [(1.0, 0.5), (0.5, 1.0)])
def test_a_sum_with_a_factor_of_a_product(factors: tuple[float, float]) -> None:
    """Of which inductor makes one op, without the factor, which either of the two may have."""
    weight, other = rand(CPU, 16, 8), rand(CPU, 32, 8, seed=1)

    def f(x: Tensor) -> Tensor:
        if factors[0] == 1:
            return torch.add(x @ weight, other, alpha=factors[1]).sin().sum()
        return torch.add(other, x @ weight, alpha=factors[0]).sin().sum()

    plan, x = hofunc.jacobian(f).plan(rand(CPU, 32, 16)), rand(CPU, 32, 16, seed=2)
    assert not any(node.kwargs for node in plan.to_fx().graph.nodes if node.target is torch.ops.aten.add.Tensor)
    expected = factors[0] * (factors[0] * (x @ weight) + factors[1] * other).cos() @ weight.T
    assert_equal(plan(x), expected)
    if has_compiler():
        assert_equal(plan.compile()(x), expected)
