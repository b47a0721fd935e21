"""Gradients of contractions: of what multiplies their results, by what they are computed from.

The derivative of a contraction by a node is a contraction of one order more, with a slot for the node; so the backward
pass of a training step is planned as what comes before it is, and by one plan with it, which shares what both take.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from hofunc.graph.node import INPUT, Graph, Node
from hofunc.plan.slots import Bearer, Index, of_axes, tag
from hofunc.plan.wanted import Contraction, Contractions


class Cut(NamedTuple):
    """A graph that begins at the values by which gradients are wanted, and takes what multiplies results.

    Attributes:
        graph: The graph.
        learned: By node by which a gradient is wanted, its place among the inputs.
        seeds: Of each result, the place of what multiplies it among the inputs.
    """

    graph: Graph
    learned: Mapping[int, int]
    seeds: tuple[int, ...]


def cut(graph: Graph, nodes: Sequence[Node], seeds: Sequence[Node]) -> Cut:
    """Cut a graph.

    Args:
        graph: The graph.
        nodes: Nodes by which gradients are wanted, as given ones; those that are no inputs depend on none.
        seeds: The nodes of what multiplies results, with numbers that follow those of the graph.
    """
    every, inputs = list(graph.nodes), list(graph.inputs)
    for node in nodes:
        every[node.number] = node
        if node.number not in inputs:
            inputs.append(node.number)
    first = len(inputs)
    found = Graph(
        (*every, *seeds),
        (*inputs, *(seed.number for seed in seeds)),
        (*graph.outputs, *graph.aux)[: len(graph.outputs)],
    )
    learned = {node.number: inputs.index(node.number) for node in nodes}
    return Cut(found, learned, tuple(range(first, first + len(seeds))))


def given(number: int, shape: Sequence[int], like: Node) -> Node:
    """Return a node that is given, and differentiated by."""
    return Node(number, INPUT, (), (), None, (), tuple(shape), like.dtype, like.device, True)


def with_gradients(wanted: Contractions, at: Cut) -> Contractions | None:
    """Return contractions with the gradients of what they are multiplied by, by each node that these are wanted by.

    None is returned where they are no contractions: as of what multiplies a slot of several variables.
    """
    seeded = [(one, (seed, one.result)) for sums, seed in zip(wanted.sums, at.seeds, strict=True) for one in sums]
    if any(len({*one.result}) < len(one.result) for one, _ in seeded):
        return None
    merged, found = _merged(seeded), []
    graph = at.graph
    for number, place in at.learned.items():
        names = tuple([f"by {axis}" for axis, _ in enumerate(graph.nodes[number].shape)])
        slot = ((place, names),)
        sums = [Contraction(one.output, (*one.slots, slot), (*one.operands, *seeds), names) for one, seeds in merged]
        for one, seed in seeded:
            for use, (operand, indices) in enumerate(one.operands):
                if operand != place:
                    continue
                rest = (*one.operands[:use], *one.operands[use + 1 :])
                if not _is_alone(one, indices, rest):
                    return None
                names_of = dict(zip(indices, names, strict=True))
                sums.append(_renamed(one._replace(operands=(*rest, seed), result=tuple(map(str, indices))), names_of))
        found.append(tuple(sums))
    return Contractions((*wanted.sums, *found))


def _is_alone(one: Contraction, indices: Sequence[Index], rest: Sequence[Bearer]) -> bool:
    """Tell whether an operand multiplies one variable of each slot, and other tensors have all of its labels."""
    others = {name for bearers in (*one.slots, rest, [one.output]) for _, names in bearers for name in names}
    is_plain = len({*indices}) == len(indices) == len(of_axes(tuple(indices)))
    return is_plain and others | {*one.result} >= {*indices} and all(len(slot) == 1 for slot in one.slots)


def _renamed(one: Contraction, names: Mapping[Index, str]) -> Contraction:
    """Return a contraction with other names of labels."""

    def renamed(bearer: Bearer) -> Bearer:
        node, indices = bearer
        return node, tuple([names.get(index, index) for index in indices])

    slots = tuple([tuple(map(renamed, slot)) for slot in one.slots])
    result = tuple([str(names.get(name, name)) for name in one.result])
    return Contraction(renamed(one.output), slots, tuple(map(renamed, one.operands)), result)


Seeded = tuple[Contraction, Bearer]


def _merged(seeded: Sequence[Seeded]) -> list[tuple[Contraction, tuple[Bearer, ...]]]:
    """Return contractions, with what multiplies them, of which those that differ in one slot are one.

    As the parts of a Hessian times a vector by many parameters, which are multiplied by as many tensors and added up:
    of all together there is one direction.
    """
    groups: dict[object, list[Seeded]] = defaultdict(list)
    fresh = count()
    single: list[tuple[Contraction, tuple[Bearer, ...]]] = []
    for one, seed in seeded:
        place = _own_slot(one)
        if place is None:
            single.append((one, (seed,)))
        else:
            kept = {name for _, names in (one.output,) for name in names}
            rest = tuple([slot for number, slot in enumerate(one.slots) if number != place])
            groups[one.output, place, rest, one.operands, tuple([n for n in one.result if n in kept])].append(
                (one, seed)
            )
    for (_, place, *_), members in groups.items():  # type: ignore[misc]
        if len(members) == 1:
            ((one, seed),) = members
            single.append((one, (seed,)))
            continue
        slot, seeds = [], []
        for one, (seed_of, names) in members:
            number, ((node, indices),) = next(fresh), one.slots[place]  # type: ignore[index]
            own: dict[Index, str] = {name: f"of {number} {name}" for name in indices if isinstance(name, str)}
            marks = () if own else (tag(f"of {number}"),)
            slot.append((node, (*(own.get(name, name) for name in indices), *marks)))
            seeds.append((seed_of, (*(own.get(name, name) for name in names), *marks)))
        first = members[0][0]
        slots = tuple([tuple(slot) if number == place else one for number, one in enumerate(first.slots)])
        single.append((first._replace(slots=slots), tuple(seeds)))
    return single


def _own_slot(one: Contraction) -> int | None:
    """Return a slot of one variable, of which the result has all labels and nothing else has any."""
    for place, slot in enumerate(one.slots):
        others = [*(other for number, other in enumerate(one.slots) if number != place), one.operands, (one.output,)]
        elsewhere = {name for bearers in others for _, names in bearers for name in names if isinstance(name, str)}
        if len(slot) > 1:
            continue
        names = slot[0][1]
        is_own = {*names} <= {*one.result} - elsewhere and len({*names}) == len(names)
        kept = {*one.result} - {*names} <= {*one.output[1]}
        if is_own and kept:
            return place
    return None
