"""Programs of derivatives, completed by the function itself, so that nothing has to be recorded when they run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from hofunc.callable_plan import PLACE, Result
from hofunc.graph.node import CONSTANT, Call, Graph, Ref
from hofunc.internals import tree_flatten
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.chunks import Chunks, priced_chunks
from hofunc.plan.cost import Cost
from hofunc.plan.lean import FEWER, LARGE, priced
from hofunc.plan.operators import zeros
from hofunc.plan.primal import Whole
from hofunc.plan.program import Program, Register, device_of
from hofunc.rules.lower import shapes_read
from hofunc.run.decided import Decided
from hofunc.run.evaluate import Evaluation
from hofunc.run.history import Derived, Noted
from hofunc.run.learning import Zeros
from hofunc.taken import Request, Taken, captured_of


class Completed(NamedTuple):
    """The program of a function and its derivatives.

    Attributes:
        program: The program.
        chunks: It in chunks, if that is how it runs.
        result: How its result is put together, unless it is one tensor.
        owners: By the register that a step of the function computes, the node of the graph that is derived.
        at_once: What the program costs.
        cost: What it costs as it runs, which may be in chunks.
        places: What it returns, of what the program of the derivatives does, or zeros; None where it returns more, or
            goes by values.
        chosen: That program.
        derived: The outputs of which what it returns are derivatives, None if they are kept as terms.
    """

    program: Program
    chunks: Chunks | None
    result: Result | None
    owners: dict[int, int]
    at_once: Cost
    cost: Cost
    places: tuple[int | Zeros, ...] | None
    chosen: Blueprint
    derived: Derived | None


# What programs of the same steps come to, by the identity of these and the limit, which several blueprints have.
Known = dict[tuple[int, int | None], tuple[Program, Program, Cost]]


def completed(request: Request, taken: Taken, chosen: Blueprint, known: Known) -> Completed:
    """Return the program of the function and its derivatives, of the program of these; within the limit if it can.

    Args:
        request: What is asked for.
        taken: What was recorded.
        chosen: The derivatives.
        known: What is known of programs so far.
    """
    found, limit = _completed_by(request, taken, chosen, known), request.limits.max_bytes
    if limit is None or chosen.plain is None or chosen.chunks is not None or found.cost.peak_bytes <= limit:
        return found
    other = _completed_by(request, taken, replace(chosen, program=chosen.plain), known, limit)
    return min(found, other._replace(chosen=chosen), key=lambda each: each.cost.peak_bytes)


def _completed_by(
    request: Request, taken: Taken, chosen: Blueprint, known: Known, most: int | None = None
) -> Completed:
    recording, graph = taken.recording, taken.graph
    whole = Whole(chosen.program, graph, taken.sources())
    places = recording.graph.outputs
    inputs = [recording.values[number] for number in graph.inputs[: len(taken.active)]]
    values = [recording.values[place] for place in places]
    vanishing: dict[int, Zeros] = {}
    noted = Noted()

    def emit(function: Any, *args: Any) -> Register:
        register = whole.emit(function, *args)
        if function is zeros:
            vanishing[register.index] = args
        noted.passed(register, args)
        return register

    evaluation = Evaluation(chosen, taken.wanted, whole.outputs, values, inputs, {}, emit, history=noted)
    leaves, spec = tree_flatten(
        request.assemble([_own(whole, graph, place) for place in places], recording, evaluation)
    )
    tensors = [leaf for leaf in leaves if isinstance(leaf, Register)]
    derived = None if request.compact else noted.among(tensors)
    readings = (*taken.readings, *shapes_read(graph))
    for reading in readings:
        whole.guard(*reading)
    captured = taken.captured()
    if by_values := [each for each in chosen.lowered.decided if captured_of(chosen.lowered, each, captured) is None]:
        decided = Decided(chosen.lowered._replace(decided=tuple(by_values)))
        call = Call(decided, tuple(map(Ref, range(len(decided.origins)))))
        whole.guard(call, decided.origins, value=True)
    form = Result(spec, tuple(PLACE if isinstance(leaf, Register) else leaf for leaf in leaves))
    is_tensor = len(tensors) == 1 and spec.is_leaf()
    device, numbers = device_of(graph), chosen.lowered.numbers
    chunks = chosen.chunks and priced_chunks(whole.around(chosen.chunks, tensors), device, request.limits.max_bytes)
    key = id(chosen.program), most
    if key not in known:
        known[key] = chosen.program, *_at_once(whole, tensors, chosen, device, most)
    _, program, at_once = known[key]
    owners = {register: numbers[number] for register, number in whole.owners.items() if number in numbers}
    cost = at_once if chunks is None else chunks.cost
    by_register: dict[int, int | Zeros] = {
        **vanishing,
        **{register.index: place for place, register in enumerate(whole.outputs)},
    }
    found = [by_register[tensor.index] for tensor in tensors if tensor.index in by_register]
    is_plain = len(found) == len(tensors) and not readings and not chosen.lowered.decided
    result, own = None if is_tensor else form, tuple(found) if is_plain else None
    return Completed(program, chunks, result, owners, at_once, cost, own, chosen, derived)


def _at_once(
    whole: Whole, tensors: Sequence[Register], chosen: Blueprint, device: torch.device, most: int | None
) -> tuple[Program, Cost]:
    """Return the program that returns tensors, and what it costs, in the order of two that holds less."""
    first = priced(whole.program(tensors), device, most=most)
    is_worth = 1 if most is not None else FEWER
    if is_worth * _peak_of(first) <= max(LARGE, chosen.cost.peak_bytes):
        return first
    return min(first, priced(whole.in_turn(tensors), device, most=most), key=_peak_of)


def _peak_of(priced: tuple[Program, Cost]) -> int:
    return priced[1].peak_bytes


def _own(whole: Whole, graph: Graph, number: int) -> Register:
    """Return the register of a value that is returned: a copy of what the plan keeps, as the caller may write to it."""
    value = whole.value(number)
    return whole.emit(torch.clone, value) if graph.nodes[number].op is CONSTANT else value
