"""The derivatives of one node by its variables: the sum over all positions at which a variable stands."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc.algebra.labels import shape_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.graph.node import INPUT, Graph, Node, Ref
from hofunc.rules.axes import subscripted
from hofunc.rules.kinds import Multilinear
from hofunc.rules.local import local_derivatives
from hofunc.rules.registry import RULES

aten = torch.ops.aten
OP = object()


def derivatives(
    rule: Any, operands: tuple[int, ...], shapes: list[tuple[int, ...]], out: tuple[int, ...], order: int, **given: Any
) -> dict[Key, list[Term]]:
    """Differentiate a node that takes some of the inputs of a graph as its operands."""
    active = given.get("active", [True] * len(shapes))
    inputs = [
        Node(number, INPUT, (), (), None, (), shape, torch.float64, None, active[number])
        for number, shape in enumerate(shapes)
    ]
    args = tuple(Ref(operand) for operand in operands)
    node = Node(len(inputs), given.get("op", OP), args, (), None, operands, out, torch.float64, None, True)
    graph = Graph((*inputs, node), tuple(range(len(inputs))), (node.number,))
    return local_derivatives(graph, node, rule, order)


def product(subscripts: str) -> Multilinear:
    return Multilinear(lambda site: subscripted(subscripts, site.shapes), lambda _: 1)


def counts(terms: dict[Key, list[Term]]) -> dict[Key, int]:
    return {key: len(found) for key, found in terms.items()}


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ((0, 1), {(0,): 1, (1,): 1, (0, 1): 1}),
        ((1, 0), {(0,): 1, (1,): 1, (0, 1): 1}),
        ((0, 0), {(0,): 2, (0, 0): 2}),
    ],
)
def test_a_product_of_two(operands: tuple[int, ...], expected: dict[Key, int]) -> None:
    assert counts(derivatives(product("i,i->i"), operands, [(3,), (3,)], (3,), 3)) == expected


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ((0, 0, 0), {(0,): 3, (0, 0): 6, (0, 0, 0): 6}),
        ((0, 1, 0), {(0,): 2, (1,): 1, (0, 0): 2, (0, 1): 2, (0, 0, 1): 2}),
        ((1, 0, 0), {(0,): 2, (1,): 1, (0, 0): 2, (0, 1): 2, (0, 0, 1): 2}),
    ],
)
def test_a_product_of_three(operands: tuple[int, ...], expected: dict[Key, int]) -> None:
    assert counts(derivatives(product("i,i,i->i"), operands, [(3,), (3,)], (3,), 3)) == expected


def test_the_slots_are_in_the_order_of_the_variables() -> None:
    found = derivatives(product("ik,kj->ij"), (1, 0), [(4, 2), (3, 4)], (3, 2), 2)
    (term,) = found[0, 1]
    assert [shape_of(slot) for slot in term.slots] == [(4, 2), (3, 4)]


def test_the_slots_of_one_variable_are_all_dealt_out() -> None:
    found = derivatives(product("ik,kj->ij"), (0, 0), [(2, 2)], (2, 2), 2)
    first, second = found[0, 0]
    assert first.slots[0][1] == first.slots[1][0]  # the left factor in the first slot
    assert second.slots[0][0] == second.slots[1][1]  # and in the second


def test_no_order_beyond_the_one_that_is_asked_for() -> None:
    assert counts(derivatives(product("i,i->i"), (0, 0), [(3,)], (3,), 1)) == {(0,): 2}


def test_inactive_operands_have_no_derivatives() -> None:
    found = derivatives(product("i,i,i->i"), (0, 1, 0), [(3,), (3,)], (3,), 3, active=[False, True])
    assert counts(found) == {(1,): 1}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (aten.exp.default, {(0,): 1, (0, 0): 1, (0, 0, 0): 1}),
        (aten.neg.default, {(0,): 1}),
        (aten.relu.default, {(0,): 1}),
    ],
)
def test_ops_of_one_tensor(op: Callable[..., Tensor], expected: dict[Key, int]) -> None:
    assert counts(derivatives(RULES[op], (0,), [(3,)], (3,), 3, op=op)) == expected
