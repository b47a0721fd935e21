"""Where a nan or an inf came from: the op in which it arose, by the values of a graph and the derivatives of its ops.

Nothing here runs unless a result is not finite under `hofunc.detect_anomaly`. For a value the op is the first on the
way to the output that makes it of numbers that are none. For a derivative it is one whose own derivatives are not
finite, and on the way to the output: derivatives of this by what the op returns are finite, and by what it takes are
not. Where there is none, as numbers overflow in products, it is the op by what it returns they are finite, and by what
it takes they are not.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, NoReturn

import torch

from hofunc.errors import AnomalyError, HofuncError
from hofunc.graph.identity import innermost
from hofunc.graph.lines import Lines
from hofunc.graph.node import INPUT, Graph, Node, call_of, renumbered
from hofunc.rules.lower import isolated

Derived = Callable[[Graph, Sequence[torch.Tensor], int], Sequence[torch.Tensor]]


class Place(NamedTuple):
    """Where something that is not finite arose.

    Attributes:
        node: The node.
        order: The order of the derivative of its op, 0 for its value.
        kind: What it is: nan or inf.
        is_own: Whether it is in the derivatives of the op; else in those of the output, by what the op takes.
    """

    node: Node
    order: int
    kind: str
    is_own: bool = True


def kind_of(tensor: torch.Tensor) -> str | None:
    """Return "nan" if a tensor has one, else "inf" if it has one, else None."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    with isolated(), torch.no_grad():
        plain = innermost(tensor)
        if plain.isfinite().all():
            return None
        return "nan" if plain.isnan().any() else "inf"


def first_kind(tensors: Sequence[torch.Tensor]) -> str | None:
    """Return the kind of the first of some tensors that is not finite, None if all are."""
    return next((kind for kind in map(kind_of, tensors) if kind is not None), None)


class Search:
    """The search for the place in a graph of which something is not finite.

    Args:
        graph: The graph.
        values: The value of each of its nodes.
        order: The highest order of derivatives that was computed.
        derived: Returns what is computed of the derivatives of a graph by its active inputs of all orders up to one,
            given values.
    """

    def __init__(self, graph: Graph, values: Sequence[torch.Tensor], order: int, derived: Derived):
        self._graph, self._values, self._order, self._derived = graph, values, order, derived

    def value(self, number: int) -> Place:
        """Return where what is not finite in the value of a node arose."""
        kind = kind_of(self._values[number]) or "nan"
        node = self._graph.nodes[number]
        while True:
            source = next((o for o in node.operands if kind_of(self._values[o]) == kind), None)
            if source is None:
                return Place(node, 0, kind)
            node = self._graph.nodes[source]

    def before(self, place: Place) -> Place | None:
        """Return where the inf arose that a nan was made of; None if it was made of finite numbers."""
        source = next((o for o in place.node.operands if kind_of(self._values[o]) is not None), None)
        return None if source is None else self.value(source)

    def derivative(self) -> Place | None:
        """Return where a derivative that is not finite arose; None if it is not known."""
        suspects = [place for node in self._on_the_way() for place in self._own(node)]
        left = (place for place in reversed(suspects) if self._is_left_by(place.node))
        return next(left, None) or self._overflow() or (suspects[-1] if suspects else None)

    def _on_the_way(self) -> Iterator[Node]:
        """Yield the active nodes that the outputs depend on, in order."""
        needed = {*self._graph.outputs}
        for node in reversed(self._graph.nodes):
            if node.number in needed:
                needed.update(node.operands)
        for node in self._graph.nodes:
            is_real = not any(self._values[number].is_complex() for number in (node.number, *node.operands))
            if node.number in needed and node.active and not node.is_given and is_real:
                yield node

    def _own(self, node: Node) -> Iterator[Place]:
        """Yield where the derivatives of an op, of the lowest order of which they are not, are not finite."""
        graph, values = _alone(self._graph, node, self._values)
        for order in range(1, self._order + 1):
            kind = self._kind_of_derivatives(graph, values, order)
            if kind is not None:
                yield Place(node, order, kind)
                return

    def _is_left_by(self, node: Node) -> bool:
        """Tell whether the outputs have finite derivatives by a node and not by what it takes."""
        active = [o for o in dict.fromkeys(node.operands) if self._graph.nodes[o].active]
        return self._kind_by([node.number]) is None and self._kind_by(active) is not None

    def _overflow(self) -> Place | None:
        """Return the op at which derivatives of the outputs, that by an input are not finite, become so."""
        nodes = [*self._on_the_way()]
        inputs = (number for number in self._graph.inputs if self._graph.nodes[number].active)
        found = next(((number, kind) for number in inputs if (kind := self._kind_by([number]))), None)
        while found is not None:
            (number, kind), found = found, None
            takers = [node for node in nodes if number in node.operands]
            found = next(((each.number, after) for each in takers if (after := self._kind_by([each.number]))), None)
            if found is None and takers:
                return Place(takers[0], self._order, kind, is_own=False)
        return None

    def _kind_by(self, numbers: Sequence[int]) -> str | None:
        graph = _cut(self._graph, numbers, self._values)
        return self._kind_of_derivatives(graph, self._values, self._order)

    def _kind_of_derivatives(self, graph: Graph, values: Sequence[torch.Tensor], order: int) -> str | None:
        try:
            return first_kind(self._derived(graph, values, order))
        except HofuncError:  # a part of what went through as a whole; it stays out of the search
            return None


def _alone(graph: Graph, node: Node, values: Sequence[torch.Tensor]) -> tuple[Graph, list[torch.Tensor]]:
    """Return the graph of one op by what it takes, with all that the op returns, and its values."""
    operands = tuple(dict.fromkeys(node.operands))
    numbers = {operand: place for place, operand in enumerate(operands)}
    inputs = [
        _input(graph.nodes[operand], place, graph.nodes[operand].active, values[operand].device)
        for operand, place in numbers.items()
    ]
    args, kwargs = renumbered((node.args, node.kwargs), numbers)
    refs = tuple(numbers[operand] for operand in node.operands)
    call = call_of(node)
    results = [other for other in graph.nodes if other.operands == node.operands and call_of(other) == call]
    made = [
        other._replace(number=number, args=args, kwargs=kwargs, operands=refs)
        for number, other in enumerate(results, len(inputs))
    ]
    alone = Graph((*inputs, *made), tuple(range(len(inputs))), (len(inputs) + results.index(node),))
    return alone, [values[number] for number in (*operands, *(other.number for other in results))]


def _cut(graph: Graph, numbers: Sequence[int], values: Sequence[torch.Tensor]) -> Graph:
    """Return a graph that is differentiated by some of its nodes."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.number in numbers:
            nodes.append(_input(node, node.number, True, values[node.number].device))
        else:
            active = not node.is_given and any(nodes[operand].active for operand in node.operands)
            nodes.append(node._replace(active=active))
    return Graph(tuple(nodes), (*numbers, *(n for n in graph.inputs if n not in numbers)), graph.outputs)


def _input(node: Node, number: int, active: bool, device: torch.device) -> Node:
    return Node(number, INPUT, (), (), None, (), node.shape, node.dtype, device, active)


def refuse(search: Search, output: int | None, lines: Lines) -> NoReturn:
    """Raise the error of what is not finite: the value of an output, or without one a derivative.

    Raises:
        AnomalyError: Always.
    """
    place = search.derivative() if output is None else search.value(output)
    got = "what none of its ops explains"
    if place is not None:
        got = _told(place, lines)
        before = None if place.order else search.before(place)
        got += "" if before is None else f", which comes of {_told(before, lines)}"
    is_op = place is not None and not place.node.is_given
    raise AnomalyError(
        "hofunc: a derivative is not finite" if output is None else "hofunc: what f returns is not finite",
        got=got,
        expected="finite numbers",
        remedy="Change f where it arises, or call it without hofunc.detect_anomaly().",
        op=str(place.node.op) if place is not None and is_op else None,
        order=0 if place is None else place.order,
        lines=[] if place is None else [*map(str, lines.get(place.node.number, ()))],
    )


def _told(place: Place, lines: Lines) -> str:
    """Tell where something arose."""
    if place.node.is_given:
        return f"{place.kind} in a tensor that f takes, of shape {tuple(place.node.shape)}"
    known = lines.get(place.node.number, ())
    op = f"{place.node.op}{f' at {known[-1].short}' if known else ''}"
    if place.order == 0:
        return f"{place.kind} in the value of {op}"
    if not place.is_own:
        return f"{place.kind} in derivatives of order {place.order} that pass {op}, whose own are finite"
    return f"{place.kind} in the derivative of order {place.order} of {op}, whose value is finite there"
