"""Sums at indices in compiled code: without atomic operations, and of one thread beside loops that threads share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.codegen.cpp import KernelGroup
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from hofunc.internals_files import compiled_by_inductor
from hofunc.run.fuse import INDUCTOR
from hofunc.run.products import by_own_products
from tests.cases import rand
from tests.checks import has_compiler

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # of inductor
    pytest.mark.usefixtures("threads"),
]
ANEW = {"force_disable_caches": True}
X = rand(torch.device("cpu"), 900, 300)  # of which threads share what is computed for each number
ROWS = torch.randint(0, 7, (len(X),), generator=torch.Generator().manual_seed(0))
SHARED = "#pragma omp for"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the sources of kernels that are written."""
    found: list[str] = []
    write = KernelGroup.codegen_group

    def group(*args: Any) -> str:
        found.append(write(*args))
        return found[-1]

    monkeypatch.setattr(KernelGroup, "codegen_group", group)
    return found


def rows(x: Tensor) -> Tensor:
    """Add rows up."""
    return torch.zeros_like(x[:7]).index_add(0, ROWS, x.exp())


def columns(x: Tensor) -> Tensor:
    """Add columns up, where what is added to is not side by side."""
    return torch.zeros_like(x[:, :7]).index_add(1, ROWS[: x.shape[1]], x.exp())


def elements(x: Tensor) -> Tensor:
    """Add each number at an index of its own."""
    return torch.zeros_like(x[:7]).scatter_add(0, ROWS[:, None].expand(x.shape), x.exp())


def put(x: Tensor) -> Tensor:
    """Add rows to some."""
    return x.index_put((ROWS,), x.sin(), accumulate=True)


def normalised(x: Tensor) -> Tensor:
    """Add up rows that have sums taken before, in loops with the same outer one."""
    return torch.zeros_like(x[:7]).index_add(0, ROWS, x.softmax(1))


def transposed(x: Tensor) -> Tensor:
    """Add up columns that lie side by side in another tensor."""
    return torch.zeros(7, len(x), dtype=x.dtype).index_add(0, ROWS[: x.shape[1]], x.t().exp())


@pytest.mark.parametrize("f", [rows, columns, elements, put, normalised, transposed])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_number_is_added_by_an_atomic_operation(
    f: Callable[[Tensor], Tensor], dtype: torch.dtype, written: list[str]
) -> None:
    x = X.to(dtype)
    with torch.no_grad():
        compiled = compiled_by_inductor(make_fx(f)(x), [x], INDUCTOR | by_own_products() | ANEW)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), f(x))
    assert written
    assert not any("atomic_add" in source for source in written)


def test_threads_share_what_is_beside_it(written: list[str]) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return rows(x), (x[:, None, :32] * x[:, 32:64, None]).sin()

    with torch.no_grad():
        compiled = compiled_by_inductor(make_fx(f)(X), [X], INDUCTOR | by_own_products() | ANEW)
        torch.testing.assert_close(compiled(X), f(X))
    assert any(SHARED in source for source in written)
    assert not any("atomic_add" in source for source in written)


def test_a_backward_pass_adds_at_the_indices_that_were_read(written: list[str]) -> None:
    def f(x: Tensor) -> Tensor:
        return x[ROWS].sin()

    leaf = X[:7].clone().requires_grad_()
    compiled = compiled_by_inductor(make_fx(f)(X[:7]), [leaf], INDUCTOR | by_own_products() | ANEW)
    result = compiled(leaf)
    (gradient,) = torch.autograd.grad(result.sum(), leaf)
    torch.testing.assert_close(gradient, torch.autograd.grad(f(leaf).sum(), leaf)[0])
    assert len([*filter(None, written)]) == 2
    assert not any("atomic_add" in source for source in written)


def test_others_are_compiled_as_before(written: list[str]) -> None:
    by_own_products()
    with torch.no_grad():
        compiled = compiled_by_inductor(make_fx(rows)(X), [X], ANEW)
        torch.testing.assert_close(compiled(X), rows(X))
    assert any("atomic_add" in source for source in written)


def test_symmetric_third_derivatives_on_two_threads(written: list[str]) -> None:
    x = rand(torch.device("cpu"), 5, 3)
    weights = rand(torch.device("cpu"), 3, 4)
    third = hofunc.hod(lambda x: (x @ weights).tanh().sin().sum(-1), order=3, layout="compact").plan(x)
    with torch._inductor.config.patch(ANEW):
        compiled = third.compile()
        torch.testing.assert_close(compiled(x).dense(), third(x).dense())
    assert written
    assert not any("atomic_add" in source for source in written)
