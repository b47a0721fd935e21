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
from hofunc.plan.wanted import Block, Chosen
from hofunc.run.evaluate import evaluate

aten = torch.ops.aten

Function = Callable[..., tuple[Any, Any]]


class Piecewise(NamedTuple):
    """Blocks of a derivative.

    Attributes:
        blocks: The blocks, of every output in turn.
        aux: What the function returned beside.
    """

    blocks: list[torch.Tensor]
    aux: Any


def in_pieces(
    below: Callable[[tuple[Block, ...]], Function],
    arguments: Arguments,
    blocks: Sequence[Block],
    size: int,
    strategy: str,
) -> Piecewise | None:
    """Differentiate the order below once, some elements at a time.

    Args:
        below: Given blocks of the order below, returns a function that computes them: called with the arguments, it
            returns the pair of these, for every output in turn, and aux.
        arguments: Those of the call.
        blocks: The blocks that are wanted.
        size: How many elements are differentiated at a time.
        strategy: One of the planner's strategies, or "auto".

    Returns:
        The blocks; None if what was recorded has to be computed again from other values, with other
        random numbers for every piece.
    """
    by: dict[Block, dict[int, None]] = {}  # for what is differentiated, the inputs of the last slot
    for block in blocks:
        by.setdefault(block[:-1], {})[block[-1]] = None
    function = below(tuple(by))

    recording = record(partial(arguments.called, function), arguments.leaves, arguments.rest)
    if recording.wrappers is not None:
        return None
    supply = iter(recording.outputs)
    leaves = [next(supply) if isinstance(leaf, torch.Tensor) else leaf for leaf in recording.leaves]
    value, aux = tree_unflatten(leaves, recording.spec)
    differentiated = recording.graph.outputs[: tree_flatten(value)[1].num_leaves]
    found: list[torch.Tensor] = []
    for first in range(0, len(differentiated) if by else 0, max(1, len(by))):  # those of one output
        every: dict[Block, torch.Tensor] = {}
        for node, (slots, lasts) in zip(differentiated[first:], by.items(), strict=False):
            parts = _jacobian(recording, node, arguments.leaves, [*lasts], size, strategy)
            every |= {(*slots, last): part for last, part in zip(lasts, parts, strict=True)}
        found += map(every.__getitem__, blocks)
    return Piecewise(found, aux)


def _jacobian(
    recording: Recording, output: int, inputs: Sequence[torch.Tensor], by: list[int], size: int, strategy: str
) -> list[torch.Tensor]:
    """Return the derivatives of a node by some of the inputs, laid together from pieces."""
    y = recording.values[output]
    wanted = (1,) if by == [*range(len(inputs))] else Chosen(tuple([(number,) for number in by]))
    pieces = [
        evaluate(_piece(recording, output, places), inputs, 1, wanted, compact=False, strategy=strategy).dense(1)
        for places in torch.arange(y.numel(), device=y.device).split(size)
    ]
    return [
        torch.cat(parts).reshape(*y.shape, *inputs[number].shape)
        for parts, number in zip(zip(*pieces, strict=True), by, strict=True)
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
