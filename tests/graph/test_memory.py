"""Which values lie in which memory, and whose memory it is."""

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import hod
from hofunc.errors import MutationError
from hofunc.graph import identity, memory, storage
from hofunc.graph.overlaps import Overlaps
from tests.cases import rand
from tests.graph.recordings import recorded
from verification.oracles import nested_reverse, relative_error


def rows(x: Tensor, count: int) -> Tensor:
    y = x.new_zeros(count + 1, 3)
    y[0] = x
    for row in range(count):
        y[row + 1] = y[row].clone() * x.sin()
    return y.sum()


def columns(x: Tensor, count: int) -> Tensor:
    y = torch.empty(3, count, dtype=x.dtype, device=x.device)
    for column in range(count):
        y[:, column] = x * column
    return torch.stack([y[:, column].cos() for column in range(count)]).sum()


def reshaped(x: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = x.sin().unsqueeze_(0).mul_(2).squeeze_(0)
    return x.sum()


def many_storages(x: Tensor, count: int) -> Tensor:
    made = [(x * number).mul_(x) for number in range(count)]
    for tensor in made:
        tensor.add_(x)
    return torch.stack(made).square().sum()


def untracked(x: Tensor, count: int) -> Tensor:
    table = torch.zeros(count, dtype=x.dtype, device=x.device)
    for place in range(count):
        table[place] = place
    return (x * table.sum()).sum()


PROGRAMS = [rows, columns, reshaped, many_storages, untracked]


@pytest.mark.parametrize("f", PROGRAMS)
def test_what_recording_looks_at_is_linear(
    f: Callable[[Tensor, int], Tensor], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    keys, meets = Mock(side_effect=identity.storage_key), Mock(side_effect=Overlaps._meets)
    for module in (memory, storage):
        monkeypatch.setattr(module, "storage_key", keys)
    monkeypatch.setattr(Overlaps, "_meets", lambda *args: meets(*args))

    def efforts(count: int) -> tuple[int, int]:
        for counter in (keys, meets):
            counter.reset_mock()
        recorded(lambda x: f(x, count), rand(device, 3))
        return keys.call_count, meets.call_count

    (few, _), (many, comparisons) = efforts(10), efforts(40)
    assert 0 < few < many <= 4.2 * few
    assert comparisons <= 2 * (40).bit_length() * many


@pytest.mark.parametrize("f", PROGRAMS)
def test_the_derivatives(f: Callable[[Tensor, int], Tensor], device: torch.device) -> None:
    x = rand(device, 3)
    assert relative_error(hod(lambda x: f(x, 4))(x), nested_reverse(lambda x: f(x, 4), 2)(x)) < 1e-10


def test_a_tensor_that_is_given_the_memory_of_another_is_the_others(device: torch.device) -> None:
    captured = rand(device, 3)
    before = captured.clone()

    def f(x: Tensor) -> Tensor:
        y = torch.zeros(3, dtype=x.dtype, device=device)
        y.data = captured
        y.add_(1)
        return (x * y).sum()

    with pytest.raises(MutationError, match="writing to an input or to a captured tensor"):
        hod(f)(rand(device, 3))
    assert torch.equal(captured, before)


def test_a_copy_that_python_makes_is_the_functions_own(device: torch.device) -> None:
    constant, x = rand(device, 3), rand(device, 3, seed=1)

    def f(x: Tensor) -> Tensor:
        y = copy.deepcopy(constant)
        y.add_(1).mul_(x)
        return (x * y).sum()

    assert relative_error(hod(f, 1)(x), 2 * x * (constant + 1)) < 1e-12


def test_a_tensor_that_python_makes_of_numbers_is_the_functions_own(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, device=device)
        y.mul_(2)
        z = torch.as_tensor([1, 2, 3], device=device).add_(1)
        y[0] = x[1]
        norm = torch.nn.BatchNorm1d(3, dtype=torch.float64, device=device)  # which sets a number that it has to zero
        return (x * y * z).sum() + norm(torch.stack([x, x**2])).pow(3).sum() * norm.num_batches_tracked

    x = rand(device, 3)
    expected = torch.autograd.functional.hessian(f, x)
    plan, jitted = hofunc.hessian(f).plan(x), hofunc.jit(hofunc.hessian(f))
    for hessian in (hofunc.hessian(f), plan, plan, jitted, jitted):
        assert relative_error(hessian(x), expected) < 1e-12
    assert relative_error(torch.func.vmap(hofunc.hessian(f))(x[None])[0], expected) < 1e-12


@pytest.mark.parametrize("made", [torch.from_numpy, torch.as_tensor, torch.asarray])
def test_an_array_is_not_the_functions_own(made: Callable[[Any], Tensor]) -> None:
    array, x = np.ones(3), rand(torch.device("cpu"), 3)
    for call in (hofunc.hessian, lambda f: hofunc.hessian(f).plan):
        with pytest.raises(MutationError, match="writing to an input or to a captured tensor"):
            call(lambda x: (x**2 * made(array).mul_(2)).sum())(x)
    assert (array == 1).all()
