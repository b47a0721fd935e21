"""Dense derivatives in pieces: of some elements of what is differentiated at a time, as torch.func.jacrev has it.

An order is the Jacobian of the order below, of which the graph is recorded once. A piece is that graph with one more
op, which selects some elements; its plan is the same for all pieces of a size.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from hofunc.arguments import Arguments
from hofunc.graph.node import CONSTANT, Graph, Node, Ref
from hofunc.graph.record import Recording, record
from hofunc.internals import tree_flatten, tree_unflatten
from hofunc.run.evaluate import evaluate

aten = torch.ops.aten


class Piecewise(NamedTuple):
    """A function and its Jacobian.

    Attributes:
        value: What the function returned to be differentiated.
        aux: What it returned beside.
        derivative: The structure of the value, in it that of the inputs.
    """

    value: Any
    aux: Any
    derivative: Any


def in_pieces(
    function: Callable[..., tuple[Any, Any]], arguments: Arguments, size: int, strategy: str
) -> Piecewise | None:
    """Differentiate a function once, some elements of its outputs at a time.

    Args:
        function: Called with the arguments; returns the pair of what is differentiated and aux.
        arguments: Those of the call.
        size: How many elements are differentiated at a time.
        strategy: One of the planner's strategies, or "auto".

    Returns:
        The value and the derivative; None if what was recorded has to be computed again from other values, with other
        random numbers for every piece.
    """
    recording = record(partial(arguments.called, function), arguments.leaves, arguments.rest)
    if recording.wrappers is not None:
        return None
    supply = iter(recording.outputs)
    leaves = [next(supply) if isinstance(leaf, torch.Tensor) else leaf for leaf in recording.leaves]
    value, aux = tree_unflatten(leaves, recording.spec)
    spec = tree_flatten(value)[1]
    blocks = [
        tree_unflatten(_jacobian(recording, output, arguments.leaves, size, strategy), arguments.spec)
        for output in recording.graph.outputs[: spec.num_leaves]
    ]
    return Piecewise(value, aux, tree_unflatten(blocks, spec))


def _jacobian(
    recording: Recording, output: int, inputs: Sequence[torch.Tensor], size: int, strategy: str
) -> list[torch.Tensor]:
    """Return the derivatives of a node by all inputs, laid together from pieces."""
    y = recording.values[output]
    pieces = [
        evaluate(_piece(recording, output, places), inputs, 1, (1,), compact=False, strategy=strategy).dense(1)
        for places in torch.arange(y.numel(), device=y.device).split(size)
    ]
    return [
        torch.cat(parts).reshape(*y.shape, *x.shape) for parts, x in zip(zip(*pieces, strict=True), inputs, strict=True)
    ]


def _piece(recording: Recording, output: int, places: torch.Tensor) -> Recording:
    """Return a recording of some elements of a node."""
    nodes, y = recording.graph.nodes, recording.values[output]
    flat = y.reshape(-1)
    values = [*recording.values, places, flat, flat.index_select(0, places)]
    number, active = len(nodes), nodes[output].active
    added = (
        Node(number, CONSTANT, (), (), None, (), places.shape, places.dtype, places.device, False),
        _computed(number + 1, aten.view.default, (Ref(output), (-1,)), (output,), flat, active),
        _computed(
            number + 2,
            aten.index_select.default,
            (Ref(number + 1), 0, Ref(number)),
            (number + 1, number),
            values[-1],
            active,
        ),
    )
    graph = Graph((*nodes, *added), recording.graph.inputs, (number + 2,))
    return recording._replace(graph=graph, values=values)


def _computed(number: int, op: Any, args: tuple, operands: tuple[int, ...], value: torch.Tensor, active: bool) -> Node:
    return Node(number, op, args, (), None, operands, value.shape, value.dtype, None, active)
