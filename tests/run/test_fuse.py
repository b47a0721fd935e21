"""Small matrix products in a graph: which are replaced, and that nothing else changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from hofunc.run.fuse import KERNEL_INNER, SMALL_INNER, fuse_products, is_small, is_tiny
from tests.cases import rand

CPU = torch.device("cpu")


def fused(
    f: Callable[..., Any], *args: Tensor, is_fused: Callable[[Node], bool] = is_small
) -> tuple[GraphModule, list[str]]:
    """Return the graph of f after fusing, and the names of its products."""
    module = make_fx(f, tracing_mode="fake")(*args)
    fuse_products(module, is_fused)
    names = [node.target.__name__ for node in module.graph.nodes if node.op == "call_function"]
    return module, [name for name in names if "mm" in name]


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (torch.mm, [(4, 3), (3, 5)]),
        (torch.mm, [(4, 1), (1, 5)]),
        (torch.mm, [(4, 0), (0, 5)]),
        (torch.bmm, [(2, 4, 3), (2, 3, 5)]),
        (torch.bmm, [(1000, 4, 3), (1000, 3, 5)]),
        (torch.addmm, [(5,), (4, 3), (3, 5)]),
        (torch.addmm, [(4, 5), (4, 3), (3, 5)]),
        (lambda c, a, b: torch.addmm(c, a, b, beta=2), [(5,), (4, 3), (3, 5)]),
        (lambda c, a, b: torch.addmm(c, a, b, beta=-1, alpha=0.25), [(4, 5), (4, 3), (3, 5)]),
        (lambda a, b: (a @ b) @ (b @ a), [(3, 3), (3, 3)]),
    ],
)
def test_small_products_are_replaced(f: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    args = [rand(CPU, *shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    module, left = fused(f, *args)
    assert left == []
    torch.testing.assert_close(module(*args), f(*args), rtol=1e-13, atol=1e-15)
    for got, expected in zip(
        torch.autograd.grad(module(*args).sin().sum(), args),
        torch.autograd.grad(f(*args).sin().sum(), args),
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (torch.mm, (rand(CPU, 64, 16), rand(CPU, 16, 64))),
        (torch.bmm, (rand(CPU, 100, 8, 2 * SMALL_INNER), rand(CPU, 100, 2 * SMALL_INNER, 8))),
        (torch.bmm, (rand(CPU, 100, 32, 16), rand(CPU, 100, 16, 32))),
        (torch.mm, (torch.ones(4, 3, dtype=torch.long), torch.ones(3, 5, dtype=torch.long))),
        (torch.mm, (torch.ones(4, 3, device="meta"), torch.ones(3, 5, device="meta"))),
    ],
)
def test_others_are_left_to_the_library(f: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    assert len(fused(f, *args)[1]) == 1


@pytest.mark.parametrize(
    ("dtype", "inner", "expected"),
    [
        (torch.float64, KERNEL_INNER, []),
        (torch.float64, KERNEL_INNER + 1, ["mm.default"]),
        (torch.bfloat16, KERNEL_INNER + 1, []),
    ],
)
def test_the_kernel_leaves_less_than_the_library(dtype: torch.dtype, inner: int, expected: list[str]) -> None:
    """And it is for two dtypes."""
    args = [rand(CPU, *shape).to(dtype) for shape in ((4, inner), (inner, 4))]
    assert fused(torch.mm, *args, is_fused=is_tiny)[1] == expected


def test_a_loop_that_threads_would_share_is_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = ([rand(CPU, count, 4, 3), rand(CPU, count, 3, 5)] for count in (2000, 4000))
    assert fused(torch.bmm, *many)[1] == []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert fused(torch.bmm, *few)[1] == []
    assert fused(torch.bmm, *many)[1] == ["bmm.default"]
