"""The plan of contractions and of their backward pass, in two parts.

NOTE [learning]: autograd follows the steps of a plan one by one, and knows nothing of what they are for. But the
gradient of a contraction is a contraction of one order more, see `hofunc.plan.gradients`, so that one plan has both, of
which the steps that take what comes back are the backward pass, and others are run before. It is led back to the values
at which the recorded graph begins to depend on what is differentiated by; what leads to these is followed by autograd.
Where somebody differentiates the backward pass itself, or maps it, the steps are run again, and followed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import get_gradient_edge

from hofunc.graph.draws import draws
from hofunc.graph.node import Graph, Node
from hofunc.graph.world import without_autocast
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.gradients import Cut, cut, given, with_gradients
from hofunc.plan.planner import quickly
from hofunc.plan.program import Given, Program, Register, Step, finished
from hofunc.plan.tracing import traced
from hofunc.plan.wanted import Contractions, highest
from hofunc.rules.kinds import Opaque
from hofunc.rules.lower import Lowered, lower
from hofunc.rules.opaque import Complex
from hofunc.run.executor import compiled

MORE = 4.0  # times as long as what comes before, up to which a plan of both is taken; by autograd it is 3 and more
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

    Args:
        plan: The plan of the contractions.
        wanted: These.
        graph: The recorded graph.
        nodes: The nodes.
        values: The values of all nodes of the graph, with their history.
    """
    if not nodes or not _has_gradients(graph, nodes):
        return None
    at = _cut(graph, wanted, nodes, values)
    asked = with_gradients(wanted, at)
    if asked is None:
        return None
    seeds = [at.graph.nodes[at.graph.inputs[place]] for place in at.seeds]
    every = [*(values[number] for number in range(len(graph.nodes)))]
    every += [torch.zeros(seed.shape, dtype=seed.dtype, device=seed.device) for seed in seeds]
    lowered = lower(at.graph, every, highest(asked))
    is_opaque = any(isinstance(rule, Opaque | Complex) for rule in lowered.rules.values())
    if is_opaque or not _is_followed(lowered, at, values) or not _reads(plan, graph, nodes, values):
        return None
    made = quickly(lowered, asked, compact=False, limits=Limits()).plan
    if made.lowered.decided or made.goes_by_facts or made.cost.seconds > MORE * plan.cost.seconds:
        return None
    first = len(wanted.sums)
    by_number = {number: place for (_, (number,)), place in made.dense.items()}
    results = [by_number.get(number) for (_, (number,)) in plan.dense]
    found = [by_number.get(first + place) for place in range(len(nodes))]
    own = [values[number] for number in nodes]
    constants, leads = _leads(plan.program, values, own)
    if None in results or all(constants):
        return None
    outputs = made.program.outputs
    gradients = [outputs[place] for place in found if place is not None]
    again = _again(at.graph, graph)
    first_kept = tuple(dict.fromkeys((*nodes, *again.starts)))
    returned = [outputs[place] for place in results if place is not None]
    before, after, kept = _parted(made.program, returned, gradients, first_kept, len(graph.nodes))
    places = iter(range(len(gradients)))
    return Parts(
        before,
        after,
        tuple(nodes),
        kept[len(nodes) :],
        tuple(
            [
                (ZERO if lead else None) if place is None else next(places)
                for place, lead in zip(found, leads, strict=True)
            ]
        ),
        constants,
        again,
    )


def _has_gradients(graph: Graph, nodes: Sequence[int]) -> bool:
    """Tell whether gradients of contractions are of one dtype, and those of a graph of moderate size."""
    if any(draws(node) or node.dtype.is_complex for node in graph.nodes):
        return False
    dtypes = {graph.nodes[number].dtype for number in (*nodes, *graph.outputs)}
    return len(dtypes) == 1 and sum(node.active for node in graph.nodes) <= MOST_NODES


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


def _is_followed(lowered: Lowered, at: Cut, values: Any) -> bool:
    """Tell whether autograd follows what depends on the nodes; not so where gradients are off within the function."""
    depending = {*at.learned}
    for node in at.graph.nodes:
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
