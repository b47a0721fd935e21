"""The plan of contractions and of their backward pass, in two parts.

NOTE [learning]: autograd follows the steps of a plan one by one, and knows nothing of what they are for. But the
gradient of a contraction is a contraction of one order more, see `hofunc.plan.gradients`, so that one plan has both, of
which the steps that take what comes back are the backward pass, and others are run before. Or the steps of the plan are
derived, as those of any function are: what they share is less then, but no derivative of one order more is composed.
Of the two the one is taken that should run sooner. It is led back to the values at which the recorded graph begins to
depend on what is differentiated by; what leads to these is followed by autograd. Where somebody differentiates the
backward pass itself, or maps it, the steps are run again, and followed.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import get_gradient_edge

from hofunc.errors import HofuncError
from hofunc.graph.draws import draws
from hofunc.graph.followed import is_followed
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import INPUT, Graph, Node
from hofunc.graph.world import without_autocast
from hofunc.internals import current_dispatch_mode, is_legacy_batchedtensor
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.gradients import Cut, cut, given, with_gradients
from hofunc.plan.lean import arranged
from hofunc.plan.planner import plan as plan_by
from hofunc.plan.planner import quickly
from hofunc.plan.program import Given, Program, Register, Step, device_of, finished
from hofunc.plan.tracing import traced
from hofunc.plan.wanted import Contractions, highest
from hofunc.rules.kinds import Opaque
from hofunc.rules.lower import Lowered, lower
from hofunc.rules.opaque import Complex
from hofunc.run import allocator
from hofunc.run.continued import continued
from hofunc.run.executor import compiled

LONGER = 3.4  # times as long as what comes before, up to which a planned backward pass is taken; autograd takes more
ZERO = -1  # in place of the place of a gradient
MOST_NODES = 600  # of a graph, up to which its nodes are derived one by one, which recurrences are not


class Again(NamedTuple):
    """How the values of a graph are computed again.

    Attributes:
        graph: The graph, in which the nodes by which gradients are wanted are given.
        starts: The numbers of the values that it begins with.
        idle: Those of nodes that lead to these only.
    """

    graph: Graph
    starts: tuple[int, ...]
    idle: tuple[int, ...]


class Parts(NamedTuple):
    """A plan of contractions and of the gradients of what they are multiplied by.

    Attributes:
        before: Returns the contractions, given the values of nodes, and then what the second part takes of it.
        after: Returns the gradients, given in turn the values of the nodes by which they are wanted, others that are
            kept, what the first part returned beside contractions, and what comes back.
        nodes: The nodes by which gradients are wanted.
        kept: The numbers of the other values.
        places: Of each of the nodes its gradient among those that are returned, ZERO of one that is zero, None of one
            that autograd does not come to.
        constants: Which contractions do not depend on the nodes.
        again: How the values of the graph, in which the nodes are given, are computed again.
    """

    before: Program
    after: Program
    nodes: tuple[int, ...]
    kept: tuple[int, ...]
    places: tuple[int | None, ...]
    constants: tuple[bool, ...]
    again: Again


def starts_of(graph: Graph, wanted: Contractions) -> list[int]:
    """Return the nodes at which what autograd may follow goes over into what is differentiated by hofunc."""
    operands = {graph.inputs[number] for sums in wanted.sums for one in sums for number, _ in one.operands}
    read = {operand for node in graph.nodes if node.active for operand in node.operands}
    every = [node for node in graph.nodes if node.number in operands or (node.number in read and is_start(node))]
    return [node.number for node in every if node.dtype.is_floating_point or node.dtype.is_complex]


def is_start(node: Node) -> bool:
    """Tell whether a node depends on nothing that is differentiated by, or is that."""
    return node.is_given or not node.active


def planned(plan: Blueprint, wanted: Contractions, graph: Graph, nodes: Sequence[int], values: Any) -> Parts | None:
    """Plan contractions together with gradients by some nodes; None if that is no better than autograd, or not right.

    What runs in chunks is planned in one piece if it holds as little as is kept by allocators, and else left to these.

    Args:
        plan: The plan of the contractions.
        wanted: These.
        graph: The recorded graph.
        nodes: The nodes.
        values: The values of all nodes of the graph, with their history.
    """
    if not nodes or not _has_gradients(graph, nodes) or not _reads(plan, graph, nodes, values):
        return None
    constants, leads = _leads(plan.program, values, [values[number] for number in nodes])
    if all(constants):
        return None
    again = _again(_cut(graph, wanted, nodes, values).graph, graph)
    device, first_kept = device_of(graph), tuple(dict.fromkeys((*nodes, *again.starts)))
    best, soonest = None, inf
    for way in (_of_contractions, _of_steps):
        both = _tried(partial(way, plan, wanted, graph, nodes, values))
        results = [both.results[number] for _, (number,) in plan.dense] if both else [None]
        if both is None or None in results:
            continue
        returned = [register for register in results if register is not None]
        gradients = [register for register in both.gradients if register is not None]
        before, after, kept = _parted(both.program, returned, gradients, first_kept, both.first)
        made = [arranged(each, device).made for each in (before, after)]
        early, late = (each.cost(device).seconds for each in made)
        is_little = plan.chunks is None or sum(each.peak for each in made) <= 2 * allocator.MOST
        if is_little and late <= LONGER * early and early + late < soonest:
            places = iter(range(len(gradients)))
            of_nodes = [
                (ZERO if lead else None) if register is None else next(places)
                for register, lead in zip(both.gradients, leads, strict=True)
            ]
            best = Parts(before, after, tuple(nodes), kept[len(nodes) :], tuple(of_nodes), constants, again)
            soonest = early + late
    return best


class _Both(NamedTuple):
    """A program of contractions and of gradients of what they are multiplied by.

    Attributes:
        program: The program, which takes values of recorded nodes, and what comes back after these.
        first: The number of the first of what comes back.
        results: The registers of the contractions, None of one that is zero.
        gradients: Those of the gradients by nodes, likewise.
    """

    program: Program
    first: int
    results: list[int | None]
    gradients: list[int | None]


def _tried(way: Callable[[], _Both | None]) -> _Both | None:
    """Return what is planned in a way; None of an op that has no derivative of that order, of which autograd tells."""
    try:
        return way()
    except HofuncError:
        return None


def _of_contractions(
    _plan: Blueprint, wanted: Contractions, graph: Graph, nodes: Sequence[int], values: Any
) -> _Both | None:
    """Plan gradients as contractions of one order more."""
    if sum(node.active for node in graph.nodes) > MOST_NODES:
        return None
    at = _cut(graph, wanted, nodes, values)
    made = _made(at, with_gradients(wanted, at), values, len(graph.nodes))
    return None if made is None else _both(made, made.program, at, len(graph.nodes))


def _of_steps(plan: Blueprint, wanted: Contractions, graph: Graph, nodes: Sequence[int], values: Any) -> _Both | None:
    """Plan gradients of the steps of a plan."""
    if plan.careful is not None:  # without which it is not right everywhere
        plan = quickly(plan.lowered, wanted, compact=False, limits=Limits()).plan
    whole = continued(graph, plan.program, values, nodes)
    if plan.goes_by_facts or any(map(draws, whole.graph.nodes)):
        return None
    at = _cut(whole.graph, whole.wanted, nodes, whole.values)
    made = _made(at, with_gradients(whole.wanted, at), whole.values, len(graph.nodes))
    if made is None:
        return None
    both = _both(made, whole.completed(made.program, at.graph), at, len(whole.graph.nodes))
    results: list[int | None] = [None] * len(wanted.sums)
    for (_, (number,)), place in plan.dense.items():
        results[number] = both.results[place]
    return both._replace(results=results)


def _made(at: Cut, asked: Contractions | None, values: Any, count: int) -> Blueprint | None:
    """Plan gradients in a graph that is cut; None if they are no contractions, or not right.

    Args:
        at: The graph.
        asked: What is asked for of it, None if gradients are no contractions.
        values: The values of its nodes.
        count: How many of these have histories.
    """
    if asked is None:
        return None
    seeds = [at.graph.nodes[at.graph.inputs[place]] for place in at.seeds]
    every = [values[number] for number in range(len(at.graph.nodes) - len(seeds))]
    every += [torch.zeros(seed.shape, dtype=seed.dtype, device=seed.device) for seed in seeds]
    lowered = lower(at.graph, every, highest(asked))
    is_opaque = any(isinstance(rule, Opaque | Complex) for rule in lowered.rules.values())
    if is_opaque or not _is_followed(lowered, at, values, count):
        return None
    if highest(asked) > 1:
        made = quickly(lowered, asked, compact=False, limits=Limits()).plan
    else:  # gradients of what comes back are one direction
        made, *_ = plan_by(lowered, asked, compact=False, strategy="reverse")
    return None if made.lowered.decided or made.goes_by_facts else made


def _both(made: Blueprint, program: Program, at: Cut, first: int) -> _Both:
    """Return the program of a plan of contractions, and of gradients after these."""
    registers = {number: program.outputs[place] for (_, (number,)), place in made.dense.items()}
    count = len(at.seeds)
    results, gradients = range(count), range(count, count + len(at.learned))
    return _Both(program, first, [*map(registers.get, results)], [*map(registers.get, gradients)])


class Gradients(NamedTuple):
    """Gradients of what a program returns.

    Attributes:
        program: Returns them, given what the program takes, in turn, and what comes back.
        places: Of what the program takes, the place of its gradient, as of `Parts`.
    """

    program: Program
    places: tuple[int | None, ...]


def gradients_of(
    program: Program, held: Mapping[int, torch.Tensor], learned: Sequence[int], results: Sequence[int]
) -> Gradients | None:
    """Plan the gradients of some results of a program by some of what it takes; None if they are not planned right.

    Args:
        program: The program, which is right everywhere.
        held: What it takes, by number.
        learned: The numbers of that by which there are gradients.
        results: The places of the results of which something comes back.
    """
    values, places = [*held.values()], {number: place for place, number in enumerate(held)}
    begin = [
        Node(number, INPUT, (), (), None, (), tuple(value.shape), value.dtype, value.device, True)
        for number, value in enumerate(values)
    ]
    graph = Graph(tuple(begin), tuple(places.values()), ())
    nodes = [places[number] for number in learned]
    whole = continued(graph, renumbered(program, places), values, nodes)
    whole = whole._replace(graph=whole.graph._replace(outputs=tuple([whole.graph.outputs[place] for place in results])))
    if any(map(draws, whole.graph.nodes)) or not _has_gradients(whole.graph, nodes):
        return None
    at = _cut(whole.graph, whole.wanted, nodes, whole.values)
    asked = with_gradients(whole.wanted, at)
    made = _made(at, asked and Contractions(asked.sums[len(results) :]), whole.values, 0)
    if made is None:
        return None
    found, first = whole.completed(made.program, at.graph), len(whole.graph.nodes)
    coming = {first + place: len(values) + place for place in range(len(results))}
    lean = arranged(renumbered(found, coming), device_of(graph)).leaner()
    allocator.keep(lean.peak, device_of(graph))
    by_number = {number: place for (_, (number,)), place in made.dense.items()}
    return Gradients(
        lean.program,
        tuple([by_number.get(nodes.index(place), ZERO) if place in nodes else None for place in places.values()]),
    )


def renumbered(program: Program, numbers: Mapping[int, int]) -> Program:
    """Return a program that takes some values by other numbers."""
    given = {
        register: each._replace(origin=numbers.get(each.origin, each.origin)) if isinstance(each.origin, int) else each
        for register, each in program.given.items()
    }
    return program._replace(given=given)


def placed(
    gradients: Sequence[torch.Tensor], places: Sequence[int | None], by: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Return the gradients by tensors, given those that were computed, and the place among these of each."""
    return [
        torch.zeros_like(tensor) if place == ZERO else None if place is None else gradients[place]
        for tensor, place in zip(by, places, strict=False)
    ]


def are_plain(coming: Sequence[torch.Tensor]) -> bool:
    """Tell whether nobody follows what is done with what comes back, or sees it."""
    if torch.is_grad_enabled() or is_followed(coming) or current_dispatch_mode() is not None:
        return False
    return PLAIN.issuperset(map(type, coming)) and not any(map(is_legacy_batchedtensor, coming))


def _has_gradients(graph: Graph, nodes: Sequence[int]) -> bool:
    """Tell whether gradients of contractions are of one dtype."""
    if any(draws(node) or node.dtype.is_complex for node in graph.nodes):
        return False
    return len({graph.nodes[number].dtype for number in (*nodes, *graph.outputs)}) == 1


def _cut(graph: Graph, wanted: Contractions, nodes: Sequence[int], values: Any) -> Cut:
    starts = [
        given(number, graph.nodes[number].shape, graph.nodes[number]._replace(device=values[number].device))
        for number in nodes
    ]
    outputs, inputs = ([values[number] for number in numbers] for numbers in (graph.outputs, graph.inputs))
    seeds = []
    for place, (one, *_) in enumerate(wanted.sums):
        sizes, output = one.sizes_in(outputs, inputs), graph.outputs[one.output[0]]
        like = graph.nodes[output]._replace(device=values[output].device)
        seeds.append(given(len(graph.nodes) + place, [int(sizes[name]) for name in one.result], like))
    return cut(graph, starts, seeds)


def _is_followed(lowered: Lowered, at: Cut, values: Any, count: int) -> bool:
    """Tell whether autograd follows what depends on the nodes; not so where gradients are off within the function."""
    depending = {*at.learned}
    for node in at.graph.nodes[:count]:
        if node.is_given or depending.isdisjoint(node.operands):
            continue
        number = lowered.numbers.get(node.number)
        if number is not None and lowered.graph.nodes[number].active:
            if not values[node.number].requires_grad:
                return False
            depending.add(node.number)
    return True


def _reads(plan: Blueprint, graph: Graph, nodes: Sequence[int], values: Any) -> bool:
    """Tell whether what a plan reads of what leads to the nodes is only these."""
    origins = [each.origin for each in plan.program.given.values() if isinstance(each.origin, int)]
    return not any(
        values[number].requires_grad and number not in nodes for number in origins if is_start(graph.nodes[number])
    )


def _leads(program: Program, values: Any, nodes: Sequence[torch.Tensor]) -> tuple[tuple[bool, ...], list[bool]]:
    """Tell which results autograd follows nowhere, and to which nodes it does.

    That of steps that read only the signs of what they take is not told by the program.
    """
    with torch.enable_grad():
        results = without_autocast(compiled(program), values)
    ends = [get_gradient_edge(node)[:2] for node in nodes]
    waiting = [get_gradient_edge(result)[:2] for result in results if result.requires_grad]
    reached = {*waiting}
    while waiting:
        edge = waiting.pop()
        for function, number in () if edge in ends else edge[0].next_functions:
            if function is not None and (function, number) not in reached:
                reached.add((function, number))
                waiting.append((function, number))
    return tuple([not result.requires_grad for result in results]), [end in reached for end in ends]


def _again(cut_off: Graph, graph: Graph) -> Again:
    """Return how to compute the values again on which a plan runs."""
    nodes = cut_off.nodes[: len(graph.nodes)]
    needed = {*graph.outputs, *graph.inputs}
    for node in reversed(nodes):
        if node.number in needed:
            needed.update(node.operands)
    starts = tuple([node.number for node in nodes if node.number in needed and is_start(node)])
    idle = tuple([node.number for node in nodes if node.number not in needed])
    return Again(graph._replace(nodes=nodes), starts, idle)


def _parted(
    program: Program, results: Sequence[int], gradients: Sequence[int], kept: tuple[int, ...], first: int
) -> tuple[Program, Program, tuple[int, ...]]:
    """Part a program into what comes before its gradients, and these.

    Args:
        program: The program.
        results: The registers that the first part returns first.
        gradients: Those that the second returns.
        kept: The numbers of values that there are for the second in any case.
        first: The number of the first of the values that come back.

    Returns:
        The first part; the second, which takes values, what the first returns after results, and what comes back; and
        the numbers of the values.
    """
    makers = {step.target: step for step in program.steps}
    before = _needed(makers, results)
    late = _needed(makers, gradients) - before
    after = [step for step in program.steps if step.target in late]
    read = dict.fromkeys(arg.index for step in after for arg in step.args if isinstance(arg, Register))
    read |= dict.fromkeys(gradients)
    passed = [register for register in read if register in before]
    own, coming = dict[int, Given](), dict[int, Given]()
    for register, each in program.given.items():
        if isinstance(each.origin, int) and each.origin >= first:
            coming[register] = each
        elif register in read:
            own[register] = each
    kept = tuple(dict.fromkeys((*kept, *(each.origin for each in own.values() if isinstance(each.origin, int)))))
    places = {number: place for place, number in enumerate(kept)}
    own = {
        r: each._replace(origin=places[each.origin]) if isinstance(each.origin, int) else each
        for r, each in own.items()
    }
    for place, (register, held) in enumerate(zip(passed, traced(program).of(passed), strict=True), len(kept)):
        own[register] = Given(place, tuple(held.kind.shape), held.kind.dtype)
    for register, each in coming.items():
        if isinstance(each.origin, int):
            own[register] = each._replace(origin=len(kept) + len(passed) + each.origin - first)
    steps = [step for step in program.steps if step.target in before]
    one = finished(program.given, program.shapes, steps, [*map(Register, (*results, *passed))])
    return one, finished(own, program.shapes, after, [*map(Register, gradients)]), kept


def _needed(makers: Mapping[int, Step], registers: Sequence[int]) -> set[int]:
    """Return the registers that steps compute which some registers need."""
    found, waiting = set[int](), [*registers]
    while waiting:
        register = waiting.pop()
        if register in makers and register not in found:
            found.add(register)
            waiting += [arg.index for arg in makers[register].args if isinstance(arg, Register)]
    return found
