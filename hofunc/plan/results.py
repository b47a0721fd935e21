"""How many bytes results take, told in proportion to the blocks that do not vanish: of many inputs, most do."""

from collections import Counter
from collections.abc import Sequence, Set
from math import factorial, prod

from hofunc.algebra.partitions import Key
from hofunc.graph.node import Graph
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.memory import bytes_of
from hofunc.plan.tracing import traced
from hofunc.plan.wanted import Chosen, Contractions, InGraph, Wanted


def result_bytes(made: Blueprint) -> int:
    """Return the bytes of what a blueprint returns, beside blocks that vanish."""
    trace = made.trace or traced(made.program)
    return bytes_of(trace.of(made.program.outputs))


def zero_bytes(made: Blueprint, wanted: Wanted) -> int:
    """Return the bytes of the dense blocks that vanish, of which each is a tensor of its own."""
    graph, total = made.lowered.graph, 0
    if isinstance(wanted, Contractions):
        in_graph = InGraph(graph)
        for number, (contraction, *_) in enumerate(wanted.sums):
            output = graph.outputs[contraction.output[0]]
            if (output, (number,)) not in made.dense:
                sizes = in_graph.sizes(in_graph.of(contraction))
                total += prod(int(sizes[name]) for name in contraction.result) * graph.nodes[output].dtype.itemsize
        return total
    elements = sum(_elements(graph))
    for output in graph.outputs:
        known = {key for node, key in made.dense if node == output}
        if isinstance(wanted, Chosen):
            vanishing = (key for key in _chosen(graph, wanted) if known.isdisjoint((key, tuple(sorted(key)))))
            entries = sum(_entries(graph, key) for key in vanishing)
        else:
            computed = _computed(graph, {key for key in known if len(key) in wanted})
            entries = sum(elements**order for order in wanted) - computed
        total += entries * prod(map(int, graph.nodes[output].shape)) * graph.nodes[output].dtype.itemsize
    return total


def least_bytes(graph: Graph, wanted: Wanted) -> int:
    """Return how many bytes dense blocks take at least, of which transposes are one; none for contractions."""
    if isinstance(wanted, Contractions):
        return 0
    if isinstance(wanted, Chosen):
        entries = sum(_entries(graph, key) for key in {tuple(sorted(key)) for key in _chosen(graph, wanted)} if key)
    else:
        of_order = _of_multisets(_elements(graph), max(wanted, default=0))
        entries = sum(of_order[order] for order in {*wanted} - {0})
    outputs = [graph.nodes[number] for number in dict.fromkeys(graph.outputs)]
    return sum(prod(map(int, node.shape)) * node.dtype.itemsize for node in outputs) * entries


def _chosen(graph: Graph, wanted: Chosen) -> list[Key]:
    """Return the inputs of the slots of every block that is asked for, for one output."""
    return [tuple([graph.inputs[number] for number in block]) for block in wanted.blocks]


def _elements(graph: Graph) -> list[int]:
    """Return how many elements each input has that is differentiated by."""
    nodes = [graph.nodes[number] for number in graph.inputs]
    return [prod(map(int, node.shape)) for node in nodes if node.active]


def _entries(graph: Graph, key: Key) -> int:
    """Return how many entries a block has for each of its output."""
    return prod(int(size) for number in key for size in graph.nodes[number].shape)


def _of_multisets(counts: Sequence[int], most: int) -> list[int]:
    """Return, by order up to the highest, how many entries there are by so many of some inputs in no order."""
    found = [1] + [0] * most
    for count in counts:
        for order in range(1, most + 1):  # with one more of this input than was counted
            found[order] += count * found[order - 1]
    return found


def _computed(graph: Graph, known: Set[Key]) -> int:
    """Return how many entries the blocks of an output have, for each of its own, that known ones tell."""
    ordered = {key for key in known if key == tuple(sorted(key))}
    others = [key for key in known if tuple(sorted(key)) not in ordered]
    of_all = (_entries(graph, key) * _orders_of_slots(key) for key in ordered)
    return sum(of_all) + sum(_entries(graph, key) for key in others)


def _orders_of_slots(key: Key) -> int:
    """Return in how many orders the variables of a key may stand, of which one block has all."""
    return factorial(len(key)) // prod(map(factorial, Counter(key).values()))
