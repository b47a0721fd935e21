"""Training steps through contractions, of which the backward pass is planned; see NOTE [learning]."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from hofunc.graph.followed import is_followed
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Graph
from hofunc.graph.recording import replay
from hofunc.graph.saving import is_hooked
from hofunc.graph.standin import in_transform
from hofunc.graph.world import without_autocast
from hofunc.internals import current_dispatch_mode, is_legacy_batchedtensor
from hofunc.options import planning
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.lean import arranged
from hofunc.plan.operators import zeros
from hofunc.plan.planner import STEP_SECONDS
from hofunc.plan.primal import Source, Whole
from hofunc.plan.program import Program, device_of
from hofunc.plan.wanted import Contractions
from hofunc.rules.lower import isolated
from hofunc.run import allocator
from hofunc.run.backward import Parts, are_plain, placed, planned, starts_of
from hofunc.run.executor import Runner, compiled

EFFORT = 8  # times the steps of planning of what comes before that both take, in two ways, about
MOST_EFFORT = 100_000  # steps of planning, from which on nobody waits for them
OWN = 1 << 30  # from which on values are numbered that lead to a graph, among the tensors of a call
MOST_KEPT = 4  # sets of values by which gradients are wanted


class Learned:
    """What runs contractions and their backward pass.

    Args:
        parts: What they are.
        before: Returns what the first part does, given other values, and values of nodes that are kept between these.
        kept: The numbers of values that are kept beside those of the nodes, where that does not return them.

    Attributes:
        parts: What was given.
    """

    def __init__(self, parts: Parts, before: Program, kept: tuple[int, ...]):
        self.parts, self._kept, device = parts, kept, device_of(parts.again.graph)
        self._takes = frozenset(each.origin for each in before.given.values() if isinstance(each.origin, int))
        held = sum(prod(map(int, each.shape)) * each.dtype.itemsize for each in parts.after.given.values())
        # As much may be held at once as is kept between them in any case.
        both = [arranged(each, device).leaner(allowed=held) for each in (before, parts.after)]
        allocator.keep(sum(each.peak for each in both), device)
        self._before, self._after = (compiled(each.program, takes_over=True) for each in both)
        self._of_nodes: Runner | None = None

    def results(self, values: Any, starts: Sequence[Tensor]) -> list[Tensor] | None:
        """Return contractions whose backward pass is planned, None if there are tensors that are none of torch itself.

        Args:
            values: What comes before takes, by number.
            starts: The values of the nodes by which gradients are wanted.
        """
        if any(type(values[number]) not in PLAIN for number in (*self._takes, *self._kept)):
            return None
        return [*_Both.apply(self, values, *starts)]

    def forward(self, values: Any) -> tuple[list[Tensor], list[Tensor]]:
        """Return contractions, and what is kept for the backward pass beside the values of the nodes."""
        taken: Any = {number: values[number] for number in self._takes}
        found, count = self._before(taken), len(self.parts.constants)
        return found[:count], [*(values[number].detach() for number in self._kept), *found[count:]]

    def backward(self, saved: Sequence[Tensor], coming: Sequence[Tensor]) -> list[Tensor | None]:
        """Return gradients, given what was kept, and what comes back."""
        return placed(without_autocast(self._after, [*saved, *coming]), self.parts.places, saved)

    def followed(self, needs: Sequence[bool], saved: Sequence[Tensor], coming: Sequence[Tensor]) -> list[Tensor | None]:
        """Return gradients, of which some are needed, by steps that are run again and followed."""
        parts, creates = self.parts, torch.is_grad_enabled()
        every: dict[int, Any] = dict(zip((*parts.nodes, *parts.kept), saved, strict=False))
        known = {number: every[number] for number in (*parts.again.starts, *parts.nodes)}
        is_apart = not creates and not in_transform() and not any(map(is_legacy_batchedtensor, coming))
        if self._of_nodes is None:
            self._of_nodes = compiled(parts.before)
        with torch.enable_grad():
            for number, need in zip(parts.nodes, needs, strict=True):
                if need:
                    value = known[number]
                    known[number] = value.detach().requires_grad_() if is_apart else value.view_as(value)
            inputs = [known[number] for number in parts.again.graph.inputs]
            values = without_autocast(replay, parts.again.graph, inputs, {**dict.fromkeys(parts.again.idle), **known})
            results = without_autocast(self._of_nodes, values)[: len(parts.constants)]
        pairs = [(y, g) for y, g, c in zip(results, coming, parts.constants, strict=True) if not c and y.requires_grad]
        wanted = [known[number] for number, need in zip(parts.nodes, needs, strict=True) if need]
        found: Iterator[Tensor | None] = iter([None] * len(wanted))
        if pairs:
            ys, seeds = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(ys, wanted, seeds, create_graph=creates, allow_unused=True))
        return [next(found) if need else None for need in needs]


class Learning:
    """Plans the backward pass of a plan when it has been asked for often enough that this is worth it.

    Args:
        plan: The plan.
        wanted: What it computes.
        graph: The recorded graph that it is of.

    Attributes:
        is_on: Whether the backward pass of what was computed last was planned.
    """

    def __init__(self, plan: Blueprint, wanted: Contractions, graph: Graph):
        self.is_on = False
        self._plan, self._wanted, self._graph = plan, wanted, graph
        self._known: dict[tuple[int, ...], Learned | None] = {}
        self._starts = starts_of(graph, wanted)
        seconds = max(plan.run_cost.seconds, STEP_SECONDS)
        self._left = 0.0 if planning() == "full" else EFFORT * plan.effort * STEP_SECONDS / seconds

    def results(self, values: Any) -> list[Tensor] | None:
        """Return contractions, given the values of the recorded nodes; None if their backward pass is not planned."""
        learned = self._of(self._nodes(values), lambda: values) if self._is_due() else None
        starts = [] if learned is None else [values[number] for number in learned.parts.nodes]
        found = None if learned is None else learned.results(values, starts)
        self.is_on = found is not None
        return found

    def results_bare(self, values: Any) -> list[Tensor] | None:
        """Return the same of values that have no history but those of inputs; None if these need to have it."""
        learned = self._known.get(self._nodes(values))
        if learned is None or not torch.is_grad_enabled() or is_followed(()) or is_hooked() or current_dispatch_mode():
            return None
        return learned.results(values, [values[number] for number in learned.parts.nodes])

    def _nodes(self, values: Any) -> tuple[int, ...]:
        return tuple([number for number in self._starts if values[number].requires_grad])

    def _is_due(self) -> bool:
        self._left -= 1
        is_apart = self._plan.chunks is not None and self._plan.cost.peak_bytes > allocator.MOST
        return self._left < 0 and not is_apart and self._plan.effort * EFFORT <= MOST_EFFORT

    def _of(self, nodes: tuple[int, ...], values: Callable[[], Any]) -> Learned | None:
        """Return what runs a plan with gradients by some nodes, which is made of the values of all if there is none."""
        if nodes not in self._known:
            if len(self._known) == MOST_KEPT:
                return None
            self._known[nodes] = self._made(nodes, values())
        return self._known[nodes]

    def _made(self, nodes: Sequence[int], values: Any) -> Learned | None:
        with isolated():
            parts = planned(self._plan, self._wanted, self._graph, nodes, values)
            return parts and self._learned(parts)

    def _learned(self, parts: Parts) -> Learned:
        return Learned(parts, parts.before, parts.kept)


Zeros = tuple[Any, ...]  # shape, dtype and device


class LearningOfWhole(Learning):
    """Likewise of a frozen plan, which computes what a function does too.

    Args:
        plan: The plan of the contractions.
        wanted: What it computes.
        graph: The recorded graph that it is of.
        sources: What each of the graph's inputs and constants is, see `hofunc.plan.primal.Whole`.
        places: What the frozen plan returns, of what the other one does; or zeros.
    """

    def __init__(
        self,
        plan: Blueprint,
        wanted: Contractions,
        graph: Graph,
        sources: Mapping[int, Source],
        places: Sequence[int | Zeros],
    ):
        super().__init__(plan, wanted, graph)
        self._sources, self._places = sources, places
        self._begin = self._values_of(self._starts)

    def results(self, values: Any) -> list[Tensor] | None:
        """Return what the frozen plan does, given the tensors of a call; None if its backward pass is not planned."""
        if not self._is_due():
            return None
        starts = dict(zip(self._starts, self._begin(values), strict=True))
        nodes = tuple([number for number, value in starts.items() if value.requires_grad])
        every = range(len(self._graph.nodes))
        learned = self._of(nodes, lambda: self._values_of(every)(values))
        if learned is None:
            return None
        own = [starts[number] for number in nodes]
        found = learned.results({**dict(enumerate(values)), **dict(enumerate(own, OWN))}, own)
        if found is None:
            return None
        return [found[place] if isinstance(place, int) else zeros(*place) for place in self._places]

    def _values_of(self, numbers: Sequence[int]) -> Runner:
        """Return what computes the values of nodes from the tensors of a call."""
        whole = Whole(Program({}, {}, (), (), ()), self._graph, self._sources)
        return compiled(whole.program([whole.value(number) for number in numbers]))

    def _learned(self, parts: Parts) -> Learned:
        own = {number: place for place, number in enumerate(parts.nodes, OWN)}
        whole, count = Whole(parts.before, parts.again.graph, {**self._sources, **own}), len(parts.constants)
        kept = [whole.value(number) for number in parts.kept]
        return Learned(parts, whole.program([*whole.outputs[:count], *kept, *whole.outputs[count:]]), ())


class _Both(torch.autograd.Function):
    """Runs what comes before the backward pass, and then this."""

    @staticmethod
    def forward(ctx: Any, learned: Learned, values: Any, *starts: Tensor) -> Any:
        results, kept = learned.forward(values)
        ctx.learned = learned
        ctx.mark_non_differentiable(*(y for y, c in zip(results, learned.parts.constants, strict=True) if c))
        ctx.save_for_backward(*starts, *kept)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *coming: Tensor) -> Any:
        learned, needs, saved = ctx.learned, ctx.needs_input_grad[2:], ctx.saved_tensors
        found = learned.backward(saved, coming) if are_plain(coming) else learned.followed(needs, saved, coming)
        return None, None, *(one if need else None for one, need in zip(found, needs, strict=True))
