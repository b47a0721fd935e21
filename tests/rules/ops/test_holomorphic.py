"""Ops of complex inputs: those that have the rule of real numbers, and those that need another, against torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.linalg import det, eig, eigh, eigvals, eigvalsh, lstsq, pinv, qr, slogdet, svdvals

import hofunc
from tests.cases import rand
from tests.checks import assert_equal, refused
from verification.oracles import nested_reverse

Function = Callable[..., Any]


def numbers(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    """Return complex numbers."""
    return torch.complex(rand(device, *shape, seed=seed), rand(device, *shape, seed=seed + 1))


def parts(y: Tensor) -> Tensor:
    """Return a complex tensor as the real one of its parts."""
    return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y


def check(f: Function, z: Tensor, order: int, reference: Function | None = None) -> None:
    """Compare the derivative by parts with that of nested torch.func, of another function if it cannot do f."""
    x = torch.view_as_real(z)

    def of_parts(x: Tensor) -> Tensor:
        return parts((reference or f)(torch.view_as_complex(x)))

    got = hofunc.hod(lambda z: parts(f(z)), order)
    expected = nested_reverse(of_parts, order)(x)
    assert_equal(got(z), expected)
    assert_equal(got.plan(z + 1j)(z), expected)


ELEMENTWISE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "exp2", "expm1", "log", "log10"),
    *("log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh"),
)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_functions_of_one_number(name: str, device: torch.device) -> None:
    check(getattr(torch, name), numbers(device, 2), 2)


OPS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "silu": (torch.nn.functional.silu, (3,)),
    "number ** z": (lambda z: 2**z, (3,)),
    "a negative number ** z": (lambda z: (-2) ** z, (3,)),
    "a complex number ** z": (lambda z: (1 + 2j) ** z, (3,)),
    "z ** z": (lambda z: z ** z.flip(0), (2,)),
    "z ** real": (lambda z: z ** torch.tensor([2, 3], device=z.device), (2,)),
    "real ** z": (lambda z: z.real.exp() ** z, (2,)),
    "prod": (torch.prod, (3,)),
    "prod of rows": (lambda z: z.prod(1, keepdim=True), (2, 2)),
    "cumprod": (lambda z: z.cumprod(0), (3,)),
    "logaddexp": (lambda z: torch.logaddexp(z, z.flip(0)), (2,)),
    "det": (det, (3, 3)),
    "slogdet": (lambda a: slogdet(a)[0] * slogdet(a)[1], (2, 2)),
    "logdet": (torch.logdet, (2, 2)),
    "matrix_exp": (torch.linalg.matrix_exp, (2, 2)),
    "solve_triangular": (lambda a: torch.linalg.solve_triangular(a, a.mT, upper=True), (2, 2)),
    "lu": (lambda a: torch.linalg.lu(a)[1] @ a, (2, 2)),
    "cholesky": (lambda a: torch.linalg.cholesky(a @ a.mH), (2, 2)),
    "qr": (lambda a: qr(a)[1].abs(), (3, 2)),
    "eigvals": (lambda a: eigvals(a).pow(3).prod(), (2, 2)),
    "eig": (lambda a: eig(a)[1].abs(), (2, 2)),
    "eigvalsh": (eigvalsh, (2, 2)),
    "eigh": (lambda a: eigh(a)[1].abs(), (2, 2)),
    "svdvals": (svdvals, (2, 2)),
    "var_mean": (lambda z: sum(torch.var_mean(z, 0)), (2, 2)),
    "copied views": (lambda z: torch.transpose_copy(z, 0, 1) ** 2, (2, 2)),
    "masked_select": (lambda z: z.masked_select(z.real > 0) ** 2, (2, 2)),
    "index_add": (lambda z: z.index_add(0, torch.tensor([0, 0], device=z.device), z * z), (2, 2)),
    "cross": (lambda z: torch.linalg.cross(z, z**2), (3,)),
    "padding": (lambda z: torch.nn.functional.pad(z[None], (1, 1), mode="reflect") ** 2, (3,)),
    "addbmm": (lambda z: torch.addbmm(z[0], z, z), (2, 2, 2)),
}


SLOW: dict[str, tuple[Function, tuple[int, ...]]] = {
    "pinv": (pinv, (3, 2)),
    "lstsq": (lambda a: lstsq(a, a[:, :1] ** 2)[0], (3, 2)),
    "svdvals of few columns": (svdvals, (3, 2)),
}


def _determinant(a: Tensor) -> Tensor:
    return (a[0] * torch.linalg.cross(a[1], a[2])).sum()


def _singular_values(a: Tensor) -> Tensor:
    square = a.mH @ a
    mean, difference = (square[0, 0] + square[1, 1]) / 2, (square[0, 0] - square[1, 1]) / 2
    root = (difference.abs() ** 2 + square[0, 1].abs() ** 2).sqrt()
    return torch.stack([mean.real + root, mean.real - root]).sqrt()


# The same functions, where torch fails to differentiate them twice, or warns.
REFERENCES: dict[str, Function] = {
    "silu": lambda z: z * z.sigmoid(),
    "det": _determinant,
    "svdvals": _singular_values,
    "masked_select": lambda z: z[z.real > 0] ** 2,
}


@pytest.mark.parametrize("name", OPS)
def test_other_ops(name: str, device: torch.device) -> None:
    f, shape = OPS[name]
    check(f, numbers(device, *shape, seed=3), 2, REFERENCES.get(name))


@pytest.mark.parametrize("name", SLOW)
def test_ops_of_long_expansions(name: str, device: torch.device) -> None:
    f, shape = SLOW[name]
    check(f, numbers(device, *shape, seed=3), 1)


@pytest.mark.parametrize("order", [1, 2])
def test_eigenvalues_of_a_real_matrix(order: int, device: torch.device) -> None:
    a = rand(device, 3, 3, seed=1)
    assert not torch.linalg.eigvals(a).isreal().all()
    for f in (lambda a: parts(eigvals(a)[0]), lambda a: parts(eig(a)[1].abs())):
        assert_equal(hofunc.hod(f, order)(a), nested_reverse(f, order)(a))


def test_a_determinant_of_a_singular_matrix(device: torch.device) -> None:
    a = numbers(device, 3, 3)
    a[2] = a[0]
    minors = torch.stack(
        [
            torch.stack(
                [
                    (-1) ** (i + j) * det(a[[k for k in range(3) if k != i]][:, [k for k in range(3) if k != j]])
                    for j in range(3)
                ]
            )
            for i in range(3)
        ]
    )
    assert_equal(hofunc.jacobian(det, holomorphic=True)(a), minors)


def test_a_large_determinant(device: torch.device) -> None:
    a = numbers(device, 9, 9)
    assert_equal(hofunc.jacobian(det, holomorphic=True)(a), det(a) * torch.linalg.inv(a).mT)


def test_powers_of_zero(device: torch.device) -> None:
    zero, exponents = numbers(device, 3) * 0, torch.tensor([1.0, 2.0, 3.0], device=device)
    for order, expected in ((1, [1, 0, 0]), (2, [0, 2, 0]), (3, [0, 0, 6])):
        got = hofunc.hod(lambda z: (z**exponents).sum(), order, holomorphic=True)(zero)
        assert [got[(place,) * order].item() for place in range(3)] == expected


def test_derivatives_can_be_differentiated(device: torch.device) -> None:
    z = numbers(device, 2).requires_grad_()
    f = hofunc.jacobian(lambda z: z.asin() * z.prod(), holomorphic=True)
    assert torch.autograd.gradcheck(f, z)


def test_what_the_vectors_leave_open_is_refused(device: torch.device) -> None:
    a = numbers(device, 2, 2)
    refused(lambda: hofunc.jacobian(lambda a: torch.linalg.svd(a)[0])(a), hofunc.UnsupportedOpError, "linalg.svd")


def test_an_op_without_a_rule_is_refused_inside_of_another(device: torch.device) -> None:
    z = numbers(device, 2)
    refused(lambda: hofunc.jacobian(lambda z: z.logcumsumexp(0))(z), hofunc.UnsupportedOpError, "aten.logcumsumexp")
