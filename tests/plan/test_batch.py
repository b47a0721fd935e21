"""The first node at which the leading axis of an input is lost, and why."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hofunc.plan.batch import first_loss
from hofunc.rules.lower import lower
from tests.cases import rand
from tests.graph.recordings import recorded


def loss(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[str, str] | None:
    """Return the op at which f loses the leading axis of x, and the reason."""
    recording = recorded(f, x)
    lowered = lower(recording.graph, recording.values, 1)
    found = first_loss(lowered, lowered.graph.inputs[0])
    return None if found is None else (str(lowered.graph.nodes[found.node].op), found.reason)


@pytest.mark.parametrize(
    ("f", "op", "reason"),
    [
        (lambda x: x.sin().sum(0), "sum.dim_IntList", "sums over axis 0 of its operand"),
        (lambda x: (x.mT @ x).sin(), "mm.default", "mixes the rows along axis 1 of its operand"),
        (lambda x: x.sin().mT @ x.new_ones(4), "mv.default", "contracts axis 1 of its operand with another tensor"),
        (lambda x: x.sin().cumsum(0), "cumsum.default", "moves what lies along axis 0 of its operand"),
    ],
)
def test_why_it_is_lost(f: Callable[[Tensor], Tensor], op: str, reason: str, device: torch.device) -> None:
    assert loss(f, rand(device, 4, 3)) == (f"aten.{op}", reason)


@pytest.mark.parametrize(
    "f", [torch.sin, lambda x: x.softmax(1), lambda x: x @ x.new_ones(3, 2), lambda x: x.t().exp().cumsum(0)]
)
def test_where_it_is_kept(f: Callable[[Tensor], Tensor], device: torch.device) -> None:
    assert loss(f, rand(device, 4, 3)) is None


def test_an_axis_of_one_element_is_not_lost(device: torch.device) -> None:
    assert loss(lambda x: x.sin().sum(0), rand(device, 1, 3)) is None
