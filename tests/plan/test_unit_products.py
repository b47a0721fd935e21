"""Products with unit vectors: what they come to is read, and what is not finite elsewhere stays elsewhere."""

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.operators import entries_at, unit_rows
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

WEIGHT = rand(torch.device("cpu"), 6, 5, seed=1)


@pytest.mark.parametrize(("start", "stride", "shape"), [(0, 1, (4,)), (3, 1, (4,)), (2, 5, (2, 3))])
def test_unit_vectors_are_of_the_entries(start: int, stride: int, shape: tuple[int, ...], device: torch.device) -> None:
    places = torch.arange(start, start + 40, device=device)
    units = unit_rows(places, start, stride, shape, torch.float64).flatten(1)
    assert torch.equal(units.argmax(1), entries_at(places, start, stride, units.shape[1]))
    assert torch.equal(units.sum(1), torch.ones(40).to(units))


@pytest.mark.parametrize("size", [1, 4])
def test_columns_read_the_matrix_that_they_multiply(size: int, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return (x @ WEIGHT.to(x)).tanh().square().sum().square()

    x = rand(device, 6)
    plan = hofunc.hessian(f, chunk_size=size).plan(x)
    assert f"chunks of {size} coordinates" in plan.explain()
    assert relative_error(plan(x), nested_reverse(f, 2)(x)) < 1e-13
    trace = hofunc.einsum(f, ", i, i ->", chunk_size=size)
    assert relative_error(trace(x), nested_reverse(f, 2)(x).trace()) < 1e-13


def test_what_is_infinite_by_one_coordinate_is_so_in_its_chunk_alone(device: torch.device) -> None:
    weight = WEIGHT.to(device).clone()
    weight[2] = torch.inf
    got = hofunc.hessian(lambda x: (x @ weight).square().sum(), chunk_size=1)(rand(device, 6))
    rest = [0, 1, 3, 4, 5]
    assert relative_error(got[rest][:, rest], 2 * (weight @ weight.T)[rest][:, rest]) < 1e-13
