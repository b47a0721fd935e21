"""The cache of plans: what is found again, what is not, and what it keeps alive."""

import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.planner import Quick
from hofunc.run import cache
from hofunc.run.cache import Planned, forget, planned
from tests.cases import mixed, rand
from tests.graph.recordings import recorded
from tests.plan.plans import lowered_plan
from verification.memory import stated
from verification.oracles import nested_reverse, relative_error


@pytest.fixture(autouse=True)
def plans() -> OrderedDict:
    """Start every test with an empty cache."""
    forget()
    return cache._plans


def found(f: Callable[..., Any], *inputs: Tensor, orders: tuple[int, ...] = (2,), **options: Any) -> Planned:
    """Return the plan of f at some inputs."""
    recording = recorded(f, *inputs)
    return planned(recording.graph, recording.values, orders, **{"compact": False, "replayed": False, **options})


def branching(x: Tensor) -> Tensor:
    return mixed(x) if x.sum() > 0 else x.exp().sum()


# Hits and misses.


def test_the_same_structure_is_the_same_plan(device: torch.device, plans: OrderedDict) -> None:
    first = found(mixed, rand(device, 3))
    assert found(mixed, rand(device, 3, seed=1)) is first
    assert found(lambda x: (x * x * torch.sin(x)).sum(), rand(device, 3)) is first, "it is not the function that counts"
    assert len(plans) == 1


def test_captured_tensors_are_no_part_of_the_structure(device: torch.device) -> None:
    def network(seed: int) -> Callable[[Tensor], Tensor]:
        weight = rand(device, 3, 2, seed=seed)
        return lambda x: (x @ weight).tanh().sum()

    assert found(network(1), rand(device, 4, 3)) is found(network(2), rand(device, 4, 3))
    x = rand(device, 4, 3)
    for seed in range(2):
        assert relative_error(hofunc.hod(network(seed), 2)(x), nested_reverse(network(seed), 2)(x)) < 1e-12


def test_a_plan_is_of_any_strides(device: torch.device, plans: OrderedDict) -> None:
    """The flat places of max_unpool2d are views, which other strides do not allow."""
    x, index = rand(device, 2, 3, 2, 2), torch.arange(0, 16, 4, device=device).reshape(2, 2).expand(2, 3, 2, 2)

    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.max_unpool2d(x, index.contiguous(memory_format=layout), [2, 2]).square()

    layout = torch.contiguous_format
    expected = hofunc.hod(f, 2)(x)
    layout = torch.channels_last
    assert torch.equal(hofunc.hod(f, 2)(x.contiguous(memory_format=layout)), expected)
    assert len(plans) == 1


def test_another_structure_is_another_plan(device: torch.device, plans: OrderedDict) -> None:
    x = rand(device, 3).abs()
    others = [
        found(mixed, x),
        found(mixed, rand(device, 4)),
        found(mixed, rand(device, 3, 1)),
        found(mixed, x.float()),
        found(lambda x: mixed(x) * 2, x),
        found(lambda x: mixed(x) * 3, x),
        found(lambda x: mixed(x) / 0.0, x),
        found(lambda x: mixed(x) / -0.0, x),
        found(mixed, x, orders=(1,)),
        found(mixed, x, orders=(1, 2)),
        found(mixed, x, compact=True),
        found(mixed, x, replayed=True),
        found(lambda x: (mixed(x), x), x),
    ]
    assert len({id(plan) for plan in others}) == len(others) == len(plans)


def test_another_branch_is_another_plan(device: torch.device) -> None:
    x = rand(device, 3).abs()
    assert found(branching, x) is found(branching, 2 * x)
    assert found(branching, x) is not found(branching, -x)
    for point in (x, -x, x):
        assert relative_error(hofunc.hod(branching, 2)(point), nested_reverse(branching, 2)(point)) < 1e-12


def test_transforms_find_the_plan_of_the_member(device: torch.device, plans: OrderedDict) -> None:
    """The recording of a stand-in does not depend on the size of the batch."""
    for batch in (2, 5):
        torch.func.vmap(hofunc.hod(mixed, 2))(rand(device, batch, 3))
    assert len(plans) == 1


# Bounds.


def test_the_plan_not_used_for_longest_goes_first(
    device: torch.device, plans: OrderedDict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_PLANS", 3)
    sizes = {size: found(mixed, rand(device, size)) for size in (1, 2, 3)}
    assert found(mixed, rand(device, 1)) is sizes[1]
    found(mixed, rand(device, 4))
    assert len(plans) == 3
    assert found(mixed, rand(device, 1)) is sizes[1]
    assert found(mixed, rand(device, 3)) is sizes[3]
    assert found(mixed, rand(device, 2)) is not sizes[2]
    assert len(plans) == 3


def test_plans_are_bounded_in_bytes(device: torch.device, plans: OrderedDict) -> None:
    first = found(mixed, rand(device, 3))
    with hofunc.options(cache_bytes=3 * first.bytes):
        for size in range(4, 12):
            found(mixed, rand(device, size))
        assert len(plans) == 3
        assert found(mixed, rand(device, 11)) is next(reversed(plans.values()))
        assert found(mixed, rand(device, 3)) is not first


def test_a_plan_larger_than_the_bound_is_kept_until_the_next(device: torch.device, plans: OrderedDict) -> None:
    with hofunc.options(cache_bytes=0):
        first = found(mixed, rand(device, 3))
        assert found(mixed, rand(device, 3)) is first
        found(mixed, rand(device, 4))
        assert len(plans) == 1


def test_variants_of_a_plan_are_bounded(device: torch.device, plans: OrderedDict) -> None:
    def f(x: Tensor) -> Tensor:
        return ((x * x).index_put((mask,), x.sum()[None]) ** 3).sum()

    x = rand(device, 12)
    for count in range(8):
        mask = torch.arange(12, device=device) <= count
        found(f, x)
    mask = torch.arange(12, device=device) >= 6
    made = found(f, x)
    assert found(f, x) is made
    mask = torch.arange(12, device=device) >= 1
    found(f, x)
    (first,) = plans.values()
    assert len([*cache._variants(first)]) == cache.MOST_VARIANTS


def test_nothing_of_a_call_is_kept_alive(device: torch.device, plans: OrderedDict) -> None:
    def call() -> list[weakref.ref]:
        x, weight = rand(device, 4, 3), rand(device, 3, 3, seed=1)

        def f(x: Tensor) -> Tensor:
            y = x @ weight
            y[0] = y[1]
            return (y.softmax(1).reshape(3, 4).cumsum(1) * weight[0, 0]).sum()

        result = hofunc.hod(f, 2)(x)
        mapped = torch.func.vmap(hofunc.hod(lambda row: mixed(row @ weight), 2))(x)
        return [weakref.ref(tensor) for tensor in (x, weight, result, mapped)]

    references = call()
    gc.collect()
    assert len(plans) == 2
    assert [reference() for reference in references] == [None] * 4


# Threads.


@pytest.mark.filterwarnings("ignore::hofunc.PlanningWarning")
def test_threads_share_the_cache(device: torch.device, plans: OrderedDict, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for fewer plans than the threads use, so that they push out each other's."""
    monkeypatch.setattr(cache, "MAX_PLANS", 2)
    points = {size: rand(device, size) for size in range(1, 5)}
    expected = {size: nested_reverse(mixed, 2)(x) for size, x in points.items()}
    errors: list[float] = []

    def work(first: int) -> None:
        for step in range(20):
            size = (first + step) % 4 + 1
            errors.append(relative_error(hofunc.hod(mixed, 2)(points[size]), expected[size]))

    threads = [Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 80
    assert max(errors) < 1e-12
    assert len(plans) == 2


def test_forgotten_plans_are_made_anew(device: torch.device, plans: OrderedDict) -> None:
    x = rand(device, 3)
    expected = hofunc.hessian(mixed)(x)
    (made,) = plans.values()
    forget()
    assert not plans
    assert torch.equal(hofunc.hessian(mixed)(x), expected)
    (anew,) = plans.values()
    assert anew is not made


def test_a_plan_without_steps(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a strategy is left out of one that has nothing to run."""
    x = rand(device, 3)
    made = lowered_plan(lambda x: x * 2, x)

    def quickly(*_: Any, **__: Any) -> Quick:
        return Quick(made, 100, 1)

    monkeypatch.setattr(cache, "quickly", quickly)
    assert made.run_cost.seconds == 0
    for _ in range(3):
        assert not hofunc.hessian(lambda x: x * 2)(x).any()


def test_what_the_function_computed_counts_until_it_was_read_last() -> None:
    first, second = torch.triu_indices(64, 64, 1)

    def energy(x: Tensor) -> Tensor:
        inverse = 1 / (x[first] - x[second]).square().sum(-1) ** 3
        return (4 * (inverse * inverse - inverse)).sum()

    x = torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    needed = hofunc.hessian(energy).plan(x).peak_bytes
    got = hofunc.hessian(energy, max_bytes=needed + needed // 50)(x)
    torch.testing.assert_close(got, torch.func.hessian(energy)(x))
    followed = x.clone().requires_grad_()  # of which autograd keeps what was computed
    smallest = hofunc.hessian(energy, max_bytes=1)
    assert stated(smallest, x) < stated(smallest, followed)


def test_calls_that_hold_more_or_less_of_the_function_have_one_plan(plans: OrderedDict) -> None:
    gates = torch.nn.LSTM(3, 4).double().requires_grad_(False)  # written in place, copied before at the first calls

    def f(x: Tensor) -> Tensor:
        return gates(x)[0].square().sum()

    x = rand(torch.device("cpu"), 5, 1, 3)
    expected = hofunc.hessian(f)(x)
    plans.clear()
    limited, refused = hofunc.hessian(f, max_bytes=1 << 20), hofunc.hessian(f, max_bytes=1)
    said = set()
    for _ in range(5):
        torch.testing.assert_close(limited(x), expected)
        with pytest.raises(hofunc.ArgumentError, match="takes more memory than allowed") as caught:
            refused(x)
        said.add(str(caught.value).split("(called at")[0])
    assert len(plans) == len(said) == 1
