"""Square roots and polar decompositions, against closed forms for two columns.

Releases of torch that have no such ops take a function of the same values, so that the equations hold in all of them.
"""

import pytest
import torch
from torch import Tensor, linalg

import hofunc
from hofunc.rules.expansion import Operand
from hofunc.rules.ops import roots
from tests.cases import rand
from tests.rules import matrices
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

pytestmark = ORACLE_WARNINGS


def by_vectors(a: Tensor) -> Tensor:
    """Take the square root of a Hermitian matrix by its eigenvectors."""
    values, vectors = linalg.eigh(a)
    return (vectors * values.sqrt().unsqueeze(-2)) @ vectors.mH


def by_root(a: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a matrix by the root of its square."""
    h = by_vectors(a.mH @ a)
    return linalg.solve(h, a, left=False), h


def polar(a: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a matrix as torch does."""
    u, h = getattr(linalg, "polar", by_root)(a)
    return u, h


root = getattr(linalg, "matrix_sqrth", by_vectors)


def positive(a: Tensor) -> Tensor:
    """Return a positive matrix."""
    return a @ a.mH + 2 * torch.eye(a.shape[-2], dtype=a.dtype, device=a.device)


CASES: list[OpCase] = [
    use(
        "root", lambda a: root(positive(a)), (2, 2), orders=(1, 2, 3, 4), reference=lambda a: matrices.root(positive(a))
    ),
    use(
        "root of three rows",
        lambda a: root(positive(a)),
        (3, 3),
        orders=(1, 2),
        reference=lambda a: by_vectors(positive(a)),
    ),
    use("polar", polar, (2, 2), reference=matrices.polar),
    use("polar, tall", polar, (3, 2), reference=matrices.polar),
]


@every_row(CASES)
def test_roots(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("order", [1, 2])
def test_of_complex_numbers(order: int, device: torch.device) -> None:
    parts = rand(device, 3, 2, 2)

    def f(parts: Tensor, *, factors: bool = False) -> Tensor:
        a = torch.view_as_complex(parts)
        u, h = (matrices.polar if factors else polar)(a)
        x = (matrices.root if factors else root)(positive(a.mH @ a))
        return torch.cat([torch.view_as_real(one.resolve_conj()) for one in (u, h, x)])

    expected = nested_reverse(lambda parts: f(parts, factors=True), order)(parts)
    assert relative_error(hofunc.hod(f, order)(parts), expected) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_changes_solve_the_equations_to_their_order(order: int, dtype: torch.dtype, device: torch.device) -> None:
    a, direction = (rand(device, 4, 3, seed=seed).to(dtype) for seed in (1, 2))
    if dtype.is_complex:
        a, direction = a * (1 + 1j) + 0.3j, direction * (1 - 2j)
    square, moved = positive(a.mH), direction.mH @ direction

    def residuals(t: float) -> Tensor:
        u, h = by_root(a)
        u_change, h_change = roots.polar(order, (u, h), Operand(a, t * direction))
        x = by_vectors(square)
        x_change = roots.root(order, (x,), Operand(square, t * moved))
        x, u, h = x + x_change, u + u_change, h + h_change
        ones = torch.eye(3, dtype=dtype, device=device)
        errors = (x @ x - square - t * moved, u @ h - a - t * direction, u.mH @ u - ones, h - h.mH)
        return torch.stack([error.abs().max() for error in errors])

    assert (residuals(1e-3) < residuals(2e-3) / 2 ** (order + 0.5) + 1e-13).all()  # as the power that is left out


def test_the_root_is_that_of_the_symmetric_part(device: torch.device) -> None:
    a = positive(rand(device, 2, 2))
    assert relative_error(hofunc.hessian(root)(a), nested_reverse(matrices.root, 2)(a)) < 1e-10
