"""Strategies: the dtype to compute in, and which axes of an input they take for a batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc.plan import strategies
from hofunc.plan.forward import Polynomials
from hofunc.plan.strategies import computing_dtype
from hofunc.rules.lower import lower
from tests.cases import rand
from tests.graph.recordings import recorded
from tests.plan.plans import lowered_plan


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
    lowered = lower(recording.graph, recording.values, 1)
    assert computing_dtype(lowered) == expected


# Which axes are a batch.


def tried(
    f: Callable[..., Any], *inputs: Tensor, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> list[list[list[int]]]:
    """Return the batch axes of every input that a strategy was tried with, in turn."""
    found: list[list[list[int]]] = []
    original = getattr(strategies, strategy)

    def noting(polynomials: Polynomials, *others: Any) -> Any:
        found.append([sorted(variable.batch) for variable in polynomials.variables.values()])
        return original(polynomials, *others)

    monkeypatch.setattr(strategies, strategy, noting)
    lowered_plan(f, *inputs, orders=(3,), compact=True, strategy=strategy)
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
        (lambda x: x.sum().sin() + x.sin().sum(), [[[0, 1]], [[]]]),
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
