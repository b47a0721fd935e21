"""The values of graphs of which some were kept."""

import torch
from torch import Tensor

from hofunc.graph.recording import Recording
from hofunc.graph.stood_in import StandIns
from hofunc.graph.values import Recomputed, Values
from tests.cases import rand
from tests.graph.recordings import recorded

CPU = torch.device("cpu")


def several(x: Tensor) -> Tensor:
    low, high = x.exp().unbind(0)
    return (low * high).sin()


def values_of(recording: Recording, computed: Recomputed) -> Values:
    """Return the values of a recording of which the inputs alone are kept."""
    held = {number: recording.values[number] for number in recording.graph.inputs}
    return Values(recording.graph, held, len(recording.graph.nodes), computed=computed)


def test_values_are_computed_in_whatever_order_they_are_asked_for() -> None:
    recording = recorded(several, rand(CPU, 2, 3))
    numbers = [node.number for node in recording.graph.nodes]
    computed = Recomputed(recording.graph, frozenset(recording.graph.inputs))
    for order in (numbers, numbers[::-1], numbers[1::2] + numbers[::2]):
        values = values_of(recording, computed)  # of which some were computed for another one of before
        for number in order:
            torch.testing.assert_close(values[number], recording.values[number], rtol=0, atol=0)


def test_values_that_were_computed_are_the_same_ones_afterwards() -> None:
    recording = recorded(several, rand(CPU, 2, 3))
    last = recording.graph.outputs[0]
    values = values_of(recording, Recomputed(recording.graph, frozenset(recording.graph.inputs)))
    first = values[last]
    assert all(values[number] is values[number] for number in range(len(values)))
    assert values[last] is first


def test_what_is_before_those_that_are_held_is_not_computed() -> None:
    """Under a transform they are known once one is asked for."""
    recording = recorded(lambda x: x.exp().sin().cos(), rand(CPU, 3))
    *_, before, last = recording.graph.nodes
    known = {before.number: recording.values[before.number]}
    values = StandIns(recording.graph, known)
    torch.testing.assert_close(values[last.number], recording.values[last.number], rtol=0, atol=0)
    assert values.by_number.keys() == {before.number, last.number}
