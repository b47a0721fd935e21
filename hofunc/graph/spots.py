"""Where values lie: what a tensor is that neither an op nor autograd relates to any.

`torch.nn.Parameter(y)` and ``z.data = y`` make a tensor of what y holds past all ops, and to autograd it is no view.
But it reads the very memory of y, and so is y without its derivatives. Where a graph is computed once, such a tensor
may stand there as a constant; where it is computed again, from other values, that constant would be stale.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hofunc.graph.identity import reading_of, storage_key
from hofunc.graph.layout import Layout, layout_of
from hofunc.graph.node import CONSTANT, INPUT, Node


class Spot(NamedTuple):
    """Which memory a tensor reads, and how.

    Attributes:
        storage: The key of its storage.
        layout: Where it lies there.
        reading: Its dtype, and whether it conjugates or negates what it reads.
    """

    storage: int
    layout: Layout
    reading: tuple[torch.dtype, bool, bool]


class Spots:
    """The spots of the values of a graph.

    Attributes:
        inputs_are_own: Whether nothing outside of the function reads the memory of an input. If anything may, a tensor
            that does so may be one that the function captured, and is left alone.
    """

    def __init__(self, *, inputs_are_own: bool):
        self.inputs_are_own = inputs_are_own
        self._numbers: dict[Spot, int] = {}
        self._own: set[int] = set()
        self._others: set[int] = set()
        self._entered: list[torch.Tensor] = []  # kept so that no key is used again

    def enter(self, nodes: Sequence[Node], values: Sequence[torch.Tensor]) -> None:
        """Note where the values of nodes lie that are not noted yet."""
        for number in range(len(self._entered), len(values)):
            node, value = nodes[number], values[number]
            self._entered.append(value)
            if node.op is CONSTANT or (node.op is INPUT and not self.inputs_are_own):
                self._others.add(storage_key(value))
            elif value.layout is torch.strided:
                self._own.add(storage_key(value))
                self._numbers.setdefault(_spot_of(value), number)

    def leave(self, tensor: torch.Tensor) -> None:
        """Take the memory of a tensor for that of others: its values are compared, so that a constant is not stale."""
        self._others.add(storage_key(tensor))

    def has(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor reads memory that is the function's own."""
        key = storage_key(tensor)
        return key in self._own and key not in self._others

    def find(self, tensor: torch.Tensor) -> int | None:
        """Return the node of the value that lies where such a tensor does."""
        return self._numbers.get(_spot_of(tensor))


def _spot_of(tensor: torch.Tensor) -> Spot:
    return Spot(storage_key(tensor), layout_of(tensor), reading_of(tensor))
