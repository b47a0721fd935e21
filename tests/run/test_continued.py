"""Graphs that go on through the steps of a program: their values are what the program computes, and nothing else."""

import torch

from hofunc.graph.record import record
from hofunc.graph.recording import Recording, replay
from hofunc.graph.values import by_number
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.planner import quickly
from hofunc.plan.program import Given
from hofunc.rules.lower import lower
from hofunc.run.continued import Continued, continued
from hofunc.run.executor import compiled
from tests.cases import rand


def made(device: torch.device) -> tuple[Recording, Blueprint, Continued, int]:
    """Return what was recorded, a plan of its Hessian, the graph that goes on, and the node that is learned."""
    weight, x = rand(device, 3, 4), rand(device, 3, seed=1)
    recording = record(lambda inputs, _: (inputs[0] @ weight).sin().prod(), [x])
    values = by_number(recording.values)
    plan = quickly(lower(recording.graph, recording.values, 2), (2,), compact=False, limits=Limits()).plan
    (learned,) = (node.number for node in recording.graph.nodes if values[node.number] is weight)
    return recording, plan, continued(recording.graph, plan.program, values, [learned]), learned


def test_values_are_those_of_the_program(device: torch.device) -> None:
    recording, plan, whole, learned = made(device)
    expected = compiled(plan.program)(recording.values)
    known = {node.number: whole.values[node.number] for node in whole.graph.nodes if node.is_given}
    inputs = [whole.values[number] for number in whole.graph.inputs]
    values = replay(whole.graph, inputs, known)
    for output, want in zip(whole.graph.outputs, expected, strict=True):
        torch.testing.assert_close(values[output], want)
        torch.testing.assert_close(whole.values[output], want)
    assert whole.graph.nodes[: whole.before] == tuple(
        node._replace(active=active.active)
        for node, active in zip(recording.graph.nodes, whole.graph.nodes, strict=False)
    )
    assert whole.graph.nodes[learned].active
    assert not any(whole.graph.nodes[number].active for number in recording.graph.inputs)


def test_a_completed_program_takes_values_that_there_were_before(device: torch.device) -> None:
    recording, plan, whole, _ = made(device)
    outputs = whole.graph.outputs
    given = {
        place: Given(output, tuple(whole.graph.nodes[output].shape), whole.graph.nodes[output].dtype)
        for place, output in enumerate(outputs)
    }
    program = plan.program._replace(given=given, steps=(), frees=(), outputs=tuple(given), over=(), joined=())
    found = whole.completed(program, whole.graph)
    taken = {each.origin for each in found.given.values() if isinstance(each.origin, int)}
    assert max(taken) < whole.before
    for got, want in zip(compiled(found)(recording.values), compiled(plan.program)(recording.values), strict=True):
        torch.testing.assert_close(got, want)
