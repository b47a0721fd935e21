"""Recording by the calls of torch's functions that a function made before, without looking at their ops."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from hofunc.graph.call_notes import CallNotes
from hofunc.graph.calls import Again, Calls, Lifted
from hofunc.graph.identity import alias_of, is_dense, plain, tensors_in, variables_of
from hofunc.graph.purity import claims_of
from hofunc.graph.reached import reached
from hofunc.graph.recording import Function, Recording
from hofunc.graph.standin import Lift, looks_of, wrappers_in
from hofunc.graph.stood_in import StandIns
from hofunc.graph.tape import Tape
from hofunc.graph.trail import NOTHING, PATIENCE, Trail
from hofunc.graph.values import Values
from hofunc.internals import TreeSpec
from hofunc.trees import tree_flatten


def recorded_by_calls(
    f: Function, inputs: Sequence[torch.Tensor], others: Any, trail: Trail, *, bare: bool
) -> Recording | None:
    """Record a call that makes the calls of torch's functions that were made before; None if it makes others."""
    calls = trail.calls
    if calls is None or not calls.start_from(_strides(inputs)):
        return None
    has_grad = torch.is_grad_enabled()
    need_none = trail.are_plain or bare or not has_grad
    aliases = [x.detach() for x in inputs] if need_none else variables_of(inputs, follow=False)
    before = reached(f) if trail.others_met or calls.captured.have_gone() else None
    with nullcontext() if has_grad else torch.enable_grad():
        made = calls.made_again(aliases, lambda: tensors_in(others), before or {}, lambda: f([*aliases], others))
    found = _found(*made)
    if found is None and made[1].is_unknown and before is None:  # it may have been there before: this time it is looked
        trail.others_met = PATIENCE
        return recorded_by_calls(f, inputs, others, trail, bare=bare)
    if found is None:
        trail.lose_calls()
        return None
    leaves, spec, held, again = found
    trail.note_met(again)
    if bare:
        held.update(enumerate(inputs))
    values = Values(trail.graph, held, len(trail.graph.nodes), computed=calls.computed)
    left = NOTHING if trail.hides_history else trail
    return Recording(trail.graph, values, leaves, spec, None, trail=left, is_bare=bare)


def stood_in_by_calls(f: Function, inputs: Sequence[torch.Tensor], others: Any, trail: Trail) -> Recording | None:
    """Record a call under a transform by the calls of torch's functions, as above."""
    calls, beside = trail.calls, wrappers_in(tensors_in(others))
    if calls is None or not calls.start_from([*map(looks_of, (*inputs, *beside))]):
        return None
    aliases, before = [*map(alias_of, inputs)], reached(f)
    start = [*aliases, *beside]
    found = _found(*calls.made_again(start, lambda: tensors_in(others), before, lambda: f([*aliases], others)))
    if found is None:
        trail.lose_calls()
        return None
    leaves, spec, held, again = found
    lifted = [again.lifted[place] for place in range(len(beside), len(beside) + len(again.lifted))]
    wrappers = [*map(plain, inputs), *beside, *lifted]
    return Recording(trail.graph, StandIns(trail.graph, held), leaves, spec, wrappers)


def note_calls(
    calls: CallNotes, tape: Tape, recording: Recording, inputs: Sequence[torch.Tensor], trail: Trail
) -> None:
    """Have the next recording go by the calls that were made in this one, which came to the graph that was expected.

    Values that calls return have the histories that autograd knows, which have to be those of the graph.
    """
    graph = recording.graph
    are_right = trail.are_plain or (all(map(is_dense, inputs)) and not tape.histories_hidden(graph))
    found = calls.calls(graph, recording.values, recording.outputs, _strides(inputs)) if are_right else None
    trail.note_calls(found)


def calls_of(notes: CallNotes, recording: Recording, lift: Lift, looks: Sequence[Any]) -> Calls | None:
    """Return the calls of a recording on stand-ins; None if there is nothing to go by.

    Args:
        notes: What was noted of them.
        recording: The recording.
        lift: Knows what was captured of transforms around.
        looks: What inputs look like, and what is given beside.
    """
    if recording.asked or claims_of(recording.graph):
        return None
    lifted = {each: Lifted(place, looks_of(wrapper)) for each, (place, wrapper) in lift.places().items()}
    return notes.calls(recording.graph, recording.values, recording.outputs, looks, lifted)


def _strides(inputs: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Return how inputs lie in memory, which is to be compared where all else of them is known."""
    return [tensor.stride() for tensor in inputs]


def _found(result: Any, again: Again) -> tuple[list[Any], TreeSpec, dict[int, torch.Tensor], Again] | None:
    """Return what a function returned, flattened, the values of nodes, and what went along; None if it got lost."""
    if again.is_lost:
        return None
    leaves, spec = tree_flatten(result)
    held = again.held([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    return None if held is None else (leaves, spec, held, again)
