"""The shapes that values decide: what a plan was made for, and whether other values lead to the same.

A mask that indexes becomes the places where it holds, inside the expansion of the index, and how many there are is no
part of the recorded graph. A plan is good for any mask that holds as often, since the places are computed at every run.
"""

from collections.abc import Sequence

import torch

from hofunc.graph.identity import is_fake
from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Node, call_of
from hofunc.rules.lower import Lowered, isolated


class Sizes:
    """The shapes of the nodes of a lowered graph of which values decide the shape.

    Args:
        lowered: The graph, lowered with the values of a call.
    """

    def __init__(self, lowered: Lowered):
        nodes, origins = lowered.graph.nodes, lowered.origins
        self._shapes = {number: tuple(nodes[number].shape) for number in lowered.dynamic}
        needed = {*lowered.dynamic}
        for node in reversed(nodes):
            if node.number in needed and origins[node.number] is None:
                needed.update(node.operands)
        self._given = {number: origin for number in needed if (origin := origins[number]) is not None}
        self._computed = [nodes[number] for number in sorted(needed - self._given.keys())]

    def hold(self, values: Sequence[torch.Tensor]) -> bool:
        """Tell whether the values of the recorded nodes lead to these shapes.

        Nodes are computed in order, so that where the first shapes are these the next are computed as they were.
        """
        if not self._shapes:
            return True
        if any(map(is_fake, values)):
            return False
        found = {
            number: origin if isinstance(origin, torch.Tensor) else values[origin]
            for number, origin in self._given.items()
        }
        with isolated(), torch.no_grad():
            return all(self._holds(node, found) for node in self._computed)

    def _holds(self, node: Node, found: dict[int, torch.Tensor]) -> bool:
        """Compute a node, and tell whether it has the shape that it is to have."""
        call = call_of(node)
        result = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))(*(found[operand] for operand in node.operands))
        found[node.number] = value = result if node.output is None else result[node.output]
        return tuple(value.shape) == self._shapes.get(node.number, tuple(value.shape))
