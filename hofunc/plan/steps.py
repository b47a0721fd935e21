"""Steps of a recurrence: the nodes of a graph that are the same over and over, each time on what the last ones made.

Those of a recurrent network, of a solver, of a filter. They are found by the ops alone: nodes that have alike
derivatives bear one name, and names that recur at one distance, wired alike, are steps. What a step takes from before
is told by where it stands there: of the step before, the same for all steps, or one for each.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from math import inf, prod
from typing import NamedTuple

from hofunc.algebra.operators import Map, sources
from hofunc.graph.node import Call, Graph, Ref, call_of, refs, renumbered
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.rules.local import Alike

LEAST = 8  # steps, below which nothing is gained
NODES = 16  # of a step, if several steps are taken for one
_TRIED = 6  # distances at which names may recur


class Taken(NamedTuple):
    """What steps take from before.

    Attributes:
        nodes: The node, for each step.
        is_active: Whether it depends on what is differentiated by.
        is_shared: Whether it is the same for all steps.
    """

    nodes: tuple[int, ...]
    is_active: bool
    is_shared: bool


class Steps(NamedTuple):
    """Steps of a recurrence.

    Attributes:
        nodes: The nodes of each step, those of one place alike.
        taken: What they take from before: what is active first, and of that what the step before gives.
        sources: By place of a node and of its operand, what of that is taken from before, by its number.
        given: The places of the nodes that others take.
        bent: The numbers of what is taken and whose value derivatives depend on.
    """

    nodes: list[list[int]]
    taken: list[Taken]
    sources: dict[tuple[int, int], int]
    given: list[int]
    bent: range = range(0)

    @property
    def active(self) -> list[Taken]:
        """What depends on what is differentiated by."""
        return [each for each in self.taken if each.is_active]

    @property
    def constant(self) -> list[Taken]:
        """What does not."""
        return [each for each in self.taken if not each.is_active]


def all_steps(graph: Graph, local: Mapping[int, Local], least: int = 0) -> Iterator[Steps]:
    """Yield the steps of the recurrences of a graph that gain by being taken for one batch each, the longest first.

    Args:
        graph: The graph.
        local: The local derivatives of the nodes on which an output depends.
        least: How many nodes a recurrence is to have.
    """
    for nodes in _recurring(graph, local, least):
        found = _wired(graph, local, nodes) or _wired(graph, local, nodes[1:])
        if found is None:
            continue
        size = 1 if own_of(found) else _together(found.nodes)
        steps = found if size == 1 else _wired(graph, local, _merged(found.nodes, size))
        if steps is not None and (bent := _with_bent(graph, local, steps)).bent:
            yield bent


def _recurring(graph: Graph, local: Mapping[int, Local], least: int) -> Iterator[list[list[int]]]:
    """Yield the nodes of the steps of recurrences."""
    without: set[int] = set()
    while len(local) - len(without) >= max(least, LEAST):
        line = _Line(graph, local, without)
        found = line.recurring()
        if found is None or found[1] - found[0] < least:
            return
        without.update(line.nodes[slice(*found[:2])])
        yield line.steps(*found)


class _Line:
    """The nodes that have many others like them, in order.

    Attributes:
        nodes: Their numbers.
    """

    def __init__(self, graph: Graph, local: Mapping[int, Local], without: set[int]):
        names = {
            node: id(found.template) for node, found in local.items() if type(found) is Alike and node not in without
        }
        counts = Counter(names.values())
        self.nodes = [node for node in sorted(names) if counts[names[node]] >= LEAST]
        self._names = [names[node] for node in self.nodes]
        self._graph = graph
        places = {node: place for place, node in enumerate(self.nodes)}
        self._operands = [
            tuple([places.get(operand, -1) for operand in graph.nodes[node].operands]) for node in self.nodes
        ]
        self._wiring = [
            tuple([place - operand if operand >= 0 else 0 for operand in operands])
            for place, operands in enumerate(self._operands)
        ]

    def recurring(self) -> tuple[int, int, int] | None:
        """Return where the longest recurrence starts and stops, and at what distance it recurs."""
        best = None
        for distance in self._distances():
            start, stop = self._longest(distance)
            if stop - start >= LEAST * distance and (best is None or stop - start > best[1] - best[0]):
                best = start, stop, distance
        return best

    def _distances(self) -> list[int]:
        """Return at what distances names recur, those of the rarest first."""
        places = defaultdict(list)
        for place, name in enumerate(self._names):
            places[name].append(place)
        gaps = [
            Counter(after - before for before, after in pairwise(found)).most_common(1)[0][0]
            for found in sorted(places.values(), key=len)
        ]
        return [*dict.fromkeys(gaps)][:_TRIED]

    def _longest(self, distance: int) -> tuple[int, int]:
        """Return where the longest run starts and stops in which everything recurs at a distance."""
        names, wiring = self._names, self._wiring
        best, start = (0, 0), distance
        for place in range(distance, len(names) + 1):
            recurs = place < len(names) and names[place] == names[place - distance]
            if recurs and wiring[place] == wiring[place - distance]:
                continue
            if place - start > best[1] - best[0] - distance and place > start:
                best = start - distance, place
            start = place + 1
        return best

    def steps(self, start: int, stop: int, distance: int) -> list[list[int]]:
        """Return the nodes of each step of a recurrence, cut where least is handed on, and least is left over.

        The first of them may take anything from before, and so may be wired as the others are not.
        """
        last: dict[int, int] = {}
        for place in range(start, stop):
            for operand in self._operands[place]:
                last[operand] = place
        middle = start + (stop - start) // distance // 2 * distance
        handed = {}
        for cut in range(middle, middle + distance):
            crossing = [place for place in range(max(start, cut - distance), cut) if last.get(place, -1) >= cut]
            handed[cut] = sum(prod(self._graph.nodes[self.nodes[place]].shape) for place in crossing)
        cut = min(handed, key=lambda cut: (handed[cut], (cut - start) % distance))
        first = start + (cut - start) % distance
        if first >= distance and self._names[first - distance : first] == self._names[first : first + distance]:
            first -= distance
        return [self.nodes[place : place + distance] for place in range(first, stop - distance + 1, distance)]


def _with_bent(graph: Graph, local: Mapping[int, Local], steps: Steps) -> Steps:
    """Return steps with all in a row on whose values derivatives depend, from the last of the states on."""
    first = steps.nodes[0]

    def place(number: int) -> tuple[int, bool]:
        taken = steps.taken[number]
        is_bent = any(_is_bent(graph, local[first[each]]) for each in _reached(graph, {taken.nodes[0]}, first))
        if taken.nodes[1] in first:
            return 0, is_bent
        return (1, not is_bent) if taken.is_active else (2, False)

    places = {number: place(number) for number in range(len(steps.taken))}
    order = sorted(places, key=lambda number: places[number])
    bent = [at for at, number in enumerate(order) if places[number] in ((0, True), (1, False))]
    return steps._replace(
        taken=[steps.taken[number] for number in order],
        sources={key: order.index(number) for key, number in steps.sources.items()},
        bent=range(bent[0], bent[-1] + 1) if bent else range(0),
    )


def _is_bent(graph: Graph, local: Local) -> bool:
    """Tell whether local derivatives are by what is not linear, or depend on values of it, as masks of it do."""
    found = [
        ref
        for terms in local.values()
        for source in sources(terms)
        for ref in ([source] if type(source) is Ref else refs(tuple(source)) if isinstance(source, Call | Map) else [])
    ]
    return is_nonlinear(local) or any(graph.nodes[ref.node].active for ref in found)


def own_of(steps: Steps) -> set[int]:
    """Return which of what steps take depends on what is differentiated by, and is of no other step, by its number."""
    inside = {node for step in steps.nodes for node in step}
    return {
        number
        for number, each in enumerate(steps.taken)
        if each.is_active and not each.is_shared and inside.isdisjoint(each.nodes)
    }


def _together(nodes: Sequence[list[int]]) -> int:
    """Return how many steps are taken for one."""
    return min(-(-NODES // len(nodes[0])), len(nodes) // LEAST)


def _merged(nodes: Sequence[list[int]], size: int) -> list[list[int]]:
    """Return the nodes of several steps at a time, of the last ones."""
    return [[*chain(*nodes[at : at + size])] for at in range(len(nodes) % size, len(nodes), size)]


def parted(steps: Steps, count: int) -> list[Steps]:
    """Return steps in so many parts of one length, one after the other, less the first ones that are left over."""
    size = len(steps.nodes) // count
    return [
        steps._replace(
            nodes=steps.nodes[start : start + size],
            taken=[each._replace(nodes=each.nodes[start : start + size]) for each in steps.taken],
        )
        for start in range(len(steps.nodes) % count, len(steps.nodes), size)
    ]


def following(graph: Graph, steps: Steps, count: int) -> list[int]:
    """Return the places of the nodes of a step that depend on the first of what steps take."""
    return _reached(graph, {each.nodes[0] for each in steps.taken[:count]}, steps.nodes[0])


def form_of(graph: Graph, steps: Steps) -> tuple:
    """Return what steps have in common with all that compute the same, of other nodes."""
    places = {number: place for place, number in enumerate(steps.nodes[0])}
    form = []
    for place, number in enumerate(steps.nodes[0]):
        node = graph.nodes[number]
        numbers = {
            operand: -1 - steps.sources[place, slot] if (place, slot) in steps.sources else places[operand]
            for slot, operand in enumerate(node.operands)
        }
        form.append((node.op, *renumbered((node.args, node.kwargs), numbers), node.output))
    taken = [(graph.nodes[each.nodes[0]], each) for each in steps.taken]
    looks = [(tuple(node.shape), node.dtype, node.device, each.is_active, each.is_shared) for node, each in taken]
    return len(steps.nodes), tuple(form), tuple(looks), tuple(steps.given)


def _reached(graph: Graph, reached: set[int], step: Sequence[int]) -> list[int]:
    """Return the places of the nodes of a step that depend on some nodes."""
    for node in step:
        if not reached.isdisjoint(graph.nodes[node].operands):
            reached.add(node)
    return [place for place, node in enumerate(step) if node in reached]


def _wired(graph: Graph, local: Mapping[int, Local], nodes: Sequence[list[int]]) -> Steps | None:
    """Return steps of given nodes, None if they differ in what they take, or if what they give is taken too soon."""
    where = {node: (number, place) for number, step in enumerate(nodes) for place, node in enumerate(step)}
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for place, first in enumerate(nodes[0]):
        for slot in range(len(graph.nodes[first].operands)):
            operands = tuple([graph.nodes[step[place]].operands[slot] for step in nodes])
            back = {number - where[each][0] if each in where else None for number, each in enumerate(operands)}
            if back == {0}:
                continue
            places = {where.get(each, (0, None))[1] for each in operands[1:]}
            if not back <= {None, 1} or (1 in back and len(places) > 1):
                return None
            found[place, slot] = _one(graph, operands)
    given: set[int] = set()
    for node in local:
        for operand in graph.nodes[node].operands:
            number, place = where.get(operand, (-1, -1))
            if number >= 0 and where.get(node, (-1, -1))[0] != number:
                given.add(place)
                if node < nodes[number][-1]:
                    return None
    given.update([where[output][1] for output in graph.outputs if output in where])
    taken = [_taken(graph, each) for each in dict.fromkeys(found.values())]
    if any(each is None for each in taken):
        return None

    def order(each: Taken) -> tuple[bool, float]:
        return not each.is_active, where[each.nodes[1]][1] if each.nodes[1] in where else inf

    ordered = sorted([each for each in taken if each is not None], key=order)
    numbers = {each.nodes: number for number, each in enumerate(ordered)}
    return Steps([*nodes], ordered, {key: numbers[each] for key, each in found.items()}, sorted(given))


def _one(graph: Graph, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """Return nodes, the first of them in place of all if they compute the same of what is constant."""
    first = graph.nodes[nodes[0]]
    if first.active or first.is_given or len({*nodes}) == 1:
        return nodes
    call = call_of(first), first.output
    if all((call_of(graph.nodes[node]), graph.nodes[node].output) == call for node in nodes[1:]):
        return (nodes[0],) * len(nodes)
    return nodes


def _taken(graph: Graph, nodes: tuple[int, ...]) -> Taken | None:
    """Return what is taken, None if it differs in more than its values."""
    looks = {(tuple(graph.nodes[node].shape), graph.nodes[node].dtype, graph.nodes[node].active) for node in nodes}
    if len(looks) > 1:
        return None
    ((_, _, is_active),) = looks
    return Taken(nodes, is_active, len({*nodes}) == 1)
