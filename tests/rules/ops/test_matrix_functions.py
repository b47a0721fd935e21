"""The matrix exponential against its power series, and reflections against products of matrices."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.rules.ops import matrix_functions
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

linalg = torch.linalg
pytestmark = ORACLE_WARNINGS


def series(a: Tensor) -> Tensor:
    """Add up the powers of a small matrix over their factorials."""
    total = part = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    for power in range(1, 30):
        part = part @ a / power
        total = total + part
    return total


def reflections(vectors: Tensor, scales: Tensor) -> Tensor:
    """Multiply reflections, each a whole matrix."""
    rows, columns = vectors.shape
    eye = torch.eye(rows, dtype=vectors.dtype, device=vectors.device)
    result = eye
    for place in range(scales.shape[0]):
        vector = torch.cat([eye[place, : place + 1], vectors[place + 1 :, place]])
        result = result @ (eye - scales[place] * torch.outer(vector, vector))
    return result[:, :columns]


def by_reflections(*, left: bool = True, transpose: bool = False) -> Callable[..., Tensor]:
    """Return a function that multiplies a matrix by the whole matrix of all reflections."""

    def f(vectors: Tensor, scales: Tensor, other: Tensor) -> Tensor:
        rows, columns = vectors.shape
        square = torch.cat([vectors, vectors.new_zeros(rows, rows - columns)], 1)
        matrix = reflections(square, scales)
        matrix = matrix.T if transpose else matrix
        return matrix @ other if left else other @ matrix

    return f


CASES: list[OpCase] = [
    use("matrix_exp", lambda a: torch.matrix_exp(a * 0.3), (2, 2), reference=lambda a: series(a * 0.3)),
    use(
        "matrix_exp of a batch",
        lambda a: linalg.matrix_exp(a * 0.3),
        (2, 2, 2),
        orders=(1, 2),
        reference=lambda a: series(a * 0.3),
    ),
    use("householder_product", linalg.householder_product, (2, 2), (2,), reference=reflections),
    use("householder_product, tall", linalg.householder_product, (3, 2), (1,), orders=(1, 2), reference=reflections),
    use("householder_product of a batch", linalg.householder_product, (2, 2, 2), (2, 2), orders=(1, 2)),
    use("ormqr", torch.ormqr, (3, 2), (2,), (3, 2), orders=(1, 2), reference=by_reflections()),
    use(
        "ormqr from the right",
        partial(torch.ormqr, left=False),
        (2, 2),
        (2,),
        (1, 2),
        reference=by_reflections(left=False),
    ),
    use(
        "ormqr, transposed",
        partial(torch.ormqr, transpose=True),
        (2, 2),
        (2,),
        (2, 1),
        reference=by_reflections(transpose=True),
    ),
    use(
        "ormqr from the right, transposed",
        partial(torch.ormqr, left=False, transpose=True),
        (3, 2),
        (2,),
        (2, 3),
        orders=(1, 2),
        reference=by_reflections(left=False, transpose=True),
    ),
    use("ormqr of a batch", torch.ormqr, (2, 2, 2), (2, 2), (2, 2, 1), orders=(1, 2)),
]


@every_row(CASES)
def test_matrix_functions(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_matrix_without_eigenvectors(order: int, device: torch.device) -> None:
    a = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64, device=device)
    for strategy in ("reverse", "forward"):
        got = hofunc.hod(torch.matrix_exp, order, strategy=strategy)(a)
        assert relative_error(got, nested_reverse(series, order)(a)) < 1e-12


def test_exponentials_keep_the_batch(device: torch.device) -> None:
    assert hofunc.hod(torch.matrix_exp, 2, layout="compact")(rand(device, 3, 2, 2)).pattern == "b i j, b k l, b m n"


def test_under_vmap_and_through_autograd(device: torch.device) -> None:
    a = rand(device, 2, 2, 2)
    mapped = torch.func.vmap(hofunc.hessian(torch.matrix_exp))(a)
    assert relative_error(mapped, torch.stack([hofunc.hessian(torch.matrix_exp)(one) for one in a])) < 1e-10
    again = torch.func.jacrev(hofunc.hessian(torch.matrix_exp))(a[0])
    assert relative_error(again, hofunc.hod(torch.matrix_exp, 3)(a[0])) < 1e-10


@pytest.mark.parametrize("shape", [(0, 0), (0, 2, 2), (2, 0, 0), (1, 1)])
def test_matrices_of_few_elements(shape: tuple[int, ...], device: torch.device) -> None:
    a = rand(device, *shape)
    assert hofunc.hessian(torch.matrix_exp)(a).shape == shape * 3


def test_the_directions_of_a_matrix_exponential_are_taken_some_at_a_time(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at order 4 are 6561 matrices of 15 x 15, whose exponentials took 155 MB at once."""
    a = rand(device, 3, 3)
    plan = hofunc.hod(torch.matrix_exp, 4).plan(a)
    assert plan.peak_bytes < 20e6
    pieces = hofunc.hod(torch.matrix_exp, 2)(a)
    monkeypatch.setattr(matrix_functions, "MOST", 1)
    torch.testing.assert_close(hofunc.hod(torch.matrix_exp, 2)(a), pieces)


def test_the_exponential_of_a_matrix_without_entries(device: torch.device) -> None:
    assert hofunc.hod(torch.matrix_exp, 2)(rand(device, 0, 0)).shape == (0,) * 6
