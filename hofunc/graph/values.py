"""The values of a graph of which some were kept: the others are computed from these when they are asked for."""

from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Call, Graph, call_of
from hofunc.graph.world import without_autocast


class Values(Sequence[torch.Tensor]):
    """The values of nodes; those that were not kept are computed when they are asked for, and kept the next time.

    Args:
        graph: The graph.
        held: Those that were kept.
        count: How many there are.
        keep: Has those that are asked for kept the next time, which have no history then; None if they are not.
    """

    def __init__(
        self, graph: Graph, held: dict[int, torch.Tensor], count: int, keep: Callable[[int], None] | None = None
    ):
        self._graph, self._held, self._count, self._keep = graph, held, count, keep

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, number: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self._count))]
        value = self._held.get(number)
        if value is None:
            if not -self._count <= number < self._count:
                raise IndexError(number)
            if number < 0:
                return self[number + self._count]
            if self._keep is not None:
                self._keep(number)
            without_autocast(_compute, self._graph, number, self._held)
            value = self._held[number]
        return value

    @property
    def are_kept(self) -> bool:
        """Whether those that are asked for are kept the next time."""
        return self._keep is not None

    def exchanged(self, graph: Graph, count: int, others: Sequence[torch.Tensor]) -> "Values":
        """Return the same values, which are not kept, of a graph with other inputs after the first few.

        Args:
            graph: That graph.
            count: How many inputs are the same.
            others: The values of the others.
        """
        before = len(self) - len(graph.nodes) + count + len(others)  # the number of the first node that is no input
        moved = {number - before + count + len(others): x for number, x in self._held.items() if number >= before}
        same = {number: self[number] for number in range(count)}
        return Values(graph, same | dict(enumerate(others, count)) | moved, len(graph.nodes))

    def copy(self) -> "Values":
        """Return the same values, which are kept if these are given up."""
        return Values(self._graph, dict(self._held), self._count, self._keep)

    def detached(self) -> "Values":
        """Return the same values without any history."""
        held = {number: value.detach() if value.requires_grad else value for number, value in self._held.items()}
        return Values(self._graph, held, self._count, self._keep)

    def extend(self, values: Sequence[torch.Tensor]) -> None:
        """Add values of nodes that come after all others."""
        self._held.update(enumerate(values, self._count))
        self._count += len(values)

    def clear(self) -> None:
        """Give up all values."""
        self._held, self._count = {}, 0


def _compute(graph: Graph, number: int, held: dict[int, torch.Tensor]) -> None:
    """Compute the value of a node from those that it depends on, and these in turn."""
    needed, waiting = set(), [number]
    while waiting:
        each = waiting.pop()
        if each not in needed and each not in held:
            needed.add(each)
            waiting.extend(graph.nodes[each].operands)
    latest: tuple[Call | None, Any] = None, None
    for each in sorted(needed):
        node = graph.nodes[each]
        call = call_of(node)
        call = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))
        out = latest[1] if node.output and latest[0] == call else call(*[held[operand] for operand in node.operands])
        latest = call, out
        held[each] = out if node.output is None else out[node.output]
