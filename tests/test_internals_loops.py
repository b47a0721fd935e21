"""Loops that inductor makes one where one of them reads what another has written, of which torch has some wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from hofunc.internals_files import compiled_by_inductor
from hofunc.internals_loops import fuse_rightly
from hofunc.run.fuse import INDUCTOR
from hofunc.run.products import by_own_products
from tests.cases import rand
from tests.checks import has_compiler
from verification.oracles import relative_error

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # of inductor
]
CPU = torch.device("cpu")
AT = torch.tensor([0, 2, 1, 0, 1, 2, 0])


def added_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """Add rows at indices, and what is made of the sums at the same indices to another tensor."""
    sums = x.index_put((AT,), x.sin(), accumulate=True).exp()
    return sums, torch.zeros_like(x).index_put((AT,), sums * x, accumulate=True)


def put_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    """Put rows where others were, and what is made of these and others at the same indices of another tensor."""
    rows = x.index_put((AT,), x.sin()).exp()
    return rows, torch.zeros_like(x).index_put((AT,), rows * x)


@pytest.mark.parametrize("f", [added_twice, put_twice])
def test_sums_are_read_when_all_is_added(f: Callable[[Tensor], Any]) -> None:
    x = rand(CPU, 7, 16)
    fuse_rightly()
    with torch.no_grad():
        options = INDUCTOR | by_own_products() | {"force_disable_caches": True}
        found = compiled_by_inductor(make_fx(f)(x), [x], options)(x)
    if f is added_twice:  # which of the rows that are put at one index is left, is not said
        torch.testing.assert_close(found, f(x))
    torch.testing.assert_close(found[1][3:], torch.zeros_like(x[3:]))


def normalised(x: Tensor) -> Tensor:
    """Return the squares of rows that are normalised, summed up and normalised."""
    width = (x.shape[1],)
    sums = torch.nn.functional.layer_norm(x, width).cumsum(0) / len(x)
    return torch.nn.functional.layer_norm(sums, width).square().sum()


@pytest.mark.parametrize("shape", [(5, 8), (5, 17), (9, 16)])
def test_loops_hand_on_all_rows_that_they_take_at_a_time(shape: tuple[int, int]) -> None:
    x, v = rand(CPU, *shape), rand(CPU, *shape, seed=1)
    plan = hofunc.hvp(normalised).plan(x, vector=v)
    with torch._inductor.config.patch(force_disable_caches=True):
        compiled = plan.compile()
        assert relative_error(compiled(x, vector=v), plan(x, vector=v)) < 1e-9


def test_gradients_through_what_is_added_at_indices() -> None:
    x, v, index = rand(CPU, 7, 16), rand(CPU, 7, 16, seed=1), torch.arange(16).flip(0) // 2

    def f(x: Tensor) -> Tensor:
        x = x[AT] * x
        x = x.index_put((AT,), x.sin(), accumulate=True)
        return torch.zeros_like(x).scatter_add(1, index.expand(x.shape), x.exp()).square().mean()

    plan = hofunc.hvp(f).plan(x, vector=v)
    with torch._inductor.config.patch(force_disable_caches=True):
        compiled = plan.compile()
        found: list[Tensor] = []
        for run in (plan, compiled):
            leaf = x.clone().requires_grad_()
            found += torch.autograd.grad(run(leaf, vector=v).square().sum(), leaf)
    assert relative_error(*found) < 1e-9


@pytest.mark.parametrize("way", ["torch.compile", "mode"])
def test_so_it_is_where_torch_compiles(way: str) -> None:
    x, v = rand(CPU, 5, 8), rand(CPU, 5, 8, seed=1)
    product = hofunc.hvp(normalised)
    with torch._inductor.config.patch(force_disable_caches=True):
        run: Any = (
            torch.compile(product) if way == "torch.compile" else product.plan(x, vector=v).compile(mode="default")
        )
        found = run(x, vector=v)
    assert relative_error(found, product(x, vector=v)) < 1e-9
