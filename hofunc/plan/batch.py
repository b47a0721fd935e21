"""Where batch structure gets lost: the nodes whose derivatives no longer share an index with an input."""

from collections.abc import Hashable
from typing import NamedTuple

from hofunc.algebra.compose import compose
from hofunc.algebra.labels import Axes, fresh_axes, labels_of
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.term import Term, identity, pattern
from hofunc.plan.blocks import reached_nodes
from hofunc.rules.kinds import Opaque
from hofunc.rules.local import local_derivatives
from hofunc.rules.lower import Lowered


class Loss(NamedTuple):
    """The first node at which the leading axis of an input is lost.

    Attributes:
        node: Its number in the lowered graph.
        reason: What it does to the axis, to be read after the name of its op.
    """

    node: int
    reason: str


def first_loss(lowered: Lowered, variable: int) -> Loss | None:
    """Return where, on the way from an input, the first derivative loses the input's leading axis.

    A node has lost it if its derivative by the input, or one term of that, has no label in common with the leading
    axis although an operand's has. Only axes are followed, so that it costs no more than planning the first order.

    Args:
        lowered: The graph.
        variable: The number of the input, which has an axis.
    """
    graph = lowered.graph
    reached = reached_nodes(graph)
    found: dict[int, dict[Hashable, Term]] = {variable: _distinct([identity(fresh_axes(graph.nodes[variable].shape))])}
    for number, rule in lowered.rules.items():
        if number not in reached:
            continue
        terms = []
        for (operand,), local in local_derivatives(graph, graph.nodes[number], rule, 1).items():
            for outer in local:
                for inner in found.get(operand, {}).values():
                    composed = compose(outer, [inner])
                    if composed is None:
                        continue
                    if _leading(inner) and not _leading(composed):
                        return Loss(number, _reason(lowered, number, outer, inner))
                    terms.append(composed._replace(coefficient=1, factors=()))
        found[number] = _distinct(terms)
    return None


def _distinct(terms: list[Term]) -> dict[Hashable, Term]:
    return {pattern(term): term for term in terms}


def _leading(term: Term) -> list[int]:
    """Return the axes of the output that share a label with the leading axis of the slot."""
    labels = {label for label in labels_of(term.slots[0][:1]) if label.size > 1}
    return [number for number, axis in enumerate(term.out) if labels & {*labels_of((axis,))}]


def _reason(lowered: Lowered, number: int, outer: Term, inner: Term) -> str:
    """Say what a local derivative does to the axis of its operand that is the leading one of the input."""
    if isinstance(lowered.rules[number], Opaque):
        return "has no rule, so that its structure is not known"
    axis = _leading(inner)[0]
    labels = {*labels_of((outer.slots[0][axis],))}
    sources = [factor.source for factor in outer.factors if labels & {*labels_of(factor.axes)}]
    if any(isinstance(source, Delta) or (isinstance(source, Map) and source.reach is None) for source in sources):
        return f"moves what lies along axis {axis} of its operand"
    if not sources:
        return f"sums over axis {axis} of its operand"
    if _shares(outer, labels, outer.out):
        return f"mixes the rows along axis {axis} of its operand"
    return f"contracts axis {axis} of its operand with another tensor"


def _shares(outer: Term, labels: set, axes: Axes) -> bool:
    """Tell whether a tensor that has some of the labels also has some of the axes."""
    others = {*labels_of(axes)}
    return any(labels & {*labels_of(f.axes)} and others & {*labels_of(f.axes)} for f in outer.factors)
