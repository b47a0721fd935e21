"""The values of a graph of which some were kept: the others are computed from these when they are asked for."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, overload

import torch

from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Call, Graph, call_of
from hofunc.graph.world import without_autocast


class Held(dict[int, torch.Tensor]):
    """Values of nodes by number; those that are not there are computed when they are asked for.

    Args:
        held: Those that are there.
        graph: The graph.
        keep: Has those that are asked for kept the next time; None if they are not.
        computed: What computes them, if that is known.

    Attributes:
        keep: What was given.
        computed: What computes them, None until it was needed.
    """

    __slots__ = ("_graph", "computed", "keep")

    def __init__(
        self,
        held: Mapping[int, torch.Tensor],
        graph: Graph,
        keep: Callable[[int], None] | None,
        computed: "Recomputed | None",
    ):
        super().__init__(held)
        self._graph, self.keep, self.computed = graph, keep, computed

    def __missing__(self, number: int) -> torch.Tensor:
        """Compute a value."""
        if self.keep is not None:
            self.keep(number)
        if self.computed is None:
            self.computed = Recomputed(self._graph, frozenset(self))
        without_autocast(self.computed.enter, number, self)
        return self[number]


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
        held: Mapping[int, torch.Tensor],
        count: int,
        keep: Callable[[int], None] | None = None,
        computed: "Recomputed | None" = None,
    ):
        self._graph, self._count = graph, count
        self._held = Held(held, graph, keep, computed)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> torch.Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> list[torch.Tensor]: ...
    def __getitem__(self, number: int | slice) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(self._count))]
        if not -self._count <= number < self._count:
            raise IndexError(number)
        return self._held[number if number >= 0 else number + self._count]

    @property
    def by_number(self) -> Held:
        """The values, which are looked up sooner there."""
        return self._held

    @property
    def are_kept(self) -> bool:
        """Whether those that are asked for are kept the next time."""
        return self._held.keep is not None

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
        return self._like(self._held)

    def detached(self) -> "Values":
        """Return the same values without any history."""
        return self._like(
            {number: value.detach() if value.requires_grad else value for number, value in self._held.items()}
        )

    def extend(self, values: Sequence[torch.Tensor]) -> None:
        """Add values of nodes that come after all others."""
        self._held.update(enumerate(values, self._count))
        self._count += len(values)

    def clear(self) -> None:
        """Give up all values."""
        self._held.clear()
        self._count = 0

    def given_up(self) -> Held:
        """Give up all values, to whom they are returned."""
        held, self._count = self._held, 0
        self._held = Held({}, self._graph, held.keep, held.computed)
        return held

    def _like(self, held: Mapping[int, torch.Tensor]) -> "Values":
        return Values(self._graph, held, self._count, self._held.keep, self._held.computed)


def by_number(values: Sequence[torch.Tensor]) -> Any:
    """Return the values of nodes as what looks them up soonest by their numbers."""
    return values.by_number if type(values) is Values else values


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
