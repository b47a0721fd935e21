"""Products of matrices by another library: the same numbers, and only where nobody follows or sees them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import hofunc
from hofunc.internals_linear import has_linear, linear, linear_added, linear_with_bias
from hofunc.plan.rates import RATES
from hofunc.run import cache, multiply
from hofunc.views import folded
from tests.cases import rand

CPU = torch.device("cpu")
FAST = RATES["cpu"]._replace(linear=1e15, linear_call=0.0)

pytestmark = pytest.mark.skipif(not has_linear(), reason="torch has no oneDNN here")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let oneDNN be faster always, and note what it is called for."""
    found: list[str] = []
    for each in (linear, linear_added, linear_with_bias):

        def noting(*args: Tensor, function: Callable[..., Tensor] = each) -> Tensor:
            found.append(function.__name__)
            return function(*args)

        monkeypatch.setattr(multiply, each.__name__, noting)
    monkeypatch.setattr(multiply, "rates_of", lambda _: FAST)
    cache.forget()
    return found


class Field(torch.nn.Module):
    """A perceptron from points to numbers."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.weights = torch.nn.ParameterList(
            [rand(CPU, *shape, seed=seed).to(dtype) / 3 for seed, shape in enumerate(((3, 16), (16, 16), (16, 1)))]
        )

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights[:-1]:
            x = torch.addmm(weight[0], x, weight).tanh()
        return (x @ self.weights[-1]).squeeze(-1)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "hessian by points": lambda f: hofunc.einsum(f, "b, b i, b j -> b i j"),
    "laplacian": hofunc.laplacian,
    "biharmonic": hofunc.biharmonic,
    "third": lambda f: hofunc.hod(lambda x: f(x).sum(), 3),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("way", ["called", "planned", "jitted"])
def test_derivatives_in_single_precision(name: str, way: str, calls: list[str]) -> None:
    x, fields = rand(CPU, 8, 3), {dtype: Field(dtype) for dtype in (torch.float32, torch.float64)}
    single, double = (TRANSFORMS[name](fields[dtype]) for dtype in (torch.float32, torch.float64))
    with torch.no_grad():
        expected = double(x)
        assert not calls
        transform = {
            "called": lambda: single,
            "planned": lambda: single.plan(x.float()),
            "jitted": lambda: hofunc.jit(single),
        }
        chosen = transform[way]()
        for _ in range(3):
            torch.testing.assert_close(chosen(x.float()).double(), expected, rtol=1e-3, atol=1e-4)
    assert calls


@pytest.mark.usefixtures("calls")
def test_gradients_through_derivatives_are_not_lost() -> None:
    x, found = rand(CPU, 8, 3), {}
    for dtype in (torch.float64, torch.float32):
        field = Field(dtype)
        laplacian = hofunc.laplacian(field)
        for _ in range(4):
            loss = laplacian(x.to(dtype)).square().mean()
            found[dtype] = [each.double() for each in torch.autograd.grad(loss, [*field.parameters()])]
    for got, want in zip(found[torch.float32], found[torch.float64], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


class _Looking(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_who_sees_ops_sees_those_of_torch(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    field, x = Field(torch.float32).requires_grad_(False), rand(CPU, 8, 3).float()
    plan = hofunc.laplacian(field).plan(x)
    with torch.no_grad():
        plan(x)
        assert calls
        del calls[:]
        with _Looking() as looking:
            plan(x)
        assert looking.seen
        make_fx(plan)(x)
        torch.func.jvp(plan, (x,), (x,))
        monkeypatch.setattr(torch.jit, "is_tracing", lambda: True)
        plan(x)
    assert not calls
    text = plan.to_fx().print_readable(print_output=False)
    assert "mkldnn" not in text


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (torch.mm, ((4, 3), (3, 5)), "linear"),
        (torch.matmul, ((2, 4, 3), (3, 5)), "linear"),
        (folded, ((2, 4, 3), (3, 5)), "linear"),
        (torch.addmm, ((5,), (4, 3), (3, 5)), "linear_with_bias"),
        (torch.addmm, ((4, 5), (4, 3), (3, 5)), "linear_added"),
        (torch.addmm, ((1, 5), (4, 3), (3, 5)), "addmm"),
        (torch.addmm, ((1,), (4, 3), (3, 5)), "addmm"),
        (torch.matmul, ((3,), (3, 5)), "matmul"),
        (torch.matmul, ((4, 3), (3,)), "matmul"),
        (torch.matmul, ((2, 4, 3), (2, 3, 5)), "matmul"),
        (torch.mm, ((0, 3), (3, 5)), "mm"),
        (torch.mm, ((4, 1024), (1024, 1025)), "mm"),
    ],
)
def test_what_is_chosen(
    function: Callable[..., Tensor], shapes: tuple, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiply, "rates_of", lambda _: FAST)
    args = [rand(CPU, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    single = [each.float() for each in args]
    found = multiply._fastest(function, *single)
    assert found.__name__ == expected
    torch.testing.assert_close(found(*single).double(), function(*args), rtol=1e-4, atol=1e-4)
    assert multiply._fastest(function, *args) is function  # in double precision
    *before, left, right = single
    if left.dim() > 1 and min(left.shape) > 1:
        turned = left.transpose(-1, -2).contiguous().transpose(-1, -2)
        assert multiply._fastest(function, *before, turned, right) is function
    with monkeypatch.context() as without:
        without.setattr(multiply, "has_linear", lambda: False)
        assert multiply._fastest(function, *single) is function
    monkeypatch.setattr(multiply, "rates_of", lambda _: RATES["cpu"])
    assert multiply._fastest(function, *single) is function


def test_small_products_are_left_to_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = FAST._replace(flops=1e11, linear=2e11, linear_call=1e-5)  # so that 2 million operations take as long, and
    monkeypatch.setattr(multiply, "rates_of", lambda _: rates)
    small, large = (torch.ones(size, size) for size in (115, 125))  # 3.3 million are the least for which that pays
    assert multiply._fastest(torch.mm, small, small) is torch.mm
    assert multiply._fastest(torch.mm, large, large) is linear
    assert rates.multiplied(2e6) == 2e6 / 1e11
    assert rates.multiplied(8e6) == pytest.approx(1e-5 + 8e6 / 2e11)
    assert rates.of(torch.float64).linear == 0
    assert rates.of(torch.float32) is rates
