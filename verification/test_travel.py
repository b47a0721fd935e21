"""A plan that travels is the plan.

Claim: a plan that is pickled, saved or handed to another process returns there, to the last bit, what it returns here,
at the inputs that it was made with and at others; and so do its refusals of values that lead to another branch.
Source: a plan is a list of ops and tensors, and all of these are written down.
Falsifier: something that steps hold and that only this process knows, or a number that is written with fewer digits.
Tolerance: none. The other process uses as many threads.
"""

import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs

LAYOUTS = ("dense", "compact")


def called(plan: hofunc.Plan, points: list[tuple[Tensor, ...]]) -> list[Any]:
    """Return the tensors that a plan returns at every point, or how it refuses."""
    results: list[Any] = []
    for point in points:
        try:
            results.append([leaf.detach() for leaf in tree_leaves(plan(*point)) if isinstance(leaf, Tensor)])
        except hofunc.ArgumentError as error:
            results.append(str(error).partition(" (called at")[0])
    return results


def called_elsewhere(data: bytes, points: list[tuple[Tensor, ...]], threads: int) -> bytes:
    """Return the same of a pickled plan, in a process that has never seen its function."""
    torch.set_num_threads(threads)
    return pickle.dumps(called(pickle.loads(data), points))  # noqa: S301 - what was pickled here


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """Another interpreter."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def assert_same(got: list[Any], expected: list[Any]) -> None:
    """Compare what two plans returned, bit by bit."""
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, str):
            assert one == other
            continue
        for leaf, each in zip(one, other, strict=True):
            assert (leaf.dtype, leaf.shape) == (each.dtype, each.shape)
            assert torch.equal(leaf.isnan(), each.isnan())
            assert torch.equal(leaf.nan_to_num(), each.nan_to_num())


@given(programs(max_elements=8), st.integers(1, 3), st.sampled_from(STRATEGIES), st.sampled_from(LAYOUTS))
def test_in_another_process(
    elsewhere: ProcessPoolExecutor, program: Program, order: int, strategy: str, layout: str
) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    plan = hofunc.derivatives(program, order, numbers, strategy=strategy, layout=layout).plan(*program.inputs)
    points = [program.inputs, tuple(x * 1.01 for x in program.inputs)]
    expected = called(plan, points)
    try:
        data = pickle.dumps(plan)
    except hofunc.PlanFileError as error:  # of a class that another process does not have
        if "a tensor of the class Sub" in str(error):
            return
        raise
    assert_same(called(pickle.loads(data), points), expected)  # noqa: S301 - as above
    there = elsewhere.submit(called_elsewhere, data, points, torch.get_num_threads()).result()
    assert_same(pickle.loads(there), expected)  # noqa: S301 - as above


class Derived(Dataset):
    """Points, with what a plan returns there."""

    def __init__(self, plan: hofunc.Plan, points: Tensor):
        self.plan, self.points = plan, points

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.points[number], self.plan(self.points[number])


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_in_a_worker_of_a_loader(start: str) -> None:
    weight = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)
    plan = hofunc.hessian(lambda x: (x @ weight).tanh().prod()).plan(torch.ones(3, dtype=torch.float64))
    points = torch.linspace(0, 1, 12, dtype=torch.float64).reshape(4, 3)
    loader = DataLoader(Derived(plan, points), 2, num_workers=1, multiprocessing_context=start)
    batches = [*loader]
    assert torch.equal(torch.cat([x for x, _ in batches]), points)
    expected = torch.stack([plan(x) for x in points])
    assert torch.allclose(torch.cat([hessian for _, hessian in batches]), expected, rtol=1e-14, atol=0)
