"""Recording plain functions of tensors, and replaying what was recorded."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor
from torch.utils._pytree import tree_leaves

from hofunc.graph import asking
from hofunc.graph import record as recorder
from hofunc.graph.node import CONSTANT, Node
from hofunc.graph.record import made_recordable, record
from hofunc.graph.recording import Recording, replay
from verification.oracles import relative_error


def recorded(f: Callable[..., Any], *inputs: Tensor) -> Recording:
    """Record f(*inputs)."""
    return made_recordable(lambda follow: record(lambda leaves, _: f(*leaves), inputs, follow=follow))


def recorded_under(
    outer: Callable[[Callable[..., Any]], Callable[..., Any]], f: Callable[..., Any], *inputs: Tensor
) -> Recording:
    """Record f inside an outer transform that is applied to the inputs."""
    recordings: list[Recording] = []

    def g(*inputs: Tensor) -> Tensor:
        recordings.append(recorded(f, *inputs))
        return inputs[0].sum()

    outer(g)(*inputs)
    return recordings[0]


def computed(recording: Recording) -> list[Node]:
    """Return the nodes that an op computes."""
    return [node for node in recording.graph.nodes if not node.is_given]


def ops(recording: Recording) -> list[str]:
    """Return the names of the ops that were recorded, in order."""
    return [str(node.op).removeprefix("aten.") for node in computed(recording)]


def replayed(recording: Recording, *inputs: Tensor) -> list[Tensor]:
    """Return the outputs at other inputs, the constants being as they were."""
    pairs = zip(recording.graph.nodes, recording.values, strict=True)
    values = replay(recording.graph, inputs, {node.number: value for node, value in pairs if node.op is CONSTANT})
    return [values[output] for output in recording.graph.outputs]


def check_replay(f: Callable[..., Any], inputs: Sequence[Tensor], others: Sequence[Tensor]) -> Recording:
    """Record f at inputs, and check its values there, and those of the replay at other inputs."""
    recording = recorded(f, *inputs)
    values = [recording.values[output] for output in recording.graph.outputs]
    assert relative_error(values, [leaf for leaf in tree_leaves(f(*inputs)) if isinstance(leaf, Tensor)]) == 0
    assert relative_error(replayed(recording, *others), tree_leaves(f(*others))) < 1e-14
    return recording


class Ways(list[bool]):
    """Whether recordings went by calls."""


def ways_of(monkeypatch: pytest.MonkeyPatch, name: str) -> Ways:
    """Take note of what a function of `record` returns that records by calls if it can, with nothing met before."""
    found, recorded = Ways(), getattr(recorder, name)

    def noted(*args: Any, **options: Any) -> Recording | None:
        recording: Recording | None = recorded(*args, **options)
        found.append(recording is not None)
        return recording

    def noted_once(*args: Any) -> Recording | None:
        before, recording = len(found), recorder.recorded_again(*args)
        if recording is None:  # after which it is recorded in another way
            del found[before:]
        return recording

    monkeypatch.setattr(recorder, name, noted)
    monkeypatch.setattr("hofunc.transform.recorded_again", noted_once)
    asking._met.clear()
    return found
