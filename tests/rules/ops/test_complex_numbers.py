"""Ways through complex numbers, against nested torch.func, which has its own complex derivatives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, between, every_row, use
from verification.oracles import nested_reverse, relative_error

pytestmark = ORACLE_WARNINGS


def numbers(x: Tensor, *shape: int) -> Tensor:
    """Return fixed complex numbers on the device of a tensor."""
    return torch.complex(rand(x.device, *shape, seed=8), rand(x.device, *shape, seed=9))


def half(x: Tensor) -> Tensor:
    """Return complex numbers made of real ones, none near zero or the negative axis."""
    return torch.complex(x.exp(), x)


TRANSFORMS = [
    use("rfft, by absolute values", lambda x: torch.fft.rfft(x).abs(), (4,)),
    use("rfft of an odd length", lambda x: torch.view_as_real(torch.fft.rfft(x)), (3,)),
    use("rfft along the first dim, padded", lambda x: torch.fft.rfft(x, 4, 0, norm="forward").imag, (3, 2)),
    use("fft, cut", lambda x: torch.fft.fft(x, 2).real, (3,)),
    use("power spectrum", lambda x: torch.fft.rfft(x, norm="ortho").abs().square(), (2, 3)),
    use("complex of a scalar", lambda x, y: torch.view_as_real(torch.complex(x, y)), (3,), (), orders=(1, 2)),
    use("irfft", lambda x: torch.fft.irfft(torch.view_as_complex(x)), (3, 2), orders=(1, 2)),
    use("irfft to an odd length", lambda x: torch.fft.irfft(torch.view_as_complex(x), 3), (2, 2)),
    use("irfft of a product", lambda x: torch.fft.irfft(torch.fft.rfft(x) * numbers(x, 3), 4), (4,)),
    use("fft of a product of two", lambda x, y: torch.fft.ifft(torch.fft.fft(x) * torch.fft.fft(y)).real, (3,), (3,)),
    use("fft and back in two dims", lambda x: torch.fft.ifft2(torch.fft.fft2(x) * numbers(x, 2, 2)).real, (2, 2)),
    use("irfft2", lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * numbers(x, 2, 2), (2, 3)), (2, 3), orders=(1, 2)),
    use(
        "hfft",
        lambda x: torch.fft.hfft(half(x)),
        (3,),
        reference=lambda x: torch.fft.irfft(half(x).conj_physical(), norm="forward"),
    ),
    use(
        "ihfft",
        lambda x: torch.fft.ihfft(x).imag,
        (4,),
        reference=lambda x: -torch.fft.rfft(x, norm="forward").imag,
    ),
    use("fftshift", lambda x: torch.fft.fftshift(torch.fft.fft(x)).imag, (3,)),
    use("rfft of nothing but one", lambda x: torch.fft.rfft(x).real, (2, 1)),
]

ARITHMETIC = [
    use("complex", lambda x, y: torch.complex(x, y).abs(), (2,), (2,)),
    use("view_as_complex", lambda x: torch.view_as_complex(x).angle(), inputs=lambda device: [_away(device)]),
    use("polar", lambda x, y: torch.view_as_real(torch.polar(x.exp(), y)), (2,), (1,)),
    use("product", lambda x: (half(x) * half(x.sin())).imag, (2,)),
    use("product with real numbers", lambda x: (x * half(x) * 2.0 * numbers(x, 2)).real, (2,)),
    use("product with an imaginary number", lambda x: (half(x) * 1j).real, (2,)),
    use("quotient", lambda x: (numbers(x, 2) / half(x)).real + (half(x) / x.exp()).imag, (2,)),
    use("quotient by real numbers", lambda x: (half(x) / x.exp()).real + (half(x) / 1.5).imag, (2,)),
    use("reciprocal", lambda x: half(x).reciprocal().imag, (2,)),
    use("sum with real numbers", lambda x: (half(x) + x - 2 * half(x.cos())).abs(), (2,)),
    use("sum with a number", lambda x: (half(x) + 2).abs() + (1.5 + half(x)).angle(), (2,)),
    use("difference with a number", lambda x: (3.0 - half(x)).abs() + (half(x) - (1 + 2j)).abs(), (2,)),
    use("sum of real and imaginary", lambda x: ((x + 1j) * (2j - x.cos())).real, (2,)),
    use("sum with integers", lambda x: (half(x) + torch.tensor([1, 2], device=x.device)).abs(), (2,)),
    use("sum with truth values", lambda x: (half(x) + (x.detach() > 0) - 3).abs(), (2,)),
    use("multiples", lambda x: torch.add(half(x), half(x.cos()), alpha=2j).abs() + (half(x) - 3 * x).abs(), (2,)),
    use("rsub", lambda x: torch.rsub(half(x), x, alpha=2).abs(), (2,)),
    use("sums with products", lambda x: _sums_with_products(half(x), numbers(x, 2)), (2,)),
    use("layer", lambda x: F.linear(half(x), numbers(x, 3, 2), numbers(x, 3)).abs(), (2, 2)),
    use("layer of real inputs", lambda x: torch.addmm(numbers(x, 1, 3), x + 0j, numbers(x, 2, 3)).imag, (2, 2)),
    use("vector of a layer", lambda x: torch.addmv(half(x), numbers(x, 2, 2), half(x), alpha=2j).real, (2,)),
    use("stack of layers", lambda x: torch.baddbmm(half(x), half(x), numbers(x, 1, 2, 2), beta=2).abs(), (1, 2, 2)),
    use("lerp", lambda x: torch.lerp(half(x), numbers(x, 2), x + 0j).abs() + half(x).lerp(x + 1j, 0.3).imag, (2,)),
    use("sin and cos", lambda x: half(x).sin().real + half(x).cos().imag, (2,)),
    use("sinh and cosh", lambda x: half(x).sinh().real + half(x).cosh().imag, (2,)),
    use("tan", lambda x: half(x).tan().abs(), (2,)),
    use("tanh", lambda x: half(x).tanh().imag, (2,)),
    use("sigmoid", lambda x: half(x).sigmoid().imag, (2,)),
    use("norm", lambda x: half(x).norm() + torch.linalg.vector_norm(half(x), dim=-1, keepdim=True), (2, 2)),
    use("other norm", lambda x: torch.linalg.vector_norm(half(x), 3, dim=0) + torch.dist(half(x), numbers(x, 2)), (2,)),
    use("variance", lambda x: half(x).var(0) + half(x).std(-1, correction=0), (2, 2)),
    use("inverse", lambda x: torch.linalg.inv(_invertible(x)).imag, (2, 2)),
    use("solution", lambda x: torch.linalg.solve(_invertible(x), numbers(x, 2, 3)).abs(), (2, 2)),
    use("solution of a vector", lambda x: torch.linalg.solve(_invertible(x), half(x)[0]).real, (2, 2)),
    use(
        "solution from the right",
        lambda x: torch.linalg.solve(_invertible(x), half(x), left=False).real,
        (2, 2),
        reference=lambda x: (half(x) @ torch.linalg.inv(_invertible(x))).real,
    ),
    use("solution of a stack", lambda x: torch.linalg.solve(_invertible(x), x[..., 0] + 1j).imag, (2, 2, 2)),
    use("solution of a matrix for a stack", lambda x: _solved_for_a_stack(x).imag, (2, 4), orders=(1, 2)),
    use("zeroth power", lambda x: ((half(x) - half(x).detach()) ** 0).real + x, (2,)),
    use("conjugate", lambda x: _product(torch.conj, x), (2,), reference=lambda x: _product(torch.conj_physical, x)),
    use("exp", lambda x: half(x).exp().real, (2,)),
    use("log", lambda x: torch.view_as_real(half(x).log()), (2,)),
    use("sqrt", lambda x: half(x).sqrt().imag, (2,)),
    use("square", lambda x: half(x).square().imag, (2,)),
    use("cube", lambda x: (half(x) ** 3).real, (2,)),
    use("power", lambda x: (half(x) ** 1.5).real, (2,)),
    use("complex power", lambda x: (half(x) ** (0.5 + 1j)).real, (2,)),
    use("sgn", lambda x: torch.view_as_real(half(x).sgn()), (2,)),
    use("mm", lambda x: (half(x) @ numbers(x, 2, 1)).abs(), (1, 2)),
    use("mm of two", lambda x: (half(x) @ half(x.sin()).t()).real, (2, 2)),
    use("vdot", lambda x: torch.vdot(half(x), half(x.sin())).imag, (2,)),
    use("einsum", lambda x: torch.einsum("bk,kj->bj", half(x), numbers(x, 2, 2)).abs(), (2, 2)),
    use("cast", lambda x: (x.to(torch.complex128) * 1j).imag, (2,)),
]

SHAPES = [
    use("views", lambda x: half(x).reshape(4).t().view(2, 2).permute(1, 0)[:1, None].squeeze().abs(), (2, 2)),
    use("indexing", lambda x: torch.view_as_real(half(x)[[0, 1, 1]]), (2,)),
    use("joining", lambda x: torch.cat([half(x), torch.stack([half(x)[0], half(x)[1]])]).imag, (2,)),
    use("splitting", lambda x: (half(x).split(1)[1] * half(x).unbind()[0]).imag, (2,)),
    use("padding", lambda x: torch.nn.functional.pad(half(x), (1, 0), value=2.0).square().imag, (2,)),
    use("sums", lambda x: half(x).sum(0).abs() + half(x).mean().abs(), (2, 2)),
    use("where", lambda x: torch.where(x.detach() > 0, half(x), half(x.cos())).square().imag, (3,)),
    use("where, of integers", lambda x: torch.where(x.detach() > 0, half(x), 2).square().imag, (3,)),
    use("joining integers", lambda x: torch.cat([half(x), torch.tensor([3], device=x.device)]).square().imag, (2,)),
    use("gather", lambda x: half(x).gather(0, torch.tensor([0, 0], device=x.device)).square().imag, (2,)),
    use("filling", lambda x: half(x).masked_fill(x.detach() > 0, 2 + 1j).square().imag, (3,)),
    use("trace", lambda x: half(x).trace().abs(), (2, 2)),
    use("scattering", lambda x: _scattered(half(x)).square().imag, (3,)),
    use("writing", lambda x: _written(x).square().imag, (3,)),
]

CASES: list[OpCase] = [*TRANSFORMS, *ARITHMETIC, *SHAPES]


def _product(conjugate: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return (conjugate(half(x)) * half(x.sin())).imag


def _sums_with_products(z: Tensor, w: Tensor) -> Tensor:
    return (torch.addcmul(z, z, w, value=2) - torch.addcdiv(w, z.real, z)).abs()


def _invertible(x: Tensor) -> Tensor:
    return half(x) + 3 * torch.eye(2, dtype=x.dtype, device=x.device)


def _solved_for_a_stack(x: Tensor) -> Tensor:
    return torch.linalg.solve(half(x).t()[:, :, None] + numbers(x, 2, 2), half(x))


def _scattered(z: Tensor) -> Tensor:
    places = torch.tensor([0, 2], device=z.device)
    return z.index_put((places,), z[1:]) + z.scatter(0, places, z[:2]) * z.scatter_add(0, places, z[1:])


def _away(device: torch.device) -> Tensor:
    return torch.tensor([[1.0, 2.0], [0.5, 0.1]], dtype=torch.float64, device=device)


def _written(x: Tensor) -> Tensor:
    z = torch.zeros(3, dtype=torch.complex128, device=x.device)
    z[:2] = half(x)[1:] * 1j
    z[2] = x[0]
    return z


@every_row(CASES)
def test_complex(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


FILTERS: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.fft.irfft(torch.fft.rfft(x) * numbers(x, 3), 4),
    lambda x: torch.fft.fft(x, dim=0).abs(),
]


@pytest.mark.parametrize("f", FILTERS)
def test_every_strategy(f: Callable[[Tensor], Tensor], device: torch.device) -> None:
    for order in (1, 2):
        check_hod(between(f), (rand(device, 2, 4),), order, strategies=("reverse", "forward", "mixed"))


def test_rows_are_kept_apart(device: torch.device) -> None:
    got = hofunc.hod(lambda x: torch.fft.rfft(x).abs().sum(1), 2, layout="compact")(rand(device, 4, 3))
    assert got.pattern == "b, b i, b j"


def test_under_vmap_and_differentiated_again(device: torch.device) -> None:
    x = rand(device, 2, 4)
    response = numbers(x, 3)
    f = between(lambda x: torch.fft.irfft(torch.fft.rfft(x) * response, 4))
    expected = torch.func.vmap(nested_reverse(f, 2))(x)
    assert relative_error(torch.func.vmap(hofunc.hessian(f))(x), expected) < 1e-10
    assert relative_error(torch.func.jacrev(hofunc.jacobian(f))(x[0]), nested_reverse(f, 2)(x[0])) < 1e-10
    assert relative_error(hofunc.jacobian(hofunc.jacobian(f))(x[0]), nested_reverse(f, 2)(x[0])) < 1e-10


def test_as_a_plan_and_as_a_graph(device: torch.device) -> None:
    f = between(FILTERS[0])
    x, other = rand(device, 4), rand(device, 4, seed=1)
    plan = hofunc.hessian(f).plan(x)
    expected = nested_reverse(f, 2)(other)
    assert relative_error(plan(other), expected) < 1e-10
    (got,) = plan.to_fx()(other)
    assert relative_error(got, expected) < 1e-10


def test_single_precision(device: torch.device) -> None:
    x = rand(device, 4).float()
    f = between(lambda x: torch.fft.irfft(torch.fft.rfft(x) * numbers(x, 3).to(torch.complex64), 4))
    got = hofunc.hessian(f)(x)
    assert got.dtype == torch.float32
    assert relative_error(got, nested_reverse(f, 2)(x)) < 1e-5


def test_the_absolute_value_of_zero(device: torch.device) -> None:
    x = torch.zeros(1, 2, dtype=torch.float64, device=device)

    def f(x: Tensor) -> Tensor:
        return torch.view_as_complex(x).abs().sum()

    assert torch.equal(hofunc.jacobian(f)(x), torch.func.jacrev(f)(x))
    assert not hofunc.hessian(f)(x).isnan().any()


@pytest.mark.parametrize("f", [lambda z: z.logcumsumexp(0).real, lambda z: (torch.linalg.svd(z)[2] * z).abs()])
def test_other_ops_are_refused(f: Any, device: torch.device) -> None:
    with pytest.raises(hofunc.UnsupportedOpError, match=r"by way of complex numbers|U and V of complex numbers"):
        hofunc.hessian(lambda x: f(half(x)))(rand(device, 2, 2))
