"""Determinants, singular ones too, against the sum of signed products."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules import matrices
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

linalg = torch.linalg
pytestmark = ORACLE_WARNINGS


def widened(x: Tensor) -> Tensor:
    """Make a matrix of five rows from a few numbers."""
    places = torch.arange(25, dtype=x.dtype, device=x.device).reshape(5, 5)
    parts = [(places * (k + 1)).sin() * x[..., k, None, None] for k in range(x.shape[-1])]
    return torch.stack(parts).sum(0)


def slogdet(a: Tensor) -> Tensor:
    """Take the logarithm of the determinant, written out."""
    return matrices.determinant(a).abs().log()


CASES: list[OpCase] = [
    use("det", linalg.det, (2, 2), reference=matrices.determinant, orders=(1, 2, 3, 4)),
    use("det of one row", linalg.det, (1, 1), reference=lambda a: a[0, 0]),
    use("det of three rows", linalg.det, (3, 3), reference=matrices.determinant),
    use("det of a batch", linalg.det, (2, 2, 2), reference=matrices.determinant),
    use("det of a transpose", lambda a: torch.det(a.mT), (2, 2), reference=matrices.determinant),
    use(
        "det of five rows",
        lambda x: linalg.det(widened(x)),
        (3,),
        reference=lambda x: matrices.determinant(widened(x)),
    ),
    use(
        "det of five rows in a batch",
        lambda x: linalg.det(widened(x)),
        (2, 2),
        orders=(1, 2),
        reference=lambda x: matrices.determinant(widened(x)),
    ),
    use("slogdet", lambda a: linalg.slogdet(a)[1], (2, 2), reference=slogdet),
    use("slogdet of a batch", lambda a: torch.slogdet(a)[1], (2, 2, 2), reference=slogdet, orders=(1, 2)),
    use("slogdet of three rows", lambda a: linalg.slogdet(a)[1], (3, 3), reference=slogdet, orders=(1, 2)),
    use(
        "logdet",
        lambda a: torch.logdet(a @ a.mT),
        (2, 2),
        reference=lambda a: matrices.determinant(a @ a.mT).log(),
    ),
]


@every_row(CASES)
def test_determinants(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


SINGULAR = {
    "rank one": [[1.0, 2.0], [2.0, 4.0]],
    "zero": [[0.0, 0.0], [0.0, 0.0]],
    "rank two": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]],
    "rank one of three": [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [-1.0, -2.0, -3.0]],
}


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_singular_matrices(name: str, order: int, device: torch.device) -> None:
    a = torch.tensor(SINGULAR[name], dtype=torch.float64, device=device)
    expected = nested_reverse(matrices.determinant, order)(a)
    for strategy in ("reverse", "forward"):
        assert relative_error(hofunc.hod(linalg.det, order, strategy=strategy)(a), expected) < 1e-12


@pytest.mark.parametrize("rank", [0, 1, 2, 4])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_singular_matrices_of_five_rows(rank: int, order: int, device: torch.device) -> None:
    a = rand(device, 5, rank) @ rand(device, rank, 5, seed=1)
    direction = rand(device, 5, 5, seed=2)

    def along(t: Tensor) -> Tensor:
        return a + t[0] * direction + t[1] * t[0] * direction.mT

    t = torch.zeros(2, dtype=a.dtype, device=device)
    got = hofunc.hod(lambda t: linalg.det(along(t)), order)(t)
    assert relative_error(got, nested_reverse(lambda t: matrices.determinant(along(t)), order)(t)) < 1e-11


def test_the_third_derivative_at_a_symmetric_matrix_of_two_rows_is_zero(device: torch.device) -> None:
    a = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64, device=device)
    assert not hofunc.hod(linalg.det, 3)(a).any()


def test_determinants_keep_the_batch(device: torch.device) -> None:
    for size in (3, 5):
        derivative = hofunc.hod(linalg.det, 2, layout="compact")(rand(device, 4, size, size))
        assert derivative.pattern == "b, b i j, b k l"


@pytest.mark.parametrize("size", [2, 5])
def test_under_vmap_and_through_autograd(size: int, device: torch.device) -> None:
    a = rand(device, 2, size, size)
    mapped = torch.func.vmap(hofunc.hessian(linalg.det))(a)
    assert relative_error(mapped, torch.stack([hofunc.hessian(linalg.det)(one) for one in a])) < 1e-10
    third = hofunc.hod(linalg.det, 3)(a[0])
    assert relative_error(torch.func.jacrev(hofunc.hessian(linalg.det))(a[0]), third) < 1e-10
    assert relative_error(hofunc.jacobian(hofunc.hessian(linalg.det))(a[0]), third) < 1e-10


def test_matrices_of_no_elements(device: torch.device) -> None:
    for shape, out in (((0, 0), ()), ((2, 0, 0), (2,)), ((0, 2, 2), (0,))):
        assert hofunc.hessian(linalg.det)(rand(device, *shape)).shape == (*out, *shape, *shape)
        assert hofunc.hessian(lambda a: linalg.slogdet(a)[1])(rand(device, *shape)).shape == (*out, *shape, *shape)


def test_the_logarithm_at_a_singular_matrix_is_not_finite(device: torch.device) -> None:
    a = torch.tensor(SINGULAR["rank one"], dtype=torch.float64, device=device)
    assert not hofunc.jacobian(lambda a: linalg.slogdet(a)[1])(a).isfinite().any()
