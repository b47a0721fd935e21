"""Bytes of results, against a count of every block."""

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement, pairwise, product
from math import prod

import pytest
import torch
from torch import Tensor

from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.planner import plan
from hofunc.plan.results import least_bytes, result_bytes, zero_bytes
from hofunc.plan.wanted import Chosen
from hofunc.rules.lower import lower
from tests.cases import rand
from tests.graph.recordings import recorded

CPU = torch.device("cpu")
SHAPES = [(2,), (), (3, 2), (2,)]


def one(a: Tensor, b: Tensor, c: Tensor, _: Tensor) -> Tensor:
    return a.square() * b + c.sum(0).sin()


def two(a: Tensor, b: Tensor, c: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return one(a, b, c, _), b.exp() * c


def made(f: Callable[..., object], wanted: Sequence[int] | Chosen) -> Blueprint:
    recording = recorded(f, *(rand(CPU, *shape, seed=seed) for seed, shape in enumerate(SHAPES)))
    return plan(lower(recording.graph, recording.values, 3), wanted, compact=False, limits=Limits())[0]


def blocks(f: Callable[..., object], wanted: Sequence[int] | Chosen) -> list[tuple[int, tuple[int, ...]]]:
    """Return the entries of an output, and the inputs of the slots, of every block."""
    outputs = [2] if f is one else [2, 6]
    if isinstance(wanted, Chosen):
        return [(output, block) for output in outputs for block in wanted.blocks]
    return [(output, key) for output in outputs for k in wanted for key in product(range(4), repeat=k)]


def entries(block: Sequence[int]) -> int:
    return prod(prod(SHAPES[number]) for number in block)


@pytest.mark.parametrize("wanted", [(1,), (2,), (1, 2, 3), (3,), Chosen(((0, 1), (3, 0), (2, 2, 1)))])
@pytest.mark.parametrize("f", [one, two])
def test_all_blocks_are_counted(f: Callable[..., object], wanted: Sequence[int] | Chosen) -> None:
    found = made(f, wanted)
    graph, every = found.lowered.graph, blocks(f, wanted)
    numbers = {number: place for place, number in enumerate(graph.inputs)}
    sizes = dict(zip(graph.outputs, (2, 6), strict=False))
    known = {(sizes[node], tuple([numbers[number] for number in key])) for node, key in found.dense}
    gone = [(n, key) for n, key in every if known.isdisjoint([(n, key), (n, tuple(sorted(key)))])]
    assert zero_bytes(found, wanted) == 8 * sum(n * entries(key) for n, key in gone)
    least = {(n, tuple(sorted(key))) for n, key in every}
    assert least_bytes(graph, wanted) == 8 * sum(n * entries(key) for n, key in least)


def test_results_of_many_numbers() -> None:
    count = 300
    recording = recorded(lambda *x: sum(a * b for a, b in pairwise(x)), *torch.ones(count).unbind())
    graph = lower(recording.graph, recording.values, 3).graph
    assert least_bytes(graph, (3,)) == 4 * len([*combinations_with_replacement(range(count), 3)])


def test_what_is_returned() -> None:
    found = made(one, (2,))
    inputs = found.lowered.graph.inputs
    assert result_bytes(found) == 8 * sum(2 * entries([*map(inputs.index, key)]) for _, key in found.dense)
