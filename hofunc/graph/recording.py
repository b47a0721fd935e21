"""What a recorded call is, and its values computed again.

NOTE [bare]: values have the history that autograd knows, which takes as long as a third of recording. But where the
backward pass of contractions is planned, it starts from what is given, see NOTE [learning] in `hofunc.run.backward`,
and nobody asks for the history of what is computed. So a function that came to a graph of which that was so is recorded
bare the next time: without history, but of the inputs themselves, which stand among the values. If it comes to another
graph then, it is recorded again as others are, and so it is before it draws random numbers, which it is to do once; if
what is computed of it needs histories, values are computed again.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from hofunc.graph.identity import plain
from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.lines import Lines
from hofunc.graph.node import Call, Graph
from hofunc.graph.trail import NOTHING, Trail
from hofunc.graph.values import Values
from hofunc.graph.world import without_autocast
from hofunc.internals import TreeSpec
from hofunc.trees import tree_unflatten

Function = Callable[..., Any]

_AGAIN = {id(op): function for op, function in COMPUTED_AGAIN.items()}  # by id, since the hash of an op is slow


class Recording(NamedTuple):
    """A recorded call.

    Attributes:
        graph: The graph, with one output for every tensor of the result.
        values: The value of every node; stand-ins if ``wrappers`` is not None.
        leaves: What the function returned, flattened; its tensors are the graph's outputs in order.
        spec: Structure of what the function returned.
        wrappers: The real tensors of the graph's inputs, on which it has to be replayed; None if values are real.
        asked: Whether the function asked if autograd follows what depends on its inputs; None if nobody watched.
        lines: Which lines of the function computed which nodes, where that was noted.
        writes: Whether the function wrote in place, where that was seen.
        trail: What led to the same graph before, and may lead to it again; else nothing.
        is_bare: Whether values have no history but that of the inputs, see NOTE [bare].
    """

    graph: Graph
    values: list[torch.Tensor] | Values
    leaves: list[Any]
    spec: TreeSpec
    wrappers: list[torch.Tensor] | None
    asked: bool | None = None
    lines: Lines = MappingProxyType({})
    writes: bool = False
    trail: Trail = NOTHING
    is_bare: bool = False

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The values of what the function returned."""
        return [self.values[number] for number in self.graph.outputs]

    def copy(self) -> "Recording | None":
        """Return the same recording, to which its values are left; None of one on stand-ins, or along a route."""
        if self.wrappers is not None or (isinstance(self.values, Values) and self.values.are_kept):
            return None
        return self._replace(values=self.values.copy())

    def exchanged(self, inputs: Sequence[torch.Tensor], count: int) -> "Recording":
        """Return the same recording with other inputs after the first few, of which the function knows nothing."""
        values, before = self.values, len(self.graph.inputs)
        others = [*map(plain, inputs[count:])]
        graph = self.graph.exchanged(count, tuple([(each.shape, each.dtype, each.device) for each in others]))
        if isinstance(values, Values):
            values = values.exchanged(graph, count, others)
        else:
            values = [*values[:count], *others, *values[before:]]
        return self._replace(graph=graph, values=values, trail=NOTHING)

    def returned_with(self, tensors: Sequence[Any]) -> Any:
        """Return what the function returned, with the given tensors in place of its own."""
        supply = iter(tensors)
        leaves = [next(supply) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        return tree_unflatten(leaves, self.spec)


def with_histories(recording: Recording) -> Recording:
    """Return a bare recording with the history that its values would have had."""
    graph, values = recording.graph, recording.values
    computed = {node.number for node in graph.nodes if not node.is_given}
    inputs = [values[number] for number in graph.inputs]
    return recording._replace(values=without_autocast(replayed, recording, inputs, computed), is_bare=False)


def replayed(recording: Recording, inputs: Sequence[torch.Tensor], hidden: Set[int]) -> list[torch.Tensor]:
    """Return the values of a recording with the history that the graph says, which those of some nodes do not have."""
    graph, values = recording.graph, recording.values
    known = {node.number: values[node.number] for node in graph.nodes if node.number not in hidden}
    return replay(graph, [*map(plain, inputs)], known)


def replay(
    graph: Graph,
    inputs: Sequence[torch.Tensor],
    known: Mapping[int, torch.Tensor],
    numbers: Mapping[int, float] = MappingProxyType({}),
) -> list[torch.Tensor]:
    """Compute the values of nodes again, from other inputs.

    Args:
        graph: The graph.
        inputs: One tensor for each of the graph's inputs.
        known: The value of each of its constants, by node, and of others that need not be computed.
        numbers: Of those that stand for numbers, what ops take in their place.
    """
    result: dict[int, Any] = {**known, **dict(zip(graph.inputs, inputs, strict=True)), **numbers}
    latest: tuple[Call | None, int] = (None, 0)  # the latest call that returned several outputs, and which was taken
    outputs: Any = None
    for node in graph.nodes:
        if node.number in result:
            continue
        call = Call(_AGAIN.get(id(node.op), node.op), node.args, node.kwargs)
        if node.output is None:
            result[node.number] = call(*[result[operand] for operand in node.operands])
            continue
        if latest[0] != call or latest[1] >= node.output:
            outputs = call(*[result[operand] for operand in node.operands])
        latest = call, node.output
        result[node.number] = outputs[node.output]
    result.update({number: known[number] for number in numbers})
    return [result[node.number] for node in graph.nodes]
