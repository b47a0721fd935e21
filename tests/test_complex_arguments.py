"""Contractions of derivatives by complex arguments, and with complex operands: those of hod's, where slots have parts.

What is expected is nested torch.func, of the real function of parts that a complex one is.
"""

from collections.abc import Callable, Sequence
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

MATRIX = torch.tensor([[0.3, -0.5, 0.2], [0.1, 0.4, -0.7], [0.6, 0.2, 0.1], [-0.2, 0.3, 0.5]], dtype=torch.float64)


def numbers(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    """Complex numbers."""
    return torch.complex(rand(device, *shape, seed=seed), rand(device, *shape, seed=seed + 100))


def mixed(z: Tensor) -> Tensor:
    """Four complex numbers of three, which are no holomorphic function of them."""
    matrix = torch.complex(MATRIX, MATRIX.flip(0)).to(z)
    return torch.sin(matrix @ z) * z.conj().sum()


def energy(z: Tensor) -> Tensor:
    """A real number."""
    return (mixed(z).abs() ** 2).sum()


def wave(x: Tensor) -> Tensor:
    """A complex number for every row of real ones."""
    return torch.exp(1j * (x @ MATRIX[0].to(x))) * (x**2).sum(-1)


def packet(z: Tensor) -> Tensor:
    """A complex number for every row of complex ones."""
    return torch.exp(1j * z.sum(-1)) * (z.conj() ** 2).sum(-1)


def dense(f: Callable[[Tensor], Tensor], z: Tensor, order: int) -> Tensor:
    """Return the derivative as `hofunc.hod` has it: by the parts of complex arguments, complex of complex outputs."""

    def of_parts(x: Tensor) -> Tensor:
        y = f(torch.view_as_complex(x) if z.is_complex() else x)
        return torch.view_as_real(y) if y.is_complex() else y

    found = nested_slots(of_parts, [0] * order)(torch.view_as_real(z) if z.is_complex() else z)
    rank = f(z).dim()
    return torch.complex(found.select(rank, 0), found.select(rank, 1)) if f(z).is_complex() else found


def expected(f: Callable[..., Tensor], pattern: str, z: Tensor, operands: Sequence[Tensor]) -> Tensor:
    """Return the contraction, all that is multiplied of one dtype."""
    derivative = dense(f, z, pattern.count(",") - len(operands))
    are_complex = derivative.is_complex() or any(each.is_complex() for each in operands)
    cast = (lambda each: each + 0j) if are_complex else (lambda each: each)
    return contraction(cast(derivative), pattern, [*map(cast, operands)])


def check(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert relative_error(got, want) < checks.TOLERANCE


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("f", "pattern", "shapes"),
    [
        (mixed, "o, i c -> o i c", ()),
        (mixed, "o, i 1 -> o i", ()),
        (mixed, "o, i c, o -> i c", ((4,),)),
        (mixed, "o, i c, i c -> o", ((3, 2),)),
        (mixed, "o, i c, j d, j d -> o i c", ((3, 2),)),
        (mixed, "o, i c, j d, j d, o -> i c", ((3, 2), (4,))),
        (mixed, "o, i c, k o -> k i c", ((5, 4),)),
        (energy, ", i c, i c -> ", ()),
        (energy, ", i c, j d, j d -> i c", ((3, 2),)),
        (energy, ", i c, j d, i c, j d -> ", ((3, 2), (3, 2))),
        (energy, ", i c, i d, c, d -> i", ((2,), (2,))),
        (lambda z: energy(z).expand(2), "o, i c, i c, o -> ", ((2,),)),
    ],
)
def test_it_is_that_of_the_dense_derivative(
    f: Callable[..., Tensor], pattern: str, shapes: Any, strategy: str, device: torch.device
) -> None:
    z = numbers(device, 3)
    operands = tuple([numbers(device, *shape, seed=number) for number, shape in enumerate(shapes, 1)])
    for given in (operands, tuple([each.real.clone() for each in operands])):
        check(einsum(f, pattern, strategy=strategy)(z, operands=given), expected(f, pattern, z, given))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("pattern", "shapes"),
    [
        ("b, b i, b i -> b", ((4, 3),)),
        ("b, b i, b -> b i", ((4,),)),
        ("b, b i, b -> i", ((4,),)),
        ("b, b i, b j, b j -> b i", ((4, 3),)),
        ("b, b i, b j, b i, b j -> b", ((4, 3), (4, 3))),
        ("b, b i, b j, i j -> b", ((3, 3),)),
        ("b, b i, k b -> k i", ((2, 4),)),
        ("b, b i, b i, k -> k b", ((2,),)),
    ],
)
def test_complex_operands_of_real_arguments(pattern: str, shapes: Any, strategy: str, device: torch.device) -> None:
    x = rand(device, 4, 3)
    operands = tuple([numbers(device, *shape, seed=number) for number, shape in enumerate(shapes, 1)])
    for f in (wave, lambda x: wave(x).real):
        check(einsum(f, pattern, strategy=strategy)(x, operands=operands), expected(f, pattern, x, operands))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_vectors_like_the_argument_stand_for_their_parts(strategy: str, device: torch.device) -> None:
    z, v, u = numbers(device, 3), numbers(device, 3, seed=1), numbers(device, 4, seed=2)
    parts = torch.view_as_real(v)
    for f, axes in ((energy, ""), (mixed, "o")):
        for vector in (v, parts):
            got = hofunc.jvp(f, strategy=strategy)(z, vector=vector)
            check(got, expected(f, f"{axes}, i c, i c -> {axes}", z, [parts]))
            got = hofunc.hvp(f, strategy=strategy)(z, vector=vector)
            check(got, expected(f, f"{axes}, i c, j d, j d -> {axes} i c", z, [parts]))
            got = hofunc.directional(f, 3, strategy=strategy)(z, vector=vector)
            check(got, expected(f, f"{axes}, i a, j b, k c, i a, j b, k c -> {axes}", z, [parts] * 3))
    several = numbers(device, 5, 3, seed=3)
    got = einsum(mixed, "*o, *p, k *p -> k *o", strategy=strategy)(z, operands=(several,))
    check(got, expected(mixed, "o, i c, k i c -> k o", z, [torch.view_as_real(several)]))
    check(hofunc.vjp(mixed, strategy=strategy)(z, cotangent=u), expected(mixed, "o, i c, o -> i c", z, [u]))


def test_products_are_those_of_torch(device: torch.device) -> None:
    """torch pairs a cotangent with an output by parts: it is the conjugate that is a factor, of which that is real."""
    z, v, u = numbers(device, 3), numbers(device, 3, seed=1), numbers(device, 4, seed=2)
    pull = torch.func.vjp(mixed, z)[1]
    check(torch.view_as_complex(hofunc.vjp(mixed)(z, cotangent=u.conj()).real.contiguous()), pull(u)[0])
    check(hofunc.jvp(mixed)(z, vector=v), torch.func.jvp(mixed, (z,), (v,))[1])
    check(torch.view_as_complex(hofunc.gradient(energy)(z)), torch.func.grad(energy)(z))


@pytest.mark.parametrize(
    ("transform", "pattern"),
    [
        (hofunc.gradient, "b, b i c -> b i c"),
        (hofunc.laplacian, "b, b i c, b i c -> b"),
        (hofunc.hessian_diagonal, "b, b i c, b i c -> b i c"),
        (hofunc.biharmonic, "b, b i c, b i c, b j d, b j d -> b"),
    ],
)
def test_operators_on_fields_take_parts_for_coordinates(transform: Any, pattern: str, device: torch.device) -> None:
    z = numbers(device, 3, 2)
    want = expected(packet, pattern, z, ())
    check(transform(packet)(z), want)
    check(transform(packet, chunk_size=2)(z), want)
    check(transform(packet).plan(z)(z), want)


def model(parameters: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """Complex numbers and real ones, of both."""
    return {"y": torch.sin(parameters["z"] @ x) + parameters["w"], "r": parameters["w"] ** 2 * parameters["s"].real}


def loss(found: dict[str, Tensor]) -> Tensor:
    return (found["y"].abs() ** 4).sum() + found["r"].pow(3).sum()


def parameters(device: torch.device, seed: int) -> dict[str, Tensor]:
    """Complex and real tensors, one without axes."""
    z, w, s = numbers(device, 4, 3, seed=seed), rand(device, 4, seed=seed), numbers(device, seed=seed)
    return {"z": z, "w": w, "s": s}


def flat(tree: dict[str, Tensor]) -> Tensor:
    """Return all real numbers of a pytree."""
    return torch.cat(
        [torch.view_as_real(each).flatten() if each.is_complex() else each.flatten() for each in tree.values()]
    )


def unflat(x: Tensor) -> dict[str, Tensor]:
    """Return the parameters of so many numbers."""
    z, s = torch.view_as_complex(x[:24].reshape(4, 3, 2)), torch.view_as_complex(x[28:])
    return {"z": z, "w": x[24:28], "s": s}


def test_pytrees_of_real_and_complex_tensors(device: torch.device) -> None:
    at, vector, x = parameters(device, 0), parameters(device, 5), numbers(device, 3, seed=9)

    def outputs(q: Tensor) -> Tensor:
        return flat(model(unflat(q), x))

    def of_outputs(o: Tensor) -> Tensor:
        return loss({"y": torch.view_as_complex(o[:8].reshape(4, 2)), "r": o[8:]})

    q = flat(at)
    jacobian, hessian = torch.func.jacrev(outputs)(q), torch.func.hessian(of_outputs)(outputs(q))
    whole = torch.func.hessian(lambda q: of_outputs(outputs(q)))(q) @ flat(vector)
    product = jacobian.T @ hessian @ jacobian @ flat(vector)

    def total(tree: dict[str, Tensor], x: Tensor) -> Tensor:
        return loss(model(tree, x))

    for transform, want in ((hofunc.hvp(total), whole), (hofunc.ggnvp(model, loss), product)):
        plan = transform.plan(at, x, vector=vector)
        for call in (transform, hofunc.jit(transform), plan, plan):
            check(flat(call(at, x, vector=vector)), want)


@pytest.mark.parametrize("way", ["plan", "jit", "vmap", "compile"])
@pytest.mark.parametrize("pattern", ["*o, *p, *p -> *o", "*o, *p, *o -> *p"])
def test_ways_to_call_it(way: str, pattern: str, device: torch.device) -> None:
    z = numbers(device, 3)
    given = numbers(device, 3 if "*p, *p" in pattern else 4, seed=1)
    einsums = einsum(mixed, pattern)
    calls: dict[str, Callable[[], Any]] = {
        "plan": lambda: einsums.plan(z, operands=(given,)),
        "jit": lambda: hofunc.jit(einsums),
        "vmap": lambda: (
            lambda z, operands: torch.func.vmap(lambda z, v: einsums(z, operands=(v,)))(z[None], operands[0][None])[0]
        ),
        "compile": lambda: torch.compile(
            lambda z, operands: einsum(mixed, pattern)(z, operands=operands), backend="eager", fullgraph=True
        ),
    }
    called, written = calls[way](), "o, i c, i c -> o" if "*p, *p" in pattern else "o, i c, o -> i c"
    for factor in (1, 2):
        each, operand = factor * z, given / factor
        parts = torch.view_as_real(operand) if "*p, *p" in pattern else operand
        check(called(each, operands=(operand,)), expected(mixed, written, each, [parts]))


def test_gradients_by_arguments_and_operands(device: torch.device) -> None:
    z, u = numbers(device, 3).requires_grad_(), numbers(device, 4, seed=2).requires_grad_()
    plan = hofunc.vjp(mixed).plan(z, cotangent=u)
    want = torch.autograd.grad(expected(mixed, "o, i c, o -> i c", z, [u]).abs().pow(2).sum(), (z, u))
    for product in (hofunc.vjp(mixed), plan):
        found = torch.autograd.grad(product(z, cotangent=u).abs().pow(2).sum(), (z, u))
        for got, one in zip(found, want, strict=True):
            check(got, one)
    got = torch.func.grad(lambda u: hofunc.vjp(mixed)(z.detach(), cotangent=u).abs().pow(2).sum())(u.detach())
    check(got, want[1])


def test_series_along_complex_curves(device: torch.device) -> None:
    z, v, w = (numbers(device, 3, seed=seed) for seed in range(3))
    y, (first, second) = hofunc.jet(mixed, (z,), ((v, w),))
    parts, turned = torch.view_as_real(v), torch.view_as_real(w)
    check(y, mixed(z))
    check(first, expected(mixed, "o, i c, i c -> o", z, [parts]))
    curved = expected(mixed, "o, i c, j d, i c, j d -> o", z, [parts, parts])
    check(second, curved + expected(mixed, "o, i c, i c -> o", z, [turned]))


def test_sums_by_complex_arguments_are_estimated(device: torch.device) -> None:
    z = numbers(device, 3, 2)
    pattern, generator = "b, b i c, b i c -> b", torch.Generator(device).manual_seed(0)
    options: dict[str, Any] = {"directions": "coordinates", "generator": generator}
    check(einsum(packet, pattern, estimate={"i": 2}, **options)(z), expected(packet, pattern, z, ()))


def test_hodcheck_takes_the_pattern_that_einsum_takes(device: torch.device) -> None:
    z, v, u = numbers(device, 3), numbers(device, 3, seed=1), numbers(device, 4, seed=2)
    assert hofunc.hodcheck(energy, (z,), pattern=", *p, *q, *q -> *p", operands=(v,))
    assert hofunc.hodcheck(mixed, (z,), pattern="o, i c, o -> i c", operands=(u,))
    assert hofunc.hodcheck(mixed, (z,), pattern="o, i c, i c -> o", operands=(numbers(device, 3, 2),))


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda z: hofunc.jvp(mixed)(z, vector=z.real), r"expected a complex one of shape \(3,\), like args\[0\]"),
        (lambda z: hofunc.hvp(energy)(z, vector=z[:2]), r"expected a complex one of shape \(3,\), like args\[0\]"),
        (lambda z: hofunc.vjp(mixed)(z, cotangent=rand(z.device, 4, 2)), r"expected one of shape \(4,\)"),
        (lambda z: hofunc.jvp(torch.sum)(rand(z.device, 3, 2), vector=z), r"expected one of shape \(3, 2\)"),
        (lambda z: einsum(mixed, "o, i -> o i")(z), r"shape \(3, 2\) by real and imaginary part, .* expected 1 axis"),
        (
            lambda z: einsum(mixed, "o, i c, i c -> o")(z, operands=(z,)),
            r"operands\[0\] of shape \(3,\), which has 1 axis, expected 2 axes for 'i c'",
        ),
        (
            lambda z: hofunc.jvp(lambda p: p[0] * p[1])((z.real, z.imag), vector=(z, z.real)),
            "vector of real and complex tensors",
        ),
        (lambda z: hofunc.divergence(torch.sin)(z), "a complex tensor, expected real points, as it tells"),
        (lambda z: hofunc.curl(torch.sin)(z), "a complex tensor, expected real points, as it tells"),
        (lambda z: hofunc.partial(energy, (0,))(z), "a complex tensor, expected real points, as it tells"),
        (lambda z: hofunc.laplacian(packet)(z, weight=z.real), r"weight: got one for args\[0\], which is complex"),
        (lambda z: hofunc.laplacian(packet, samples=2)(z), "a complex tensor, expected real points, to be sampled"),
    ],
)
def test_what_has_no_meaning_is_refused(call: Callable[[Tensor], Any], got: str, device: torch.device) -> None:
    with pytest.raises(hofunc.ArgumentError, match=got):
        call(numbers(device, 3))
