"""Graphs of aten ops in regions of bounded size, of which equal ones, as those of equal layers, are told by a key.

A compiler takes time by the op, and more than that for what it fuses. A graph in regions is compiled region by region,
and once for all that are equal: that is what makes a network of many layers, or of many steps in time, cheap.

Where to cut is told by what a cut costs and by nothing else that differs from layer to layer, so that equal layers are
cut alike: the tensors that a compiler could have kept in registers had it seen both sides. But a layer may have so few
ops in one pass over the network that a region of the least size is no whole number of them, and so all regions differ.
So stretches of ops that repeat are looked for, and where it is much less to compile, each is a region. What views a
tensor, or is filled with a number, does not pass a cut. It is made anew on the other side, where it costs nothing.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from operator import getitem
from typing import NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node, map_arg

from hofunc.graph.draws import is_random
from hofunc.internals import OpOverload, schema_of
from hofunc.run.repeats import Repeat, repeats

aten = torch.ops.aten

LEAST, MOST = 100, 300  # ops in a region, views not counted
NEAR = MOST  # ops, within which a tensor is used soon: at fewer, calls took up to a third longer
LEAST_REPEATED = 60  # ops in a region that is there several times in a row
FAR = 60  # ops, from which on it does not matter how far before an op its tensors come
WORTH = 0.9  # of what would be compiled otherwise, for more and smaller regions
OF_A_TENSOR = 4096  # bytes that are written in the time in which a tensor is allocated


class Region(NamedTuple):
    """Ops that follow each other in a graph.

    Attributes:
        module: The ops as a graph of their own, which returns a tuple.
        key: What equal regions share: these can take each other's place, if their inputs lie alike in memory.
        inputs: The nodes of the whole graph that it takes.
        outputs: Those that it returns.
    """

    module: GraphModule
    key: Hashable
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


def regions(module: GraphModule, least: int = LEAST, most: int = MOST, repeated: int = LEAST_REPEATED) -> list[Region]:
    """Return the regions of a graph in the order in which they run; none if it is small, or cannot be cut.

    Args:
        module: The graph, of aten ops that write nowhere, on tensors of known shapes.
        least: How many ops a region has at least, but for the last one, and for what is left beside what repeats.
        most: How many it has at most.
        repeated: How many one has at least that is there several times in a row.
    """
    ops, output = _ops(module.graph), module.graph.output_node()
    if len(ops) <= most or any(_is_whole(node) for node in module.graph.nodes):
        return []
    parted = partial(_parted, _costs(ops), [f"{op[0].target} {_shape(op[0])}" for op in ops], least, most)
    plain = _cut(ops, [*parted(0, len(ops)), len(ops)], output)
    found = repeats(_told(ops), repeated)
    alike = _cut(ops, _cuts_by_repeats(found, _costs(ops), parted), output) if found else plain
    return alike if _to_compile(alike) <= WORTH * _to_compile(plain) else plain


def _cut(ops: Sequence[Sequence[Node]], cuts: Sequence[int], output: Node) -> list[Region]:
    """Return the regions of a graph that start before some ops."""
    parts = [[node for op in ops[start:stop] for node in op] for start, stop in pairwise(cuts)]
    parts[-1] += [node for node in output.all_input_nodes if _is_free(node)]
    closures = [_closure(part) for part in parts]
    wanted = {*output.all_input_nodes, *(node for inputs, _ in closures for node in inputs)}
    return [
        _region(inputs, body, [node for node in part if node in wanted])
        for part, (inputs, body) in zip(parts, closures, strict=True)
    ]


def _to_compile(parts: Sequence[Region]) -> int:
    """Return how many ops are to be compiled."""
    return sum({part.key: len(_ops(part.module.graph)) for part in parts}.values())


def _is_whole(node: Node) -> bool:
    """Tell whether a graph with a node is not cut: it has graphs within, or goes by where tensors lie in memory."""
    return node.op not in ("placeholder", "call_function", "output") or node.target is aten.as_strided.default


def _is_free(node: Node) -> bool:
    """Tell whether a node is what a compiler computes wherever it is used: a view, or one number everywhere."""
    if node.target is getitem:
        return _is_free(node.args[0])  # type: ignore[arg-type] # which is the node of several tensors
    if not isinstance(node.target, OpOverload):
        return False
    if not node.all_input_nodes:
        return not is_random(node.target, node.args, node.kwargs)
    first = schema_of(node.target).arguments[0].alias_info
    return first is not None and not first.is_write


def _ops(graph: Graph) -> list[list[Node]]:
    """Return the nodes that are not free, each with those that take its tensors apart."""
    return [
        [node, *(user for user in node.users if user.target is getitem)]
        for node in graph.nodes
        if node.op == "call_function" and node.target is not getitem and not _is_free(node)
    ]


def _closure(part: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return what some nodes take, and these nodes with the free ones that they need, in order of use."""
    inside, seen = set(part), set[Node]()
    inputs: list[Node] = []
    body: list[Node] = []

    def need(node: Node) -> None:
        if node in seen:
            return
        seen.add(node)
        if node in inside or _is_free(node):
            for argument in node.all_input_nodes:
                need(argument)
            body.append(node)
        else:
            inputs.append(node)

    for node in part:
        need(node)
    return inputs, body


def _parted(costs: Sequence[int], names: Sequence[str], least: int, most: int, start: int, stop: int) -> list[int]:
    """Return before which ops regions start in a stretch.

    A cut is where it costs least of all that are allowed after the one before it; of several, at ops that come first
    in alphabetical order: not where equal layers would be cut each at another place.
    """
    cuts = [start] if start < stop else []
    while cuts and stop - cuts[-1] > most:
        allowed = range(cuts[-1] + least, cuts[-1] + most + 1)
        cuts.append(min(allowed, key=lambda place: (costs[place], names[place - 1 : place + 2], place)))
    return cuts


def _cuts_by_repeats(
    found: Sequence[Repeat], costs: Sequence[int], parted: Callable[[int, int], list[int]]
) -> list[int]:
    """Return before which ops regions start, and the number of ops, where all that repeats is cut alike.

    Args:
        found: What repeats.
        costs: What it costs to cut before each op.
        parted: Returns before which ops regions start in a stretch.
    """
    cuts, end = list[int](), 0
    for each in found:
        spare = (each.stop - each.start) % each.length
        places = range(each.start, each.start + spare + 1)
        first = min(places, key=lambda place: (sum(costs[place : each.stop + 1 : each.length]), place))
        inside = [cut - first for cut in parted(first, first + each.length)]
        cuts += parted(end, first)
        cuts += [first + turn * each.length + cut for turn in range(each.times) for cut in inside]
        end = first + each.times * each.length
    return [*cuts, *parted(end, len(costs) - 1), len(costs) - 1]


def _told(ops: Sequence[Sequence[Node]]) -> list[Hashable]:
    """Return for each op what tells it from others: also from how far before its tensors come, if that is not far.

    What comes from another part of the program, as all that the forward pass leaves for the backward, is as far as
    layers are long there.
    """
    homes = {node: place for place, op in enumerate(ops) for node in op}

    def distance(node: Node, place: int) -> int:
        return min(place - homes.get(node, -FAR), FAR)

    return [
        (str(op[0].target), _shape(op[0]), *(distance(node, place) for node in _closure(op)[0]))
        for place, op in enumerate(ops)
    ]


def _costs(ops: Sequence[Sequence[Node]]) -> list[int]:
    """Return what it costs to cut before each op: the bytes of tensors that are in use on both sides.

    What is not used soon is in memory anyway.
    """
    homes = {node: place for place, op in enumerate(ops) for node in op}
    last, changes = dict(homes), [0] * (len(ops) + 1)
    for place, op in enumerate(ops):
        for node in _closure(op)[0]:
            if node in homes and place - last[node] <= NEAR:
                last[node] = place
    for node, place in homes.items():
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            cost = OF_A_TENSOR + value.numel() * value.element_size()
            changes[place + 1] += cost
            changes[last[node] + 1] -= cost
    return [*accumulate(changes)]


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(getattr(node.meta["val"], "shape", ()))


def _region(inputs: Sequence[Node], body: Sequence[Node], outputs: Sequence[Node]) -> Region:
    """Return nodes as a graph of their own, in which names depend on nothing but its ops and their order."""
    graph = Graph()
    copies = {node: graph.placeholder(f"t{place}") for place, node in enumerate(inputs)}
    for node in body:
        args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
        copies[node] = graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type] # which it is
    for node, copy in copies.items():
        copy.meta["val"] = node.meta["val"]
    graph.output(tuple(copies[node] for node in outputs))
    return Region(GraphModule({}, graph), str(graph), tuple(inputs), tuple(outputs))
