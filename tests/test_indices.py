"""Derivatives through indices: what is read stays as sparse as its indices are, and is exact."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import joins, selections

N = 5
FIRST = torch.tensor([0, 1, 1, 3, 3, 4, -1])
SECOND = torch.tensor([1, 2, 4, 0, 3, 1, 2])
WEIGHTS = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what reads few elements stay too, as it does where it reads many."""
    monkeypatch.setattr(selections, "SMALL", 0)


def points(count: int = N) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, dtype=torch.float64, generator=generator)


def pairs(x: Tensor) -> Tensor:
    return (1 + (x[FIRST] - x[SECOND]).square().sum(-1)).reciprocal().sum()


def of_a_layer(x: Tensor) -> Tensor:
    z = x @ WEIGHTS
    return torch.zeros_like(z).index_add(0, SECOND, (z[FIRST] - z[SECOND]).tanh()).pow(3).sum()


def two_messages(x: Tensor) -> Tensor:
    for _ in range(2):
        x = (x + torch.zeros_like(x).index_add(0, SECOND, x[FIRST] @ WEIGHTS)).sin()
    return x.sum()


def padded(x: Tensor) -> Tensor:
    neighbours = torch.tensor([[1, 2], [0, 0], [3, 4], [2, 2], [4, 1]])
    kept = torch.tensor([[True, True], [True, False], [False, False], [True, True], [True, True]])
    return torch.where(kept, (x[neighbours] - x[:, None]).square().sum(-1).exp(), 0).sum()


def of_triangles(x: Tensor) -> Tensor:
    corners = x[torch.tensor([[0, 1, 2], [2, 1, 3], [3, 4, 0]])]
    return torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).square().sum(-1).sqrt()


def two_axes(x: Tensor) -> Tensor:
    return (x[FIRST, SECOND % 3].exp() * x[SECOND, FIRST % 3]).sum()


def gathered(x: Tensor) -> Tensor:
    index = torch.tensor([[0, 2, 1], [4, 4, 0], [1, 0, 3]])
    return (x.gather(0, index).sin() * torch.take_along_dim(x[1:4], index % 3, 1)).cumsum(0)


def scattered(x: Tensor) -> Tensor:
    index = torch.tensor([[0, 2, 1], [4, 4, 0], [1, 0, 3]])
    return (x.scatter_add(0, index, x[:3].exp()) * x.roll(1, 0)).pow(2).sum(1)


def selected(x: Tensor) -> Tensor:
    return (x[x.sum(1) > 0].exp().sum(0) * x[[0, 0, 2]]).prod(1)


def moved(x: Tensor) -> Tensor:
    return (x.roll(1, 0) * x.flip(0) * x[::2].sum() + x[1:].sin().sum()).sum(1)


def embedded(x: Tensor) -> Tensor:
    tokens = torch.tensor([[1, 1, 4], [0, 2, 1]])
    return (torch.nn.functional.embedding(tokens, x) @ WEIGHTS).tanh().sum(1).square().sum()


def put(x: Tensor) -> Tensor:
    grid = torch.zeros(4, 4, dtype=x.dtype).index_put((FIRST % 4, SECOND % 4), x[FIRST].sin().sum(1), accumulate=True)
    return (grid @ grid).exp().sum()


def chained(x: Tensor) -> Tensor:
    return x[FIRST].tanh()[torch.tensor([6, 0, 0, 3])].square()[torch.tensor([1, 2])].sum()


PROGRAMS = [
    pairs,
    of_a_layer,
    two_messages,
    padded,
    of_triangles,
    two_axes,
    gathered,
    scattered,
    selected,
    moved,
    embedded,
    put,
    chained,
]


@pytest.mark.parametrize("strategy", ["reverse", "mixed", "forward"])
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("f", PROGRAMS)
def test_second_derivatives(
    f: Callable[[Tensor], Tensor], joined: bool, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if joined:  # however many pairs there are
        monkeypatch.setattr(joins, "SPARSE", 0)
    x = points()
    expected = torch.func.jacfwd(torch.func.jacrev(f))(x) if f is not selected else _by_rows(f, x)
    torch.testing.assert_close(hofunc.hod(f, order=2, strategy=strategy)(x), expected, rtol=1e-10, atol=1e-10)
    compact = hofunc.hod(f, order=2, strategy=strategy, layout="compact")(x)
    torch.testing.assert_close(compact.dense(), expected, rtol=1e-10, atol=1e-10)


def _by_rows(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return a Hessian by torch.autograd, which takes masks."""
    return torch.stack([torch.autograd.functional.hessian(lambda x, n=n: f(x)[n], x) for n in range(len(f(x)))])


@pytest.mark.parametrize("strategy", ["reverse", "mixed"])
@pytest.mark.parametrize("f", [pairs, of_a_layer, gathered, scattered, moved, chained])
def test_third_derivatives(f: Callable[[Tensor], Tensor], strategy: str) -> None:
    x = points()
    expected = torch.func.jacfwd(torch.func.jacfwd(torch.func.jacrev(f)))(x)
    torch.testing.assert_close(hofunc.hod(f, order=3, strategy=strategy)(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("f", [pairs, of_a_layer, two_messages, padded])
def test_contractions(f: Callable[[Tensor], Tensor]) -> None:
    x, v = points(), points(N).flip(0)
    hessian = torch.func.hessian(f)(x)
    product = hofunc.hvp(f)(x, vector=v)
    torch.testing.assert_close(product, torch.einsum("aibj,bj->ai", hessian, v), rtol=1e-10, atol=1e-10)
    blocks = hofunc.einsum(f, ", n i, n j -> n i j")(x)
    torch.testing.assert_close(blocks, torch.einsum("ainj,an->nij", hessian, torch.eye(N, dtype=x.dtype)))


@pytest.mark.parametrize("f", [pairs, of_a_layer])
def test_gradients_and_maps_through_them(f: Callable[[Tensor], Tensor]) -> None:
    x = points()
    hessian, expected = hofunc.hessian(f), torch.func.hessian(f)
    stack = torch.stack([x, 2 * x])
    torch.testing.assert_close(torch.func.vmap(hessian)(stack), torch.func.vmap(expected)(stack))
    weights = torch.randn(N, 3, N, 3, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    got = torch.func.grad(lambda x: (hessian(x) * weights).sum())(x)
    torch.testing.assert_close(got, torch.func.grad(lambda x: (expected(x) * weights).sum())(x))


def test_indices_that_are_arguments_are_those_of_the_call() -> None:
    def energy(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return (x[first] - x[second]).square().sum(-1).exp().sum()

    x = points() / 4
    plan = hofunc.hessian(energy).plan(x, FIRST, SECOND)
    for first, second in ((FIRST, SECOND), (SECOND, FIRST.flip(0)), (FIRST * 0, SECOND)):
        torch.testing.assert_close(plan(x, first, second), torch.func.hessian(energy)(x, first, second))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        plan(x, FIRST + N, SECOND)


def _added_alike(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    read = x.gather(0, (first % N)[:, None].repeat(1, 2)).sin()
    return (
        torch.zeros(N + 1, 3, dtype=x.dtype).scatter_add(0, (second % N).view(-1, 1).expand_as(read), read).pow(3).sum()
    )


def _along_rows_alike(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    read = x.t().gather(-1, (first % N).expand(3, -1)).exp()
    return (torch.ones(4, N, dtype=x.dtype).scatter_add(1, (second % N).expand(3, -1), read) ** 2).sum()


def _single_alike(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    one = x[:, :1].gather(0, (first % N)[:, None].expand(-1, 1)) * x[:1].gather(1, (second % 3).expand(1, -1)).t()
    return x[:, 0].gather(0, (second % N).expand(len(second))).cos().sum() + one.exp().sum()


@pytest.mark.parametrize("f", [_added_alike, _along_rows_alike, _single_alike])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_indices_that_are_expanded_over_other_axes(f: Callable[..., Tensor], order: int) -> None:
    expected = f
    for _ in range(order):
        expected = torch.func.jacrev(expected)
    x = points()
    plan = hofunc.hod(f, order).plan(x, FIRST, SECOND)
    for first, second in ((FIRST, SECOND), (SECOND, FIRST.flip(0)), (FIRST * 0, SECOND)):
        torch.testing.assert_close(plan(x, first, second), expected(x, first, second))
        torch.testing.assert_close(hofunc.hod(f, order)(x, first, second), expected(x, first, second))
    got = torch.func.vmap(hofunc.hod(f, order), in_dims=(None, 0, None))(x, torch.stack([FIRST, SECOND]), SECOND)
    torch.testing.assert_close(got[0], expected(x, FIRST, SECOND))
    none = torch.zeros(0, dtype=torch.long)
    torch.testing.assert_close(hofunc.hod(f, order)(x, none, none), torch.zeros_like(expected(x, FIRST, SECOND)))


def test_sums_over_expanded_indices_cost_what_sums_of_rows_do() -> None:
    first, second = edges(64, 6)

    def by_elements(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        messages = (x[first] * x[second]) @ WEIGHTS
        return torch.zeros_like(x).scatter_add(0, first.view(-1, 1).expand_as(messages), messages).tanh().sum()

    def by_rows(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, first, (x[first] * x[second]) @ WEIGHTS).tanh().sum()

    plans = [hofunc.hessian(f).plan(points(64), first, second) for f in (by_elements, by_rows)]
    assert plans[0].flops < 1.05 * plans[1].flops


def test_indices_mapped_by_vmap() -> None:
    def energy(x: Tensor, first: Tensor) -> Tensor:
        return (x[first] - x[SECOND]).square().sum(-1).exp().sum()

    x = points() / 4
    firsts = torch.stack([FIRST % N, SECOND])
    got = torch.func.vmap(hofunc.hessian(energy), in_dims=(None, 0))(x, firsts)
    torch.testing.assert_close(got, torch.stack([torch.func.hessian(energy)(x, first) for first in firsts]))


def test_no_edge_at_all() -> None:
    none = torch.zeros(0, dtype=torch.long)
    x = points()
    got = hofunc.hessian(lambda x: (x[none] - x[none]).square().sum() + x.pow(3).sum())(x)
    torch.testing.assert_close(got, torch.func.hessian(lambda x: x.pow(3).sum())(x))


def edges(count: int, neighbours: int) -> tuple[Tensor, Tensor]:
    """Return pairs of each of some points and those that follow it."""
    first = torch.arange(count).repeat_interleave(neighbours)
    return first, (first + 1 + torch.arange(neighbours).repeat(count)) % count


@pytest.mark.parametrize("strategy", ["reverse", "mixed"])
def test_nothing_runs_over_pairs_of_edges_and_points(strategy: str) -> None:
    count, neighbours = 64, 6
    first, second = edges(count, neighbours)

    def energy(x: Tensor) -> Tensor:
        return (1 + (x[first] - x[second]).square().sum(-1)).reciprocal().sum()

    plan = hofunc.hod(energy, order=2, strategy=strategy).plan(points(count))
    result = (3 * count) ** 2 * 8
    assert plan.peak_bytes < 3 * result + 64 * 9 * len(first) * 8  # one matrix of edges and points has 64 * 384 entries
    assert plan.flops < 4 * (3 * count) ** 2 + 200 * 9 * len(first)


def read_again(x: Tensor) -> Tensor:
    columns = torch.tensor([[0, 1, 1], [1, 2, 0], [0, 0, 2], [2, 0, 1], [2, 2, 2]])
    product = x[torch.tensor([1, 1, 0, 2, 4])].gather(1, columns) * x.sin()
    return (product[FIRST] * torch.linspace(-1, 1, 21, dtype=x.dtype).reshape(7, 3)).sum(1)


@pytest.mark.parametrize("small", [0, 20, 4096])
@pytest.mark.parametrize("layout", ["dense", "compact"])
@pytest.mark.parametrize("strategy", ["auto", "reverse", "mixed", "forward"])
def test_what_others_read_along_is_read_by_none_that_stays(
    strategy: str, layout: str, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what rows are read at, by selections along rows, and by one from rows, entries of all rows were taken."""
    monkeypatch.setattr(selections, "SMALL", small)
    x = points()
    expected = torch.func.jacrev(torch.func.jacrev(torch.func.jacrev(read_again)))(x)
    got = hofunc.hod(read_again, 3, strategy=strategy, layout=layout)(x)
    dense = got.dense() if isinstance(got, hofunc.Derivative) else got
    torch.testing.assert_close(dense, expected, rtol=1e-10, atol=1e-10)


def one_column(x: Tensor) -> Tensor:
    spread = torch.ones(3, 1, dtype=x.dtype).scatter_add(0, torch.tensor([[0], [2]]), x[:2, :1])
    mask = torch.tensor([[True], [False], [True]])
    return torch.where(mask, spread.exp(), spread[torch.tensor([0, 2, 1])]).sin().sum(-1)


@pytest.mark.parametrize("layout", ["dense", "compact"])
@pytest.mark.parametrize("strategy", ["auto", "reverse", "mixed", "forward"])
def test_columns_of_which_there_is_one_have_no_axis_of_their_own(strategy: str, layout: str) -> None:
    """What was read along it had an axis that the indices have not, and plans of it did not run."""
    x = points()
    got = hofunc.hod(one_column, 2, strategy=strategy, layout=layout)(x)
    dense = got.dense() if isinstance(got, hofunc.Derivative) else got
    torch.testing.assert_close(dense, torch.func.hessian(one_column)(x))


@pytest.mark.parametrize("transform", ["grad", "vmap"])
def test_plans_that_are_made_under_a_transform_hold_none_of_its_tensors(transform: str) -> None:
    """Indices that planning makes of others were wrapped by the gradient, and ended in an internal error of torch."""

    def f(x: Tensor) -> Tensor:
        y = x.take_along_dim(torch.tensor([[1, 1], [1, 0], [1, 0]]), 0)
        z = torch.zeros(3, 2, dtype=x.dtype).index_add(0, torch.tensor([0, 0, 0]), y)
        return (z * z.sin()).sum()

    def total(x: Tensor) -> Tensor:
        return hofunc.hessian(f, layout="compact")(x).dense().sin().sum()

    def expected(x: Tensor) -> Tensor:
        return torch.func.hessian(f)(x).sin().sum()

    x = points()[:2, :2]
    if transform == "grad":
        torch.testing.assert_close(torch.func.grad(total)(x), torch.func.grad(expected)(x))
    else:
        torch.testing.assert_close(torch.func.vmap(total)(x[None]), expected(x)[None])
    torch.testing.assert_close(total(x + 1), expected(x + 1))  # by the plan that was made then, if it is found


@pytest.mark.parametrize("count", [0, 1, 2])
def test_edges_of_which_there_is_one(count: int) -> None:
    """Where one edge met neighbours, both arguments, plans of sparse derivatives ended in an error of meta tensors."""

    def f(x: Tensor, neighbours: Tensor, first: Tensor, second: Tensor) -> Tensor:
        near = torch.where((neighbours >= 0)[..., None], (x[neighbours] - x[:, None]).sin(), 0).sum(1)
        y = x + near
        return (y + torch.zeros_like(y).index_add(0, first, y[second].tanh())).sin().sum()

    neighbours = torch.tensor([[-2, -4], [4, -5], [-4, -3], [3, -1], [1, 4]])
    given = points(), neighbours, torch.arange(count), torch.arange(count) - N
    plan = hofunc.hessian(f, layout="compact").plan(*given)
    torch.testing.assert_close(plan(*given).dense(), torch.func.hessian(f)(*given))
