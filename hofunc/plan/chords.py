"""Recurrences for contractions: all steps as one batch, by which all states are one tensor.

Node by node, a contraction takes planning and calls for each step, though all of them are alike. The states S of a
recurrence are where S = F(S, ...), of which every step of F takes the state before; all steps of F are one batch.

NOTE [chords]: from the states, k steps of the chord method, S <- S + (1 - J)^-1 (F(S, ...) - S) with the slopes J of F
at the states, have the derivatives of the states up to order k, if the first of them starts at constants. For each
makes right the lowest order that is not yet, as J is the slope there. That is a graph of batches, k times F, between
which (1 - J)^-1 is one pass over the steps (`hofunc.plan.states`): whatever is propagated through it, be it along slots
forwards or backwards, is propagated through all steps at once, but for the passes. No second derivative of a step
is ever formed that a contraction does not ask for.
Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 15, for derivatives of what is defined implicitly;
Lim, Zhu, Selfridge and Kasim, Parallelizing non-linear sequential models over the sequence length (2024), for
recurrences as such.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, cast

import torch

from hofunc.graph.node import Call, Graph, Node, Ref
from hofunc.plan.batched import Derived, batched, derived
from hofunc.plan.blocks import Local
from hofunc.plan.program import device_of
from hofunc.plan.rows import unmarked
from hofunc.plan.sequences import Sequences
from hofunc.plan.states import GIVEN, TAKEN, given, taken
from hofunc.plan.stepped import JOINED, is_line, joined
from hofunc.plan.steps import Steps, Taken, whole_steps
from hofunc.rules.lower import Lowered, Origin

aten = torch.ops.aten

ENTRIES = 4096  # of the slope of a node by the state, beyond which later calls take longer than node by node


class Batch(NamedTuple):
    """All steps of a recurrence as one batch.

    Attributes:
        steps: The steps; what they give starts with the state that the next one takes.
        slopes: What computes their slopes by the states that they take.
        inner: Their graph.
        carried: How many of what they take are the state.
    """

    steps: Steps
    slopes: Derived
    inner: Lowered
    carried: int


def with_chords(lowered: Lowered, local: dict[int, Local], order: int, *, least: int = 0) -> Lowered | None:
    """Return a graph in which all steps of a recurrence are batches; None if it has no recurrence that gains by it.

    No rows are marked in it, as steps mix them. Where a slope of a step is infinite, others may be nan for it.

    Args:
        lowered: The graph.
        local: Its local derivatives.
        order: The highest order that is wanted.
        least: How many nodes a recurrence is to have.
    """
    graph = lowered.graph
    if lowered.decided or len({node.device for node in graph.nodes if node.is_given}) > 1:
        return None
    found = [_batch(lowered, steps, order) for steps in whole_steps(graph, local, least)]
    some = [each for each in found if each is not None]
    return _Rebuilding(lowered._replace(graph=unmarked(graph)), some, order).lowered() if some else None


def _batch(lowered: Lowered, steps: Steps, order: int) -> Batch | None:
    """Return all steps of a recurrence as one batch, None if they are better propagated node by node."""
    graph, first = lowered.graph, steps.nodes[0]
    before = [each.nodes[1] for each in steps.active if each.nodes[1] in first]
    handed = [first.index(node) for node in before]
    steps = steps._replace(given=[*handed, *(place for place in steps.given if place not in handed)])
    slopes = derived(lowered, steps, 1, len(handed), ENTRIES) if handed and not _leads_around(graph, steps) else None
    inner = None if slopes is None else batched(graph, steps, order, len(handed))
    return None if slopes is None or inner is None else Batch(steps, slopes, inner, len(handed))


def _leads_around(graph: Graph, steps: Steps) -> bool:
    """Tell whether steps take something that follows from others by way of what is of no step."""
    inside, after = {node for step in steps.nodes for node in step}, set[int]()
    for node in graph.nodes:
        if node.active and node.number not in inside and any(each in inside or each in after for each in node.operands):
            after.add(node.number)
    return any(not after.isdisjoint(each.nodes) for each in steps.active)


class _Rebuilding(Sequences):
    """The graph with batches of steps, as far as it is made.

    Args:
        lowered: The graph.
        found: The batches.
        order: The highest order.
    """

    def __init__(self, lowered: Lowered, found: Sequence[Batch], order: int):
        super().__init__(lowered)
        self._found, self._order = found, order
        self._inside = {node: batch for batch in found for step in batch.steps.nodes for node in step}
        self._values: dict[int, int] = {}  # the nodes of steps as constants
        self._used = {*lowered.graph.outputs}
        for node in lowered.graph.nodes:
            if node.active:
                batch = self._inside.get(node.number)
                self._used.update([each for each in node.operands if self._inside.get(each, batch) is not batch])

    def lowered(self) -> Lowered | None:
        """Return the graph; None if what is of no step leads from one to another."""
        graph = self._given.graph
        left, batches = [*zip(graph.nodes, self._given.origins, strict=True)], [*self._found]
        while left or batches:
            waiting = [each for each in left if not self._copied(*each)]
            ready = [batch for batch in batches if self._is_ready(batch)]
            if len(waiting) == len(left) and not ready:
                return None
            for batch in ready:
                self._put(batch)
            left, batches = waiting, [batch for batch in batches if batch not in ready]
        self.numbers = self._values | self.numbers
        return self.finished()

    def _copied(self, node: Node, origin: Origin) -> bool:
        """Append a node as it was, one of a step as a constant, unless something that it takes is not there yet."""
        is_inside = node.number in self._inside
        is_constant = is_inside or not node.active
        numbers = {each: self._number(each, is_constant=is_constant) for each in node.operands}
        if None in numbers.values():
            return False
        number = None if is_constant else self.put_together(node)
        if number is None:
            number = self.copy(node, origin, cast(dict[int, int], numbers), is_constant=is_inside)
        else:
            self.origins[number] = origin
        (self._values if is_inside else self.numbers)[node.number] = number
        return True

    def _number(self, node: int, *, is_constant: bool) -> int | None:
        """Return the node that stands for another one, its value if no more is taken; None if it is not there."""
        return self._values.get(node, self.numbers.get(node)) if is_constant else self.numbers.get(node)

    def _is_ready(self, batch: Batch) -> bool:
        """Tell whether all that steps take is there."""
        steps, first = batch.steps, [each.nodes[0] for each in batch.steps.taken[: batch.carried]]
        others = {node for each in steps.taken[batch.carried :] for node in each.nodes}
        inside = {node for step in steps.nodes for node in step}
        return self.numbers.keys() >= others.union(first) and self._values.keys() >= inside

    def _put(self, batch: Batch) -> None:
        """Append a batch, and the parts of it that others take."""
        steps, carried = batch.steps, batch.steps.taken[: batch.carried]
        states, others = self._states(carried), [self._taken(each) for each in steps.taken[batch.carried :]]
        count, width = self.nodes[states].shape
        zeros = torch.zeros(count, width, dtype=self.dtype, device=device_of(self._given.graph))
        unit = self.constant(torch.eye(width, dtype=self.dtype, device=zeros.device))
        program, trace = batch.slopes.program, batch.slopes.trace
        (slopes,) = self.inlined(program, trace, [self.constant(zeros), unit, states, *others])
        height = self.nodes[slopes].shape[1]
        inner = self.cut(slopes, 1, 0, width)
        start = self._joined([self.numbers[each.nodes[0]] for each in carried])
        before, after = states, states
        for _ in range(self._order):
            before = after
            gives = self.spliced(batch.inner, [before, *others])
            call = Call(taken, tuple(map(Ref, (states, inner, gives, start, before))))
            after = self.append(call, (count, width), rule=TAKEN)
        call = Call(given, tuple(map(Ref, (gives, slopes, after, before))))
        self._part(batch, self.append(call, (count, height), rule=GIVEN))

    def _states(self, carried: Sequence[Taken]) -> int:
        """Append the state that each step takes, as constants, as a vector."""
        vectors = []
        for each in carried:
            stack = self.stack([cast(int, self._number(node, is_constant=True)) for node in each.nodes])
            count, *shape = self.nodes[stack].shape
            call = Call(aten.reshape.default, (Ref(stack), (count, prod(shape))))
            vectors.append(self.append(call, (count, prod(shape))))
        width = sum(self.nodes[each].shape[1] for each in vectors)
        return self.append(Call(aten.cat.default, (tuple(map(Ref, vectors)), 1)), (count, width))

    def _taken(self, each: Taken) -> int:
        """Append what all steps take of one kind, as one tensor unless it is shared."""
        if each.is_shared:
            return self.numbers[each.nodes[0]]
        return self.sequence([self.numbers[node] for node in each.nodes])

    def _joined(self, numbers: Sequence[int]) -> int:
        """Append nodes as one vector."""
        lines = [each if is_line(self.nodes[each].shape) else self.flat(each) for each in numbers]
        size = sum(prod(self.nodes[each].shape) for each in lines)
        rule = JOINED if any(self.nodes[each].active for each in lines) else None
        return self.append(Call(joined, (tuple(map(Ref, lines)),)), (size,), rule=rule)

    def _part(self, batch: Batch, whole: int) -> None:
        """Append the parts of what steps give that others take."""
        steps, start = batch.steps, 0
        for place in steps.given:
            for number, step in enumerate(steps.nodes):
                node = self._given.graph.nodes[step[place]]
                if node.number in self._used and node.number not in self.numbers:
                    self.numbers[node.number] = read = self.read(whole, number, start, node.shape)
                    self.origins[read] = self._given.origins[node.number]
            start += prod(node.shape)
