"""What every strategy starts from and returns: local derivatives of the nodes, and blocks of the result."""

from collections.abc import Mapping

from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.graph.node import Graph
from hofunc.rules.local import Templates, derivatives_like
from hofunc.rules.lower import Lowered

Blocks = dict[tuple[int, Key], list[Term]]  # contracted terms, by output node and sorted tuple of input nodes
Local = Mapping[Key, list[Term]]  # derivatives of one node, by the sorted tuple of its operands


def local_blocks(lowered: Lowered, order: int) -> dict[int, Local]:
    """Return the local derivatives, up to an order, of every node on which an output depends, in order of the nodes."""
    graph, reached = lowered.graph, reached_nodes(lowered.graph)
    templates: Templates = {}
    return {
        number: derivatives_like(templates, graph, graph.nodes[number], rule, order)
        for number, rule in lowered.rules.items()
        if number in reached
    }


def is_nonlinear(local: Local) -> bool:
    """Tell whether a node has local derivatives above the first order."""
    return any(len(key) > 1 for key in local)


def reached_nodes(graph: Graph) -> set[int]:
    """Return the active nodes on which an output depends."""
    reached: set[int] = set()
    left = list(graph.outputs)
    while left:
        number = left.pop()
        if graph.nodes[number].active and number not in reached:
            reached.add(number)
            left.extend(graph.nodes[number].operands)
    return reached
