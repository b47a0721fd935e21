"""How many entries derivatives have for each element of a node, counted by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hofunc.plan.blocks import local_blocks
from hofunc.plan.widths import widths
from hofunc.rules.lower import lower
from tests.cases import rand
from tests.graph.recordings import recorded

CPU = torch.device("cpu")
ROWS = torch.ones(5, 2, dtype=torch.float64)
RING = torch.eye(5, dtype=torch.float64).roll(1, 0)
SQUARE = torch.ones(3, 3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (lambda w: torch.tanh(w) * w, 1),
        (lambda w: w.sum(), 6),
        (lambda w: w.sum(0), 2),
        (lambda w: (w.T * 2).reshape(-1), 1),
        (lambda w: torch.tanh(ROWS @ w), 2),
        (lambda w: RING @ torch.tanh(ROWS @ w), 2),
        (lambda w: torch.tanh(ROWS @ w) @ SQUARE, 6),
        (lambda w: torch.softmax(w, 1), 3),
        (lambda w: w + torch.softmax(w, 1), 3),
        (lambda w: w[1], 1),
        (lambda w: torch.cat([w, w.exp()]), 1),
    ],
)
def test_entries_for_each_element_of_a_matrix_of_two_by_three(f: Callable[[Tensor], Tensor], expected: int) -> None:
    recording = recorded(f, rand(CPU, 2, 3))
    lowered = lower(recording.graph, recording.values, 1)
    found = widths(lowered.graph, local_blocks(lowered, 1), {lowered.graph.inputs[0]: (6, 6)})
    assert found[lowered.graph.outputs[0]] == (expected, expected)


def test_inputs_are_counted_one_by_one() -> None:
    """Of one layer after another: the first weight is mixed by the second, which has two entries for each element."""
    recording = recorded(
        lambda v, w, b: torch.tanh(torch.tanh(ROWS @ v) @ w + b), *(rand(CPU, *n) for n in ((2, 2), (2, 3), (3,)))
    )
    lowered = lower(recording.graph, recording.values, 1)
    v, w, b = lowered.graph.inputs[:3]
    sizes = {v: (4, 4), w: (6, 6), b: (3, 3)}
    found = widths(lowered.graph, local_blocks(lowered, 1), sizes)
    assert found[lowered.graph.outputs[0]] == (4 + 2 + 1, 4 + 2 + 1)
