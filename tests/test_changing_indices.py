"""Indices that are arguments and change at every call: as sparse as those that stay, and right for any."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from asv_benchmarks.memory import peak
from hofunc import ArgumentError
from hofunc.plan import selections
from hofunc.plan.tables import UnfitError
from hofunc.run import cache
from tests.checks import assert_equal

COUNT = 48
WEIGHTS = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)
Function = Callable[..., Tensor]


def points(count: int = COUNT) -> Tensor:
    return torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


def graph(seed: int, degree: int = 2, count: int = COUNT) -> tuple[Tensor, Tensor]:
    """Return edges of a random graph."""
    draw = torch.Generator().manual_seed(seed)
    first, second = (torch.randint(count, (degree * count,), generator=draw) for _ in range(2))
    return first, second


def embedded_atoms(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    near = (1 + (x[first] - x[second]).square().sum(-1)).reciprocal()
    return (1 + torch.zeros(len(x), dtype=x.dtype).index_add(0, first, near)).sqrt().sum()


def messages(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    for _ in range(2):
        x = x + torch.zeros_like(x).index_add(0, first, (x[first] - x[second]).tanh() @ WEIGHTS).sin()
    return x.sum()


def rectified(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    summed = torch.zeros_like(x).index_add(0, first, (x[first] * x[second]) @ WEIGHTS)
    return (summed.relu() * summed.sin()).sum()


def chained(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    two_apart = torch.zeros_like(x).index_add(0, first, x[second].exp())[second]
    return (two_apart * x[first]).sum(1).tanh().sum()


def squares_of_sums(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return what has a Hessian of ones where entries meet, which no tensor tells."""
    return torch.zeros_like(x).index_add(0, first, x[second]).square().sum()


def into_columns_alike(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    heard = ((x[first] - x[second]) @ WEIGHTS).tanh()
    return torch.zeros_like(x).scatter_add(0, first[:, None].expand(-1, 3), heard).pow(3).sum()


def into_columns(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    places = torch.stack([first, second, first.flip(0)], 1) % len(x)
    heard = torch.zeros_like(x).scatter_add(0, places, (x[first] - x[second]).tanh())
    return heard.pow(3).sum() + (heard @ WEIGHTS).cos().sum()


def into_cells(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    m = x.reshape(12, 12)
    read = m[first % 12, second % 12] * m.sin()[second % 12, first % 12]
    return torch.zeros_like(m).index_put((first % 12, (first + second) % 12), read, accumulate=True).pow(3).sum()


def attention(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return a layer in which nodes attend to their neighbours, with a softmax over these."""
    weights = ((x[first] @ WEIGHTS) * x[second]).sum(1).tanh().exp()
    total = torch.zeros(len(x), dtype=x.dtype).index_add(0, first, weights)
    return torch.zeros_like(x).index_add(0, first, (weights / total[first])[:, None] * x[second]).square().sum()


PROGRAMS: list[Function] = [
    embedded_atoms,
    messages,
    rectified,
    chained,
    squares_of_sums,
    into_columns_alike,
    into_columns,
    into_cells,
    attention,
]


def variants() -> Sequence[tuple[Tensor, Tensor]]:
    """Return other edges: in another order, drawn anew, negative, all alike, and of few points."""
    (first, second), other = graph(0), graph(1)
    return [
        (first.flip(0), second.flip(0)),
        other,
        (first, second - COUNT),
        (torch.zeros_like(first), second),
        (first % 3, second % 5),
    ]


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "SMALL", 0)
    cache.forget()


@pytest.mark.parametrize("layout", ["dense", "compact"])
@pytest.mark.parametrize("strategy", ["reverse", "mixed"])
@pytest.mark.parametrize("f", PROGRAMS)
def test_plans_are_for_any_indices(f: Function, strategy: str, layout: str) -> None:
    x = points()
    plan = hofunc.hessian(f, strategy=strategy, layout=layout).plan(x, *graph(0))
    for edges in (graph(0), *variants()):
        got = plan(x, *edges)
        got = got if layout == "dense" else got.to_sparse().to_dense()
        assert_equal(got, torch.func.hessian(f)(x, *edges))


@pytest.mark.parametrize("f", PROGRAMS)
def test_calls_find_plans_for_indices_that_change(f: Function) -> None:
    hessian, jitted, x = hofunc.hessian(f), hofunc.jit(hofunc.hessian(f)), points()
    for edges in (graph(0), *variants(), graph(2)):
        expected = torch.func.hessian(f)(x, *edges)
        assert_equal(hessian(x, *edges), expected)
        assert_equal(jitted(x, *edges), expected)


@pytest.mark.parametrize("f", [embedded_atoms, rectified, into_columns_alike, into_cells, attention])
def test_third_derivatives(f: Function) -> None:
    x, v = points(), points().flip(0)
    plan = hofunc.hod(f, 3, layout="compact").plan(x, *graph(0))
    for edges in (graph(0), graph(1), *variants()[2:4]):
        got = plan(x, *edges).contract(None, None, v)
        assert_equal(got.dense(), torch.func.jvp(lambda x: torch.func.hessian(f)(x, *edges), (x,), (v,))[1])  # noqa: B023


@pytest.mark.parametrize("f", PROGRAMS)
def test_members_of_a_batch_have_indices_of_their_own(f: Function) -> None:
    xs = torch.stack([points() * scale for scale in (1, 0.5, -0.3)])
    for edges in ([graph(seed) for seed in (0, 1, 2)], [graph(0), *variants()[2:4]]):
        firsts, seconds = (torch.stack(each) for each in zip(*edges, strict=True))
        got = torch.func.vmap(hofunc.hessian(f))(xs, firsts, seconds)
        assert_equal(got, torch.stack([torch.func.hessian(f)(x, *own) for x, own in zip(xs, edges, strict=True)]))
        cache.forget()


def test_a_plan_costs_about_what_it_costs_for_indices_that_stay() -> None:
    x, edges = points(400), graph(0, 4, 400)
    captured = hofunc.hessian(lambda x: embedded_atoms(x, *edges), layout="compact").plan(x)
    taken = hofunc.hessian(embedded_atoms, layout="compact").plan(x, *edges)
    assert taken.flops < 1.5 * captured.flops
    assert taken.peak_bytes < 3 * captured.peak_bytes


@pytest.mark.parametrize("f", [embedded_atoms, messages, attention])
def test_plans_say_what_tables_take(f: Function) -> None:
    x, edges = points(200), graph(0, 4, 200)
    plan = hofunc.hessian(f, layout="compact").plan(x, *edges)
    assert plan.peak_bytes == pytest.approx(peak(lambda: plan(x, *edges)), rel=0.05)


def test_calls_go_by_facts_where_values_change() -> None:
    x, hessian = points(), hofunc.hessian(embedded_atoms)
    for seed in range(4):
        hessian(x, *graph(seed))
    (first,) = cache._plans.values()
    made = [*cache._variants(first)]
    assert [each.may_refuse for each in made] == [True, False]
    assert [each.decided.goes_by for each in made] == [False, True]


def test_calls_are_as_sparse_as_before_after_one_that_is_not() -> None:
    x, hessian, jitted = points(), hofunc.hessian(embedded_atoms), hofunc.jit(hofunc.hessian(embedded_atoms))
    for edges in (graph(0), graph(1), variants()[3], graph(2)):
        hessian(x, *edges)
        jitted(x, *edges)
    (first,) = cache._plans.values()
    assert [each.may_refuse for each in cache._variants(first)] == [True, False, False]
    assert jitted.plans[-2].flops < jitted.plans[0].flops / 2  # that by values is the last


def test_members_of_a_batch_may_have_fewer_pairs_than_others() -> None:
    x, hessian = points(), hofunc.hessian(embedded_atoms)
    edges = [graph(0), *[(first % size, second) for size, (first, second) in ((30, graph(1)), (20, graph(2)))]]
    firsts, seconds = (torch.stack(each) for each in zip(*edges, strict=True))
    got = torch.func.vmap(hessian, in_dims=(None, 0, 0))(x, firsts, seconds)
    assert_equal(got, torch.stack([torch.func.hessian(embedded_atoms)(x, *own) for own in edges]))
    (first,) = cache._plans.values()
    assert all(each.may_refuse for each in cache._variants(first))


def test_indices_that_f_computes_of_its_input_are_joined_as_well() -> None:
    def in_cells(x: Tensor) -> Tensor:
        cell = (x[:, 0].detach() * 20).long() % COUNT
        return torch.zeros_like(x).index_add(0, cell, x.sin()).square().sum()

    x = points()
    plan = hofunc.hessian(in_cells, layout="compact").plan(x)
    assert plan.flops < x.numel() ** 2
    for scale in (1, 1.5, -0.7):
        assert_equal(plan(scale * x).dense(), torch.func.hessian(in_cells)(scale * x))
        assert_equal(hofunc.hessian(in_cells)(scale * x), torch.func.hessian(in_cells)(scale * x))


def test_spare_pairs_are_at_places_that_others_have() -> None:
    x, (first, second) = points(), graph(0)
    plan = hofunc.hessian(embedded_atoms, layout="compact").plan(x, first, second)
    expected = torch.func.hessian(embedded_atoms)(x, first, second)
    assert plan(x, first, second).to_sparse()._nnz() == (expected != 0).sum()


def test_where_entries_are_infinite_others_are_not() -> None:
    """What is spare is zero, and not nothing times what is infinite."""

    def f(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, first, x[second].sqrt()).square().sum()

    x, edges = points().abs(), graph(0)
    x[edges[1][0]] = 0
    got, expected = hofunc.hessian(f).plan(x, *edges)(x, *edges), torch.func.hessian(f)(x, *edges)
    finite = expected.isfinite()
    assert not finite.all()
    torch.testing.assert_close(got[finite], expected[finite])


def test_indices_out_of_range_are_errors_of_torch() -> None:
    x, (first, second) = points(), graph(0)
    plan = hofunc.hessian(embedded_atoms).plan(x, first, second)
    for wrong in (first + COUNT, first - 2 * COUNT):
        with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
            plan(x, wrong, second)


def test_no_edges_and_few_points() -> None:
    x, nothing = points(3), torch.zeros(0, dtype=torch.long)
    assert_equal(hofunc.hessian(embedded_atoms)(x, nothing, nothing), torch.zeros(3, 3, 3, 3, dtype=x.dtype))
    first, second = graph(0, 2, 3)
    plan = hofunc.hessian(embedded_atoms).plan(x, first, second)
    for edges in ((first, second), (second, first), (first * 0, first * 0)):
        assert_equal(plan(x, *edges), torch.func.hessian(embedded_atoms)(x, *edges))


def test_plans_are_saved_with_those_beside_them(tmp_path: Path) -> None:
    x, edges = points(), graph(0)
    path = tmp_path / "some.plan"
    hofunc.hessian(embedded_atoms).plan(x, *edges).save(path)
    plan = hofunc.load_plan(path)
    for other in (edges, *variants()):
        assert_equal(plan(x, *other), torch.func.hessian(embedded_atoms)(x, *other))


def test_graphs_are_of_any_indices() -> None:
    x, edges = points(), graph(0)
    module = hofunc.hessian(embedded_atoms).plan(x, *edges).to_fx()
    for other in (edges, *variants()):
        assert_equal(module(x, *other)[0], torch.func.hessian(embedded_atoms)(x, *other))


def test_jitted_plans_refuse_what_does_not_fit_and_others_are_made() -> None:
    x, jitted = points(), hofunc.jit(hofunc.hessian(embedded_atoms))
    crowded = variants()[3]
    for edges in (graph(0), graph(1), graph(2), crowded, graph(3)):
        assert_equal(jitted(x, *edges), torch.func.hessian(embedded_atoms)(x, *edges))
    assert len(jitted.plans) == 3
    assert any(plan._subject.chosen.goes_by_facts for plan in jitted.plans)  # type: ignore[union-attr]
    with pytest.raises(UnfitError, match="goes by facts about indices"):
        next(plan for plan in jitted.plans if plan._subject.chosen.goes_by_facts)(x, *crowded)  # type: ignore[union-attr]
    assert issubclass(UnfitError, ArgumentError)


def test_derivatives_of_what_is_computed() -> None:
    x, edges = points(), graph(0)
    weights = torch.linspace(0, 1, 9 * COUNT * COUNT, dtype=torch.float64).reshape(COUNT, 3, COUNT, 3)
    hessian = hofunc.hessian(embedded_atoms)
    hessian(x, *graph(1))
    got = torch.func.grad(lambda x: (hessian(x, *edges) * weights).sum())(x)
    assert_equal(got, torch.func.grad(lambda x: (torch.func.hessian(embedded_atoms)(x, *edges) * weights).sum())(x))
    followed = x.clone().requires_grad_()
    (hessian(followed, *edges) * weights).sum().backward()
    assert_equal(followed.grad, got)


def test_what_records_a_call_is_for_any_indices() -> None:
    """A call within what is recorded would go by values that nothing compares later on."""
    x, (first, second) = points(), graph(0)
    weights = torch.linspace(0, 1, 9 * COUNT * COUNT, dtype=torch.float64).reshape(COUNT, 3, COUNT, 3)
    hessian, traced = hofunc.hessian(embedded_atoms), []
    for _ in range(2):  # the second after plans by values, and by facts
        outer = hofunc.jacobian(lambda x, *edges: (hessian(x, *edges) * weights).sum()).plan(x, first, second)
        traced += [make_fx(hessian)(x, first, second), make_fx(hessian.plan(x, first, second))(x, first, second)]
        for edges in ((first, second), *variants()):
            expected = torch.func.hessian(embedded_atoms)
            wanted = torch.func.grad(lambda x: (expected(x, *edges) * weights).sum())(x)  # noqa: B023
            assert_equal(outer(x, *edges), wanted)
            for module in traced:
                assert_equal(module(x, *edges), expected(x, *edges))
        hessian(x, first, second)
        hessian(x, *graph(1))


def test_what_draws_random_numbers_is_drawn_once() -> None:
    def f(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return embedded_atoms(x * torch.rand(3, dtype=x.dtype), first, second)

    x, edges = points(), graph(0)
    plan = hofunc.hessian(f).plan(x, *edges)
    for own in (edges, variants()[3]):
        torch.manual_seed(0)
        got = plan(x, *own)
        torch.manual_seed(0)
        assert_equal(got, hofunc.hessian(f)(x, *own))


def test_contractions() -> None:
    x, v = points(), points().flip(0)
    product, diagonal = hofunc.hvp(embedded_atoms), hofunc.einsum(embedded_atoms, ", a i, a i -> a i")
    plans = product.plan(x, *graph(0), vector=v), diagonal.plan(x, *graph(0))
    for edges in (graph(0), *variants()):
        expected = torch.func.hessian(embedded_atoms)(x, *edges).reshape(x.numel(), -1)
        for made in (product, plans[0]):
            assert_equal(made(x, *edges, vector=v).reshape(-1), expected @ v.reshape(-1))
        for made in (diagonal, plans[1]):
            assert_equal(made(x, *edges).reshape(-1), expected.diagonal())
