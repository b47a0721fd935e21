"""Making a frozen plan: record for replay, plan, and complete the program by the function itself."""

from collections.abc import Mapping, Sequence
from math import inf

import torch

from hofunc.callable_plan import Origin, Plan, Steps, made
from hofunc.completed import Completed, Known, completed
from hofunc.errors import ArgumentError
from hofunc.graph.draws import draws
from hofunc.graph.identity import is_fake
from hofunc.graph.layout import restrided
from hofunc.graph.node import Graph
from hofunc.graph.standin import in_transform
from hofunc.internals import tree_leaves
from hofunc.outline import Subject
from hofunc.plan.blueprint import Blueprint, Limits, Peak, table_bytes
from hofunc.plan.planner import plan, quickly
from hofunc.plan.primal import Whole
from hofunc.plan.program import Program, device_of
from hofunc.plan.values import likely_values
from hofunc.plan.wanted import Contractions, highest
from hofunc.rules.lower import Lowered, lower
from hofunc.run import allocator
from hofunc.run.learning import LearningOfWhole
from hofunc.run.room import check_results, check_room
from hofunc.signature import Signature
from hofunc.taken import Change, Request, Taken, captured_of, take


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
    taken = take(request, args, kwargs)
    values = taken.captured() | (taken.integers() if by_indices else {})
    lowered = _lowered(taken)._replace(values=values)
    is_drawn = any(map(draws, taken.graph.nodes))  # which may not be done twice
    likely = {} if is_drawn and for_all else likely_values(taken.graph, taken.recording.values)
    is_quick = quick and not is_drawn and request.strategy == "auto"
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
    name: str, request: Request, args: tuple, kwargs: dict, taken: Taken, lowered: Lowered, *, quick: bool = False
) -> Plan:
    """Plan the derivative of what was recorded."""
    known: Known = {}

    def peak(made: Blueprint) -> int:
        return completed(request, taken, made, known).cost.peak_bytes + table_bytes(made)

    check_results(lowered, taken.wanted, request.limits, compact=request.compact)
    chosen, others, calls = _planned(request, taken, lowered, peak, quick=quick)
    found = completed(request, taken, chosen, known)
    steps = Steps(found.program, found.chunks)
    if chosen.careful is not None:
        careful = completed(request, taken, chosen.careful(), known)
        steps = Steps(careful.program, careful.chunks, None if found.chunks else found.program)
    allocator.keep(found.cost.peak_bytes, device_of(taken.graph))
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
    facts = taken.facts._replace(contents=_gone_by(chosen.lowered, taken.captured()))
    origin, learning = _origin(taken, found), _learning(request, taken, found)
    return made(name, signature, facts, steps, found.result, subject, origin, learning, calls)


def _planned(
    request: Request, taken: Taken, lowered: Lowered, peak: Peak, *, quick: bool
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
    return _lowered(take(request, args, kwargs)).graph


def _lowered(taken: Taken) -> Lowered:
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


def _learning(request: Request, taken: Taken, found: Completed) -> LearningOfWhole | None:
    """Return what plans the backward pass of contractions, which are all that is returned."""
    is_plain = request.limits == Limits() and not found.chosen.goes_by_facts
    if found.places is None or not isinstance(taken.wanted, Contractions) or not is_plain:
        return None
    return LearningOfWhole(found.chosen, taken.wanted, taken.graph, taken.sources(), found.places)


def _origin(taken: Taken, found: Completed) -> Origin:
    """Return what tells where what is not finite arose."""
    whole = Whole(Program({}, {}, (), (), ()), taken.graph, taken.sources())
    values = [whole.value(node.number) for node in taken.graph.nodes]
    return Origin(taken.graph, whole.program(values), taken.recording.lines, found.derived)


def _gone_by(lowered: Lowered, captured: Mapping[int, torch.Tensor]) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return the captured tensors by whose values a plan goes, and these."""
    found = ((captured_of(lowered, reading, captured), reading.value) for reading in lowered.decided)
    return tuple([(one, value) for one, value in found if one is not None and isinstance(value, torch.Tensor)])
