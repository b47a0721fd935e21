"""The graph under construction."""

import math

import pytest
import torch

from hofunc.graph.ledger import Ledger
from hofunc.graph.node import CONSTANT, INPUT, Ref, exact
from tests.cases import rand

aten = torch.ops.aten


@pytest.fixture
def x(device: torch.device) -> torch.Tensor:
    return rand(device, 3)


@pytest.fixture
def ledger(x: torch.Tensor) -> Ledger:
    """A ledger whose node 0 is the input x."""
    ledger = Ledger()
    ledger.add_input(x, active=True)
    return ledger


def test_inputs(ledger: Ledger, x: torch.Tensor, device: torch.device) -> None:
    ledger.add_input(rand(device, 2), active=False, batched=True)
    assert [(node.op, node.active) for node in ledger.nodes] == [(INPUT, True), (INPUT, False)]
    assert ledger.batched == {1}
    assert ledger.index_of(x) == 0
    assert ledger.graph([x]).inputs == (0, 1)


def test_a_tensor_that_is_no_node_becomes_a_constant_once(ledger: Ledger, device: torch.device) -> None:
    weight = rand(device, 3)
    assert ledger.index_of(weight) == ledger.index_of(weight) == 1
    assert ledger.index_of(weight.clone()) == 2
    assert [node.op for node in ledger.nodes] == [INPUT, CONSTANT, CONSTANT]
    assert not ledger.nodes[1].active
    assert id(weight) not in ledger.tracked


def test_a_call_without_tracked_tensors_only_leaves_what_it_returned(ledger: Ledger, device: torch.device) -> None:
    weight = rand(device, 3)
    out = weight.exp()
    ledger.enter([(aten.exp.default, (weight,), {}, out)])
    assert len(ledger.nodes) == 1
    assert ledger.untracked == [(aten.exp.default, out)]


def test_calls_see_what_earlier_calls_of_the_same_log_returned(ledger: Ledger, x: torch.Tensor) -> None:
    first = x.exp()
    second = first.sin()
    ledger.enter([(aten.exp.default, (x,), {}, first), (aten.sin.default, (first,), {}, second)])
    assert [node.operands for node in ledger.nodes] == [(), (0,), (1,)]
    assert ledger.values[2] is second


def test_tensors_are_found_in_lists_and_keywords(ledger: Ledger, x: torch.Tensor) -> None:
    out = torch.cat([x, x])
    ledger.enter([(aten.cat.default, ([x, x],), {}, out), (aten.add.Tensor, (1,), {"other": x, "alpha": 2}, x + 1)])
    assert ledger.nodes[1].args == ((Ref(0), Ref(0)),)
    assert ledger.nodes[2].kwargs == (("other", Ref(0)), ("alpha", 2))
    assert ledger.nodes[2].operands == (0,)


def test_a_tensor_that_an_op_returns_as_it_was_is_no_new_node(ledger: Ledger, x: torch.Tensor) -> None:
    ledger.enter([(aten.contiguous.default, (x,), {}, x), (aten.max.dim, (x, 0), {}, (x, x.argmax()))])
    assert [node.output for node in ledger.nodes] == [None, 1]


def test_activity_comes_from_any_operand(ledger: Ledger, x: torch.Tensor, device: torch.device) -> None:
    passive = rand(device, 3)
    ledger.add_input(passive, active=False)
    ledger.enter([(aten.sin.default, (passive,), {}, passive.sin()), (aten.mul.Tensor, (passive, x), {}, passive * x)])
    assert [node.active for node in ledger.nodes[2:]] == [False, True]


def test_constants_in_a_template(ledger: Ledger, x: torch.Tensor) -> None:
    operands: list[int] = []
    template = ledger.encode([x, [1, [x]], -0.0, 0.0, None, "mean", math.nan], operands)
    assert template == (Ref(0), (1, (Ref(0),)), exact(-0.0), 0.0, None, "mean", exact(math.nan))
    assert template[3] != exact(-0.0)
    assert operands == [0, 0]
    hash(template)
