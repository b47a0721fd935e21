"""Nodes that follow one node alone, each element by itself."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc.plan.blocks import Local, local_blocks
from hofunc.plan.entries import Extents
from hofunc.plan.following import counted, regions
from hofunc.rules.lower import Lowered, lower
from tests.cases import rand
from tests.graph.recordings import recorded
from tests.plan.test_preaccumulated import CENTRES, FIRST, NESTED, activation, layers, line


def local_derivatives(f: Callable[..., Any], *inputs: Tensor, order: int = 2) -> tuple[Lowered, Mapping[int, Local]]:
    recording = recorded(f, *inputs)
    lowered = lower(recording.graph, recording.values, order)
    return lowered, local_blocks(lowered, order)


def found(f: Callable[..., Any], *inputs: Tensor) -> list[tuple[int, int, int]]:
    """Return how many elements the start of each region has, how many nodes follow, and how many others take."""
    lowered, local = local_derivatives(f, *inputs)
    made = regions(lowered.graph, local)
    return [(prod(lowered.graph.nodes[each.starts[0]].shape), len(each.nodes), len(each.ends)) for each in made]


def test_filters_follow_the_squares_of_distances() -> None:
    """Both layers' filters are taken by messages, and nothing else is; a product with a matrix is of the same edge."""
    ((size, _, ends),) = found(layers, *NESTED["layers"][1])
    assert (size, ends) == (6, 2)


def test_activations_follow_what_a_layer_makes() -> None:
    assert [(size, ends) for size, _, ends in found(activation, *NESTED["activation"][1])] == [(24, 1), (24, 1)]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x @ line(3, 4)).tanh().sum(),
        lambda x: x.sin().exp().tanh().sum(),
        lambda x: (x @ line(3, 4)).softmax(-1).square().sum(),
    ],
)
def test_nothing_is_gained_behind_one_nonlinear_node_or_the_input(f: Callable[[Tensor], Tensor]) -> None:
    assert not found(f, rand(torch.device("cpu"), 6, 3))


def test_what_follows_is_counted_as_one_node_with_a_number_for_each_element() -> None:
    """Of filters, which are taken by messages, what varies with the distance alone: the derivatives of three orders."""
    lowered, local = local_derivatives(layers, *NESTED["layers"][1], order=3)
    (region,) = regions(lowered.graph, local)
    left = counted(lowered.graph, local, 3)
    assert left.keys() == local.keys() - ({*region.nodes} - {*region.ends})
    for end in region.ends:
        assert {*left[end]} == {region.starts * order for order in (1, 2, 3)}
        assert lowered.graph.nodes[end].shape == (len(FIRST), len(CENTRES))
    extents = Extents(lowered.graph, local, (3,))
    assert [extents.facts(end).growth for end in region.ends] == [(1, 1, 1)] * 2


def test_they_are_not_counted_so_up_to_order_two() -> None:
    """Where mixed has them by their starts on one side alone."""
    lowered, local = local_derivatives(layers, *NESTED["layers"][1])
    assert Extents(lowered.graph, local, (2,)).counted is local
