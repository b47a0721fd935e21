"""Making a frozen plan: record for replay, plan, and complete the program by the function itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import torch

from hofunc.arguments import Arguments
from hofunc.callable_plan import PLACE, Origin, Plan, Result, Steps, made
from hofunc.complex_tensors import by_parts, put_together
from hofunc.errors import ArgumentError
from hofunc.graph.capture import record_for_replay
from hofunc.graph.draws import is_random
from hofunc.graph.facts import Facts
from hofunc.graph.identity import is_fake
from hofunc.graph.layout import restrided
from hofunc.graph.node import CONSTANT, Call, Graph, Ref
from hofunc.graph.readings import Reading
from hofunc.graph.record import Recording, made_recordable
from hofunc.graph.saving import unhooked
from hofunc.graph.standin import in_transform
from hofunc.internals import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from hofunc.options import records_forwards
from hofunc.outline import Subject
from hofunc.plan.blueprint import Blueprint, Limits, Peak, table_bytes
from hofunc.plan.chunks import Chunks, priced_chunks
from hofunc.plan.cost import Cost
from hofunc.plan.lean import FEWER, LARGE, priced
from hofunc.plan.operators import zeros
from hofunc.plan.planner import plan, quickly
from hofunc.plan.primal import PartsOf, Source, Whole
from hofunc.plan.program import Program, Register, device_of
from hofunc.plan.values import GONE_BY, likely_values
from hofunc.plan.wanted import Contractions, Wanted, highest
from hofunc.rules.lower import INTEGERS, Lowered, lower, shapes_read
from hofunc.run.decided import Decided
from hofunc.run.evaluate import Evaluation
from hofunc.run.history import Derived, Noted
from hofunc.run.learning import LearningOfWhole, Zeros
from hofunc.run.room import check_results, check_room
from hofunc.signature import Signature


class Request(NamedTuple):
    """What a transform asks a plan for.

    Attributes:
        transform: Name of the transform.
        user: The function that is differentiated.
        function: Called with the arguments; returns the pair of what it returned to be differentiated and aux.
        arguments: Those that it is asked for at.
        keywords: The names of keyword arguments of which the tensors are inputs as well, if they are there.
        wanted: Given what function returned, returns the orders wanted, or the contractions.
        compact: Whether derivatives are kept as terms.
        strategy: One of the planner's strategies, or "auto".
        limits: Rows at a time, and memory.
        assemble: Given the tensors that function returned, its recording and the evaluation, returns the result.
    """

    transform: str
    user: Callable[..., Any]
    function: Callable[..., tuple[Any, Any]]
    arguments: Arguments
    keywords: tuple[str, ...]
    wanted: Callable[[Any], Wanted]
    compact: bool
    strategy: str
    limits: Limits
    assemble: Callable[[Sequence[Any], Recording, Evaluation], Any]


def freeze(
    name: str,
    request: Request,
    args: tuple,
    kwargs: dict,
    *,
    by_indices: bool = False,
    for_all: bool = True,
    quick: bool = False,
) -> Plan:
    """Record and plan a derivative.

    Args:
        name: What the plan is called.
        request: What is wanted.
        args: Positional arguments, of which those to differentiate by are checked, and are tensors.
        kwargs: Keyword arguments.
        by_indices: Whether the plan may go by the values of integers among the arguments, and refuse others then.
        for_all: Whether a plan that goes by facts about indices has another one beside it, for where these do not hold.
        quick: Whether to plan by the strategies alone that are likely to be the fastest; what draws random numbers is
            planned by all, as whoever plans it again would draw other ones.

    Raises:
        ArgumentError: The limits cannot be kept to.
    """
    taken = _taken(request, args, kwargs)
    values = _captured(taken) | (_integers(taken) if by_indices else {})
    lowered = _lowered(taken)._replace(values=values)
    draws = any(is_random(node.op) for node in taken.graph.nodes)  # which may not be done twice
    likely = {} if draws and for_all else likely_values(taken.graph, taken.recording.values)
    is_quick = quick and not draws and request.strategy == "auto"
    found = _frozen(name, request, args, kwargs, taken, lowered._replace(likely=likely), quick=is_quick)
    if not (for_all and isinstance(found._subject, Subject)):
        return found
    if not found._subject.chosen.goes_by_facts:
        return found
    try:
        return found.beside(_frozen(name, request, args, kwargs, taken, lowered))
    except ArgumentError:  # as it holds more than it may
        return found


def _frozen(
    name: str, request: Request, args: tuple, kwargs: dict, taken: "_Taken", lowered: Lowered, *, quick: bool = False
) -> Plan:
    """Plan the derivative of what was recorded."""
    known: _Known = {}

    def peak(made: Blueprint) -> int:
        return _completed(request, taken, made, known).cost.peak_bytes + table_bytes(made)

    check_results(lowered, taken.wanted, request.limits, compact=request.compact)
    chosen, others, calls = _planned(request, taken, lowered, peak, quick=quick)
    found = _completed(request, taken, chosen, known)
    steps = Steps(found.program, found.chunks)
    if chosen.careful is not None:
        careful = _completed(request, taken, chosen.careful(), known)
        steps = Steps(careful.program, careful.chunks, None if found.chunks else found.program)
    if request.limits.max_bytes is None:
        check_room(chosen, found.cost.peak_bytes, taken.wanted, compact=request.compact)
    is_strided = any(node.op is restrided or "as_strided" in str(node.op) for node in taken.graph.nodes)
    strides = is_strided or taken.asked_layout
    numbers = [each for each in taken.inputs[: len(taken.active)] if isinstance(each, int)]
    signature = Signature(request.transform, args, kwargs, numbers, strides=strides, history=taken.asked_history)
    subject = Subject(
        name,
        taken.wanted,
        taken.graph,
        (
            *(each.name if isinstance(each, Change) else signature.names[each] for each in taken.inputs),
            *(f"captured {n}" for n in range(len(taken.facts.captured))),
        ),
        chosen,
        {
            each.strategy: each.run_cost
            for each in (chosen, *(each for each in others if each.strategy != chosen.strategy))
        },
        request.strategy,
        request.compact,
        request.limits,
        found.program,
        found.at_once,
        found.cost,
        {**found.owners, **chosen.owners},
        taken.recording.lines,
    )
    facts = taken.facts._replace(contents=_gone_by(chosen.lowered, _captured(taken)))
    origin, learning = _origin(taken, found), _learning(request, taken, found)
    return made(name, signature, facts, steps, found.result, subject, origin, learning, calls)


def _planned(
    request: Request, taken: "_Taken", lowered: Lowered, peak: Peak, *, quick: bool
) -> tuple[Blueprint, Sequence[Blueprint], float]:
    """Plan; returns the cheapest plan, the others, and after how many calls it is worth it to plan in full."""
    if quick:
        found = quickly(lowered, taken.wanted, compact=request.compact, limits=request.limits, peak=peak, looks=True)
        return found.plan, (), found.calls
    chosen, *others = plan(
        lowered,
        taken.wanted,
        compact=request.compact,
        strategy=request.strategy,
        limits=request.limits,
        peak=peak,
        looks=True,
    )
    return chosen, others, inf


def graph_of(request: Request, args: tuple, kwargs: dict) -> Graph:
    """Return the graph of which a derivative is planned, as `freeze` does."""
    return _lowered(_taken(request, args, kwargs)).graph


def _lowered(taken: "_Taken") -> Lowered:
    return lower(taken.graph, taken.recording.values, highest(taken.wanted))


def check_values(name: str, args: tuple, kwargs: dict) -> None:
    """Check that the arguments of which a plan is made have values of their own.

    Raises:
        ArgumentError: A torch.func transform is running, or a tensor is fake.
    """
    if in_transform():
        raise ArgumentError(
            f"{name}: plan",
            got="a call inside torch.func.vmap, grad or another transform",
            expected="one outside, where tensors have values of their own",
            remedy="Make the plan first; calling it inside a transform is fine.",
        )
    if any(map(is_fake, tree_leaves((args, kwargs)))):
        raise ArgumentError(
            f"{name}: plan",
            got="a tensor without elements, as torch traces with",
            expected="tensors with values of their own",
            remedy="Make the plan from real tensors first; calling it with others is fine.",
        )


class Change(NamedTuple):
    """The change of what f taps, of which a plan has the one that it is made with, of zeros."""

    name: str
    tensor: torch.Tensor


class _Taken(NamedTuple):
    """A recording, and how it is replayed.

    Attributes:
        recording: The recording.
        graph: Its graph, of which only what is differentiated is an output.
        inputs: For every input of the graph that is an argument, its place among the tensors of the arguments; changes
            of taps among those.
        active: For each of those that it is differentiated by, which come first, whether it is complex.
        readings: The values that the function read.
        facts: What else it depends on.
        asked_history: Whether it asked if autograd follows a tensor.
        asked_layout: Whether it asked how a tensor lies in memory.
        wanted: What is asked for.
    """

    recording: Recording
    graph: Graph
    inputs: tuple[int | Change, ...]
    active: Sequence[bool]
    readings: Sequence[tuple]
    facts: Facts
    asked_history: bool
    asked_layout: bool
    wanted: Wanted


def _taken(request: Request, args: tuple, kwargs: dict) -> _Taken:
    """Record the function, with all tensors of the arguments for inputs."""
    leaves, spec = tree_flatten((args, kwargs))
    active, others = _separated(leaves, spec, request)
    tensors = [each.tensor if isinstance(each, Change) else by_parts(leaves[each]) for each in active]
    are_complex = [not isinstance(each, Change) and leaves[each].is_complex() for each in active]

    def function(inputs: Sequence[torch.Tensor], rest: Sequence[torch.Tensor]) -> Any:
        filled = list(leaves)
        for each, tensor in zip((*active, *others), (*map(put_together, inputs, are_complex), *rest), strict=True):
            if isinstance(each, int):
                filled[each] = tensor
        args, kwargs = tree_unflatten(filled, spec)
        with request.arguments.tapped(inputs):
            return request.function(*args, **kwargs)

    objects = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    given = tensors, [leaves[place] for place in others], (request.user, *objects)
    with unhooked():
        recording, readings, facts, asked_history, asked_layout = made_recordable(
            lambda follow: record_for_replay(function, *given, follow=follow), follow=records_forwards()
        )
    given_back = tree_unflatten(recording.leaves, recording.spec)
    count = tree_flatten(given_back[0])[1].num_leaves
    ends = recording.graph.outputs
    graph = recording.graph._replace(outputs=ends[:count], aux=ends[count:])
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    inputs = tuple(each if isinstance(each, Change) else places.index(each) for each in (*active, *others))
    wanted = request.wanted(given_back)
    return _Taken(recording, graph, inputs, are_complex, readings, facts, asked_history, asked_layout, wanted)


class _Completed(NamedTuple):
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
_Known = dict[tuple[int, int | None], tuple[Program, Program, Cost]]


def _completed(request: Request, taken: _Taken, chosen: Blueprint, known: _Known) -> _Completed:
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
    request: Request, taken: _Taken, chosen: Blueprint, known: _Known, most: int | None = None
) -> _Completed:
    recording, graph = taken.recording, taken.graph
    whole = Whole(chosen.program, graph, _sources(taken))
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
    captured = _captured(taken)
    if by_values := [each for each in chosen.lowered.decided if _captured_of(chosen.lowered, each, captured) is None]:
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
    return _Completed(program, chunks, result, owners, at_once, cost, own, chosen, derived)


def _at_once(
    whole: Whole, tensors: Sequence[Register], chosen: Blueprint, device: torch.device, most: int | None
) -> tuple[Program, Cost]:
    """Return the program that returns tensors, and what it costs, in the order of two that holds less."""
    first = priced(whole.program(tensors), device, most=most)
    is_worth = 1 if most is not None else FEWER
    if is_worth * _peak_of(first) <= max(LARGE, chosen.cost.peak_bytes):
        return first
    return min(first, priced(whole.in_turn(tensors), device, most=most), key=_peak_of)


def _learning(request: Request, taken: _Taken, found: _Completed) -> LearningOfWhole | None:
    """Return what plans the backward pass of contractions, which are all that is returned."""
    is_plain = request.limits == Limits() and not found.chosen.goes_by_facts
    if found.places is None or not isinstance(taken.wanted, Contractions) or not is_plain:
        return None
    return LearningOfWhole(found.chosen, taken.wanted, taken.graph, _sources(taken), found.places)


def _peak_of(priced: tuple[Program, Cost]) -> int:
    return priced[1].peak_bytes


def _own(whole: Whole, graph: Graph, number: int) -> Register:
    """Return the register of a value that is returned: a copy of what the plan keeps, as the caller may write to it."""
    value = whole.value(number)
    return whole.emit(torch.clone, value) if graph.nodes[number].op is CONSTANT else value


def _separated(leaves: Sequence[Any], spec: TreeSpec, request: Request) -> tuple[list[int | Change], list[int]]:
    """Return the places, among the leaves of (args, kwargs), of what is differentiated by and of other tensors."""
    args, kwargs = tree_unflatten(list(range(len(leaves))), spec)
    arguments = request.arguments
    changes = [*map(Change, arguments.names(), arguments.leaves)]
    active: list[int | Change] = []
    start = 0
    for variable, structure in zip(arguments.variables, arguments.specs, strict=True):
        end = start + structure.num_leaves
        active += tree_leaves(args[variable]) if isinstance(variable, int) else changes[start:end]
        start = end
    active += tree_leaves([kwargs.get(name, ()) for name in request.keywords])
    places = {each for each in active if isinstance(each, int)}
    others = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and n not in places]
    return active, others


def _origin(taken: _Taken, found: _Completed) -> Origin:
    """Return what tells where what is not finite arose."""
    whole = Whole(Program({}, {}, (), (), ()), taken.graph, _sources(taken))
    values = [whole.value(node.number) for node in taken.graph.nodes]
    return Origin(taken.graph, whole.program(values), taken.recording.lines, found.derived)


def _captured(taken: _Taken) -> dict[int, torch.Tensor]:
    """Return the captured integers, by whose values planning may go."""
    count = len(taken.inputs)
    return {
        number: value
        for number, value in _sources(taken).items()
        if isinstance(value, torch.Tensor) and number not in taken.graph.inputs[:count] and value.dtype in INTEGERS
    }


def _integers(taken: _Taken) -> dict[int, torch.Tensor]:
    """Return the values of integers among the arguments."""
    given = taken.graph.inputs[: len(taken.inputs)]
    return {n: taken.recording.values[n] for n in given if taken.graph.nodes[n].dtype in INTEGERS}


def _gone_by(lowered: Lowered, captured: Mapping[int, torch.Tensor]) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return the captured tensors by whose values a plan goes, and these."""
    found = ((_captured_of(lowered, reading, captured), reading.value) for reading in lowered.decided)
    return tuple([(one, value) for one, value in found if one is not None and isinstance(value, torch.Tensor)])


def _captured_of(lowered: Lowered, reading: Reading, captured: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """Return the captured tensor by whose value a plan goes, None for what else decided it."""
    if reading.call.op is not GONE_BY:
        return None
    (place,) = reading.operands
    origin = lowered.origins[place]
    return captured.get(origin) if isinstance(origin, int) else None


def _sources(taken: _Taken) -> dict[int, Source]:
    """Return what every node that is given stands for: an argument by its place among the tensors, or a tensor."""
    graph, values = taken.graph, taken.recording.values
    sources: dict[int, Source] = {node.number: values[node.number] for node in graph.nodes if node.is_given}
    for number, given in zip(graph.inputs, taken.inputs, strict=False):
        sources[number] = given.tensor if isinstance(given, Change) else given
    for number, given, is_complex in zip(graph.inputs, taken.inputs, taken.active, strict=False):
        if is_complex and isinstance(given, int):
            sources[number] = PartsOf(given)
    return sources
