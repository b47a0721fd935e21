"""Pseudo-inverses with a tolerance that cuts, against integrals of resolvents around what is kept."""

from itertools import permutations
from math import pi

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import TOLERANCE
from verification.oracles import relative_error

linalg = torch.linalg
RTOL = 0.4
NODES = 240  # of a circle around one, up to 0.6 from it

MATRICES: dict[str, tuple[tuple[float, ...], int, int]] = {
    "square": ((1.0, 0.1), 2, 2),
    "tall": ((1.0, 0.1), 3, 2),
    "wide": ((1.0, 0.1), 2, 3),
    "nothing is cut": ((1.0, 0.8), 3, 2),
    "kept ones are equal": ((1.0, 1.0, 0.1), 3, 3),
    "those that are cut are equal": ((1.0, 0.1, 0.1), 3, 3),
    "one is zero": ((1.0, 0.1, 0.0), 3, 3),
    "zeros are all that is cut": ((1.0, 0.0, 0.0), 3, 3),
}


def orthogonal(size: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a matrix that is orthogonal, or unitary."""
    real, imaginary = (rand(device, size, size, seed=seed + shift) for shift in range(2))
    return linalg.qr(torch.complex(real, imaginary) if dtype.is_complex else real)[0]


def matrix(
    values: tuple[float, ...], rows: int, columns: int, device: torch.device, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Return a matrix of these singular values."""
    left, right = orthogonal(rows, 0, dtype, device), orthogonal(columns, 2, dtype, device)
    size = len(values)
    return left[:, :size] * torch.tensor(values, dtype=torch.float64, device=device) @ right[:, :size].mH


def dilation(a: Tensor) -> Tensor:
    """Return the Hermitian matrix whose positive eigenvalues are the singular values of another."""
    rows, columns = a.shape
    a = a.to(torch.complex128)
    return torch.cat([torch.cat([a.new_zeros(rows, rows), a], 1), torch.cat([a.mH, a.new_zeros(columns, columns)], 1)])


def exact(a: Tensor, *directions: Tensor) -> Tensor:
    """Return the derivative of the pseudo-inverse of what is kept of a, along some directions, one for each order."""
    around = 0.6 * torch.exp(2j * pi * torch.arange(NODES, dtype=torch.float64, device=a.device) / NODES)
    places = 1 + around
    both = dilation(a)
    resolvents = linalg.inv(places[:, None, None] * torch.eye(len(both), device=a.device) - both)
    total = torch.zeros_like(resolvents)
    for ordered in permutations(map(dilation, directions)):
        product = resolvents
        for direction in ordered:
            product = product @ direction @ resolvents
        total = total + product
    result = 2 * ((around / places)[:, None, None] * total).mean(0)[a.shape[0] :, : a.shape[0]]
    return result if a.is_complex() else result.real


def directions_of(a: Tensor, order: int) -> list[Tensor]:
    """Return a random direction for each order."""
    directions = [rand(a.device, *a.shape, seed=9 + step) for step in range(order)]
    return [torch.complex(x, x.cos()) for x in directions] if a.is_complex() else directions


def contracted(derivative: Tensor, directions: list[Tensor]) -> Tensor:
    """Contract each slot of a derivative with a direction."""
    for direction in reversed(directions):
        derivative = torch.tensordot(derivative, direction, direction.dim())
    return derivative


def cut(a: Tensor) -> Tensor:
    """Return the pseudo-inverse of what is kept of matrices."""
    return linalg.pinv(a, rtol=RTOL)


def check(derivative: Tensor, a: Tensor, order: int) -> None:
    """Compare a derivative of a pseudo-inverse, contracted with random directions."""
    directions = directions_of(a, order)
    assert relative_error(contracted(derivative, directions), exact(a, *directions)) < TOLERANCE


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_order(name: str, order: int, device: torch.device) -> None:
    a = matrix(*MATRICES[name], device)
    assert relative_error(cut(a), exact(a)) < TOLERANCE
    check(hofunc.hod(cut, order)(a), a, order)


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
def test_the_fourth_order(strategy: str, device: torch.device) -> None:
    a = matrix(*MATRICES["square"], device)
    check(hofunc.hod(cut, 4, strategy=strategy)(a), a, 4)


@pytest.mark.parametrize("name", ["tall", "wide", "kept ones are equal"])
@pytest.mark.parametrize("order", [1, 2])
def test_complex_matrices(name: str, order: int, device: torch.device) -> None:
    a = matrix(*MATRICES[name], device, torch.complex128)

    def parts(x: Tensor) -> Tensor:
        return torch.view_as_real(cut(torch.view_as_complex(x)))

    derivative = hofunc.hod(parts, order)(torch.view_as_real(a))
    directions = directions_of(a, order)
    got = contracted(derivative, [torch.view_as_real(direction) for direction in directions])
    assert relative_error(got, torch.view_as_real(exact(a, *directions))) < TOLERANCE


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_hermitian_matrices(dtype: torch.dtype, order: int, device: torch.device) -> None:
    vectors = orthogonal(3, 0, dtype, device)
    values = torch.tensor([1.0, -0.9, 0.1], dtype=torch.float64, device=device)
    a = vectors * values @ vectors.mH
    directions = directions_of(a, order)
    parts = [(direction + direction.mH) / 2 for direction in directions]

    def inverse(x: Tensor) -> Tensor:
        return as_parts(linalg.pinv(torch.view_as_complex(x) if dtype.is_complex else x, rtol=RTOL, hermitian=True))

    expected, along = as_parts(exact(a, *parts)), [*map(as_parts, directions)]
    for given in (a, a.tril()):  # of which torch reads the lower triangle
        derivative = hofunc.hod(inverse, order)(as_parts(given))
        assert relative_error(contracted(derivative, along), expected) < TOLERANCE


def as_parts(x: Tensor) -> Tensor:
    """Return complex numbers by real and imaginary part, and others as they are."""
    return torch.view_as_real(x) if x.is_complex() else x


def test_each_matrix_of_a_batch_keeps_its_own(device: torch.device) -> None:
    kept = [(1.0, 1.0, 1.0), (1.0, 0.8, 0.1), (1.0, 0.1, 0.1)]
    each = [matrix(values, 4, 3, device) for values in kept]
    derivative = hofunc.hod(cut, 2, layout="compact")
    of_batch = derivative(torch.stack(each))
    assert of_batch.pattern == "b i j, b k l, b m n"
    mapped = torch.func.vmap(hofunc.hessian(cut))(torch.stack(each))
    for a, alone, of_member in zip(each, of_batch.dense(keep_batch=True), mapped, strict=True):
        check(alone, a, 2)
        check(of_member, a, 2)


def test_a_plan_keeps_what_later_values_do(device: torch.device) -> None:
    first, later = (matrix(values, 3, 2, device) for values in [(1.0, 0.9), (1.0, 0.1)])
    plan = hofunc.hessian(cut).plan(first)
    for a in (first, later):
        check(plan(a), a, 2)


def test_either_tolerance_counts(device: torch.device) -> None:
    a = matrix(*MATRICES["tall"], device)
    tolerance = torch.tensor(RTOL, dtype=a.dtype, device=device)
    for f in (
        lambda a: linalg.pinv(a, atol=RTOL),
        lambda a: linalg.pinv(a, atol=tolerance),
        lambda a: linalg.pinv(a, rtol=tolerance * linalg.matrix_norm(a, 2)),
        lambda a: torch.pinverse(a, RTOL),
    ):
        check(hofunc.hessian(f)(a), a, 2)


def test_a_bad_condition_of_what_is_kept_is_not_squared(device: torch.device) -> None:
    a = torch.diag(torch.tensor([1.0, 1e-6], dtype=torch.float64, device=device))
    got = hofunc.hessian(lambda a: linalg.pinv(a, rtol=1e-8))(a)
    assert relative_error(got, hofunc.hessian(linalg.inv)(a)) < 1e-9


def test_autograd_goes_through(device: torch.device) -> None:
    a = matrix(*MATRICES["tall"], device)
    check(torch.func.jacrev(hofunc.hessian(cut))(a), a, 3)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
@pytest.mark.parametrize("name", ["square", "tall", "wide", "nothing is cut"])
def test_least_squares(name: str, driver: str, order: int, device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("torch has this driver on a CPU only")
    a = matrix(*MATRICES[name], device)
    b = rand(device, len(a), 1, seed=7)
    derivative = hofunc.hod(lambda a: linalg.lstsq(a, b, rcond=RTOL, driver=driver)[0], order)(a)
    directions = directions_of(a, order)
    assert relative_error(contracted(derivative, directions), exact(a, *directions) @ b) < TOLERANCE


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 3), (0, 2, 2)])
def test_matrices_of_no_elements(shape: tuple[int, ...], device: torch.device) -> None:
    a = rand(device, *shape)
    assert hofunc.hessian(cut)(a).shape == (*cut(a).shape, *shape, *shape)
