"""Products by oneDNN: which are replaced, that they are the same, and that nothing else changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from hofunc.graph.layout import Layout
from hofunc.run import onednn
from hofunc.run.onednn import GAIN, LARGE_PRODUCT, by_onednn, ratio
from tests.cases import rand
from tests.checks import has_compiler
from verification.oracles import relative_error

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
LARGE = (128, 128), (128, 128)


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random numbers on the CPU, the only device that oneDNN is for here."""
    return rand(torch.device("cpu"), *shape, seed=len(shape)).to(dtype)


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> list[Layout]:
    """Let oneDNN be the faster one, and return a list of what is asked about, of left matrices."""
    asked: list[Layout] = []

    def ratio(left: Layout, _: Layout) -> float:
        asked.append(left)
        return 2 * GAIN

    monkeypatch.setattr(onednn, "ratio", ratio)
    return asked


def products(f: Callable[..., Any], *args: Tensor) -> tuple[list[str], list[str]]:
    """Return the products in a graph of f before and after, once the results are seen to be the same."""
    module = make_fx(f, tracing_mode="fake")(*args)
    before = str(module.graph)
    replaced = by_onednn(module)
    assert str(module.graph) == before
    torch.testing.assert_close(replaced(*args), f(*args))
    names = [
        [str(node.target) for node in each.graph.nodes if "mm" in str(node.target) or "product" in str(node.target)]
        for each in (module, replaced)
    ]
    return names[0], names[1]


@needs_onednn
@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (torch.mm, LARGE),
        (lambda a, b: a.t() @ b.t(), LARGE),
        (lambda a, b: a[:, :1].expand(128, 128) @ b, LARGE),
        (lambda a, b: (a @ b) @ (b @ a), LARGE),
        (torch.addmm, ((128,), *LARGE)),
    ],
)
def test_large_products_are_replaced(f: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    before, after = products(f, *[matrix(*shape) for shape in shapes])
    assert after == ["hofunc.product.default"] * len(before)


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize(
    ("f", "args"),
    [
        (torch.mm, (matrix(LARGE_PRODUCT // 4096 - 1, 64), matrix(64, 64))),
        (torch.mm, (matrix(128, 128, dtype=torch.double), matrix(128, 128, dtype=torch.double))),
        (torch.mm, (torch.ones(128, 128, device="meta"), torch.ones(128, 128, device="meta"))),
        (torch.bmm, (matrix(2, 128, 128), matrix(2, 128, 128))),
        (torch.addmm, (matrix(128, 128), matrix(128, 128), matrix(128, 128))),
        (lambda c, a, b: torch.addmm(c, a, b, beta=2), (matrix(128), matrix(128, 128), matrix(128, 128))),
    ],
)
def test_others_stay(f: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    before, after = products(f, *args)
    assert after == before


def test_products_that_blas_does_faster_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "ratio", lambda *_: 1.0)
    before, after = products(torch.mm, matrix(128, 128), matrix(128, 128))
    assert after == before


@needs_onednn
@pytest.mark.parametrize("stride", [(64, 1), (1, 128), (1, 0)])
def test_the_ratio_of_times_is_measured(stride: tuple[int, int]) -> None:
    assert 0.001 < ratio(Layout((128, 64), stride, 0), Layout((64, 64), (64, 1), 0)) < 1000


@needs_onednn
@pytest.mark.filterwarnings("ignore")  # of inductor
def test_a_compiled_plan_with_and_without_gradients(faster: list[Layout]) -> None:
    first, weight = matrix(2, 64), matrix(64, 64) / 8

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return ((x @ first).tanh() @ weight).tanh().sum()

    x = matrix(256, 2)
    plan = hofunc.hessian(f, strategy="mixed").plan(x, weight)
    if not has_compiler():
        with pytest.raises(hofunc.CompilerError):
            plan.compile()
        return
    compiled = plan.compile()
    torch.testing.assert_close(compiled(x, weight), plan(x, weight))
    assert (256, 64) in {layout.size for layout in faster}
    weight.requires_grad_()
    got, expected = (torch.autograd.grad(each(x, weight).square().mean(), weight)[0] for each in (compiled, plan))
    assert relative_error(got, expected) < 1e-5
