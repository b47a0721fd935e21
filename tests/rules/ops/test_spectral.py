"""Eigenvalues and singular values, against closed forms for two rows and torch's own derivatives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules import matrices
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import central_differences, nested_reverse, relative_error

linalg = torch.linalg
Function = Callable[[Tensor], Tensor]
pytestmark = ORACLE_WARNINGS


def symmetric(a: Tensor) -> Tensor:
    """Return the symmetric part of a matrix, twice."""
    return a + a.mT


def projectors(a: Tensor) -> Tensor:
    """Return the projectors onto eigenvectors, in which their signs do not matter."""
    vectors = linalg.eigh(a)[1]
    return torch.stack([torch.outer(vector, vector) for vector in vectors.unbind(-1)])


def signed(vectors: Tensor) -> Tensor:
    """Multiply each column by the sign of one of its elements, for kernels to agree."""
    return vectors * vectors[..., :1, :].detach().sign()


CASES: list[OpCase] = [
    use(
        "eigvalsh",
        lambda a: linalg.eigvalsh(symmetric(a)),
        (2, 2),
        orders=(1, 2, 3, 4),
        reference=lambda a: matrices.eigenvalues(symmetric(a)),
    ),
    use(
        "eigvalsh of a batch",
        lambda a: linalg.eigvalsh(symmetric(a), UPLO="U"),
        (2, 2, 2),
        orders=(1, 2),
        inference=True,
        reference=lambda a: matrices.eigenvalues(symmetric(a)),
    ),
    use("eigvalsh of three rows", lambda a: linalg.eigvalsh(symmetric(a)), (3, 3), orders=(1, 2)),
    use(
        "eigh",
        lambda a: projectors(symmetric(a)),
        (2, 2),
        reference=lambda a: matrices.projectors(symmetric(a)),
    ),
    use("eigenvectors of three rows", lambda a: signed(linalg.eigh(symmetric(a))[1]), (3, 3), orders=(1, 2)),
    use("svdvals", linalg.svdvals, (2, 2), reference=matrices.singular_values),
    use("svdvals, tall", linalg.svdvals, (3, 2), reference=matrices.singular_values),
    use("svdvals, wide", linalg.svdvals, (2, 3), reference=matrices.singular_values),
    use("svdvals of a batch", linalg.svdvals, (2, 2, 2), orders=(1, 2), reference=matrices.singular_values),
    use("svd", lambda a: tuple(linalg.svd(a)), (2, 2)),
    use("svd, tall", lambda a: tuple(linalg.svd(a, full_matrices=False)), (3, 2)),
    use("svd, wide", lambda a: tuple(linalg.svd(a, full_matrices=False)), (2, 3)),
    use("svd of three rows", lambda a: linalg.svd(a)[0], (3, 3), orders=(1, 2)),
    use("values of the full svd", lambda a: linalg.svd(a)[1], (3, 2), reference=matrices.singular_values),
    use(
        "the nuclear norm",
        lambda a: linalg.matrix_norm(a, "nuc"),
        (2, 2),
        reference=lambda a: matrices.singular_values(a).sum(-1),
    ),
    use("the nuclear norm, wide", lambda a: linalg.matrix_norm(a, "nuc", keepdim=True), (2, 3)),
    use("the nuclear norm of three rows", lambda a: torch.norm(a, "nuc"), (3, 3), orders=(1, 2)),
    use(
        "the sum of all singular values", lambda a: linalg.svd(a, full_matrices=False)[1].sum(), (2, 3, 2), orders=(2,)
    ),
    use(
        "the spectral norm",
        lambda a: linalg.matrix_norm(a, 2),
        (3, 2),
        reference=lambda a: matrices.singular_values(a)[0],
    ),
    use(
        "the condition number",
        linalg.cond,
        (2, 2),
        orders=(1, 2),
        reference=lambda a: matrices.singular_values(a)[0] / matrices.singular_values(a)[1],
    ),
]


@every_row(CASES)
def test_spectra(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [2, 3])
def test_eigenvalues_are_those_of_the_symmetric_part(strategy: str, order: int, device: torch.device) -> None:
    a = symmetric(rand(device, 2, 2))
    got = hofunc.hod(linalg.eigvalsh, order, strategy=strategy)(a)
    assert relative_error(got, nested_reverse(matrices.eigenvalues, order)(a)) < 1e-10


@pytest.mark.parametrize("order", [2, 3])
def test_larger_matrices_against_differences(order: int, device: torch.device) -> None:
    def f(t: Tensor) -> Tensor:
        a = rand(device, 4, 3, seed=3) + t * rand(device, 4, 3, seed=4)
        u, s, vh = linalg.svd(a, full_matrices=False)
        values, vectors = linalg.eigh(a.mT @ a)
        return torch.cat([(u * u).flatten(), s, (vh * vh).flatten(), values, (vectors * vectors).flatten()])

    t = torch.tensor(0.1, dtype=torch.float64, device=device)
    expected = central_differences(hofunc.hod(f, order - 1), t)
    assert relative_error(hofunc.hod(f, order)(t), expected) < 1e-6


def test_values_that_coincide_have_first_derivatives(device: torch.device) -> None:
    eye = torch.eye(3, dtype=torch.float64, device=device)
    assert relative_error(hofunc.jacobian(lambda a: linalg.eigvalsh(a).sum())(eye), eye) < 1e-12
    assert relative_error(hofunc.jacobian(lambda a: linalg.matrix_norm(a, "nuc"))(eye), eye) < 1e-12


def test_singular_values_of_zero_have_first_derivatives(device: torch.device) -> None:
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0]], dtype=torch.float64, device=device)
    expected = torch.func.jacrev(linalg.svdvals)(a)
    assert relative_error(hofunc.jacobian(linalg.svdvals)(a).abs(), expected.abs()) < 1e-10


def test_vectors_without_a_singular_value_have_no_derivative(device: torch.device) -> None:
    with pytest.raises(hofunc.UnsupportedOpError) as caught:
        hofunc.jacobian(lambda a: linalg.svd(a)[0])(rand(device, 3, 2))
    message = str(caught.value)
    assert "a derivative of linalg.svd: got the vectors of full_matrices=True that no singular value has" in message
    assert "expected a factor that the matrix determines (called at test_spectral.py:" in message
    assert message.endswith("Take full_matrices=False.")


def test_spectra_keep_the_batch(device: torch.device) -> None:
    a = rand(device, 4, 2, 2)
    assert hofunc.hod(linalg.eigvalsh, 2, layout="compact")(a).pattern == "b i, b j k, b l m"
    assert hofunc.hod(linalg.svdvals, 2, layout="compact")(a).pattern == "b i, b j k, b l m"


def test_under_vmap_and_through_autograd(device: torch.device) -> None:
    a = rand(device, 2, 2, 2)

    def f(a: Tensor) -> Tensor:
        return linalg.eigh(symmetric(a))[1] ** 2 + linalg.svdvals(a)

    mapped = torch.func.vmap(hofunc.hessian(f))(a)
    assert relative_error(mapped, torch.stack([hofunc.hessian(f)(one) for one in a])) < 1e-10
    third = hofunc.hod(f, 3)(a[0])
    assert relative_error(torch.func.jacrev(hofunc.hessian(f))(a[0]), third) < 1e-10
    assert relative_error(hofunc.jacobian(hofunc.hessian(f))(a[0]), third) < 1e-10


@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 0, 0)])
def test_matrices_of_no_elements(shape: tuple[int, ...], device: torch.device) -> None:
    a = rand(device, *shape)
    for f in (linalg.eigvalsh, linalg.svdvals):
        assert hofunc.hessian(f)(a).shape == (*f(a).shape, *shape, *shape)


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [2, 3])
def test_a_matrix_of_which_only_some_elements_vary(order: int, strategy: str, device: torch.device) -> None:
    """About a diagonal, first derivatives of what the series is made of vanish, and only higher ones do not."""
    rest = torch.tensor([[3.0, 0.5], [0.5, 1.0]], dtype=torch.float64, device=device)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(x.sin().diag_embed() + rest)
        return values, vectors**2

    x = rand(device, 2)
    assert relative_error(hofunc.hod(f, order, strategy=strategy)(x), nested_reverse(f, order)(x)) < 1e-11


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("f", [linalg.eigvalsh, lambda a: linalg.svdvals(a + torch.eye(2).to(a)) - 1])
def test_a_matrix_that_a_mask_leaves_out_as_a_whole(f: Function, strategy: str, device: torch.device) -> None:
    """What is left of the series vanishes by its first derivatives, and is constant by the higher ones, too."""
    rest = torch.tensor([0.0, 0.3], dtype=torch.float64, device=device).diag()
    a = torch.stack([-rand(device, 2, 2).abs(), rand(device, 2, 2).abs()])

    def total(a: Tensor) -> Tensor:
        return f(symmetric(a.relu()) + rest).square().sqrt().sum()

    got = hofunc.hod(total, 2, strategy=strategy)(a)
    assert relative_error(got, nested_reverse(total, 2)(a)) < 1e-11


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_the_sum_of_values_that_coincide_is_smooth(strategy: str, device: torch.device) -> None:
    """Each value has infinite derivatives there; of nearly equal ones nothing but rounding was left of the third."""
    generator = torch.Generator().manual_seed(1)

    def norm(a: Tensor) -> Tensor:
        """Return the sum of two singular values, of which the squares and the product are known."""
        return (a.square().sum() + 2 * (a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0])).sqrt()

    for distance in (0.0, 1e-7, 1e-3):
        a = torch.eye(2, dtype=torch.float64) * 1.5 + distance * torch.randn(2, 2, generator=generator).double()
        a = a.to(device)
        for order in (2, 3):
            got = hofunc.hod(lambda a: linalg.matrix_norm(a, "nuc"), order, strategy=strategy)(a)
            assert relative_error(got, nested_reverse(norm, order)(a)) < 1e-10
