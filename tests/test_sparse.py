"""Derivatives that are kept as entries at indices, and sparse tensors of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch import Tensor

import hofunc
from hofunc import ArgumentError, Derivative
from tests.checks import assert_equal
from verification.oracles import nested_reverse

N = 40
FIRST = torch.arange(N - 2).repeat(2)
SECOND = FIRST + torch.tensor([1] * (N - 2) + [2] * (N - 2))
TOKENS = torch.tensor([[3, 3, 17], [5, -1, 3]])


def points(count: int = N) -> Tensor:
    return torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


def pairs(x: Tensor) -> Tensor:
    return (1 + (x[FIRST] - x[SECOND]).square().sum(-1)).reciprocal().sum()


def compact(f: Callable[..., Any], order: int, *args: Any, **options: Any) -> Derivative:
    return hofunc.hod(f, order, layout="compact", **options)(*args)


# Functions of points with the pattern of their derivatives, and the entries and indices that these have.
CASES: dict[str, tuple[Callable[[Tensor], Tensor], int, str, int]] = {
    "pairs": (
        pairs,
        2,
        "(), b i, b j + (), I[b] i, J[b] j + (), J[b] i, I[b] j",
        N * 9 + 76 * 9 + 2 * 76,
    ),
    "distances": (
        lambda x: (x[FIRST] - x[SECOND]).norm(dim=-1),
        1,
        "b, I[b] c + b, J[b] c",
        2 * 76 * 3 // 2 + 2 * 76,
    ),
    "tokens of an embedding": (
        lambda x: x[TOKENS].sum(1).sin().sum(),
        2,
        "(), I[b i] c, I[b j] c",
        2 * 3 + 6,
    ),
    "one sentence": (
        lambda x: torch.nn.functional.embedding(TOKENS[0], x).sum().sin(),
        2,
        "(), I[i] j, I[k] l",
        1 + 3,
    ),
    "columns": (lambda x: x[:, torch.tensor([2, 0])].prod(1).sin().sum(), 2, "(), b I[i], b I[j]", N * 4 + 2),
    "a mask": (lambda x: x[x[:, 0] > 1].sum().sin(), 2, "(), I[i] j, I[k] l", -1),
    "elements": (
        lambda x: (x.reshape(-1)[TOKENS[0]] * x.reshape(-1)[TOKENS[1]]).sum(),
        2,
        "(), I[b]/3%40 I[b]%3, J[b]/3%40 J[b]%3 + (), J[b]/3%40 J[b]%3, I[b]/3%40 I[b]%3",
        1 + 2 * 3,
    ),
    "a stencil": (lambda x: (x[1:] - x[:-1]).pow(4).sum(), 2, "", -1),
    "what vanishes": (lambda x: x.sum() * 2, 2, "0", 0),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_kept_and_that_it_is_the_derivative(name: str) -> None:
    f, order, pattern, entries = CASES[name]
    x = points()
    got, expected = compact(f, order, x), nested_reverse(f, order)(x)
    assert not pattern or got.pattern == pattern
    assert got.nbytes <= 8 * entries or entries < 0
    assert_equal(got.dense(), expected)
    sparse = got.to_sparse()
    assert sparse.is_coalesced()
    assert sparse.shape == expected.shape
    assert_equal(sparse.to_dense(), expected)


@pytest.mark.parametrize("f", [pairs, CASES["one sentence"][0], CASES["a stencil"][0]])
@pytest.mark.parametrize("order", [1, 3])
@pytest.mark.parametrize("strategy", ["reverse", "auto"])
def test_other_orders(f: Callable[[Tensor], Tensor], order: int, strategy: str) -> None:
    x = points()
    got = compact(f, order, x, strategy=strategy)
    expected = nested_reverse(f, order)(x) if order < 3 else hofunc.hod(f, 3)(x)
    assert_equal(got.to_sparse().to_dense(), expected)
    assert_equal(got.dense(), expected)


def test_matrices_of_a_jacobian_and_of_a_hessian() -> None:
    x = points()
    for f, order, rows in [(CASES["distances"][0], 1, 76), (pairs, 2, 3 * N), (torch.sin, 1, 3 * N)]:
        got, expected = compact(f, order, x), nested_reverse(f, order)(x).reshape(rows, 3 * N)
        csr = got.to_sparse_csr()
        assert csr.layout is torch.sparse_csr
        assert csr.shape == expected.shape
        assert_equal(csr.to_dense(), expected)
        scipys = got.to_scipy()
        assert scipys.format == "csr"
        assert scipys.has_canonical_format
        assert_equal(torch.from_numpy(scipys.toarray()), expected)


def test_no_matrix_of_other_orders() -> None:
    with pytest.raises(ArgumentError, match=r"order 3 of an output of shape \(\), expected order 1, or order 2"):
        compact(pairs, 3, points()).to_scipy()
    with pytest.raises(ArgumentError, match=r"order 2 of an output of shape \(76,\).*to_sparse"):
        compact(CASES["distances"][0], 2, points()).to_sparse_csr()


def test_more_elements_than_can_be_numbered() -> None:
    got = compact(lambda x: x[:2].pow(5).sum(), 4, torch.ones(100_000, dtype=torch.float64))
    assert got.nbytes == 16
    with pytest.raises(ArgumentError, match=r"1.0e\+20 elements.*contract"):
        got.to_sparse()


def test_a_scalar_and_no_entries() -> None:
    one = compact(torch.sin, 2, torch.tensor(1.0)).to_sparse()
    assert one.shape == ()
    assert one.to_dense() == -torch.tensor(1.0).sin()
    none = torch.zeros(0, dtype=torch.long)
    got = compact(lambda x: (x[none] - x[none]).square().sum(), 2, points())
    assert got.to_sparse()._nnz() == 0
    assert_equal(got.dense(), torch.zeros(N, 3, N, 3, dtype=torch.float64))


@pytest.mark.parametrize("order", [1, 2])
def test_an_input_without_elements_has_no_entries(order: int) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x.sin().sum() + y.sum()).exp()

    slots = (torch.zeros(0, 2, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    by_both = hofunc.hod(f, order, (0, 1), layout="compact")(*slots)[0]
    for block in by_both if order == 2 else [by_both]:
        assert block.to_sparse()._nnz() == 0
        assert_equal(block.to_sparse().to_dense(), block.dense())


def test_nothing_dense_is_made() -> None:
    count = 200_000  # the dense Hessian would have 2.9 TB
    first = torch.arange(count - 1)
    x = torch.linspace(0, 1, 3 * count, dtype=torch.float64).reshape(count, 3)
    got = compact(lambda x: (x[first] - x[first + 1]).pow(4).sum(), 2, x)
    matrix = got.to_scipy()
    assert matrix.nnz == 3 * (3 * count - 2)
    vector = np.ones(3 * count)
    assert np.abs(matrix @ vector).max() < 1e-12  # it moves as a whole without any force


def test_history_flows_through() -> None:
    x = points().requires_grad_()
    (got,) = torch.autograd.grad(compact(pairs, 2, x).to_sparse().values().square().sum(), x)
    (expected,) = torch.autograd.grad(nested_reverse(pairs, 2)(x).square().sum(), x)
    assert_equal(got, expected)


I4, J4 = torch.tensor([0, 1, 1, 3]), torch.tensor([1, 2, 3, 0])


def test_mapped_by_vmap() -> None:
    x = torch.stack([points(), points() * 2])
    got = torch.func.vmap(hofunc.hod(pairs, layout="compact"))(x)
    expected = torch.func.vmap(torch.func.hessian(pairs))(x)
    assert_equal(got.dense(), expected)
    assert_equal(got.to_sparse().to_dense(), expected)


@pytest.mark.parametrize("count", [1, 2])
def test_mapped_by_vmaps_of_few(count: int) -> None:
    x = torch.arange(24.0, dtype=torch.float64).reshape(2, 12)[:count].reshape(count, 1, 4, 3).sin()
    for f in (
        lambda x: (x[1:] - x[:-1]).square().sum().sin(),
        lambda x: (x[I4] - x[J4]).square().sum(-1).log1p().sum(),
    ):
        got = torch.func.vmap(torch.func.vmap(hofunc.hessian(f, layout="compact")))(x)
        assert torch.equal(got.to_sparse().to_dense(), got.dense())


def test_plans_take_indices_as_they_are_then() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        return x[i].sum(0).sin().sum()

    x, i, other = points(), torch.tensor([1, 2, 2]), torch.tensor([-1, 0, 7])
    plan = hofunc.hod(f, layout="compact").plan(x, i)
    for index in (i, other):
        got = plan(x, index)
        assert got.pattern == "(), I[i] b, I[j] b"
        assert_equal(got.to_sparse().to_dense(), nested_reverse(lambda x, index=index: f(x, index), 2)(x))


def test_chunks_of_rows() -> None:
    x = points()
    whole, parts = (compact(CASES["columns"][0], 2, x, chunk_size=size) for size in (None, 7))
    assert parts.pattern == whole.pattern
    assert_equal(parts.dense(), whole.dense())


def test_newton_with_a_sparse_solver() -> None:
    generator = torch.Generator().manual_seed(0)
    stiffness = torch.rand(N - 1, dtype=torch.float64, generator=generator) + 0.5

    def energy(x: Tensor) -> Tensor:
        stretched = x[SECOND[: N - 2]] - x[FIRST[: N - 2]]
        return (stiffness[:-1] * (stretched.square() + stretched.pow(4))).sum() + (x - 1).square().sum() * 0.1

    x, sizes = torch.linspace(0, 2, N, dtype=torch.float64), []
    for _ in range(8):
        slope, curvature = hofunc.derivatives(energy, layout="compact")(x)[1:]
        step = scipy.sparse.linalg.spsolve(curvature.to_scipy().tocsc(), slope.dense().numpy())
        x = x - torch.from_numpy(step)
        sizes.append(float(np.abs(step).max()))
    assert sizes[-1] < 1e-14


OWN = torch.stack([FIRST, SECOND]) + torch.arange(3)[:, None, None]  # edges of each of three molecules


def _at_edges(x: Tensor, edges: Tensor) -> Tensor:
    return (1 + (x[edges[0] % N] - x[edges[1] % N]).square().sum(-1)).reciprocal().sum()


def _in_density(x: Tensor) -> Tensor:
    near = (-(x[FIRST] - x[SECOND]).square().sum(-1)).exp()
    return torch.zeros(N, dtype=x.dtype).index_add(0, FIRST, near).add(1).sqrt().sum()


@pytest.mark.parametrize(
    ("f", "pattern"),
    [
        (
            lambda x: torch.func.vmap(pairs)(x).sum(),
            "(), b c i, b c j + (), b I[c] i, b J[c] j + (), b J[c] i, b I[c] j",
        ),
        (lambda x: torch.func.vmap(_in_density)(x).sum(), None),
        (lambda x: torch.func.vmap(_at_edges)(x, OWN).sum(), None),
    ],
    ids=["pairs", "densities", "edges of its own each"],
)
def test_energies_of_molecules_mapped_by_vmap(f: Callable[[Tensor], Tensor], pattern: str | None) -> None:
    """Molecules are apart, and each has the entries of its edges."""
    x = torch.stack([points(), points().flip(0), points().sin()])
    got = compact(f, 2, x)
    assert pattern in (None, got.pattern)
    assert got.nbytes <= 8 * 12 * 3 * x.numel()  # of a dense tensor, 360 for each row
    assert_equal(got.dense(), nested_reverse(f, 2)(x))
