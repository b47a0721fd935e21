"""The values of a graph under transforms of torch.func, as far as calls showed them, and stand-ins for all of them."""

from collections.abc import Mapping
from typing import overload

import torch

from hofunc.graph.node import Graph
from hofunc.graph.standin import stand_in
from hofunc.graph.values import Values
from hofunc.internals import temporarily_clear_interpreter_stack


class StandIns(Values):
    """The values of nodes on stand-ins, made of the values that there are once one is asked for.

    Args:
        graph: The graph.
        known: The values that there are, as transforms wrap them.

    Attributes:
        known: These.
    """

    def __init__(self, graph: Graph, known: Mapping[int, torch.Tensor]):
        super().__init__(graph, {}, len(graph.nodes))
        self.known = known

    @overload
    def __getitem__(self, number: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, number: int | slice) -> torch.Tensor | list[torch.Tensor]:
        with temporarily_clear_interpreter_stack():
            if not self._held:
                self._held.update({each: stand_in(value)[0] for each, value in self.known.items()})
            return super().__getitem__(number)
