"""Entries that meet at an index: joined in pairs, as sparse as the indices are, as long as these are the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

import hofunc
from hofunc import ArgumentError
from hofunc.plan import joins, selections
from hofunc.run import cache
from tests.checks import assert_equal
from verification.trees import function_of

COUNT = 96
FIRST = torch.arange(COUNT).repeat(4)
SECOND = (FIRST + torch.tensor([1, -1, 2, -2]).repeat_interleave(COUNT)) % COUNT
WEIGHTS = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)


def points(count: int = COUNT) -> Tensor:
    return torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


def embedded_atoms(x: Tensor, first: Tensor = FIRST, second: Tensor = SECOND) -> Tensor:
    near = (1 + (x[first] - x[second]).square().sum(-1)).reciprocal()
    return -torch.zeros(len(x), dtype=x.dtype).index_add(0, first, near).sqrt().sum()


def messages(x: Tensor, layers: int) -> Tensor:
    for _ in range(layers):
        x = x + torch.zeros_like(x).index_add(0, FIRST, (x[FIRST] - x[SECOND]).tanh() @ WEIGHTS).sin()
    return x.sum()


def rectified(x: Tensor) -> Tensor:
    summed = torch.zeros_like(x).index_add(0, FIRST, (x[FIRST] * x[SECOND]) @ WEIGHTS)
    return (summed.relu() * summed.sin()).sum()


def chained(x: Tensor) -> Tensor:
    two_apart = torch.zeros_like(x).index_add(0, FIRST, x[SECOND].exp())[SECOND]
    return (two_apart * x[FIRST]).sum(1).tanh().sum()


# Indices for every column, for every row, and pairs of indices: some come twice, some never.
DRAW = torch.Generator().manual_seed(0)
PLACES = torch.randint(COUNT, (len(FIRST), 3), generator=DRAW)
TO, ROWS, OTHER_ROWS = (torch.randint(12, (COUNT, 1), generator=DRAW) for _ in range(3))
COLUMNS, OTHER_COLUMNS = (torch.randint(-8, 8, (COUNT,), generator=DRAW) for _ in range(2))
ALONG = torch.randint(8, (12, 8), generator=DRAW)


def cells(x: Tensor) -> Tensor:
    return x[:, 0].reshape(12, 8) * x[:, 1].reshape(12, 8).sin()


def into_columns(x: Tensor) -> Tensor:
    heard = torch.zeros_like(x).scatter_add(0, PLACES, (x[FIRST] - x[SECOND]).tanh())
    return heard.pow(3).sum() + (heard @ WEIGHTS).cos().sum()


def into_columns_alike(x: Tensor) -> Tensor:
    heard = torch.zeros_like(x).scatter_add(0, FIRST[:, None].expand(-1, 3), ((x[FIRST] - x[SECOND]) @ WEIGHTS).tanh())
    return heard.pow(3).sum()


def from_columns(x: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, FIRST, x.gather(0, PLACES).exp() @ WEIGHTS).tanh().sum()


def into_cells(x: Tensor) -> Tensor:
    m = cells(x)
    read = m[ROWS[:, 0], COLUMNS] * m.sin()[OTHER_ROWS[:, 0], OTHER_COLUMNS]
    return torch.zeros_like(m).index_put((TO[:, 0], COLUMNS), read, accumulate=True).pow(3).sum()


def from_and_into_cells(x: Tensor) -> Tensor:
    m = cells(x).sin()
    put = torch.zeros(12, dtype=x.dtype).index_add(0, TO[:, 0], m[ROWS[:, 0], COLUMNS])
    return (put * m[:, 3]).square().sum()


def along_rows(x: Tensor) -> Tensor:
    m = cells(x)
    return torch.zeros_like(m).scatter_add(1, ALONG, m.gather(1, ALONG.flip(0)).sin()).pow(3).sum()


PROGRAMS: list[Callable[[Tensor], Tensor]] = [
    embedded_atoms,
    lambda x: messages(x, 1),
    lambda x: messages(x, 2),
    rectified,
    chained,
    into_columns,
    into_columns_alike,
    from_columns,
    into_cells,
    from_and_into_cells,
    along_rows,
]


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "SMALL", 0)
    cache.forget()


@pytest.mark.parametrize("strategy", ["reverse", "mixed"])
@pytest.mark.parametrize("sparse", [0, joins.SPARSE])
@pytest.mark.parametrize("f", PROGRAMS)
def test_second_derivatives(
    f: Callable[[Tensor], Tensor], sparse: int, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "SPARSE", sparse)
    x = points()
    expected = torch.func.hessian(f)(x)
    assert_equal(hofunc.hessian(f, strategy=strategy)(x), expected)
    assert_equal(hofunc.hessian(f, strategy=strategy, layout="compact").plan(x)(x).to_sparse().to_dense(), expected)


@pytest.mark.parametrize("f", [embedded_atoms, into_cells])
def test_places_of_too_many_entries_are_not_told_apart(
    f: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As there are where all edges meet all others: planning took 39 GB for an energy of 600 points."""
    told, flat = [], joins._flat

    def noted(*args: Any) -> Any:
        told.append(flat(*args))
        return told[-1]

    monkeypatch.setattr(joins, "_flat", noted)
    x = points()
    expected = torch.func.hessian(f)(x)
    assert_equal(hofunc.hessian(f, strategy="mixed")(x), expected)
    most = max(place.tensor.numel() for place in told)
    told.clear()
    monkeypatch.setattr(joins, "MOST", 8 * most)
    cache.forget()
    assert_equal(hofunc.hessian(f, strategy="mixed")(x), expected)
    assert all(place.tensor.numel() < most for place in told)


@pytest.mark.parametrize("f", [embedded_atoms, rectified, into_columns, into_columns_alike, into_cells, along_rows])
def test_third_derivatives(f: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "SPARSE", 0)
    x, v = points(), points(COUNT).flip(0)
    got = hofunc.hod(f, 3, layout="compact")(x).contract(None, None, v)
    assert_equal(got.dense(), torch.func.jvp(torch.func.hessian(f), (x,), (v,))[1])


def test_what_is_kept_is_what_there_is() -> None:
    got = hofunc.hessian(embedded_atoms, layout="compact")(points())
    entries = COUNT * 9 * 9  # of every point and the nine that two edges lead to, one block of 3 x 3
    assert got.to_sparse()._nnz() == entries
    assert got.nbytes < 4 * entries * 8


@pytest.mark.parametrize("f", [into_cells, along_rows])
def test_indices_of_several_axes_or_for_each_row_are_kept(f: Callable[[Tensor], Tensor]) -> None:
    got = hofunc.hessian(f, layout="compact", strategy="reverse")(points())
    assert got.nbytes < 8 * (3 * COUNT) ** 2 / 5


def test_masks_are_read_where_entries_are() -> None:
    """Of slopes along edges, of which each slot has its own, no product over all edges of all slots is made."""

    def attended(x: Tensor) -> Tensor:
        first, second = torch.arange(24).repeat(3), SECOND[:72] % 24
        weights = torch.nn.functional.leaky_relu((x @ WEIGHTS[0])[first] + (x @ WEIGHTS[1])[second]).exp()
        total = torch.zeros(len(x), dtype=x.dtype).index_add(0, first, weights)
        heard = (weights / total[first])[:, None] * x[second]
        return torch.zeros_like(x).index_add(0, first, heard).logsumexp(1).sum()

    x, v = points(24), points(24).flip(0)
    plan = hofunc.hod(attended, 3, layout="compact").plan(x)
    assert plan.peak_bytes < 8 * x.numel() ** 3
    expected = torch.func.jvp(torch.func.hessian(attended), (x,), (v,))[1]
    assert_equal(plan(x).contract(None, None, v).dense(), expected)


def test_columns_with_the_same_indices_are_about_as_sparse_as_rows() -> None:
    def by_rows(x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, FIRST, ((x[FIRST] - x[SECOND]) @ WEIGHTS).tanh()).pow(3).sum()

    every, rows = (hofunc.hessian(f, layout="compact")(points()) for f in (into_columns_alike, by_rows))
    assert every.nbytes < 1.1 * rows.nbytes


def test_the_cost_grows_with_edges_and_not_with_pairs_of_points() -> None:
    def cost(count: int) -> int:
        first = torch.arange(count).repeat(4)
        second = (first + torch.tensor([1, -1, 2, -2]).repeat_interleave(count)) % count
        energy = hofunc.hessian(lambda x: embedded_atoms(x, first, second), layout="compact")
        return energy.plan(points(count)).flops

    assert cost(800) < 4.1 * cost(200)


def test_a_plan_is_good_for_the_captured_indices_only() -> None:
    first, second, x = FIRST.clone(), SECOND.clone(), points()
    hessian = hofunc.hessian(lambda x: embedded_atoms(x, first, second))
    plan = hessian.plan(x)
    assert_equal(plan(x), torch.func.hessian(lambda x: embedded_atoms(x, first, second))(x))
    first[3] = 7
    with pytest.raises(ArgumentError, match="captured indices that tell which entries meet"):
        plan(x)
    for _ in range(2):  # the second by a plan that goes by none
        assert_equal(hessian(x), torch.func.hessian(lambda x: embedded_atoms(x, first, second))(x))
        second[5] = 20


def test_a_plan_that_joins_nothing_is_good_for_any_captured_indices() -> None:
    first, second = (part.clone() for part in torch.triu_indices(9, 9, 1))  # of which all meet all

    def energy(x: Tensor) -> Tensor:
        return embedded_atoms(x, first, second)

    x = points(9)
    plan = hofunc.hessian(energy).plan(x)
    first[:], second[:] = second.clone(), first.clone()
    assert_equal(plan(x), torch.func.hessian(energy)(x))


def test_plans_take_indices_that_are_arguments_as_they_are() -> None:
    x = points()
    plan = hofunc.hessian(embedded_atoms).plan(x, FIRST, SECOND)
    for second in (SECOND, SECOND.flip(0)):
        assert_equal(plan(x, FIRST, second), torch.func.hessian(embedded_atoms)(x, FIRST, second))


def test_indices_that_change_are_gone_by_once() -> None:
    x = points()
    for shift in range(5):
        second = SECOND.roll(shift)
        expected = torch.func.hessian(embedded_atoms)(x, FIRST, second)
        assert_equal(hofunc.hessian(embedded_atoms)(x, FIRST, second), expected)
    assert sum(1 for first in cache._plans.values() for _ in cache._variants(first)) == 2


def test_under_transforms_of_torch() -> None:
    x = points()
    hessian, expected = hofunc.hessian(embedded_atoms), torch.func.hessian(embedded_atoms)
    stack = torch.stack([x, x / 2])
    assert_equal(torch.func.vmap(hessian)(stack), torch.func.vmap(expected)(stack))
    weights = torch.linspace(0, 1, 9 * COUNT * COUNT, dtype=torch.float64).reshape(COUNT, 3, COUNT, 3)
    got = torch.func.grad(lambda x: (hessian(x) * weights).sum())(x)
    assert_equal(got, torch.func.grad(lambda x: (expected(x) * weights).sum())(x))


def test_jitted_transforms_go_by_indices_that_are_arguments_until_they_change() -> None:
    jitted, x = hofunc.jit(hofunc.hessian(embedded_atoms)), points()
    captured = hofunc.hessian(lambda x: embedded_atoms(x, FIRST, SECOND)).plan(x)
    for first in (FIRST, FIRST.flip(0), FIRST.roll(1), FIRST):
        assert_equal(jitted(x, first, SECOND), torch.func.hessian(embedded_atoms)(x, first, SECOND))
    by_indices, by_facts = sorted(jitted.plans, key=lambda plan: plan.flops)
    assert by_indices.flops == captured.flops
    assert by_facts.flops < 1.5 * by_indices.flops
    jitted(x, FIRST, SECOND)
    assert jitted.plans[-1] is by_indices  # which is tried first


def test_jitted_transforms_that_may_not_miss_go_by_no_arguments() -> None:
    jitted, x = hofunc.jit(hofunc.hessian(embedded_atoms), on_miss="error"), points()
    for first in (FIRST, FIRST.flip(0)):
        assert_equal(jitted(x, first, SECOND), torch.func.hessian(embedded_atoms)(x, first, SECOND))
    assert len(jitted.plans) == 1


@pytest.mark.parametrize("is_captured", [True, False])
def test_indices_that_vmap_does_not_map_are_gone_by(is_captured: bool) -> None:
    first, second, stack = FIRST.clone(), SECOND.clone(), torch.stack([points(), points() / 2])

    def mapped() -> Tensor:
        if is_captured:
            return torch.func.vmap(hofunc.hessian(lambda x: embedded_atoms(x, first, second)))(stack)
        return torch.func.vmap(hofunc.hessian(embedded_atoms), in_dims=(0, None, None))(stack, first, second)

    def expected() -> Tensor:
        return torch.stack([torch.func.hessian(embedded_atoms)(x, first, second) for x in stack])

    assert_equal(mapped(), expected())
    assert any(made.decided.goes_by for key in cache._plans.values() for made in cache._variants(key))
    for place in (3, 5):
        first[place] = 20
        assert_equal(mapped(), expected())


def test_indices_that_vmap_maps_are_those_of_each_member() -> None:
    x, seconds = points(), torch.stack([SECOND, SECOND.flip(0)])
    got = torch.func.vmap(hofunc.hessian(embedded_atoms), in_dims=(None, None, 0))(x, FIRST, seconds)
    assert_equal(got, torch.stack([torch.func.hessian(embedded_atoms)(x, FIRST, second) for second in seconds]))


def test_selections_of_what_has_no_elements() -> None:
    """Of what is added up for them there is nothing, which is no number of them to divide by."""

    f = function_of([(6, 3, 3), (0, 6, 5)], [(0,)], 2, 2)
    _, spec = tree_flatten(f.argument)
    pair = tree_unflatten([torch.zeros(0, 2, dtype=torch.float64)], spec)
    product = hofunc.einsum(lambda x: f(x)["loss"], ", *p, *q, *r, *q k, *r -> *p k")
    (found,), _ = tree_flatten(product(f.argument, operands=(pair, f.argument)))
    assert found.shape == (0, 2)
