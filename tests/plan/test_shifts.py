"""What is read at one place of an input is worked out as if it were read at the first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.blocks import local_blocks
from hofunc.plan.strategies import propagated
from hofunc.rules.lower import lower
from tests.cases import rand
from tests.graph.recordings import recorded
from verification.oracles import nested_reverse, relative_error


def gated(x: Tensor) -> Tensor:
    """A recurrence that reads each row by several ops before it meets what it knows of those before."""
    state = x.new_zeros(3)
    for row in x:
        gate = (2 * row.sum()).sigmoid()
        state = gate * state.tanh() + row.flip(0)
    return state.square().sum()


def windows(x: Tensor) -> Tensor:
    """Parts of several lengths from each place on, up to the end."""
    found = [(x[t : t + 1].sin() * x[t : t + 2].sum() + x[t : t + 3].sin().sum()).sum() for t in range(len(x))]
    return torch.stack(found).cumsum(0).tanh().sum()


def entries(x: Tensor) -> Tensor:
    """Single entries, along both axes, and one place read twice."""
    total = x.new_zeros(())
    for t in range(len(x)):
        total = (total + x[t, t % 3].exp() * x[t, 1] - x[-1 - t, 2].exp()).sin()
    return total


def columns(x: Tensor) -> Tensor:
    """Along the second axis, as rows of what is turned, and by parts of a reshaped one."""
    total = x.new_zeros(len(x))
    for column in x.T:
        total = total.sin() + column.cos() * 2
    for part in x.reshape(-1).split(2):
        total = total * part.sin().sum().cos()
    return total.sum()


def layered(x: Tensor) -> Tensor:
    """What a layer, and one that mixes places, make of the sequence, read at each place and put side by side again."""
    weight = torch.linspace(-1, 1, 9).to(x).reshape(3, 3)
    state, found = x.new_zeros(3), []
    for row, column, mixed in zip(x @ weight, (x.T.exp() * x.T).unbind(1), x.cumsum(0), strict=True):
        state = (state.sin() + row) * column + mixed[1].cos()
        found.append(state)
    return (torch.stack(found, 1) * torch.cat(found).reshape(-1, 3).T).sin().sum()


def strided(x: Tensor) -> Tensor:
    """Every second entry, from several places on, of what a layer makes of each row and of each entry."""
    total = x.new_zeros(())
    for made in ((x @ torch.linspace(-1, 1, 9).to(x).reshape(3, 3)).reshape(-1), (2 * x).reshape(-1)):
        for place in range(3):
            total = total.sin() + made[place::2].exp().sum() * made[place]
    return total


@pytest.mark.parametrize("shape", [(7, 3), (4, 3), (1, 3)], ids=str)
@pytest.mark.parametrize(
    ("order", "strategy"), [(1, "forward"), (2, "forward"), (2, "mixed"), (3, "forward"), (3, "mixed")]
)
@pytest.mark.parametrize("f", [gated, windows, entries, columns, layered, strided], ids=lambda f: f.__name__)
def test_derivatives_by_what_is_read_at_places(
    f: Callable[[Tensor], Tensor], order: int, strategy: str, shape: tuple[int, ...], device: torch.device
) -> None:
    x = rand(device, *shape)
    got = hofunc.hod(f, order, strategy=strategy)(x)
    assert relative_error(got, nested_reverse(f, order)(x)) < 1e-10


@pytest.mark.parametrize("strategy", ["forward", "mixed"])
@pytest.mark.parametrize("size", [6, 7, 12])
def test_runs_of_entries_that_are_given_several_axes(size: int, strategy: str, device: torch.device) -> None:
    """From where they start the input cannot be taken apart likewise, unless that is at a row of them."""

    def f(x: Tensor) -> Tensor:
        rows = [x[start : start + 6].reshape(2, 3) for start in range(size - 5)]
        return torch.stack([(each * each[:1].exp()).sin() for each in rows]).square().sum()

    x = rand(device, size)
    assert relative_error(hofunc.hessian(f, strategy=strategy)(x), nested_reverse(f, 2)(x)) < 1e-10


def test_two_inputs_that_are_read_at_the_same_places(device: torch.device) -> None:
    x, y = rand(device, 6, 3), rand(device, 6, 3, seed=1)

    def f(x: Tensor, y: Tensor) -> Tensor:
        return gated(x * y[2]) + gated(torch.stack([a.exp() * b for a, b in zip(x, y, strict=True)]))

    got = hofunc.hessian(f, argnums=(0, 1), strategy="mixed")(x, y)
    assert relative_error(got, nested_reverse(f, 2, (0, 1))(x, y)) < 1e-10


def worked_out(f: Callable[..., Any], *inputs: Tensor) -> int:
    """Return how many sums of products are worked out, by mixed at order two."""
    recording = recorded(f, *inputs)
    lowered = lower(recording.graph, recording.values, 2)
    builder, _ = propagated(lowered, local_blocks(lowered, 2), (2,), "mixed")
    return sum(getattr(key[0], "__name__", "") == "_worked_out" for key in builder.recipes if isinstance(key, tuple))


def test_what_is_read_at_other_places_is_worked_out_once(device: torch.device) -> None:
    counts = [worked_out(gated, rand(device, steps, 3)) for steps in (20, 31)]
    assert counts[0] == counts[1] > 0


def test_a_layer_before_makes_no_difference(device: torch.device) -> None:
    """The second derivative of each place of what it makes is that of any other, as long as no places mix."""

    def behind(x: Tensor) -> Tensor:
        return gated(x.flip(1) @ torch.linspace(-1, 1, 9).to(x).reshape(3, 3))

    counts = [worked_out(behind, rand(device, steps, 3)) for steps in (20, 31)]
    assert counts[0] == counts[1] > 0
