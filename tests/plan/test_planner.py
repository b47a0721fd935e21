"""Plans: the dtype to compute in, where results are, whose memory they have, and which strategy is taken."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import packing, planner
from hofunc.plan.planner import STRATEGIES, Plan, computing_dtype, copied, plan
from hofunc.rules.lower import lower
from tests.cases import mixed, rand
from tests.graph.recordings import recorded
from tests.plan.plans import lowered_plan, names


@pytest.mark.parametrize(
    ("dtype", "f", "expected"),
    [
        (torch.float64, torch.sin, torch.float64),
        (torch.float32, torch.sin, torch.float32),
        (torch.float16, torch.sin, torch.float32),
        (torch.bfloat16, torch.sin, torch.float32),
        (torch.float32, lambda x: x.double().sin().float(), torch.float64),
        (torch.float16, lambda x: x.bfloat16() * 2, torch.float32),
    ],
)
def test_the_dtype_to_compute_in(
    dtype: torch.dtype, f: Callable[..., Any], expected: torch.dtype, device: torch.device
) -> None:
    recording = recorded(f, rand(device, 3).to(dtype))
    lowered = lower(recording.graph, recording.values)
    assert computing_dtype(lowered) == expected


@pytest.mark.parametrize("compact", [True, False])
def test_results_are_cast_to_the_dtype_of_the_output(compact: bool, device: torch.device) -> None:
    x = rand(device, 3).half()
    plan = lowered_plan(lambda x: x.exp(), x, orders=(1,), compact=compact)
    assert names(plan.program)[-1] in {"to", "copied", "clone"}
    got = hofunc.hod(torch.exp, 1, layout="compact" if compact else "dense")(x)
    assert got.dtype == torch.float16


def test_every_block_has_a_place(device: torch.device) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x.exp() * y.sin()).sum()

    inputs = rand(device, 3), rand(device, 3, seed=1)
    dense = lowered_plan(f, *inputs, orders=(1, 2))
    assert sorted(dense.dense.values()) == list(range(5))
    assert len(dense.program.outputs) == 5
    assert dense.terms == {}
    compact = lowered_plan(f, *inputs, orders=(1, 2), compact=True)
    sources = [factor.source for terms in compact.terms.values() for term in terms for factor in term.factors]
    assert sorted(sources) == list(range(len(compact.program.outputs)))
    assert compact.dense == {}


def _and_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x[None]


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: w @ x,  # a recorded value
        lambda x, w: w.t() @ x,
        lambda x, w: x.sum() * x.new_ones(()),  # a broadcast
        lambda x, w: (x.exp(), x.exp()),  # one value twice
        lambda x, w: _and_a_view(x.exp()),
        lambda x, w: (w @ x, (w @ x) * 1, w @ x + 1),
        lambda x, w: x,
        lambda x, w: x * w[0],
        lambda x, w: (x * x).sum(),
    ],
)
def test_dense_results_share_memory_with_nothing(f: Callable[..., Any], device: torch.device) -> None:
    x, w = rand(device, 3), rand(device, 3, 3, seed=1)
    results = hofunc.jacobian(lambda x: f(x, w))(x)
    tensors = [x, w, *(results if isinstance(results, tuple) else (results,))]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)
    for tensor in tensors[2:]:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_copies_for_different_results_are_different_steps(device: torch.device) -> None:
    x = rand(device, 2, 3).t()
    assert copied(x, 0).is_contiguous()
    w = rand(device, 3, 3)
    plan = lowered_plan(lambda x: (w @ x, w @ x), rand(device, 3), orders=(1,))
    assert names(plan.program) == ["copied", "copied"]


# The choice of a strategy; another device may choose otherwise.

CPU = torch.device("cpu")


def plans(f: Callable[..., Any], *inputs: Tensor, order: int = 2, strategy: str = "auto") -> dict[str, Plan]:
    """Plan the derivatives of f by all its inputs; by strategy, the one that is chosen first."""
    recording = recorded(f, *inputs)
    made = plan(lower(recording.graph, recording.values), (order,), compact=True, strategy=strategy)
    return {one.strategy: one for one in made}


def tanh_network(*widths: int) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Return a network as a function of an input and its weights, and weights."""

    def f(x: Tensor, *weights: Tensor) -> Tensor:
        for weight in weights[:-1]:
            x = (x @ weight).tanh()
        return (x @ weights[-1]).squeeze(-1)

    return f, [rand(CPU, *shape, seed=seed) for seed, shape in enumerate(pairwise(widths))]


@pytest.mark.parametrize(("order", "less"), [(2, 10), (3, 300)])
def test_a_field_over_points_is_mixed(order: int, less: int) -> None:
    """Two directions in 64 wide layers: reverse has blocks of 64^order for every point, mixed of 2^order."""
    f, weights = tanh_network(2, 64, 64, 1)
    found = plans(lambda x: f(x, *weights), rand(CPU, 256, 2), order=order)
    assert [*found] == ["mixed", "forward", "reverse"]
    assert less * found["mixed"].cost.flops < found["reverse"].cost.flops
    assert less * found["mixed"].cost.peak_bytes < 2 * found["reverse"].cost.peak_bytes
    assert found["mixed"].cost.flops < found["forward"].cost.flops


def test_the_hessian_by_parameters_is_reverse() -> None:
    f, weights = tanh_network(4, 8, 3)
    x, labels = rand(CPU, 16, 4), torch.arange(16, device=CPU) % 3
    found = plans(lambda *weights: torch.nn.functional.cross_entropy(f(x, *weights), labels), *weights)
    assert [*found] == ["reverse", "mixed", "forward"]
    assert found["reverse"].cost.flops < found["mixed"].cost.flops < found["forward"].cost.flops


def test_a_curve_in_many_dimensions_is_not_reverse() -> None:
    """One direction, and as many outputs as you like."""
    f, weights = tanh_network(1, 16, 16, 50)
    found = plans(lambda t: f(t, *weights), rand(CPU, 1), order=4)
    assert [*found][-1] == "reverse"


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_least_estimated_time_comes_first(order: int) -> None:
    f, weights = tanh_network(2, 6, 5, 1)
    found = plans(f, rand(CPU, 9, 2), *weights, order=order)
    assert {*found} == ({"reverse", "forward"} if order == 1 else {*STRATEGIES}), "at order 1 mixed is reverse"
    times = [made.run_cost.seconds for made in found.values()]
    assert times == sorted(times)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_that_is_asked_for_is_taken(strategy: str, device: torch.device) -> None:
    for order in (1, 2):
        assert [*plans(mixed, rand(device, 3), order=order, strategy=strategy)] == [strategy]


def test_a_strategy_that_does_not_apply_is_left_out(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> Tensor:
        return x.prod().sin()

    monkeypatch.setattr(packing, "MAX_ENTRIES", 8)
    assert {*plans(f, rand(device, 2), order=3)} == {*STRATEGIES}
    assert {*plans(f, rand(device, 3), order=3)} == {"reverse"}
    for strategy in ("forward", "mixed"):
        with pytest.raises(packing.DirectionsError):
            plans(f, rand(device, 3), order=3, strategy=strategy)


# Which axes are a batch.


def tried(
    f: Callable[..., Any], *inputs: Tensor, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> list[list[list[int]]]:
    """Return the batch axes of every input that a strategy was tried with, in turn."""
    found: list[list[list[int]]] = []
    original = getattr(planner, strategy)

    def noting(builder: Any, local: Any, variables: dict[int, packing.Variable], orders: Any) -> Any:
        found.append([sorted(variable.batch) for variable in variables.values()])
        return original(builder, local, variables, orders)

    monkeypatch.setattr(planner, strategy, noting)
    plans(f, *inputs, order=3, strategy=strategy)
    return found


@pytest.mark.parametrize("strategy", ["forward", "mixed"])
@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda x: x.sin().exp(), [[[0, 1]]]),
        (lambda x: (x.sin() * x).sum(), [[[0, 1]]]),
        (lambda x: (x @ x.new_ones(3, 2)).tanh(), [[[0, 1]], [[0]]]),
        (lambda x: (x.new_ones(2, 4) @ x).tanh(), [[[0, 1]], [[1]]]),
        (lambda x: x.prod(1).sum(), [[[0, 1]], [[0]]]),
        (lambda x: x.sum().sin() + x.sin().sum(), [[[0, 1]], [[1]], [[]]]),
        (lambda x: (x @ x.t()).tanh(), [[[0, 1]], [[1]], [[]]]),
    ],
)
def test_an_axis_is_a_batch_until_rows_mix(
    f: Callable[..., Any],
    expected: list[list[list[int]]],
    strategy: str,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert tried(f, rand(device, 4, 3), strategy=strategy, monkeypatch=monkeypatch) == expected


@pytest.mark.parametrize("strategy", ["forward", "mixed"])
def test_each_input_has_batch_axes_of_its_own(
    strategy: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x.sin() @ w).exp()

    inputs = rand(device, 4, 3), rand(device, 3, seed=1)
    sequence = tried(f, *inputs, strategy=strategy, monkeypatch=monkeypatch)
    assert sequence[0] == [[0, 1], [0]]
    assert sequence[-1] == [[0], []]
    assert len(sequence) == 3
    x, y = rand(device, 4), rand(device, 4, seed=1)
    field = tried(lambda x, y: (x * y).sin().sum(), x, y, strategy=strategy, monkeypatch=monkeypatch)
    assert field == [[[0], [0]]], "two inputs may share a batch"
