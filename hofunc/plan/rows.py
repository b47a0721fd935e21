"""Rows: which axis of which node runs over rows that do not mix, told from the rules of the ops.

Only the first axis of inputs is followed. A node that has it on one of its axes is computed row by row; one that lost
it, a sum over rows, is not followed further. Where an op reads some of the rows, as the steps of a sequence are read,
they cannot be taken apart, and none is marked.
"""

from collections.abc import Collection, Sequence

from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Axes, Axis, Label, labels_of
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Term
from hofunc.graph.node import Graph, Ref, refs
from hofunc.plan.blocks import reached_nodes
from hofunc.rules.kinds import site_of
from hofunc.rules.lower import Lowered


def with_rows(lowered: Lowered) -> Lowered:
    """Return the graph with the axes of rows marked in the shapes of its nodes; as it is, if there are none."""
    graph = lowered.graph
    dims = _row_dims(lowered)
    if not dims:
        return lowered
    nodes = [
        node._replace(
            shape=tuple(Rows(size) if dim == dims.get(node.number) else size for dim, size in enumerate(node.shape))
        )
        for node in graph.nodes
    ]
    return lowered._replace(graph=graph._replace(nodes=tuple(nodes)))


def unmarked(graph: Graph) -> Graph:
    """Return a graph in which no rows are marked."""
    if number_of_rows(graph) is None:
        return graph
    return graph._replace(nodes=tuple([node._replace(shape=tuple(map(int, node.shape))) for node in graph.nodes]))


def number_of_rows(graph: Graph) -> int | None:
    """Return how many rows there are in a graph whose rows are marked."""
    return next((int(size) for node in graph.nodes for size in node.shape if isinstance(size, Rows)), None)


def _row_dims(lowered: Lowered) -> dict[int, int]:
    """Return the axis of rows of every node that has one; of none, if nothing that is computed has rows."""
    graph = lowered.graph
    inputs = [graph.nodes[number] for number in graph.inputs if graph.nodes[number].active]
    rows = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    if rows < 2:
        return {}
    dims = {node.number: 0 for node in inputs if node.shape[:1] == (rows,)}
    given = {*dims}
    for number in sorted(lowered.rules.keys() & reached_nodes(graph)):
        if dims.keys().isdisjoint(graph.nodes[number].operands):
            continue
        site, rule = site_of(graph, graph.nodes[number]), lowered.rules[number]
        found: set[int | None] = set()
        for (position,) in rule.positions(site, 1):
            operand = site.operands[position].number
            if operand in dims:
                for term in rule.terms(site, (position,)):
                    if _is_cut(term.slots[0][dims[operand]]):
                        return {}
                    found.add(_followed(graph, dims, number, term, dims[operand]))
        if len(found) == 1 and None not in found:
            (dims[number],) = found  # type: ignore[assignment]
    return dims if any(graph.nodes[number].active for number in {*dims} - given) else {}


def _is_cut(axis: Axis) -> bool:
    """Tell whether an axis is read at some of its indices only, as no chunk of rows could be."""
    return len(axis) == 1 and not axis[0].is_full


def _followed(graph: Graph, dims: dict[int, int], number: int, term: Term, dim: int) -> int | None:
    """Return the axis of a node that runs over the rows of the slot, and mark those of constant factors."""
    label = _whole(term.slots[0], dim)
    place = None if label is None else _place(term.out, label)
    if place is None or label is None:
        return None
    for source, axes in term.factors:
        if isinstance(source, Map) and _reads_rows(graph, {*dims, number}, source, axes, label):
            return None
        if isinstance(source, Ref) and source.node not in dims and not graph.nodes[source.node].active:
            constant = _place(axes, label)
            if constant is not None:
                dims[source.node] = constant
    return place


def _reads_rows(graph: Graph, known: Collection[int], source: Map, axes: Axes, label: Label) -> bool:
    """Tell whether a map that acts separately along rows takes a tensor that may be of those rows, as indices are.

    That of nodes whose rows are known, and of the node itself, is the rows of what it acts on.
    """
    return label in labels_of(axes) and any(
        ref.node not in known and label.size in graph.nodes[ref.node].shape for ref in refs(source.args)
    )


def _whole(axes: Axes, dim: int) -> Label | None:
    """Return the label that is the whole of an axis."""
    axis = axes[dim]
    return axis[0].label if len(axis) == 1 and axis[0].is_full else None


def _place(axes: Axes, label: Label | None) -> int | None:
    """Return the one axis that a label is the whole of."""
    places: Sequence[int] = [dim for dim in range(len(axes)) if label is not None and _whole(axes, dim) is label]
    return places[0] if len(places) == 1 else None
