"""The matrix exponential against its power series, and reflections against products of matrices."""

from collections.abc import Callable
from functools import partial
from math import factorial

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.rules.ops import matrix_functions
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

linalg, CPU = torch.linalg, torch.device("cpu")
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


# Larger ones, by powers and squarings.


def corner(a: Tensor, direction: Tensor, order: int) -> Tensor:
    """Return a derivative along a direction by the exponential of a matrix of blocks (Van Loan, 1978)."""
    size, blocks = a.shape[-1], order + 1
    large = torch.kron(torch.eye(blocks, dtype=a.dtype), a)
    large += torch.kron(torch.diag(torch.ones(order, dtype=a.dtype), 1), direction) if order else 0
    return torch.matrix_exp(large)[:size, -size:] * factorial(order)


NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": torch.zeros_like,
    "tiny": lambda a: 1e-9 * a,
    "small": lambda a: 0.2 * a / linalg.matrix_norm(a, 1),
    "one": lambda a: a / linalg.matrix_norm(a, 1),
    "turning": lambda a: 30 * (a - a.T),
    "growing": lambda a: 9 * a,
    "decaying": lambda a: -20 * torch.eye(len(a), dtype=a.dtype) - a @ a.T,
    "nilpotent": lambda a: a.triu(1),
}


@pytest.mark.parametrize("norm", NORMS)
def test_larger_exponentials_along_a_direction(norm: str) -> None:
    a, direction = NORMS[norm](rand(CPU, 5, 5)), rand(CPU, 5, 5, seed=1)
    f = lambda t: torch.matrix_exp(a + t * direction)  # noqa: E731
    values = hofunc.derivatives(f, 6)(torch.zeros((), dtype=torch.float64))
    for order, got in enumerate(values):
        assert relative_error(got, corner(a, direction, order)) < 1e-11, order


@pytest.mark.parametrize("strategy", ["auto", "reverse", "forward"])
def test_larger_exponentials_by_all_entries(strategy: str) -> None:
    a, weight = rand(CPU, 4, 4), rand(CPU, 4, 4, seed=1)
    f = lambda a: (torch.matrix_exp(a) * weight).sum()  # noqa: E731
    by_series = lambda a: (series(a) * weight).sum()  # noqa: E731
    assert relative_error(hofunc.hessian(f, strategy=strategy)(a), torch.func.hessian(by_series)(a)) < 1e-12


def test_larger_exponentials_of_a_batch_are_each_as_exact(device: torch.device) -> None:
    a = rand(device, 3, 4, 4) * torch.tensor([1e-6, 1.0, 30.0], device=device, dtype=torch.float64)[:, None, None]
    hessian = hofunc.hessian(torch.matrix_exp, layout="compact")(a)
    assert hessian.pattern == "b i j, b k l, b m n"
    together = hessian.dense(keep_batch=True)
    for one, got in zip(a, together, strict=True):
        assert relative_error(got, hofunc.hessian(torch.matrix_exp)(one)) < 1e-12
    mapped = torch.func.vmap(hofunc.hessian(torch.matrix_exp))(a)
    assert relative_error(mapped, together) < 1e-12
    single = hofunc.hessian(torch.matrix_exp)(a[1].float())
    assert single.dtype == torch.float32
    assert relative_error(single.double(), together[1]) < 1e-4


def test_exponentials_of_matrices_that_are_too_large_are_unknown() -> None:
    a = torch.tensor(1e6, dtype=torch.float64) * (rand(CPU, 4, 4) - rand(CPU, 4, 4).T)
    assert hofunc.jacobian(torch.matrix_exp)(a).isnan().all()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_exponentials_of_complex_matrices(size: int) -> None:
    def f(x: Tensor, exponential: Callable[[Tensor], Tensor]) -> Tensor:
        y = exponential(0.1 * torch.complex(x, x.sin()) @ torch.complex(x.cos(), 2 * x))
        return (y.abs() ** 2).sum() + y.imag.sum()

    x = rand(CPU, size, size)
    got = hofunc.hessian(lambda x: f(x, torch.matrix_exp))(x)
    assert relative_error(got, torch.func.hessian(lambda x: f(x, series))(x)) < 1e-11
