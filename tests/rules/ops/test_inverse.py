"""Inverses and solutions, against cofactors divided by determinants and against torch's own derivatives."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules import matrices
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, ints, use
from verification.oracles import relative_error

aten = torch.ops.aten
linalg = torch.linalg
pytestmark = [ORACLE_WARNINGS, pytest.mark.filterwarnings("ignore:torch.(triangular_solve|lu_solve) is deprecated")]


def cramer(a: Tensor, b: Tensor) -> Tensor:
    """Solve equations by the inverse, written out."""
    return matrices.inverse(a) @ b


INVERSES = [
    use("inv", linalg.inv, (2, 2), reference=matrices.inverse, orders=(1, 2, 3, 4)),
    use("inv of a batch", linalg.inv, (2, 2, 2), reference=matrices.inverse, orders=(1, 2)),
    use("inv of three rows", linalg.inv, (3, 3), reference=matrices.inverse, orders=(1, 2)),
    use("inv of one row", linalg.inv, (1, 1), reference=lambda a: 1 / a),
    use("inv of a transpose", lambda a: linalg.inv(a.mT), (2, 2), reference=lambda a: matrices.inverse(a).mT),
    use("inv_ex", lambda a: linalg.inv_ex(a)[0], (2, 2), reference=matrices.inverse),
    use("matrix_power of minus two", lambda a: linalg.matrix_power(a, -2), (2, 2), orders=(1, 2)),
    use("tensorinv", lambda a: linalg.tensorinv(a.reshape(2, 1, 2), ind=1), (2, 2), orders=(1, 2)),
]
SOLUTIONS = [
    use("solve", linalg.solve, (2, 2), (2, 1), reference=cramer),
    use("solve for a vector", linalg.solve, (2, 2), (2,), reference=cramer),
    use(
        "solve from the right",
        lambda a, b: linalg.solve(a, b, left=False),
        (2, 2),
        (1, 2),
        reference=lambda a, b: b @ matrices.inverse(a),
    ),
    use("solve for a batch of vectors", linalg.solve, (2, 2, 2), (2, 2), orders=(1, 2)),
    use("solve for one right side", linalg.solve, (2, 2, 2), (2, 1), orders=(1, 2)),
    use("solve one matrix", linalg.solve, (2, 2), (2, 2, 1), orders=(1, 2), reference=cramer),
    use("solve for the matrix itself", lambda a: linalg.solve(a, a.exp()), (2, 2), orders=(1, 2)),
    use("solve for constants", lambda a: linalg.solve(a, torch.ones_like(a[0])), (2, 2), orders=(1, 2)),
    use("solve of constants", lambda b: linalg.solve(b.new_tensor([[1, 2], [3, 5]]), b), (2,), orders=(1, 2)),
    use("tensorsolve", linalg.tensorsolve, (2, 2), (2,), orders=(1, 2)),
]


def triangle(name: str, *, upper: bool, left: bool, unitriangular: bool) -> OpCase:
    """Return a use of solve_triangular, of which the reference has a matrix without the other triangle."""

    def f(a: Tensor, b: Tensor) -> Tensor:
        return linalg.solve_triangular(a + 2, b, upper=upper, left=left, unitriangular=unitriangular)

    def reference(a: Tensor, b: Tensor) -> Tensor:
        a = (a + 2).triu(int(unitriangular)) if upper else (a + 2).tril(-int(unitriangular))
        inverse = matrices.inverse(a + torch.eye(2, dtype=a.dtype, device=a.device) if unitriangular else a)
        return inverse @ b if left else b @ inverse

    return use(name, f, (2, 2), (2, 1) if left else (1, 2), reference=reference)


def pivots(a: Tensor) -> Tensor:
    """Return those that swap the first two rows."""
    return ints(a, 2, 2).int()


def swapped(a: Tensor) -> Tensor:
    """Multiply the factors that lie in one matrix, with the first two rows swapped."""
    return ((a.tril(-1) + torch.eye(2, dtype=a.dtype, device=a.device)) @ a.triu()).flip(0)


TRIANGLES = [
    triangle("upper triangle", upper=True, left=True, unitriangular=False),
    triangle("lower triangle from the right", upper=False, left=False, unitriangular=False),
    triangle("lower triangle with ones", upper=False, left=True, unitriangular=True),
    triangle("upper triangle with ones from the right", upper=True, left=False, unitriangular=True),
    use(
        "triangular_solve",
        lambda b, a: torch.triangular_solve(b, a + 2)[0],
        (2, 1),
        (2, 2),
        reference=lambda b, a: matrices.inverse((a + 2).triu()) @ b,
    ),
    use(
        "triangular_solve of a transpose with ones",
        lambda b, a: tuple(torch.triangular_solve(b, a, upper=False, transpose=True, unitriangular=True)),
        (2, 1),
        (2, 2),
        orders=(1, 2),
        reference=lambda b, a: (
            matrices.inverse(a.tril(-1).mT + torch.eye(2, dtype=a.dtype, device=a.device)) @ b,
            a * 1,
        ),
    ),
    use(
        "cholesky_solve",
        lambda b, a: torch.cholesky_solve(b, a + 2),
        (2, 1),
        (2, 2),
        reference=lambda b, a: matrices.inverse((a + 2).tril() @ (a + 2).tril().mT) @ b,
    ),
    use(
        "cholesky_solve, upper",
        lambda b, a: torch.cholesky_solve(b, a + 2, upper=True),
        (2, 1),
        (2, 2),
        orders=(1, 2),
        reference=lambda b, a: matrices.inverse((a + 2).triu().mT @ (a + 2).triu()) @ b,
    ),
    use(
        "cholesky_inverse",
        lambda a: torch.cholesky_inverse(a + 2),
        (2, 2),
        reference=lambda a: matrices.inverse((a + 2).tril() @ (a + 2).tril().mT),
    ),
    use(
        "cholesky_inverse, upper",
        lambda a: torch.cholesky_inverse(a + 2, upper=True),
        (2, 2),
        orders=(1, 2),
        reference=lambda a: matrices.inverse((a + 2).triu().mT @ (a + 2).triu()),
    ),
    use(
        "lu_solve",
        lambda a, b: linalg.lu_solve(a + 2, pivots(a), b),
        (2, 2),
        (2, 1),
        reference=lambda a, b: matrices.inverse(swapped(a + 2)) @ b,
    ),
    use(
        "lu_solve of the transpose",
        lambda a, b: linalg.lu_solve(a + 2, pivots(a), b, adjoint=True),
        (2, 2),
        (2, 1),
        orders=(1, 2),
        reference=lambda a, b: matrices.inverse(swapped(a + 2)).mT @ b,
    ),
    use(
        "lu_solve from the right",
        lambda a, b: linalg.lu_solve(a + 2, pivots(a), b, left=False),
        (2, 2),
        (1, 2),
        orders=(1, 2),
        reference=lambda a, b: b @ matrices.inverse(swapped(a + 2)),
    ),
    use(
        "lu_unpack",
        lambda a: torch.lu_unpack(a, pivots(a))[1:],
        (3, 2),
        orders=(1, 2),
        reference=lambda a: (a.tril(-1) + torch.eye(3, 2, dtype=a.dtype, device=a.device), a[:2].triu()),
    ),
]

CASES: list[OpCase] = [*INVERSES, *SOLUTIONS, *TRIANGLES]


@every_row(CASES)
def test_inverses_and_solutions(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [2, 3])
def test_every_strategy(strategy: str, order: int, device: torch.device) -> None:
    a, b = rand(device, 2, 2), rand(device, 2)
    got = hofunc.hod(linalg.solve, order, (0, 1), strategy=strategy)(a, b)
    expected = cramer
    for _ in range(order):
        expected = torch.func.jacrev(expected, argnums=(0, 1))
    assert relative_error(got, expected(a, b)) < 1e-10


def hilbert(device: torch.device) -> Tensor:
    """Return a matrix of condition 1.6e4."""
    places = torch.arange(4, dtype=torch.float64, device=device)
    return 1 / (places[:, None] + places + 1)


def test_an_inverse_of_a_bad_condition(device: torch.device) -> None:
    exact = torch.tensor(
        [[16, -120, 240, -140], [-120, 1200, -2700, 1680], [240, -2700, 6480, -4200], [-140, 1680, -4200, 2800]],
        dtype=torch.float64,
        device=device,
    )
    got = hofunc.hessian(linalg.inv)(hilbert(device))
    half = torch.einsum("ia,bc,dj->ijabcd", exact, exact, exact)
    assert relative_error(got, half + half.permute(0, 1, 4, 5, 2, 3)) < 1e-10


def test_inverses_keep_the_batch(device: torch.device) -> None:
    derivative = hofunc.hod(linalg.inv, 3, layout="compact")(rand(device, 4, 2, 2))
    assert derivative.pattern == "b i j, b k l, b m n, b o p"


def test_a_solution_keeps_the_columns_of_its_right_side(device: torch.device) -> None:
    a, b = rand(device, 2, 2), rand(device, 2, 3)
    derivative = hofunc.hod(lambda b: linalg.solve(a, b), 1, layout="compact")(b)
    assert derivative.nbytes == a.nbytes


@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 0, 0)])
def test_matrices_of_no_elements(shape: tuple[int, ...], device: torch.device) -> None:
    a = rand(device, *shape)
    assert hofunc.hessian(linalg.inv)(a).shape == shape * 3
    assert hofunc.hessian(lambda a: linalg.solve(a, a))(a).shape == shape * 3


def test_under_vmap_and_through_autograd(device: torch.device) -> None:
    a = rand(device, 3, 2, 2)
    mapped = torch.func.vmap(hofunc.hessian(linalg.inv))(a)
    assert relative_error(mapped, torch.stack([hofunc.hessian(linalg.inv)(one) for one in a])) < 1e-10
    again = torch.func.jacrev(hofunc.hessian(linalg.inv))(a[0])
    assert relative_error(again, hofunc.hod(linalg.inv, 3)(a[0])) < 1e-10
    assert relative_error(hofunc.jacobian(hofunc.hessian(linalg.inv))(a[0]), hofunc.hod(linalg.inv, 3)(a[0])) < 1e-10
