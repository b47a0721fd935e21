"""Complex inputs and outputs: by parts, as nested torch.func of their real views has it, and holomorphic functions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.run import cache
from tests.cases import rand
from tests.checks import assert_equal, refused
from verification.memory import SLACK, stated, taken
from verification.oracles import nested_reverse

Function = Callable[..., Any]

# Holomorphic functions, each with its derivatives of orders 1 and 2 of one number.
HOLOMORPHIC: dict[str, tuple[Function, Function, Function]] = {
    "power": (lambda z: z**3, lambda z: 3 * z**2, lambda z: 6 * z),
    "exponential": (lambda z: (2j * z).exp(), lambda z: 2j * (2j * z).exp(), lambda z: -4 * (2j * z).exp()),
    "quotient": (lambda z: 1 / (z - 3), lambda z: -1 / (z - 3) ** 2, lambda z: 2 / (z - 3) ** 3),
    "by parts": (
        lambda z: torch.complex(z.real**2 - z.imag**2, 2 * z.real * z.imag),
        lambda z: 2 * z,
        lambda z: 2 * torch.ones_like(z),
    ),
    "conjugated twice": (lambda z: (z.conj() ** 2).conj(), lambda z: 2 * z, lambda z: 2 * torch.ones_like(z)),
    "a constant that cancels": (lambda z: z.sin() ** 2 + z.cos() ** 2, torch.zeros_like, torch.zeros_like),
}
# Others, with the order at which they first miss the equations at zero, and elsewhere.
OTHERS: dict[str, tuple[Function, int, int]] = {
    "conj": (lambda z: z.conj(), 1, 1),
    "a square": (lambda z: z * z.conj(), 2, 1),
    "conj of a square": (lambda z: z.conj() ** 2, 2, 1),
    "an order that the slots hide": (lambda z: z * z.conj() - z.conj() ** 2 / 2, 2, 1),
    "real": (lambda z: torch.complex(z.real, torch.zeros_like(z.real)), 1, 1),
}
OUTPUTS: dict[str, Function] = {
    "real": lambda z: (z.abs() ** 3).sum() + (z[0] * z[1]).real,
    "complex": lambda z: (z * z[:1].conj()).exp(),
    "linear": lambda z: z.conj(),
    "independent": lambda z: torch.zeros_like(z) + 0 * z,
    "one of none": lambda z: torch.ones(2, dtype=z.dtype, device=z.device),
}


def numbers(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    """Return complex numbers."""
    return torch.complex(rand(device, *shape, seed=seed), rand(device, *shape, seed=seed + 1))


def by_parts(f: Function, order: int) -> Function:
    """Return the derivative of a function of one complex tensor as nested torch.func has it, of the real views."""

    def of_parts(x: Tensor) -> Tensor:
        y = f(torch.view_as_complex(x))
        return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y

    def derivative(z: Tensor) -> Tensor:
        y, found = f(z), nested_reverse(of_parts, order)(torch.view_as_real(z.resolve_conj().clone()))
        return torch.view_as_complex(found.movedim(y.dim(), -1).contiguous()) if y.is_complex() else found

    return derivative


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", OUTPUTS)
def test_by_parts(name: str, order: int, device: torch.device) -> None:
    f, z, rows = OUTPUTS[name], numbers(device, 2), numbers(device, 3, 2, seed=4)
    expected, transform = by_parts(f, order)(z), hofunc.hod(f, order)
    assert_equal(transform(z), expected)
    assert_equal(transform.plan(numbers(device, 2, seed=9))(z), expected)
    assert_equal(torch.vmap(transform)(rows), torch.stack([by_parts(f, order)(row) for row in rows]))
    compact = hofunc.hod(f, order, layout="compact")(z).dense()
    assert_equal(compact, torch.view_as_real(expected).movedim(-1, 1) if expected.is_complex() else expected)
    assert_equal(hofunc.hod(f, order, chunk_size=1)(z), expected)


def test_order_one_of_a_real_function_is_the_gradient_of_torch(device: torch.device) -> None:
    f, z = OUTPUTS["real"], numbers(device, 2)
    assert_equal(torch.view_as_complex(hofunc.jacobian(f)(z)), torch.func.grad(f)(z))


def test_a_complex_function_of_real_numbers(device: torch.device) -> None:
    x = rand(device, 3)
    assert_equal(hofunc.hod(lambda x: (1j * x).exp(), 2)(x).sum((1, 2)), -((1j * x).exp()))


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
def test_a_loop_that_recursion_would_be_too_deep_for(strategy: str, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        z = torch.complex(x, x.sin())
        for _ in range(600):
            z = z * (1 + 1e-3j)
        return z.abs().square().sum()

    x = rand(device, 3)
    expected = (2 + 2 * (2 * x).cos()) * (1 + 1e-6) ** 600  # of x^2 + sin(x)^2
    assert_equal(hofunc.hessian(f, strategy=strategy)(x), expected.diag())


def test_real_and_complex_arguments_together(device: torch.device) -> None:
    tree = {"z": numbers(device, 2), "x": rand(device, 2, seed=5)}
    value, first, second = hofunc.derivatives(lambda t: {"a": t["z"] * t["x"], "b": t["x"] ** 2})(tree)
    assert_equal(value, {"a": tree["z"] * tree["x"], "b": tree["x"] ** 2})
    assert_equal(first["a"]["x"], tree["z"].diag_embed())
    assert_equal(
        second["a"]["z"]["x"].sum(-1).sum(1), torch.tensor([[1, 1j]] * 2, dtype=tree["z"].dtype, device=device)
    )
    assert first["b"]["z"].shape == (2, 2, 2)
    assert second["b"]["x"]["x"].dtype == torch.float64


VIEWS: dict[str, Function] = {
    "conjugated": lambda z: z.conj(),
    "negated": torch._neg_view,
    "transposed": lambda z: z.t(),
    "expanded": lambda z: z[:1].expand(2, 2),
    "a scalar": lambda z: z[0, 1],
    "empty": lambda z: z[:0],
    "complex64": lambda z: z.to(torch.complex64),
}


@pytest.mark.parametrize("name", VIEWS)
def test_layouts(name: str, device: torch.device) -> None:
    z = VIEWS[name](numbers(device, 2, 2))
    plain = z.clone().resolve_conj().resolve_neg().contiguous()
    transform = hofunc.hessian(lambda z: z.exp() * z.conj())
    for got in (transform(z), transform.plan(z)(z)):
        assert got.dtype == z.dtype
        assert got.shape == (*z.shape, *z.shape, 2, *z.shape, 2)
        eps = 16 * torch.finfo(z.dtype).eps  # by whichever strategy
        torch.testing.assert_close(got, transform(plain), rtol=eps, atol=eps)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_holomorphic(name: str, order: int, device: torch.device) -> None:
    f, *derivatives = HOLOMORPHIC[name]
    rows = numbers(device, 3, 2)
    found, eye = derivatives[order - 1](rows), torch.eye(2, dtype=rows.dtype, device=device)
    expected = torch.einsum("ni,ij->nij", found, eye) if order == 1 else torch.einsum("ni,ij,ik->nijk", found, eye, eye)
    transform = hofunc.hod(f, order, holomorphic=True)
    plan = transform.plan(rows[0] + 1)
    for call in (torch.vmap(transform), lambda rows: torch.stack([plan(row) for row in rows])):
        assert_equal(call(rows), expected)
    mapped = hofunc.hod(lambda z: f(z) * z.sum(), order, holomorphic=True, chunk_size=1)(rows[0])
    assert_equal(mapped, hofunc.hod(lambda z: f(z) * z.sum(), order, holomorphic=True)(rows[0]))


@pytest.mark.parametrize("at_zero", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_holomorphic_is_refused(name: str, at_zero: bool, device: torch.device) -> None:
    f, *orders = OTHERS[name]
    z = numbers(device, 2) * (not at_zero)
    first = orders[0 if at_zero else 1]
    transform = hofunc.hod(f, 2, holomorphic=True)
    plan = transform.plan  # made from the point itself, or called there
    for call in (transform, lambda z: plan(z)(z), lambda z: torch.vmap(transform)(torch.stack([z, z]))):
        text = f"whose derivatives of order {first} by real and imaginary part"
        refused(lambda call=call: call(z), hofunc.ArgumentError, "hod: holomorphic=True", text)  # type: ignore[misc]


def test_derivatives_of_a_derivative(device: torch.device) -> None:
    z = numbers(device, 2).requires_grad_()
    f = HOLOMORPHIC["exponential"][0]
    first = hofunc.jacobian(f, holomorphic=True)
    assert_equal(hofunc.jacobian(first, holomorphic=True)(z), hofunc.hessian(f, holomorphic=True)(z))
    got = torch.autograd.grad(first(z).abs().sum(), z)
    assert_equal(got, torch.autograd.grad((2j * (2j * z).exp()).abs().sum(), z))
    tangent = torch.func.jvp(first, (z.detach(),), (torch.ones_like(z),))[1]
    assert_equal(tangent, hofunc.hessian(f, holomorphic=True)(z.detach()).sum(-1))


def test_python_numbers_and_aux() -> None:
    got, aux = hofunc.hessian(lambda z: (z**3, z), holomorphic=True, has_aux=True)(1 + 2j)
    assert (got.item(), aux.item()) == (6 + 12j, 1 + 2j)


def test_forces_inside(device: torch.device) -> None:
    def energy(z: Tensor) -> Tensor:
        return (z.abs() ** 4).sum()

    def force(z: Tensor) -> Tensor:
        return torch.autograd.grad(energy(z), z, create_graph=True)[0]

    z = numbers(device, 2)
    assert_equal(torch.view_as_real(hofunc.jacobian(force)(z)).movedim(-1, 1), hofunc.hessian(energy)(z))


def test_refusals(device: torch.device) -> None:
    z, f = numbers(device, 2), HOLOMORPHIC["power"][0]
    for call, *parts in (
        (lambda: hofunc.hessian(f, holomorphic=True)(z.real), "an input", "dtype torch.float64", "a complex dtype"),
        (lambda: hofunc.hessian(torch.abs, holomorphic=True)(z), "an output of f", "dtype torch.float64"),
        (lambda: hofunc.hod(torch.mul, 1, (0, 1), holomorphic=True)(z, z.real), "an input", "dtype torch.float64"),
        (lambda: hofunc.hessian(f, layout="compact", holomorphic=True), "holomorphic=True", "layout='compact'"),
        (lambda: hofunc.hessian(f, holomorphic=1), "holomorphic", "got 1"),  # type: ignore[arg-type]
        (lambda: hofunc.hessian(f, holomorphic=True, max_bytes=10**9)(z), "max_bytes", "holomorphic=True"),
    ):
        refused(call, hofunc.ArgumentError, *parts)
    refused(lambda: hofunc.hessian(f)(z.to_sparse()), hofunc.UntracedError, "torch.sparse_coo")
    refused(lambda: hofunc.jacobian(lambda z: z.mul_(2))(z), hofunc.MutationError, "aten.mul_")
    graph = hofunc.hessian(f, holomorphic=True).plan(z).to_fx
    refused(graph, hofunc.UnsupportedOpError, "holomorphic=True")
    assert_equal(hofunc.hessian(f).plan(z).to_fx()(z)[0], hofunc.hessian(f)(z))


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("argnums", [0, (0, 1)])
def test_memory_is_kept_to(argnums: Any, rows: bool, device: torch.device) -> None:
    z, w = numbers(device, 40), rand(device, 40)

    def f(z: Tensor, w: Tensor) -> Tensor:
        return (z * w).exp() * z.conj() if rows else ((z * w)[:, None] * z.conj()).tanh().sum(0)

    expected = hofunc.jacobian(f, argnums)(z, w)
    least = stated(hofunc.jacobian(f, argnums, max_bytes=1), z, w)
    for transform in (hofunc.jacobian(f, argnums, max_bytes=least), hofunc.jacobian(f, argnums, max_bytes=2 * least)):
        for got, wanted in zip(tree_leaves(transform(z, w)), tree_leaves(expected), strict=True):
            assert_equal(got, wanted)
    call = hofunc.jacobian(f, argnums, max_bytes=least)
    if device.type == "cpu":
        assert taken(lambda: call(z, w)) <= 1.03 * least + SLACK
    plan = hofunc.jacobian(f, argnums, max_bytes=least).plan(z, w)
    assert plan.peak_bytes <= least
    if device.type == "cpu":
        assert taken(lambda: plan(z, w)) <= 1.03 * plan.peak_bytes + SLACK


def test_hodcheck(device: torch.device) -> None:
    z = numbers(device, 2)
    assert hofunc.hodcheck(lambda z, w: (z * w).exp() * z.conj(), (z, z.flip(0).real), 2, (0, 1))


@pytest.mark.parametrize("size", [1.0, 1e-9, 0.0])
def test_what_an_op_becomes_does_not_go_by_how_large_its_values_are(size: float, device: torch.device) -> None:
    """At small values all linear ops are alike, so that the rule of another one once passed for that of index_add."""
    cache.forget()
    index = torch.tensor([1, 2, 2], device=device)

    def f(parts: Tensor) -> Tensor:
        z = torch.view_as_complex(parts)
        return torch.view_as_real(torch.zeros_like(z).index_add(0, index, z))

    x = size * rand(device, 3, 2, 2)
    assert_equal(hofunc.jacobian(f)(x), torch.func.jacrev(f)(x))
