"""The derivatives of one node by its variables: the sum over all positions at which a variable stands."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import hessian

import hofunc
from hofunc.algebra.extents import Rows, has_rows
from hofunc.algebra.labels import shape_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term, pattern
from hofunc.graph.node import INPUT, Graph, Node, Ref
from hofunc.rules.axes import subscripted
from hofunc.rules.kinds import Linear, Multilinear, Site
from hofunc.rules.local import Template, Templates, derivatives_like, local_derivatives
from hofunc.rules.lower import lower
from hofunc.rules.registry import RULES
from tests.cases import rand
from tests.graph.recordings import recorded

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


def layers(x: Tensor) -> Tensor:
    """Return what repeats ops on other nodes, the same ones twice, in another order, of other shapes, and by maps."""
    y = x
    for number in range(3):
        one, other = y.sin(), y.unbind()[number].exp()
        y = (one * other + other * one) / (2 + one * one) + (y @ y.T @ x) ** (number + 1) + y.cumsum(0) * x
    return torch.stack([*y, *y[:2]]).softmax(0)


def test_derivatives_like_those_of_another_node_are_what_the_rule_says() -> None:
    recording = recorded(layers, rand(torch.device("cpu"), 3, 3))
    lowered = lower(recording.graph, recording.values, 3)
    templates: Templates = {}
    for number, rule in lowered.rules.items():
        node = lowered.graph.nodes[number]
        found = derivatives_like(templates, lowered.graph, node, rule, 3)
        expected = local_derivatives(lowered.graph, node, rule, 3)
        assert list(found) == list(expected)
        for key, terms in expected.items():
            for one, other in zip(found[key], terms, strict=True):
                assert (one.coefficient, pattern(one)) == (other.coefficient, pattern(other))
                assert [factor.source for factor in one.factors] == [factor.source for factor in other.factors]
    assert len(templates) < 0.7 * len(lowered.rules)
    assert {type(known) for known in templates.values()} == {Template}


def test_a_linear_op_of_many_operands_is_asked_for_all_at_once() -> None:
    asked: list[Any] = []
    rule = RULES[aten.stack.default]
    assert isinstance(rule, Linear)
    recording = recorded(lambda x: torch.stack([x.sin(), x.cos(), x.exp()]), rand(torch.device("cpu"), 3))
    node = recording.graph.nodes[-1]

    def parts(site: Site) -> dict[int, list[Term]]:
        asked.append(site)
        return rule.parts(site)

    counting = Linear(parts)
    assert counts(local_derivatives(recording.graph, node, counting, 2)) == dict.fromkeys(((1,), (2,), (3,)), 1)
    assert len(asked) == 1


def test_nodes_in_batches_are_not_given_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all steps of a recurrence are one batch, derivatives of the nodes of each are asked for by nobody."""
    named: list[Node] = []
    of = Template.of

    def counted(template: Template, node: Node) -> dict[Key, list[Term]]:
        named.append(node)
        return of(template, node)

    monkeypatch.setattr(Template, "of", counted)
    weight = torch.eye(3, dtype=torch.float64) / 2

    def f(x: Tensor) -> Tensor:
        state = torch.zeros(3, dtype=torch.float64)
        for row in x.unbind():
            state = (row + weight @ state).tanh()
        return state.square().sum()

    x = torch.linspace(-1, 1, 360, dtype=torch.float64).reshape(120, 3)
    with hofunc.options(planning="quick"):
        found = hofunc.hessian(f)(x)
    assert len(named) < 120
    assert torch.allclose(found, hessian(f)(x), atol=1e-12)


@pytest.mark.parametrize(
    ("op", "args_of"),
    [
        (aten.cumsum.default, lambda dim: (dim,)),
        (aten.flip.default, lambda dim: ((dim,),)),
        (aten.roll.default, lambda dim: ((1,), (dim,))),
    ],
)
def test_what_a_map_makes_of_rows_is_no_rows(op: Any, args_of: Callable[[int], tuple]) -> None:
    for dim, has_any in ((0, False), (1, True)):
        rows = Node(0, INPUT, (), (), None, (), (Rows(5), 3), torch.float64, None, True)
        node = Node(1, op, (Ref(0), *args_of(dim)), (), None, (0,), (5, 3), torch.float64, None, True)
        graph = Graph((rows, node), (0,), (1,))
        rule: Any = RULES[op]
        ((term,),) = local_derivatives(graph, node, rule, 1).values()
        assert has_rows(shape_of(term.slots[0]))
        assert has_rows(shape_of(term.out)) == has_any
