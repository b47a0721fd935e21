"""What values decide inside expansions, by shapes that follow from them or because a rule reads them.

A mask that indexes becomes the places where it holds, inside the expansion of the index, and how many there are is no
part of the recorded graph. A plan is good for any mask that holds as often, since the places are computed at every run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hofunc.graph.identity import is_fake
from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Node, call_of
from hofunc.graph.readings import Reading
from hofunc.graph.reads import identical
from hofunc.plan.values import GONE_BY
from hofunc.rules.lower import Lowered, isolated, read_by


class Decided:
    """What values decided as a graph was lowered.

    Args:
        lowered: The lowered graph.

    Attributes:
        origins: The recorded nodes on the values of which it depends.
        goes_by: Whether planning went by values.
    """

    def __init__(self, lowered: Lowered):
        self._readings = readings = lowered.decided
        self.goes_by = any(reading.call.op is GONE_BY for reading in readings)
        self._nodes: dict[int, Node] = {}
        self._literal: dict[int, torch.Tensor] = {}
        self._recorded: dict[int, int] = {}
        waiting = [operand for reading in readings for operand in reading.operands]
        while waiting:
            number = waiting.pop()
            origin = lowered.origins[number]
            if isinstance(origin, torch.Tensor):
                self._literal[number] = origin
            elif origin is not None:
                self._recorded[number] = origin
            elif number not in self._nodes:
                self._nodes[number] = lowered.graph.nodes[number]
                waiting.extend(lowered.graph.nodes[number].operands)
        self.origins = (*dict.fromkeys(self._recorded.values()),)

    def __str__(self) -> str:
        return "a rule that goes by values: " + ", ".join(read_by(reading.call) for reading in self._readings)

    def __call__(self, *tensors: torch.Tensor) -> bool:
        """Tell whether these values of the recorded nodes, in the order of origins, decide the same."""
        return self.holds(dict(zip(self.origins, tensors, strict=True)))

    def holds(self, values: Sequence[torch.Tensor] | Mapping[int, torch.Tensor]) -> bool:
        """Tell whether the values of the recorded nodes decide the same.

        Nodes are computed as they are needed, so that where what was decided first is the same, what follows is
        computed as it was.
        """
        if not self._readings:
            return True
        found = {**self._literal, **{number: values[origin] for number, origin in self._recorded.items()}}
        if any(map(is_fake, found.values())):
            return False
        with isolated(), torch.no_grad():
            return all(identical(self._read(reading, found), reading.value) for reading in self._readings)

    def _read(self, reading: Reading, found: dict[int, Any]) -> Any:
        for number in sorted(self._needed(reading.operands, found)):
            node = self._nodes[number]
            call = call_of(node)
            call = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))
            result = call(*(found[operand] for operand in node.operands))
            found[number] = result if node.output is None else result[node.output]
        return reading.call(*(found[operand] for operand in reading.operands))

    def _needed(self, operands: Sequence[int], found: Mapping[int, Any]) -> set[int]:
        """Return the nodes that are not yet computed and that lead to some."""
        needed: set[int] = set()
        waiting = [*operands]
        while waiting:
            number = waiting.pop()
            if number not in found and number not in needed:
                needed.add(number)
                waiting.extend(self._nodes[number].operands)
        return needed
