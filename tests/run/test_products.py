"""Products by the kernel of hofunc: which are replaced, that they are right in every layout, and that others stay."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from hofunc.internals_files import compiled_by_inductor
from hofunc.run.products import LARGEST, by_own_products, own_products
from tests.cases import rand
from tests.checks import has_compiler
from verification.oracles import relative_error

CPU = torch.device("cpu")


def matrix(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random numbers on the CPU, the only device that the kernel is for."""
    return rand(CPU, *shape, seed=len(shape)).to(dtype)


def products(f: Callable[..., Any], *args: Tensor) -> tuple[list[str], list[str]]:
    """Return the products in a graph of f before and after, once the results are seen to be the same."""
    module = make_fx(f, tracing_mode="fake")(*args)

    def found() -> list[str]:
        names = [str(node.target) for node in module.graph.nodes]
        return [name for name in names if "mm" in name or "product" in name]

    before = found()
    own_products(module.graph)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*args), f(*args))
    return before, found()


@pytest.mark.parametrize(
    ("f", "shapes"),
    [
        (torch.mm, ((5, 4), (4, 3))),
        (lambda a, b: a.t() @ b.t(), ((4, 5), (3, 4))),
        (torch.bmm, ((2, 5, 4), (2, 4, 3))),
        (torch.addmm, ((3,), (5, 4), (4, 3))),
        (torch.addmm, ((5, 1), (5, 4), (4, 3))),
        (torch.addmm, ((5, 3), (5, 4), (4, 3))),
        (torch.baddbmm, ((5, 3), (2, 5, 4), (2, 4, 3))),
        (lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=0.25), ((3,), (5, 4), (4, 3))),
        (lambda c, a, b: torch.baddbmm(c, a, b, alpha=-1), ((1, 3), (2, 5, 4), (2, 4, 3))),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_replaced(f: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
    before, after = products(f, *[matrix(*shape, dtype=dtype) for shape in shapes])
    assert after == ["hofunc.product.default"] * len(before)


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (torch.mm, (matrix(2, LARGEST // 32), matrix(LARGEST // 32, 9))),
        (torch.mm, (matrix(2, 3, dtype=torch.complex64), matrix(3, 2, dtype=torch.complex64))),
        (torch.mm, (matrix(2, 3, dtype=torch.bfloat16), matrix(3, 2, dtype=torch.bfloat16))),
        (torch.mm, (torch.ones(2, 3, dtype=torch.long), torch.ones(3, 2, dtype=torch.long))),
        (torch.mm, (torch.ones(2, 3, device="meta"), torch.ones(3, 2, device="meta"))),
        (torch.mm, (matrix(2, 0), matrix(0, 2))),
    ],
)
def test_others_stay(f: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    before, after = products(f, *args)
    assert after == before


def layouts(a: Tensor, b: Tensor, c: Tensor, items: Tensor) -> list[Tensor]:
    """Return products of matrices that lie in memory in every way.

    Args:
        a: Of shape (m, k).
        b: Of shape (k, n).
        c: Of shape (n,).
        items: Of shape (q, m, k).
    """
    left, right = a.t().contiguous().t(), b.t().contiguous().t()
    wide = torch.stack([b, b + 1], -1)[..., 1]  # numbers of a row are two apart
    several = b.expand(len(items), *b.shape)
    return [
        a @ right,
        a[::2] @ wide,
        a[:, :1].expand(a.shape) @ b,
        torch.addmm(a[:, :1], left, right),
        torch.addmm((a @ b).t().contiguous().t(), a, b),
        torch.bmm(items, several),
        torch.baddbmm(c, items.transpose(0, 1).contiguous().transpose(0, 1), several),
        torch.baddbmm(items[..., :1], items, several + items[:, :1, :1]),
    ]


def check_layouts(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    """Compile all layouts of a size, and compare with what torch has in double precision, and with its error."""
    args = [matrix(*shape, dtype=dtype) for shape in ((m, k), (k, n), (n,), (2, m, k))]
    module = make_fx(layouts)(*args)
    expected, plain = layouts(*[each.double() for each in args]), layouts(*args)
    with torch.no_grad():
        results = compiled_by_inductor(module, args, by_own_products())(*args)
    for place, (got, known, exact) in enumerate(zip(results, plain, expected, strict=True)):
        assert got.shape == exact.shape
        size = exact.abs().max()
        error, usual = [(each.double() - exact).abs().max() / size for each in (got, known)]
        assert error <= 2 * usual + k**0.5 * torch.finfo(dtype).eps, (place, error, usual)


@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore")  # of inductor
@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [
        (13, 300, 70, torch.float32),
        (20, 5, 3, torch.float32),
        (9, 130, 41, torch.float64),
    ],
)
def test_every_layout_of_a_product(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    check_layouts(m, k, n, dtype)


@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore")  # of inductor
@pytest.mark.usefixtures("threads")
def test_threads_share_large_products() -> None:
    check_layouts(333, 64, 65, torch.float32)


def scaled(f: Callable[..., Tensor], m: int = 6, k: int = 5, n: int = 7) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Return a product of what f makes of a tensor and a smaller one with a matrix, and all three."""

    def product(left: Tensor, scale: Tensor, right: Tensor) -> Tensor:
        made = f(left, scale)
        return (made.reshape(-1, k) @ right).reshape(*made.shape[:-1], n)

    return product, [matrix(4, m, k), matrix(m, k), matrix(k, n)]


@pytest.fixture
def _all_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hofunc.run.products.SCALED", 0)


@pytest.mark.usefixtures("_all_scaled")
@pytest.mark.parametrize("f", [torch.mul, lambda left, scale: scale * left, lambda left, scale: scale * left[:, :1]])
def test_a_product_entry_by_entry_is_a_part_of_the_next_one(f: Callable[..., Tensor]) -> None:
    product, args = scaled(f)
    assert products(product, *args)[1] == ["hofunc.scaled_product.default"]


@pytest.mark.usefixtures("_all_scaled")
@pytest.mark.parametrize(
    "f",
    [
        lambda left, scale: left * scale.expand(left.shape).contiguous(),  # both are as large
        lambda left, scale: (left * scale).transpose(0, 1),
        lambda left, _: left * 2,
        lambda left, scale: left + scale,
    ],
)
def test_what_is_no_such_product_is_made(f: Callable[..., Tensor]) -> None:
    product, args = scaled(f)
    assert products(product, *args)[1] == ["hofunc.product.default"]


def test_what_is_read_elsewhere_or_small_is_made() -> None:
    product, args = scaled(torch.mul)
    assert products(product, *args)[1] == ["hofunc.product.default"]

    def twice(left: Tensor, scale: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        made = left * scale
        return made.reshape(-1, left.shape[-1]) @ right, made.exp()

    large = [matrix(64, 128, 64), matrix(128, 64), matrix(64, 8)]
    assert products(twice, *large)[1] == ["hofunc.product.default"]
    assert products(scaled(torch.mul, 128, 64, 8)[0], *large)[1] == ["hofunc.scaled_product.default"]


@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore")  # of inductor
@pytest.mark.usefixtures("_all_scaled")
@pytest.mark.parametrize(("m", "k", "n"), [(13, 300, 70), (8, 5, 3), (20, 64, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaled_products_in_every_layout(m: int, k: int, n: int, dtype: torch.dtype) -> None:
    def every(left: Tensor, scale: Tensor, right: Tensor) -> list[Tensor]:
        turned, apart = left.transpose(1, 2).contiguous().transpose(1, 2), torch.stack([scale, scale], -1)[..., 0]
        pairs = [
            (left, scale),
            (turned, scale),
            (left, apart),
            (left[:, :1], scale),
            (scale[0], left),
            (left[::2], scale),
        ]
        return [((one * other).reshape(-1, k) @ right).relu() for one, other in pairs]

    args = [matrix(*shape, dtype=dtype) for shape in ((4, m, k), (m, k), (k, n))]
    module = make_fx(every)(*args)
    with torch.no_grad():
        results = compiled_by_inductor(module, args, by_own_products())(*args)
    for got, want in zip(results, every(*[each.double() for each in args]), strict=True):
        assert (got.double() - want).abs().max() < 8 * k**0.5 * torch.finfo(dtype).eps * want.abs().max()


@pytest.mark.filterwarnings("ignore")  # of inductor
def test_a_compiled_plan_with_and_without_gradients() -> None:
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
    weight.requires_grad_()
    got, expected = (torch.autograd.grad(each(x, weight).square().mean(), weight)[0] for each in (compiled, plan))
    assert relative_error(got, expected) < 1e-5
