"""Marks of what varies: computed for what is to be settled only, in every way to run a plan."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import activity
from hofunc.plan.activity import unlike_each_other
from hofunc.plan.blocks import local_blocks
from hofunc.plan.blueprint import Limits, drawn
from hofunc.plan.strategies import propagated
from hofunc.rules.lower import lower
from tests.graph.recordings import recorded
from tests.plan.plans import lowered_plan, names
from verification.oracles import nested_reverse

Function = Callable[[Tensor], Tensor]

MIXING: dict[str, Function] = {
    "product": lambda x: (x.relu() @ x.new_tensor([[1.0, 2.0], [0.5, 1.0], [2.0, 3.0]])).sqrt(),
    "cat": lambda x: torch.cat([x.relu(), x * x]).sqrt(),
    "running sum": lambda x: x.relu().cumsum(0).sqrt(),
    "norm": lambda x: x.relu().reshape(1, 3).square().sum(1).sqrt(),
}
POINTS = ((-3.0, -0.4, 0.2), (-1.0, -2.0, -0.5), (0.3, 0.1, 0.7), (0.5, -0.1, 0.6))


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("mixing", MIXING)
def test_every_way_to_run_a_plan(mixing: str, strategy: str, device: torch.device) -> None:
    rows = torch.tensor(POINTS, dtype=torch.float64, device=device)

    def f(x: Tensor) -> Tensor:
        return MIXING[mixing](x).sum()

    expected = torch.stack([nested_reverse(f, 2)(row) for row in rows])
    hessian = hofunc.hod(f, 2, strategy=strategy)
    plan = hessian.plan(rows[0])
    module = plan.to_fx()
    for found in (hessian, plan, lambda row: module(row)[0]):
        torch.testing.assert_close(torch.stack([found(row) for row in rows]), expected)
    torch.testing.assert_close(torch.func.vmap(hessian)(rows), expected)
    compact = hofunc.hod(torch.func.vmap(f), 2, strategy=strategy, layout="compact", chunk_size=3)(rows)
    torch.testing.assert_close(torch.stack([compact.dense()[row, row, :, row] for row in range(4)]), expected)


@pytest.mark.parametrize(
    ("f", "has_marks"),
    [
        (lambda x: (x.relu() @ x.relu()).sqrt(), True),
        (lambda x: x.relu() @ x.relu(), False),
        (lambda x: (x @ x).sqrt(), False),
        (lambda x: (x.relu() @ x.relu() + 1).sqrt(), False),
    ],
)
def test_marks_are_for_singularities_behind_masks(f: Function, has_marks: bool) -> None:
    steps = names(lowered_plan(f, torch.ones(3)).program)
    assert ("marked" in steps) == has_marks


def test_marks_of_a_loop_are_worked_out_once() -> None:
    def planned(steps: int) -> tuple[int, int]:
        def f(x: Tensor) -> Tensor:
            state = torch.cat([x, x.new_ones(2)])
            for _ in range(steps):
                state = (state * state.roll(1) + 1).sqrt()
            return state.sum()

        recording = recorded(f, torch.ones(3))
        lowered = lower(recording.graph, recording.values, 2)
        builder, blocks = propagated(lowered, local_blocks(lowered, 2), (2,), "mixed")
        made = drawn(builder, blocks, "mixed", compact=True, limits=Limits())
        worked_out = [key for key in builder.recipes if isinstance(key, tuple) and key[0] is activity._joint]
        return len(worked_out), names(made.program).count("marked")

    (few, short), (many, long) = planned(4), planned(8)
    assert few == many > 0
    assert long > 1.5 * short


@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_no_difference_of_marks_that_a_map_takes_is_zero(order: int) -> None:
    numbers = unlike_each_other(torch.ones(2000, dtype=torch.float32))
    assert numbers.min() >= 1
    assert bool((numbers.diff(n=order) != 0).all())
    assert not unlike_each_other(torch.zeros(3)).any()
