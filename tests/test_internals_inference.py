"""Graphs without gradients are compiled without the part for autograd, if they write nowhere, and return the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends import common
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

from hofunc.internals_files import compiled_by_inductor
from hofunc.internals_inference import without_autograd
from tests.cases import rand
from tests.checks import has_compiler

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # of inductor
]
CPU = torch.device("cpu")
X, Y = rand(CPU, 4, 3), rand(CPU, 3, 4)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the graphs that are prepared for autograd."""
    found: list[Any] = []
    call = common.AotAutograd.__call__

    def noted(self: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(module)
        return call(self, module, *args, **kwargs)

    monkeypatch.setattr(common.AotAutograd, "__call__", noted)
    return found


def compiled(f: Callable[..., Any], *args: Tensor, **options: Any) -> Any:
    module = make_fx(f)(*args)
    with torch.no_grad(), without_autograd():
        return compiled_by_inductor(module, args, {"force_disable_caches": True} | options)


def written_out(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Return what inductor knows as other ops."""
    rows = torch.nn.functional.layer_norm(torch.addcmul(x, x, x), (3,))
    return torch.softmax(rows @ y, -1), rows.t().contiguous(), torch.linalg.vector_norm(rows, 2, -1)


def test_ops_that_inductor_does_not_know(prepared: list[Any]) -> None:
    for one, other in zip(compiled(written_out, X, Y)(X, Y), written_out(X, Y), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert not prepared


def test_other_strides_than_those_of_the_graph(prepared: list[Any]) -> None:
    module, y = make_fx(written_out)(X, Y), Y.T.contiguous().T
    with torch.no_grad(), without_autograd():
        run = compiled_by_inductor(module, (X, y), {"force_disable_caches": True})
    for one, other in zip(run(X, y), written_out(X, y), strict=True):
        torch.testing.assert_close(one, other)
    assert not prepared


def test_results_that_are_inputs_and_views() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x.sin()
        return x, x.t(), z, z[0], z, y.new_zeros(2)

    same, view, z, row, again, zeros = compiled(f, X, Y)(X, Y)
    assert same is X or same.data_ptr() == X.data_ptr()
    assert view.data_ptr() == X.data_ptr()
    assert view.shape == (3, 4)
    for one, other in ((z, X.sin()), (row, X[0].sin()), (again, X.sin()), (zeros, Y.new_zeros(2))):
        torch.testing.assert_close(one, other)


def test_random_numbers_are_drawn_anew() -> None:
    run = compiled(lambda x: (torch.rand_like(x) + x,), X)
    torch.manual_seed(0)
    first, second = run(X)[0], run(X)[0]
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(run(X)[0], first)


def test_what_writes_is_prepared_for_autograd(prepared: list[Any]) -> None:
    x = X.clone()
    compiled(lambda x: (x.add_(1),), x.clone())(x)
    torch.testing.assert_close(x, X + 1)
    assert len(prepared) == 1


def test_what_has_tensors_of_its_own_is_prepared_for_autograd(prepared: list[Any]) -> None:
    torch.testing.assert_close(compiled(lambda x: (x @ Y,), X)(X)[0], X @ Y)
    assert len(prepared) == 1


@pytest.mark.parametrize("is_frozen", [True, False])
def test_what_is_frozen_is_prepared_for_autograd(prepared: list[Any], is_frozen: bool) -> None:
    run = compiled(lambda x, y: (x.sin() @ y,), X, Y, freezing=is_frozen)
    torch.testing.assert_close(run(X, Y)[0], X.sin() @ Y)
    assert bool(prepared) == is_frozen


def test_found_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    counters.clear()
    for _ in range(2):
        run = compiled(lambda x, y: (x.sin() @ y,), X, Y, force_disable_caches=False)
        torch.testing.assert_close(run(X, Y)[0], X.sin() @ Y)
    assert [counters["inductor"][f"fxgraph_cache_{each}"] for each in ("miss", "hit", "bypass")] == [1, 1, 0]
    assert torch.compile(lambda x: x.cos(), dynamic=False)(X).equal(X.cos())


def test_other_graphs_are_prepared_for_autograd(prepared: list[Any]) -> None:
    compiled(lambda x: (x.sin(),), X)
    x = X.clone().requires_grad_()
    run = compiled_by_inductor(make_fx(lambda x: (x.sin(),))(X), (x,), {"force_disable_caches": True})
    run(x)[0].sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, X.cos())
    assert len(prepared) == 1
