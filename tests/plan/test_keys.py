"""Keys: what is part of a block that is asked for, by hand, and by trying all there is."""

import random
from collections.abc import Sequence
from itertools import combinations_with_replacement, product

import pytest
import torch

from hofunc.plan.blocks import local_blocks
from hofunc.plan.estimate import estimate
from hofunc.plan.keys import Keys, depends_of, keys_of, members, set_of
from hofunc.plan.planner import _with_rows
from hofunc.plan.strategies import STRATEGIES, propagated
from hofunc.plan.wanted import Chosen, Wanted, blocks_of, orders_of
from hofunc.rules.lower import lower
from tests.cases import rand
from tests.graph.recordings import recorded

INPUTS = (3, 5, 8)  # the nodes of three inputs
PAIR = Chosen(((0, 1), (2, 2, 2)))


def test_the_keys_of_orders() -> None:
    assert keys_of([5, 2], (1, 3)) == [(2,), (5,), (2, 2, 2), (2, 2, 5), (2, 5, 5), (5, 5, 5)]
    assert keys_of([], (1, 2)) == []


def test_sets_of_variables() -> None:
    assert members(set_of([0, 3, 70])) == [0, 3, 70]
    assert set_of([]) == 0


def test_what_is_chosen_by_hand() -> None:
    keys = Keys(PAIR, INPUTS)
    assert (keys.orders, keys.highest, keys.are_chosen) == ((2, 3), 3, True)
    assert keys.has((3, 5))
    assert keys.has((5, 3))
    assert not keys.has((3, 3))
    assert not keys.has((8, 8))
    everything = set_of(INPUTS)
    assert keys.among(everything, [1, 2, 3]) == [(3,), (5,), (8,), (3, 5), (8, 8), (8, 8, 8)]
    assert keys.among(set_of([3, 8]), [1, 2]) == [(3,), (8,), (8, 8)]
    assert keys.asked_among(everything, [1, 2, 3]) == [(3, 5), (8, 8, 8)]
    assert keys.leads([set_of([3]), set_of([5])])
    assert keys.leads([everything, set_of([3])])
    assert not keys.leads([set_of([3]), set_of([3, 8])])
    assert not keys.leads([everything] * 4)


def test_of_all_blocks_all_is_asked_for() -> None:
    keys = Keys((1, 3), INPUTS)
    assert not keys.are_chosen
    assert keys.among(set_of([3, 5]), [1]) == [(3,), (5,)]
    assert keys.asked_among(set_of([3, 5]), [1, 2]) == [(3,), (5,)]
    assert keys.leads([0] * 9)


@pytest.mark.parametrize("seed", range(20))
def test_what_leads_to_a_block_is_what_some_variables_make_part_of_one(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311
    pool = [key for order in (1, 2, 3) for key in combinations_with_replacement(range(4), order)]
    chosen = Chosen(tuple(draw.sample(pool, 3)))
    keys = Keys(chosen, range(4))
    for _ in range(20):
        slots = [draw.sample(range(4), draw.randint(0, 3)) for _ in range(draw.randint(1, 3))]
        expected = any(_is_part(key, block) for key in product(*slots) for block in chosen.blocks)
        assert keys.leads([set_of(slot) for slot in slots]) == expected


def _is_part(key: Sequence[int], block: Sequence[int]) -> bool:
    return all(list(key).count(variable) <= list(block).count(variable) for variable in key)


def test_blocks_are_listed_as_they_are_asked_for() -> None:
    assert blocks_of(PAIR, 2, 9) == [(0, 1)]
    assert blocks_of(PAIR, 1, 9) == []
    assert [*blocks_of((1, 2), 2, 2)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert orders_of(PAIR) == (2, 3)


def test_nodes_depend_on_what_their_operands_do(device: torch.device) -> None:
    recording = recorded(lambda x, y: (x * y).sin() + x.exp(), rand(device, 2), rand(device, 2, seed=1))
    lowered = lower(recording.graph, recording.values, 2)
    x, y = lowered.graph.inputs
    depends = depends_of(local_blocks(lowered, 2), (x, y))
    assert sorted(depends.values()) == [set_of([x]), set_of([x]), set_of([y]), *[set_of([x, y])] * 3]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_planning_and_its_estimate_are_of_what_is_asked_for(strategy: str, device: torch.device) -> None:
    inputs = [rand(device, seed=seed) for seed in range(12)]

    def chain(*inputs: torch.Tensor) -> torch.Tensor:
        y = inputs[0]
        for x in inputs[1:]:
            y = (y * x).sin()
        return y

    recording = recorded(chain, *inputs)
    efforts, counts, runs = [], [], []
    wanted: list[Wanted] = [(2,), Chosen(tuple([(number, number) for number in range(12)])), Chosen(((3, 3),))]
    for each in wanted:
        lowered = _with_rows(lower(recording.graph, recording.values, 2), each)
        local = local_blocks(lowered, 2)
        builder, _ = propagated(lowered, local, each, strategy)
        efforts.append(builder.effort)
        found = estimate(lowered.graph, local, each, strategy)
        counts.append(found.compositions)
        runs.append(found.run)
    assert efforts[0] > 2 * efforts[1] > 2 * efforts[2]
    assert counts[0] > 2 * counts[1] > 2 * counts[2]
    assert runs[0] > 2 * runs[1] > 2 * runs[2]
