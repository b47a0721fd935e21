"""Contractions of derivatives of complex outputs: those of the real part and of the imaginary part, together."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import einsum
from hofunc.contracted import STRATEGIES
from tests import checks
from tests.cases import rand
from verification.oracles import contraction, nested_slots, relative_error

ROWS = 4
WAVE = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def packet(x: Tensor) -> Tensor:
    """A wave packet, a number for every row."""
    return torch.exp(1j * (x @ WAVE.to(x)) - x.square().sum(-1) / 2)


def field(x: Tensor) -> Tensor:
    """As many numbers for every row as it has coordinates."""
    return packet(x).unsqueeze(-1) * torch.complex(x.sin(), x.flip(-1) ** 2)


def both(x: Tensor) -> dict[str, Tensor]:
    """A complex number and a real one for every row."""
    return {"wave": packet(x), "density": packet(x).abs() ** 2}


def expected(f: Callable[..., Tensor], pattern: str, x: Tensor, order: int, operands: Any = ()) -> Tensor:
    """Return the contraction of both parts, by nested torch.func."""
    real, imaginary = (
        contraction(nested_slots(lambda x, part=part: part(f(x)), [0] * order)(x), pattern, operands)
        for part in (torch.real, torch.imag)
    )
    return torch.complex(real, imaginary)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("f", "pattern", "shapes"),
    [
        (packet, "b -> b", ()),
        (packet, "b, b i -> b i", ()),
        (packet, "b, b i, b i -> b", ()),
        (packet, "b, b i, b i -> ", ()),
        (packet, "b, b 0, b 0, b 1 -> b", ()),
        (packet, "b, b i, b j, b j -> b i", ((ROWS, 3),)),
        (packet, "b, b i, b j, b -> i j", ((ROWS,),)),
        (packet, "2, b i, b i -> b", ()),
        (field, "b o, b o -> b", ()),
        (field, "b o, b i, i o j -> b j", ((3, 3, 3),)),
        (field, "b 1, b i, b i -> b", ()),
    ],
)
def test_it_is_that_of_both_parts(
    f: Callable[..., Tensor], pattern: str, shapes: Any, strategy: str, device: torch.device
) -> None:
    x = rand(device, ROWS, 3)
    operands = tuple([rand(device, *shape, seed=number) for number, shape in enumerate(shapes, 1)])
    got = einsum(f, pattern, strategy=strategy)(x, operands=operands)
    want = expected(f, pattern, x, pattern.count(",") - len(shapes), operands)
    assert got.dtype == want.dtype
    assert relative_error(got, want) < checks.TOLERANCE


def test_named_transforms(device: torch.device) -> None:
    x, v = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1)
    second = expected(packet, "b, b i, b j -> b i j", x, 2)
    first = expected(packet, "b, b i -> b i", x, 1)
    direction = v.to(second.dtype)
    found = {
        "laplacian": (hofunc.laplacian(packet)(x), second.diagonal(0, 1, 2).sum(-1)),
        "hessian_diagonal": (hofunc.hessian_diagonal(packet)(x), second.diagonal(0, 1, 2)),
        "partial": (hofunc.partial(packet, (0, 2))(x), second[:, 0, 2]),
        "jvp": (hofunc.jvp(packet)(x, vector=v), (first * direction).sum(-1)),
        "vjp": (hofunc.vjp(packet)(x, cotangent=v[:, 0]), first * direction[:, :1]),
        "directional": (
            hofunc.directional(packet, 2)(x, vector=v),
            torch.einsum("bij,bi,bj->b", second, direction, direction),
        ),
        "divergence": (hofunc.divergence(field)(x), expected(field, "b o, b o -> b", x, 1)),
        "jet": (hofunc.jet(packet, (x,), ((v, torch.zeros_like(v)),))[1][0], (first * direction).sum(-1)),
    }
    for name, (got, want) in found.items():
        assert got.dtype == want.dtype, name
        assert relative_error(got, want) < checks.TOLERANCE, name


def test_a_plane_wave_solves_the_equation_of_helmholtz(device: torch.device) -> None:
    x, wave = rand(device, 50, 3), WAVE.to(device)
    found = hofunc.laplacian(lambda x: torch.exp(1j * (x @ wave)))(x)
    assert relative_error(found, -wave.square().sum() * torch.exp(1j * (x @ wave))) < checks.TOLERANCE


def test_real_outputs_beside_complex_ones_stay_real(device: torch.device) -> None:
    x, v = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1)
    found = einsum(both, "*o, *p, *p -> *o")(x, operands=(v,))
    assert (found["wave"].dtype, found["density"].dtype) == (torch.complex128, torch.float64)
    for name, dtype in (("wave", torch.complex128), ("density", torch.complex128)):
        want = expected(lambda x, name=name: both(x)[name] + 0j, "b, c i, c i -> b", x, 1, (v,))
        assert relative_error(found[name].to(dtype), want) < checks.TOLERANCE
    value, laplacian = einsum(lambda x: both(x)["wave"], ("b -> b", "b, b i, b i -> b"))(x)
    assert relative_error(value, packet(x)) < checks.TOLERANCE
    assert laplacian.is_complex()


@pytest.mark.parametrize("way", ["plan", "jit", "chunks", "vmap", "compile"])
def test_ways_to_call_it(way: str, device: torch.device) -> None:
    x = rand(device, ROWS, 3)
    calls: dict[str, Callable[[], Any]] = {
        "plan": lambda: hofunc.laplacian(packet).plan(x),
        "jit": lambda: hofunc.jit(hofunc.laplacian(packet)),
        "chunks": lambda: hofunc.laplacian(packet, chunk_size=3),
        "vmap": lambda: torch.func.vmap(hofunc.laplacian(packet)),
        "compile": lambda: torch.compile(lambda x: hofunc.laplacian(packet)(x), backend="eager", fullgraph=True),
    }
    called = calls[way]()
    for each in (x, 2 * x):
        assert relative_error(called(each), expected(packet, "b, b i, b i -> b", each, 2)) < checks.TOLERANCE


def test_gradients_of_a_residual(device: torch.device) -> None:
    x = rand(device, ROWS, 3)

    def loss(k: Tensor, laplacian: Callable[..., Any]) -> Tensor:
        residual = laplacian(lambda x: torch.exp(1j * (x * k).sum(-1)))(x) + packet(x)
        return torch.view_as_real(residual).square().sum()

    wave = WAVE.to(device)
    got = torch.func.grad(lambda k: loss(k, hofunc.laplacian))(wave)
    want = torch.func.grad(lambda k: loss(k, lambda f: lambda x: -k.square().sum() * f(x)))(wave)
    assert relative_error(got, want) < checks.TOLERANCE


def test_what_does_not_depend_on_a_slot_is_a_complex_zero(device: torch.device) -> None:
    got = hofunc.laplacian(lambda x: 1j * x.sum(-1))(rand(device, ROWS, 3))
    assert got.dtype == torch.complex128
    assert not got.any()


def test_results_count_for_max_bytes_by_parts_and_together(device: torch.device) -> None:
    x = rand(device, 200)
    jacobian, size = "o, i -> o i", 16 * 200**2
    with pytest.raises(hofunc.ArgumentError, match="expected at most max_bytes"):
        einsum(lambda x: torch.exp(1j * x.outer(x).sin().sum(0)), jacobian, max_bytes=int(1.5 * size))(x)
    got = einsum(lambda x: torch.exp(1j * x.outer(x).sin().sum(0)), jacobian, max_bytes=4 * size)(x)
    assert got.shape == (200, 200)


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (
            lambda x: einsum(both, "*o, *p, *o -> *p")(x, operands=(dict.fromkeys(both(x), x[:, 0]),)),
            "a sum of real and complex terms",
        ),
    ],
)
def test_calls_that_are_refused(call: Callable[[Tensor], Any], got: str, device: torch.device) -> None:
    with pytest.raises(hofunc.ArgumentError, match=got):
        call(rand(device, ROWS, 3))
