"""Columns: dense derivatives of functions that mix rows, by some coordinates at a time, whatever asks for it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

import hofunc
from hofunc.plan import lean
from hofunc.plan.columns import Columns
from hofunc.plan.limited import HOPELESS
from hofunc.plan.limited import _by_columns as by_columns
from hofunc.plan.strategies import propagated
from tests.cases import rand
from verification.memory import SLACK, stated, taken
from verification.oracles import nested_reverse, relative_error

CPU = torch.device("cpu")
drawn = Columns.drawn

MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda x: (x.T @ x).tanh().sum(),
    "pairs": lambda x: (x.flatten()[:, None] * x.flatten()).tanh().sum(0),
    "a matrix": lambda x: (x.T @ x).exp(),
    "in part a constant": lambda x: torch.cat([(x.T @ x).sin().flatten(), torch.ones_like(x).flatten()]),
    "empty": lambda x: (x.T @ x).sin()[:0],
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", MIXING)
def test_columns_make_the_whole(name: str, order: int, device: torch.device) -> None:
    f, x = MIXING[name], rand(device, 3, 2) / 2
    expected = nested_reverse(f, order)(x)
    for size in (1, 4, 1000):
        transform = hofunc.hod(f, order, chunk_size=size)
        for _ in range(2):
            assert relative_error(transform(x), expected) < 1e-12
            assert transform(x).shape == expected.shape


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x, a, b: (a @ (b @ (x @ a)) @ a @ (b @ (x @ a))).square(), (2, 2)),
        (lambda x, a, b: torch.addmm(b, a, a @ (x @ b)).matmul(a @ (x @ b)).square(), (2, 2)),
        (lambda x, a, b: ((a @ x).sin() @ (b @ x).T) ** 2, (2, 1)),
    ],
)
def test_axes_may_be_as_long_as_there_are_coordinates(
    f: Callable[..., Tensor], shape: tuple[int, ...], order: int, device: torch.device
) -> None:
    x, a, b = rand(device, *shape), rand(device, 2, 2, seed=1), rand(device, 2, 2, seed=2)
    expected = nested_reverse(lambda x: f(x, a, b), order)(x)
    for size in range(1, x.numel() + 1):
        got = hofunc.hod(lambda x: f(x, a, b), order, chunk_size=size)(x)
        assert relative_error(got, expected) < 1e-12


def test_structures_and_aux_are_those_of_the_whole(device: torch.device) -> None:
    def f(p: dict[str, Tensor], n: int, *, shift: Tensor) -> tuple[Any, Any]:
        w = p["w"].T @ p["w"]
        return {"a": (w @ p["x"]).tanh() * n, "b": [w.sum() ** 3]}, ("text", shift * 2, w.detach())

    p, shift = {"w": rand(device, 3, 2), "x": rand(device, 2, seed=1)}, rand(device, 2)
    for transform in (hofunc.jacobian, hofunc.hessian, hofunc.derivatives):
        expected, spec = tree_flatten(transform(f, has_aux=True)(p, 2, shift=shift))
        pieces, found = tree_flatten(transform(f, has_aux=True, chunk_size=2)(p, 2, shift=shift))
        assert found == spec
        for got, wanted in zip(pieces, expected, strict=True):
            assert got == wanted if isinstance(wanted, str) else relative_error(got, wanted) < 1e-12


def test_pieces_are_followed_by_autograd_and_by_recordings(device: torch.device) -> None:
    f, x = MIXING["a number"], rand(device, 3, 2).requires_grad_()
    (got,) = torch.autograd.grad(hofunc.hessian(f, chunk_size=2)(x).square().sum(), x)
    (expected,) = torch.autograd.grad(hofunc.hessian(f)(x).square().sum(), x)
    assert relative_error(got, expected) < 1e-12
    with torch.no_grad():
        assert not hofunc.hessian(f, chunk_size=2)(x).requires_grad
        twice = hofunc.hod(hofunc.hessian(f, chunk_size=2), 1)(x)
        assert relative_error(twice, hofunc.hod(f, 3)(x)) < 1e-12


def test_the_function_is_recorded_once_for_all_pieces(device: torch.device) -> None:
    calls = []

    def f(x: Tensor) -> Tensor:
        calls.append(x)
        return (x.T @ x * torch.rand(2, 2).to(x)).flatten()

    transform = hofunc.hod(f, 1, chunk_size=1)
    transform(rand(device, 3, 2))
    calls.clear()
    torch.manual_seed(0)
    got = transform(rand(device, 3, 2))
    assert len(calls) == 1
    torch.manual_seed(0)
    assert torch.equal(got, hofunc.jacobian(f)(rand(device, 3, 2)))


class _Largest(TorchDispatchMode):
    """Takes note of the most elements that a new tensor has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if not any(returns.alias_info for returns in func._schema.returns):
            sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.elements = max([self.elements, *sizes])
        return out


def test_a_wide_layer_is_held_for_a_piece_only(device: torch.device) -> None:
    x, weights = rand(device, 20), rand(device, 200, 20, seed=1)
    held = []
    for size in (None, 2):
        transform = hofunc.hessian(lambda x: (weights @ x).sin().square().sum() ** 2, chunk_size=size)
        transform(x)
        with _Largest() as largest:
            transform(x)
        held.append(largest.elements)
    assert held == [200 * 20, 20 * 20]


@pytest.mark.parametrize("order", [1, 2])
def test_plans_and_transforms_run_by_columns_too(order: int, device: torch.device) -> None:
    f, x = MIXING["a matrix"], rand(device, 3, 2)
    transform, expected = hofunc.hod(f, order, chunk_size=2), hofunc.hod(f, order)(x)
    plan = transform.plan(x + 1)
    if order == 2:  # at order 1 it is a product along rows
        assert "in 3 chunks of 2 coordinates" in plan.explain()
    assert relative_error(plan(x), expected) < 1e-12
    xs = torch.stack([x, 2 * x])
    for call in (plan, transform):
        assert relative_error(torch.func.vmap(call)(xs)[0], expected) < 1e-12
        slope = torch.func.grad(lambda x: call(x).square().sum())(x)  # noqa: B023 - called at once
        assert relative_error(slope, torch.func.grad(lambda x: hofunc.hod(f, order)(x).square().sum())(x)) < 1e-12


def test_random_numbers_are_those_of_the_recording_for_all_columns(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return ((x.T @ x).tanh() * torch.rand_like(x[:2])).sum()

    x = rand(device, 3, 2)
    plan = hofunc.hessian(f, chunk_size=1).plan(x)
    torch.manual_seed(3)
    got = plan(x)
    torch.manual_seed(3)
    assert relative_error(got, hofunc.hessian(f)(x)) < 1e-12


def test_strict_holds_of_columns(device: torch.device) -> None:
    f = lambda x, y: (x.T @ x).sin().sum() + y.sum()  # noqa: E731 - as short as it can be
    x, y = rand(device, 3, 2), rand(device, 2)
    with pytest.raises(hofunc.ArgumentError, match="does not depend on"):
        hofunc.hessian(f, (0, 1), chunk_size=2, strict=True)(x, y)
    got, expected = hofunc.hessian(f, (0, 1), chunk_size=2)(x, y), hofunc.hessian(f, (0, 1))(x, y)
    for one, other in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        assert torch.equal(one, other) or relative_error(one, other) < 1e-12


def test_what_vanishes_or_is_one_number_is_not_parted(device: torch.device) -> None:
    x = rand(device, 3)
    assert torch.equal(hofunc.hessian(torch.sum, chunk_size=1)(x), torch.zeros(3, 3).to(x))
    assert relative_error(hofunc.hessian(lambda x: x.sin() ** 2, chunk_size=1)(x[0]), 2 * (2 * x[0]).cos()) < 1e-12
    assert hofunc.hessian(lambda x: x.prod(), chunk_size=1)(x[:0]).shape == (0, 0)


def test_terms_are_not_made_by_columns(device: torch.device) -> None:
    x = rand(device, 3, 2)
    with pytest.raises(hofunc.ArgumentError, match=r"chunk_size for rows that cannot be taken apart.*Leave chunk_size"):
        hofunc.hessian(MIXING["a number"], chunk_size=2, layout="compact")(x)


# max_bytes.


def _perceptron() -> tuple[Callable[..., Tensor], Any]:
    x = rand(CPU, 200, 4, seed=3)
    p = {"u": rand(CPU, 4, 8), "v": rand(CPU, 8, 8, seed=1), "b": rand(CPU, 8, seed=2)}
    return lambda p: (((x @ p["u"]).tanh() @ p["v"] + p["b"]).tanh()).square().sum(), p


def _attention() -> tuple[Callable[..., Tensor], Any]:
    a, b = rand(CPU, 6, 6), rand(CPU, 6, 6, seed=1)
    return lambda x: (((x @ a) @ x.T).softmax(-1) @ (x @ b)).square().sum(), rand(CPU, 30, 6)


def _neighbours() -> tuple[Callable[..., Tensor], Any]:
    line = torch.arange(4, dtype=torch.float64)
    x = 1.1 * torch.cartesian_prod(line, line, line) + 0.05 * rand(CPU, 64, 3)
    i, j = torch.nonzero(torch.triu(torch.cdist(x, x) < 1.4, 1), as_tuple=True)

    def energy(x: Tensor) -> Tensor:
        s = (x[i] - x[j]).square().sum(-1) ** -3
        return (s * s - s).sum()

    return energy, x


def _bytes(tensors: Any) -> int:
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tree_leaves(tensors)}
    return sum(held.values())


@pytest.mark.parametrize("case", [_perceptron, _attention, _neighbours])
def test_a_tenth_of_the_memory_beside_the_result_is_kept_to(case: Callable[[], Any]) -> None:
    f, x = case()
    plan = hofunc.hessian(f).plan(x)
    expected = plan(x)
    result = _bytes(expected)
    limit = result + max(plan.peak_bytes - result, result) // 10  # the whole of what edges add to takes less than that
    in_chunks = hofunc.hessian(f, max_bytes=limit).plan(x)
    assert in_chunks.peak_bytes <= limit
    got = taken(lambda: in_chunks(x))
    assert got == pytest.approx(in_chunks.peak_bytes, rel=0.02, abs=SLACK)
    assert got <= limit + SLACK
    for one, other in zip(tree_leaves(in_chunks(x)), tree_leaves(expected), strict=True):
        assert relative_error(one, other) < 1e-12


def test_all_orders_and_a_call_keep_to_max_bytes() -> None:
    _, x = _attention()
    x = x[:4, :3] + 0
    f = MIXING["a number"]
    transform = hofunc.derivatives(f, 3)
    expected = transform(x)
    limit = (_bytes(expected[1:]) + transform.plan(x).peak_bytes) // 2
    call = hofunc.derivatives(f, 3, max_bytes=limit)
    for one, other in zip(call(x), expected, strict=True):
        assert relative_error(one, other) < 1e-12
    assert taken(lambda: call(x)) <= limit + SLACK


@pytest.mark.parametrize(("order", "along"), [(3, "pairs of coordinates"), (4, "tuples of coordinates")])
def test_little_memory_is_kept_to_along_several_slots(order: int, along: str) -> None:
    x, y, weight = rand(CPU, 2), rand(CPU, 2, seed=1), rand(CPU, 300, 2, seed=2)
    f = lambda x, y: ((weight @ x).tanh() * y[0].sin()).square().sum() ** 2  # noqa: E731 - as short as it can be
    transform = partial(hofunc.hod, f, order, (0, 1) if order == 3 else 0)
    least = stated(transform(max_bytes=10_000).plan, x, y)
    plan = transform(max_bytes=least).plan(x, y)
    assert f"chunks of 1 {along}" in plan.explain()
    assert taken(lambda: plan(x, y)) <= least + SLACK
    for one, other in zip(tree_leaves(plan(x, y)), tree_leaves(transform()(x, y)), strict=True):
        assert relative_error(one, other) < 1e-11


def test_results_larger_than_max_bytes_are_refused_and_named() -> None:
    f, x = _attention()
    with pytest.raises(hofunc.ArgumentError, match="takes more memory than allowed") as caught:
        hofunc.hessian(f, max_bytes=180 * 180 * 8 - 1)(x)
    assert f"of which {180 * 180 * 8} are results" in str(caught.value)
    assert str(caught.value).endswith("or write whole ones to files by out=hofunc.Stream(path).")


def test_what_f_computes_beside_the_results_is_refused_before_planning() -> None:
    x = rand(CPU, 40)
    f = lambda x: torch.cat([(k * x).sin() for k in range(50)]).square().sum()  # noqa: E731 - as short as it can be
    results, beside = 40 * 40 * 8, 50 * 3 * 40 * 8
    with (
        mock.patch("hofunc.plan.planner.propagated", side_effect=AssertionError),
        pytest.raises(hofunc.ArgumentError, match=f"at the least, of which {results} are results") as caught,
    ):
        hofunc.hessian(f, max_bytes=max(results, beside))(x)
    least = int(str(caught.value).split("got ")[1].split()[0])
    assert least > beside
    hofunc.hessian(f, max_bytes=8 * least)(x)


def test_columns_are_not_planned_where_none_can_keep_to_the_limits() -> None:
    f, x = _attention()
    transform = partial(hofunc.hessian, f)
    least = stated(transform(max_bytes=1).plan, x)
    assert least > 1.02 * 180 * 180 * 8
    for max_bytes, is_planned in ((int(1.02 * 180 * 180 * 8), False), (least - 1, True)):
        watched = mock.patch("hofunc.plan.limited._by_columns", wraps=by_columns)
        with watched as planned, pytest.raises(hofunc.ArgumentError, match="takes more memory than allowed"):
            transform(max_bytes=max_bytes)(x)
        held = [limits for (_, _, limits, *_), _ in planned.call_args_list if not limits.in_pieces]
        assert bool(held) is is_planned, "but for what is handed over, which may be named"


def test_columns_are_not_planned_where_one_leaves_no_room_for_what_it_makes() -> None:
    """Neither where results are held, nor where they are handed over, beside what f computes and a column."""
    weight, x = rand(CPU, 6, 400), rand(CPU, 6)

    def f(x: Tensor) -> Tensor:
        return (x @ weight).tanh().square().sum()

    with pytest.raises(hofunc.ArgumentError, match="at the least") as caught:
        hofunc.hessian(f, max_bytes=1)(x)
    beside, results, column = int(str(caught.value).split("got ")[1].split()[0]), 6 * 6 * 8, 6 * 8
    watched = mock.patch.object(Columns, "drawn", autospec=True, side_effect=drawn)
    for room in (column - 1, results + column - 1):
        with (
            watched as called,
            pytest.raises(hofunc.ArgumentError, match=rf"got {beside + results + column} ") as found,
        ):
            hofunc.hessian(f, max_bytes=beside + room)(x)
        assert {call.args[4].in_pieces for call in called.mock_calls} <= {room >= column}, "but for what is handed over"
        assert f"to {beside + results + column} at the least" in str(found.value)


def test_what_is_planned_where_memory_is_limited_is_counted() -> None:
    """Where it fits by columns, none is planned besides that should run longer; where nothing does, each is once.

    Forward, which should run far longer, makes far more as well.
    """
    f, x = _attention()
    results = 180 * 180 * 8
    counts = []
    for max_bytes in (3 * results, int(1.1 * results), int(1.02 * results)):
        with (
            mock.patch("hofunc.plan.planner.propagated", wraps=propagated) as whole,
            mock.patch("hofunc.plan.lean._in_loops", wraps=lean._in_loops) as looped,
            mock.patch.object(Columns, "drawn", autospec=True, side_effect=drawn) as columns,
            suppress(hofunc.ArgumentError),
        ):
            hofunc.hessian(f, max_bytes=max_bytes)(x)
        names = [call.args[3] for call in whole.call_args_list]
        counts.append((names, looped.call_count, columns.call_count))
    ways = ["mixed", "mixed"]  # as scores are replaced or not
    named = [*ways, "reverse", *ways]  # as terms in the end, which may be named
    assert counts == [(ways, 1, 1), (named, 0, 4), (named, 1, 2)]  # what is handed over, by one strategy


def test_strategies_that_hold_far_too_much_along_slots_are_not_tried_by_columns() -> None:
    """Of a deep network they hold derivatives of each layer by all coordinates, also where one column is multiplied."""
    weights = [rand(CPU, 30, 40) / 4, *(rand(CPU, 40, 40) / 4 for _ in range(12))]
    x = rand(CPU, 30)

    def f(x: Tensor) -> Tensor:
        for weight in weights:
            x = (x @ weight).tanh()
        return x.square().sum()

    tried, leasts = [], []
    for hopeless in (inf, HOPELESS):
        watched = mock.patch.object(Columns, "drawn", autospec=True, side_effect=drawn)
        with mock.patch("hofunc.plan.limited.HOPELESS", hopeless), watched as called:
            leasts.append(stated(hofunc.hessian(f, max_bytes=3 * 30 * 30 * 8), x))
        tried.append({call.args[2] for call in called.mock_calls})
    assert tried == [{"reverse", "mixed", "forward"}, {"reverse"}]
    assert leasts[0] == leasts[1]
    assert relative_error(hofunc.hessian(f, max_bytes=leasts[1])(x), nested_reverse(f, 2)(x)) < 1e-12


def test_edges_are_taken_some_at_a_time() -> None:
    """All that leads from positions to pairs, and from these to the result, for f too where a plan runs it."""
    i, j = torch.triu_indices(40, 40, 1)
    x = rand(CPU, 40, 3)

    def energy(x: Tensor) -> Tensor:
        s = (x[i] - x[j]).square().sum(-1) ** -1.5
        return (s * s - s.sigmoid()).sum()

    whole, expected = hofunc.hessian(energy).plan(x), torch.func.hessian(energy)(x)
    limit = _bytes(expected) + (whole.peak_bytes - _bytes(expected)) // 10
    plan = hofunc.hessian(energy, max_bytes=limit).plan(x)
    assert plan.peak_bytes <= limit
    assert taken(lambda: plan(x)) <= 1.03 * limit + SLACK
    assert relative_error(plan(x), expected) < 1e-12
    xs = torch.stack([x, x.sin()])
    assert relative_error(torch.func.vmap(plan)(xs), torch.func.vmap(torch.func.hessian(energy))(xs)) < 1e-12
    slope = torch.func.grad(lambda x: torch.func.hessian(energy)(x).sin().sum())(x)
    assert relative_error(torch.func.grad(lambda x: plan(x).sin().sum())(x), slope) < 1e-12
    smallest = hofunc.hessian(energy, max_bytes=1)
    for limited in (smallest.plan, smallest):
        least = stated(limited, x)
        assert least < 0.9 * whole.peak_bytes
        transform = hofunc.hessian(energy, max_bytes=least)
        call: Callable[[Tensor], Any] = transform if limited is smallest else transform.plan(x)
        assert relative_error(call(x), expected) < 1e-12
        assert taken(lambda: call(x)) <= 1.03 * least + SLACK  # noqa: B023 - called at once


def test_edges_of_messages_are_taken_some_at_a_time() -> None:
    i, j = torch.nonzero(torch.rand(30, 30, generator=torch.Generator().manual_seed(0)) < 0.3, as_tuple=True)
    x, weight = rand(CPU, 30, 3), rand(CPU, 3, 16, seed=1)

    def energy(x: Tensor) -> Tensor:
        messages = (((x[i] - x[j]) @ weight).tanh() * x[j].sum(1, keepdim=True)).square()
        return x.new_zeros(30, 16).index_add(0, i, messages).exp().sum()

    whole, expected = hofunc.hessian(energy).plan(x), torch.func.hessian(energy)(x)
    smallest = hofunc.hessian(energy, max_bytes=1).plan
    for limit in (stated(smallest, x), whole.peak_bytes * 3 // 4):
        plan = hofunc.hessian(energy, max_bytes=limit).plan(x)
        assert plan.peak_bytes <= limit
        assert taken(lambda: plan(x)) <= 1.03 * limit + SLACK  # noqa: B023 - called at once
        assert relative_error(plan(x), expected) < 1e-12
