"""Pseudo-inverses and least squares, against the normal equations written out."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules import matrices
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import relative_error

linalg = torch.linalg
pytestmark = ORACLE_WARNINGS


def pseudo_inverse(a: Tensor) -> Tensor:
    """Return the pseudo-inverse of a matrix of full rank by its normal equations."""
    return matrices.inverse(a.mT @ a) @ a.mT if a.shape[-2] >= a.shape[-1] else pseudo_inverse(a.mT).mT


def residuals(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the solution and the sums of squares that it leaves."""
    x = pseudo_inverse(a) @ b
    return x, ((a @ x - b) ** 2).sum(-2)


CASES: list[OpCase] = [
    use("pinv", linalg.pinv, (2, 2), reference=matrices.inverse),
    use("pinv, tall", linalg.pinv, (3, 2), reference=pseudo_inverse),
    use("pinv, wide", linalg.pinv, (2, 3), orders=(1, 2), reference=pseudo_inverse),
    use("pinv of a batch", torch.pinverse, (2, 3, 2), orders=(1, 2), reference=pseudo_inverse),
    use(
        "pinv of one that is symmetric",
        lambda a: linalg.pinv(a @ a.mT, hermitian=True),
        (2, 2),
        orders=(1, 2),
        reference=lambda a: matrices.inverse(a @ a.mT),
    ),
    use(
        "pinv of rank one",
        lambda x, y: linalg.pinv(torch.outer(x, y)),
        (3,),
        (2,),
        reference=lambda x, y: torch.outer(y, x) / ((x * x).sum() * (y * y).sum()),
    ),
    use("lstsq", lambda a, b: linalg.lstsq(a, b)[0], (3, 2), (3, 1), reference=lambda a, b: pseudo_inverse(a) @ b),
    use(
        "lstsq, wide",
        lambda a, b: linalg.lstsq(a, b)[0],
        (2, 3),
        (2, 1),
        orders=(1, 2),
        reference=lambda a, b: pseudo_inverse(a) @ b,
    ),
    use(
        "lstsq for vectors",
        lambda a, b: linalg.lstsq(a, b)[0],
        (2, 3, 2),
        (2, 3),
        orders=(1, 2),
        reference=lambda a, b: (pseudo_inverse(a) @ b[..., None])[..., 0],
    ),
    use(
        "lstsq with residuals",
        lambda a, b: tuple(linalg.lstsq(a, b, driver="gelsd")[:2]),
        (3, 2),
        (3, 2),
        orders=(1, 2),
        reference=residuals,
    ),
]


@every_row(CASES)
def test_least_squares(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


def test_a_bad_condition_is_not_squared(device: torch.device) -> None:
    a = torch.diag(torch.tensor([1.0, 1e-6], dtype=torch.float64, device=device))
    got = hofunc.hessian(linalg.pinv)(a)
    assert relative_error(got, hofunc.hessian(linalg.inv)(a)) < 1e-9


def test_what_is_read_of_a_symmetric_matrix_is_its_lower_triangle(device: torch.device) -> None:
    a = rand(device, 3, 3)
    below = a.tril(-1)
    offset = below + below.mT + a.diagonal().diag() - (a + a.mT) / 2

    def inverse(a: Tensor) -> Tensor:
        return matrices.inverse((a + a.mT) / 2 + offset)

    derivative = hofunc.hessian(lambda a: linalg.pinv(a, hermitian=True))
    assert relative_error(derivative(a), torch.func.hessian(inverse)(a)) < 1e-10
    assert relative_error(derivative.plan(2 * a)(a), derivative(a)) < 1e-12
    again = torch.func.jacrev(torch.func.hessian(inverse))(a)
    assert relative_error(torch.func.jacrev(derivative)(a), again) < 1e-10


def test_pseudo_inverses_keep_the_batch(device: torch.device) -> None:
    derivative = hofunc.hod(linalg.pinv, 2, layout="compact")(rand(device, 4, 3, 2))
    assert derivative.pattern == "b i j, b k l, b m n"


def test_under_vmap_and_through_autograd(device: torch.device) -> None:
    a = rand(device, 2, 3, 2)
    mapped = torch.func.vmap(hofunc.hessian(linalg.pinv))(a)
    assert relative_error(mapped, torch.stack([hofunc.hessian(linalg.pinv)(one) for one in a])) < 1e-10
    again = torch.func.jacrev(hofunc.hessian(linalg.pinv))(a[0])
    assert relative_error(again, hofunc.hod(linalg.pinv, 3)(a[0])) < 1e-10


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("argnums", [0, 1])
@pytest.mark.parametrize("driver", [None, "gels"])
def test_least_squares_of_every_member(in_dims: tuple, argnums: int, driver: str | None, device: torch.device) -> None:
    given = [rand(device, 2, *shape) for shape in ((3, 2), (3, 1))]
    given = [x if dim == 0 else x[0] for x, dim in zip(given, in_dims, strict=True)]

    def missed(a: Tensor, b: Tensor) -> Tensor:
        solution, squares, *_ = linalg.lstsq(a, b, driver=driver)
        return solution.sin().sum() + squares.cos().sum()

    derivative = hofunc.hessian(missed, argnums)
    got = torch.func.vmap(derivative, in_dims)(*given)
    each = zip(*[x if dim == 0 else [x, x] for x, dim in zip(given, in_dims, strict=True)], strict=True)
    assert relative_error(got, torch.stack([derivative(a, b) for a, b in each])) < 1e-10


def test_residuals_that_are_there_by_rank_are_refused_under_vmap(device: torch.device) -> None:
    a, b = rand(device, 2, 3, 2), rand(device, 2, 3, 1)
    derivative = hofunc.hessian(lambda a, b: linalg.lstsq(a, b, driver="gelsd")[1].sum())
    with pytest.raises(hofunc.BranchError, match="lstsq"):
        torch.func.vmap(derivative)(a, b)


@pytest.mark.parametrize("driver", [None, "gelsy"])
def test_what_columns_leave_of_a_matrix_is_not_known(driver: str | None, device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("torch has this driver on a CPU only")
    whole, short = (torch.tensor([[1.0, 0.2], [0.1, last], [0.3, 0.2]], dtype=torch.float64) for last in (1.0, 0.05))
    b = rand(device, 3, 1)
    derivative = hofunc.jacobian(lambda a: linalg.lstsq(a, b, rcond=0.2, driver=driver)[0])
    assert relative_error(derivative(whole), hofunc.jacobian(lambda a: pseudo_inverse(a) @ b)(whole)) < 1e-12
    assert derivative(short).isnan().all()


@pytest.mark.parametrize("shape", [(0, 0), (3, 0), (0, 2, 2)])
def test_matrices_of_no_elements(shape: tuple[int, ...], device: torch.device) -> None:
    a = rand(device, *shape)
    assert hofunc.hessian(linalg.pinv)(a).shape == (*linalg.pinv(a).shape, *shape, *shape)
