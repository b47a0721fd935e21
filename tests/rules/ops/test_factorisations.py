"""Cholesky, QR and LU, against their recurrences written out and against torch's own derivatives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.internals import CHOLESKY
from tests.cases import rand
from tests.rules import matrices
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

linalg = torch.linalg
pytestmark = [ORACLE_WARNINGS, pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")]


def positive(a: Tensor) -> Tensor:
    """Return a positive definite matrix."""
    return a @ a.mT + 2 * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def dominant(a: Tensor) -> Tensor:
    """Return a matrix of which no rows are swapped."""
    return a + 8 * torch.eye(*a.shape[-2:], dtype=a.dtype, device=a.device)


def in_a_cycle(a: Tensor) -> Tensor:
    """Return a matrix of which the pivots move every row to the place of the next: no inverse of itself."""
    return dominant(a).roll(1, -2)


CASES: list[OpCase] = [
    use(
        "cholesky",
        lambda a: linalg.cholesky(positive(a)),
        (2, 2),
        orders=(1, 2, 3, 4),
        reference=lambda a: matrices.cholesky(positive(a)),
    ),
    use(
        "cholesky, upper",
        lambda a: linalg.cholesky(positive(a), upper=True),
        (2, 2),
        reference=lambda a: matrices.cholesky(positive(a)).mT,
    ),
    use("cholesky of three rows", lambda a: linalg.cholesky(positive(a)), (3, 3), orders=(1, 2)),
    use(
        "cholesky of a batch",
        lambda a: (torch.cholesky if CHOLESKY else linalg.cholesky)(positive(a)),
        (2, 2, 2),
        orders=(1, 2),
        reference=lambda a: matrices.applied_twice(matrices.cholesky)(positive(a)),
    ),
    use("qr", lambda a: tuple(linalg.qr(dominant(a))), (2, 2), reference=lambda a: matrices.gram_schmidt(dominant(a))),
    use("qr, tall", lambda a: tuple(linalg.qr(a + 2)), (3, 2), reference=lambda a: matrices.gram_schmidt(a + 2)),
    use("qr, wide", lambda a: linalg.qr(dominant(a))[1], (2, 3), orders=(1, 2, 3)),
    use("qr, wide and complete", lambda a: linalg.qr(a, mode="complete")[0], (2, 3), orders=(1, 2)),
    use("qr of a batch", lambda a: linalg.qr(a)[0], (2, 2, 2), orders=(1, 2)),
    use(
        "qr without q",
        lambda a: linalg.qr(a + 2, mode="r")[1],
        (3, 2),
        orders=(1, 2),
        reference=lambda a: matrices.gram_schmidt(a + 2)[1],
    ),
    use(
        "r of the complete qr",
        lambda a: linalg.qr(a + 2, mode="complete")[1],
        (3, 2),
        orders=(1, 2),
        reference=lambda a: torch.cat([matrices.gram_schmidt(a + 2)[1], a.new_zeros(1, 2)]),
    ),
    *(
        use(
            f"lu_factor of {rows} by {columns}",
            lambda a: linalg.lu_factor(dominant(a))[0],
            (rows, columns),
            orders=(1, 2) if rows * columns == 9 else (1, 2, 3),
            reference=lambda a: matrices.elimination(dominant(a)),
        )
        for rows, columns in ((2, 2), (3, 2), (2, 3), (3, 3))
    ),
    use("lu_factor with swapped rows", lambda a: linalg.lu_factor(a)[0], (2, 2)),
    use("lu_factor with rows in a cycle", lambda a: linalg.lu_factor(in_a_cycle(a))[0], (3, 3), orders=(1, 2)),
    use("lu with rows in a cycle", lambda a: tuple(linalg.lu(in_a_cycle(a))[1:]), (3, 3), orders=(1, 2)),
    use("lu of a batch", lambda a: tuple(linalg.lu(a)[1:]), (2, 2, 2), orders=(1, 2)),
    use(
        "lu",
        lambda a: tuple(linalg.lu(dominant(a))[1:]),
        (2, 2),
        reference=lambda a: (
            matrices.elimination(dominant(a)).tril(-1) + torch.eye(2, dtype=a.dtype, device=a.device),
            matrices.elimination(dominant(a)).triu(),
        ),
    ),
]


@every_row(CASES)
def test_factorisations(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [2, 3])
def test_a_cholesky_factor_is_that_of_the_symmetric_part(strategy: str, order: int, device: torch.device) -> None:
    a = positive(rand(device, 2, 2))
    got = hofunc.hod(linalg.cholesky, order, strategy=strategy)(a)
    assert relative_error(got, nested_reverse(matrices.cholesky, order)(a)) < 1e-10
    assert relative_error(got, nested_reverse(linalg.cholesky, order)(a)) < 1e-10


def test_an_orthonormal_completion_has_no_derivative(device: torch.device) -> None:
    with pytest.raises(hofunc.UnsupportedOpError) as caught:
        hofunc.jacobian(lambda a: linalg.qr(a, mode="complete")[0])(rand(device, 3, 2))
    message = str(caught.value)
    assert "a derivative of linalg.qr: got Q with mode='complete' of more rows than columns" in message
    assert "expected a factor that the matrix determines (called at test_factorisations.py:" in message
    assert message.endswith("Take mode='reduced'.")


def test_factors_keep_the_batch(device: torch.device) -> None:
    a = dominant(rand(device, 4, 2, 2))
    for f in (linalg.cholesky, lambda a: linalg.qr(a)[0], lambda a: linalg.lu_factor(a)[0]):
        derivative = hofunc.hod(f, 2, layout="compact")(a)
        assert derivative.pattern == "b i j, b k l, b m n"


def test_under_vmap_and_through_autograd(device: torch.device) -> None:
    a = rand(device, 2, 2, 2)

    def f(a: Tensor) -> Tensor:
        return linalg.cholesky(positive(a)) + linalg.qr(dominant(a))[1] + linalg.lu_factor(a)[0]

    mapped = torch.func.vmap(hofunc.hessian(f))(a)
    assert relative_error(mapped, torch.stack([hofunc.hessian(f)(one) for one in a])) < 1e-10
    third = hofunc.hod(f, 3)(a[0])
    assert relative_error(torch.func.jacrev(hofunc.hessian(f))(a[0]), third) < 1e-10
    assert relative_error(hofunc.jacobian(hofunc.hessian(f))(a[0]), third) < 1e-10


@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 0, 0)])
def test_matrices_of_no_elements(shape: tuple[int, ...], device: torch.device) -> None:
    a = rand(device, *shape)
    for f in (linalg.cholesky, lambda a: linalg.qr(a)[1], lambda a: linalg.lu_factor(a)[0]):
        assert hofunc.hessian(f)(a).shape == shape * 3


TWICE: dict[str, Callable[[Tensor], Tensor]] = {
    "singular values": lambda x: torch.linalg.svdvals(x) * torch.linalg.svdvals(x).sin(),
    "singular values beside vectors": lambda x: torch.linalg.svd(x)[1] * torch.linalg.svd(x).U.square()[0],
    "LU": lambda x: torch.linalg.lu(x).U * torch.linalg.lu(x).L.sin(),
    "QR": lambda x: torch.linalg.qr(x).R * torch.linalg.qr(x).R.sin(),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(x + x.mT) * torch.linalg.eigvalsh(x + x.mT).sin(),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_is_computed_twice_of_the_same(name: str, device: torch.device) -> None:
    x = rand(device, 3, 3) + 2 * torch.eye(3, dtype=torch.float64, device=device)
    got = hofunc.hessian(lambda x: TWICE[name](x).sum())(x)
    assert relative_error(got, nested_reverse(lambda x: TWICE[name](x).sum(), 2)(x)) < 1e-9
