"""What a plan is made of: a function recorded for replay, with all tensors of its arguments for inputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.arguments import Arguments
from hofunc.complex_tensors import by_parts, put_together
from hofunc.graph.capture import record_for_replay
from hofunc.graph.facts import Facts
from hofunc.graph.node import Graph
from hofunc.graph.readings import Reading
from hofunc.graph.record import made_recordable
from hofunc.graph.recording import Recording
from hofunc.graph.saving import unhooked
from hofunc.internals import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from hofunc.options import records_forwards
from hofunc.plan.blueprint import Limits
from hofunc.plan.primal import PartsOf, Source
from hofunc.plan.values import GONE_BY
from hofunc.plan.wanted import Wanted
from hofunc.rules.lower import INTEGERS, Lowered
from hofunc.run.evaluate import Evaluation


class Request(NamedTuple):
    """What a transform asks a plan for.

    Attributes:
        transform: Name of the transform.
        user: The function that is differentiated.
        function: Called with the arguments; returns the pair of what it returned to be differentiated and aux.
        arguments: Those that it is asked for at.
        keywords: The names of keyword arguments of which the tensors are inputs as well, if they are there.
        wanted: Given what function returned, returns the orders wanted, or the contractions.
        compact: Whether derivatives are kept as terms.
        strategy: One of the planner's strategies, or "auto".
        limits: Rows at a time, and memory.
        assemble: Given the tensors that function returned, its recording and the evaluation, returns the result.
    """

    transform: str
    user: Callable[..., Any]
    function: Callable[..., tuple[Any, Any]]
    arguments: Arguments
    keywords: tuple[str, ...]
    wanted: Callable[[Any], Wanted]
    compact: bool
    strategy: str
    limits: Limits
    assemble: Callable[[Sequence[Any], Recording, Evaluation], Any]


class Change(NamedTuple):
    """The change of what f taps, of which a plan has the one that it is made with, of zeros."""

    name: str
    tensor: torch.Tensor


class Taken(NamedTuple):
    """A recording, and how it is replayed.

    Attributes:
        recording: The recording.
        graph: Its graph, of which only what is differentiated is an output.
        inputs: For every input of the graph that is an argument, its place among the tensors of the arguments; changes
            of taps among those.
        active: For each of those that it is differentiated by, which come first, whether it is complex.
        readings: The values that the function read.
        facts: What else it depends on.
        asked_history: Whether it asked if autograd follows a tensor.
        asked_layout: Whether it asked how a tensor lies in memory.
        wanted: What is asked for.
    """

    recording: Recording
    graph: Graph
    inputs: tuple[int | Change, ...]
    active: Sequence[bool]
    readings: Sequence[tuple]
    facts: Facts
    asked_history: bool
    asked_layout: bool
    wanted: Wanted

    def sources(self) -> dict[int, Source]:
        """Return what every node that is given stands for: an argument by its place among the tensors, or a tensor."""
        graph, values = self.graph, self.recording.values
        sources: dict[int, Source] = {node.number: values[node.number] for node in graph.nodes if node.is_given}
        for number, given in zip(graph.inputs, self.inputs, strict=False):
            sources[number] = given.tensor if isinstance(given, Change) else given
        for number, given, is_complex in zip(graph.inputs, self.inputs, self.active, strict=False):
            if is_complex and isinstance(given, int):
                sources[number] = PartsOf(given)
        return sources

    def captured(self) -> dict[int, torch.Tensor]:
        """Return the captured integers, by whose values planning may go."""
        count = len(self.inputs)
        return {
            number: value
            for number, value in self.sources().items()
            if isinstance(value, torch.Tensor) and number not in self.graph.inputs[:count] and value.dtype in INTEGERS
        }

    def integers(self) -> dict[int, torch.Tensor]:
        """Return the values of integers among the arguments."""
        given = self.graph.inputs[: len(self.inputs)]
        return {n: self.recording.values[n] for n in given if self.graph.nodes[n].dtype in INTEGERS}


def take(request: Request, args: tuple, kwargs: dict) -> Taken:
    """Record the function, with all tensors of the arguments for inputs."""
    leaves, spec = tree_flatten((args, kwargs))
    active, others = _separated(leaves, spec, request)
    tensors = [each.tensor if isinstance(each, Change) else by_parts(leaves[each]) for each in active]
    are_complex = [not isinstance(each, Change) and leaves[each].is_complex() for each in active]

    def function(inputs: Sequence[torch.Tensor], rest: Sequence[torch.Tensor]) -> Any:
        filled = list(leaves)
        for each, tensor in zip((*active, *others), (*map(put_together, inputs, are_complex), *rest), strict=True):
            if isinstance(each, int):
                filled[each] = tensor
        args, kwargs = tree_unflatten(filled, spec)
        with request.arguments.tapped(inputs):
            return request.function(*args, **kwargs)

    objects = [leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]
    given = tensors, [leaves[place] for place in others], (request.user, *objects)
    with unhooked():
        recording, readings, facts, asked_history, asked_layout = made_recordable(
            lambda follow: record_for_replay(function, *given, follow=follow), follow=records_forwards()
        )
    given_back = tree_unflatten(recording.leaves, recording.spec)
    count = tree_flatten(given_back[0])[1].num_leaves
    ends = recording.graph.outputs
    graph = recording.graph._replace(outputs=ends[:count], aux=ends[count:])
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    inputs = tuple(each if isinstance(each, Change) else places.index(each) for each in (*active, *others))
    wanted = request.wanted(given_back)
    return Taken(recording, graph, inputs, are_complex, readings, facts, asked_history, asked_layout, wanted)


def _separated(leaves: Sequence[Any], spec: TreeSpec, request: Request) -> tuple[list[int | Change], list[int]]:
    """Return the places, among the leaves of (args, kwargs), of what is differentiated by and of other tensors."""
    args, kwargs = tree_unflatten(list(range(len(leaves))), spec)
    arguments = request.arguments
    changes = [*map(Change, arguments.names(), arguments.leaves)]
    active: list[int | Change] = []
    start = 0
    for variable, structure in zip(arguments.variables, arguments.specs, strict=True):
        end = start + structure.num_leaves
        active += tree_leaves(args[variable]) if isinstance(variable, int) else changes[start:end]
        start = end
    active += tree_leaves([kwargs.get(name, ()) for name in request.keywords])
    places = {each for each in active if isinstance(each, int)}
    others = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and n not in places]
    return active, others


def captured_of(lowered: Lowered, reading: Reading, captured: Mapping[int, torch.Tensor]) -> torch.Tensor | None:
    """Return the captured tensor by whose value a plan goes, None for what else decided it."""
    if reading.call.op is not GONE_BY:
        return None
    (place,) = reading.operands
    origin = lowered.origins[place]
    return captured.get(origin) if isinstance(origin, int) else None
