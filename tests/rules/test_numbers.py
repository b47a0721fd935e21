"""Which numbers of a graph may be values, and graphs with nodes in their place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc.graph.node import NUMBER, Graph, Ref
from hofunc.rules.kinds import Composite, Constant
from hofunc.rules.numbers import (
    _NUMBERS,
    as_tensors,
    lifted,
    number_at,
    numbers_of,
    read_by_formulas,
    rule_with_numbers,
    without_numbers,
)
from hofunc.rules.signs import Sign
from tests.cases import rand
from tests.graph.recordings import recorded


def graph_of(f: Callable[..., Any], x: Tensor) -> Graph:
    return recorded(f, x).graph


STRUCTURE = {
    "an exponent": lambda x: x**2.5,
    "bounds": lambda x: x.clamp(-0.5, 0.5),
    "a slope": lambda x: torch.nn.functional.leaky_relu(x, 0.3),
    "a limit": lambda x: torch.nn.functional.hardshrink(x, 0.3),
    "zero": lambda x: x * 0.0 + 0.0,
    "minus zero": lambda x: x * -0.0,
    "infinity": lambda x: x.masked_fill(x > 0.0, -torch.inf),
    "nan": lambda x: x + torch.nan,
    "half precision": lambda x: (x.half() * 0.3).sum(),
    "a complex number": lambda x: torch.view_as_real(torch.complex(x, x) * 0.3),
    "an axis": lambda x: x.unsqueeze(1).sum(1),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_numbers_that_are_structure(name: str, device: torch.device) -> None:
    assert not numbers_of(graph_of(STRUCTURE[name], rand(device, 3)))


def test_numbers_that_are_values(device: torch.device) -> None:
    numbers = numbers_of(graph_of(lambda x: torch.add(x * 3 - 0.5, x, alpha=0.25), rand(device, 3)))
    assert [*numbers.values()] == [3, 0.5, 0.25]
    assert [spot.place for spot in numbers] == [1, 1, "alpha"]


def test_graphs_share_a_key_if_numbers_have_one_sign(device: torch.device) -> None:
    def key(number: float) -> Graph:
        graph = graph_of(lambda x: x * number + 1, rand(device, 3))
        return without_numbers(graph, numbers_of(graph))

    assert key(0.3) == key(7.0) == key(4)
    assert len({key(number) for number in (0.3, -0.3, 1e-9, 0.0)}) == 4
    assert key(-0.3) == key(-7.0)


def test_nodes_in_place_of_numbers_come_last(device: torch.device) -> None:
    x = rand(device, 3)
    recording = recorded(lambda x: x.float() * 0.3 - 2, x)
    graph, values = recording.graph, recording.values
    numbers = numbers_of(graph)
    result = lifted(graph, numbers, [value.device for value in values])
    count = len(graph.nodes)
    product, difference = result.nodes[count - 2 : count]
    assert product.args[1] == Ref(count)
    assert difference.operands == (count - 2, count + 1)
    assert [(node.op, node.args, node.dtype) for node in result.nodes[count:]] == [
        (NUMBER, (Sign.POSITIVE,), torch.float32)
    ] * 2
    assert [tensor.item() for tensor in as_tensors(graph, numbers, values)[count:]] == pytest.approx([0.3, 2])
    assert [number_at(graph, spot) for spot in numbers] == [0.3, 2]


def test_numbers_that_formulas_read(device: torch.device) -> None:
    x = rand(device, 2, 3)

    def f(x: Tensor) -> Tensor:
        normalised = x / (x.square().mean(-1, keepdim=True) + 0.25).sqrt()
        return (normalised * 0.5 + (1 - x.sigmoid()).log() * 3.0).sum()

    graph = graph_of(f, x)
    numbers = numbers_of(graph)
    assert {numbers[spot] for spot in read_by_formulas(graph, [*numbers])} == {0.25, 1}


@pytest.mark.parametrize("op", _NUMBERS, ids=str)
def test_every_op_has_a_rule(op: Any) -> None:
    rule = rule_with_numbers(op)
    assert isinstance(rule, Composite | Constant) or hasattr(rule, "terms")
