"""What plans hold: their tensors, each once, wherever they are kept."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hofunc.run.cache import Planned, planned
from hofunc.run.weight import STEP_BYTES, _tensors, bytes_held
from tests.cases import mixed, rand
from tests.graph.recordings import recorded


def made(size: int, device: torch.device) -> Planned:
    def f(x: Tensor) -> Tensor:
        return functional.interpolate(x[None, None], size=4, mode="linear").square().sum()

    recording = recorded(f, rand(device, size))
    return planned(recording.graph, recording.values, (2,), compact=False, replayed=False)


def test_literal_matrices_count(device: torch.device) -> None:
    small, large = (bytes_held(made(size, device).plan) for size in (100, 1000))
    assert large - small >= 4 * 900 * 8


def test_steps_count(device: torch.device) -> None:
    recording = recorded(mixed, rand(device, 3))
    plan = planned(recording.graph, recording.values, (2,), compact=False, replayed=False).plan
    assert bytes_held(plan) >= STEP_BYTES * (len(plan.program.steps) + len(plan.lowered.graph.nodes))


def test_tensors_are_found_wherever_they_are() -> None:
    tensors = [torch.zeros(number) for number in range(6)]

    def closed_over(_: Tensor = tensors[0]) -> Tensor:
        return tensors[1]

    holders = [closed_over, partial(closed_over, tensors[2]), {"a": (tensors[3], [tensors[4]])}, tensors[5].add_]
    found = [*_tensors([holders, holders])]
    assert {*map(id, found)} == {*map(id, tensors)}
    assert len(found) == len(tensors)


def test_a_function_whose_closure_lacks_something_holds_the_rest() -> None:
    tensor = torch.zeros(2)

    def waiting() -> tuple[Tensor, Tensor]:
        return tensor, later

    assert list(map(id, _tensors(waiting))) == [id(tensor)]
    later = tensor
