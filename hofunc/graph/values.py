"""The values of a graph of which some were kept: the others are computed from these when they are asked for."""

from collections.abc import Callable, Collection, Iterator, Sequence
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
        computed: What computes the others, if that is known.
    """

    def __init__(
        self,
        graph: Graph,
        held: dict[int, torch.Tensor],
        count: int,
        keep: Callable[[int], None] | None = None,
        computed: "Recomputed | None" = None,
    ):
        self._graph, self._held, self._count, self._keep, self._computed = graph, held, count, keep, computed

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
            if self._computed is None:
                self._computed = Recomputed(self._graph, frozenset(self._held))
            without_autocast(self._computed.enter, number, self._held)
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
        return Values(self._graph, dict(self._held), self._count, self._keep, self._computed)

    def detached(self) -> "Values":
        """Return the same values without any history."""
        held = {number: value.detach() if value.requires_grad else value for number, value in self._held.items()}
        return Values(self._graph, held, self._count, self._keep, self._computed)

    def extend(self, values: Sequence[torch.Tensor]) -> None:
        """Add values of nodes that come after all others."""
        self._held.update(enumerate(values, self._count))
        self._count += len(values)

    def clear(self) -> None:
        """Give up all values."""
        self._held, self._count = {}, 0


class Recomputed:
    """What computes the values of nodes that were not kept, from those that were.

    It serves all calls of which the same are kept: how a value is computed is looked up in the graph once.

    Args:
        graph: The graph.
        kept: The numbers of nodes whose values are there.
    """

    def __init__(self, graph: Graph, kept: Collection[int]):
        self._graph, self._kept = graph, kept
        self._steps: dict[int, Sequence[tuple[int, Call, tuple[int, ...], int | None, bool]]] = {}

    def enter(self, number: int, values: dict[int, torch.Tensor]) -> None:
        """Enter the value of a node, and those that it takes, among those that are there."""
        steps = self._steps.get(number)
        if steps is None:
            steps = self._steps[number] = [*self._needed(number)]
        out: Any = None
        for each, call, operands, output, is_same in steps:
            if each in values:
                out = None
                continue
            if out is None or not is_same:
                out = call(*[values[operand] for operand in operands])
            values[each] = out if output is None else out[output]

    def _needed(self, number: int) -> Iterator[tuple[int, Call, tuple[int, ...], int | None, bool]]:
        """Yield the nodes to compute, in order: number, call, operands, output, whether the call is that before."""
        needed, waiting = set(), [number]
        while waiting:
            each = waiting.pop()
            if each not in needed and each not in self._kept:
                needed.add(each)
                waiting.extend(self._graph.nodes[each].operands)
        latest: Call | None = None
        for each in sorted(needed):
            node = self._graph.nodes[each]
            call = call_of(node)
            call = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))
            yield each, call, node.operands, node.output, bool(node.output) and call == latest
            latest = call
