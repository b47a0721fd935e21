"""Recurrences: the steps of a solver or of a recurrent network as ops of their own, derived for all steps at once.

Propagated node by node, each step takes planning and calls of its own, though all of them are alike. So a step is taken
for one op, of all that it takes as one vector: its derivatives are planned once and computed for all steps in one
batch, of which each step has its part. What is left to propagate are the states between the steps, by one small dense
matrix for each.

NOTE [the order of nodes]: derivatives go from nodes of larger numbers to those of smaller ones, and so a step comes
where its last node was. The derivatives of all steps need values of all of them and come last, though steps take them.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import torch

from hofunc.graph.node import Call, Mask, Node, Ref
from hofunc.plan.batched import Derived, derived
from hofunc.plan.blocks import Local
from hofunc.plan.program import device_of
from hofunc.plan.rebuilt import Rebuilt
from hofunc.plan.rows import unmarked
from hofunc.plan.stepped import JOINED, PART, Stepped, is_line, joined, part, stepped, term_like
from hofunc.plan.steps import Steps, Taken, all_steps
from hofunc.rules.lower import Lowered

aten = torch.ops.aten


def with_recurrences(
    lowered: Lowered, local: dict[int, Local], order: int, *, least: int = 0, with_masks: bool = False
) -> Lowered | None:
    """Return a graph in which the steps of recurrences are ops of their own; None if it has none that gain by it.

    No rows are marked in it, as steps mix them. Where derivatives of a step are infinite, others may be nan for it.

    Args:
        lowered: The graph.
        local: Its local derivatives.
        order: The highest order that is wanted.
        least: How many nodes a recurrence is to have.
        with_masks: Whether steps may leave out what is not finite by masks, which their derivatives do not.
    """
    graph = lowered.graph
    if lowered.decided or len({node.device for node in graph.nodes if node.is_given}) > 1:
        return None
    found: list[Derived] = []
    for steps in all_steps(graph, local, least):
        if with_masks or not _have_masks(local, steps.nodes[0]):
            made = derived(lowered, steps, order, len(steps.active))
            found += [] if made is None else [made]
    return _Rebuilding(lowered._replace(graph=unmarked(graph)), found).lowered() if found else None


def _have_masks(local: Mapping[int, Local], nodes: Iterable[int]) -> bool:
    terms = (term for node in nodes for found in local[node].values() for term in found)
    return any(isinstance(factor.source, Mask) for term in terms for factor in term.factors)


class _Rebuilding(Rebuilt):
    """The graph with steps as ops, as far as it is made.

    Args:
        lowered: The graph.
        found: The steps.
    """

    def __init__(self, lowered: Lowered, found: Sequence[Derived]):
        super().__init__(lowered)
        self._found = found
        self._steps: list[list[int]] = [[] for _ in found]  # the numbers of those of each recurrence
        self._stepped = [Stepped([], []) for _ in found]
        self._inside = {number for each in found for step in each.steps.nodes for number in step}
        self._used = self._taken_outside()

    def lowered(self) -> Lowered:
        """Return the graph."""
        lowered = self._given
        ends = {
            step[-1]: (place, number)
            for place, each in enumerate(self._found)
            for number, step in enumerate(each.steps.nodes)
        }
        for node, origin in zip(lowered.graph.nodes, lowered.origins, strict=True):
            self.numbers[node.number] = self.copy(node, origin, self.numbers, is_constant=node.number in self._inside)
            if node.number in ends:
                self._put(*ends[node.number])
        for place, each in enumerate(self._found):
            self._derive(each, place)
        return self.finished()

    def _taken_outside(self) -> set[int]:
        """Return the nodes that are taken by what is no step, or by a step that does not take all of the one before."""
        graph = self._given.graph
        used = {*graph.outputs}
        for number in self._given.rules.keys() - self._inside:
            used.update(graph.nodes[number].operands)
        for steps, *_ in self._found:
            for place, each in enumerate(steps.active):
                used.update(each.nodes[: 1 if steps.takes_all and place < len(steps.given) else None])
        return used

    def _put(self, place: int, number: int) -> None:
        """Append a step: what it takes as one vector, the step itself, and the parts of it that others take."""
        steps, before = self._found[place].steps, self._steps[place]
        operands = [self.numbers[each.nodes[number]] for each in steps.active]
        if before and steps.takes_all:
            operands = [before[-1], *operands[len(steps.given) :]]
        operands = [each if is_line(self.nodes[each].shape) else self.flat(each) for each in operands]
        size = sum(prod(self.nodes[each].shape) for each in operands)
        vector = operands[0]
        if len(operands) > 1 or self.nodes[vector].shape != (size,):
            vector = self.append(Call(joined, (tuple(map(Ref, operands)),)), (size,), rule=JOINED)
        nodes = [self._given.graph.nodes[steps.nodes[number][each]] for each in steps.given]
        values = tuple([Ref(self.numbers[node.number]) for node in nodes])
        height = sum(prod(node.shape) for node in nodes)
        before.append(self.append(Call(stepped, (Ref(vector), number, values)), (height,), rule=self._stepped[place]))
        start = 0
        for node in nodes:
            if node.number in self._used:
                self.numbers[node.number] = self._part(before[-1], start, node)
            start += prod(node.shape)

    def _part(self, step: int, start: int, node: Node) -> int:
        """Append what a step gives for a node."""
        shape = node.shape if is_line(node.shape) else (prod(node.shape),)
        number = self.append(Call(part, (Ref(step), start, shape)), shape, rule=PART)
        if shape != node.shape:
            number = self.reshaped(number, node.shape)
        self.origins[number] = self._given.origins[node.number]
        return number

    def _derive(self, found: Derived, place: int) -> None:
        """Append what computes the derivatives of steps, and tell their rule where these are."""
        for order, tensor in enumerate(self.inlined(found.program, found.trace, self._stacked(found.steps)), 1):
            whole, first = self.nodes[tensor], len(self.nodes)
            for number in range(len(found.steps.nodes)):
                self.append(Call(aten.unbind.int, (Ref(tensor), 0)), whole.shape[1:], output=number)
            self._stepped[place].like.append(term_like(whole.shape[1], whole.shape[-1], order))
            self._stepped[place].first.append(first)

    def _stacked(self, steps: Steps) -> list[int]:
        """Append what all steps take: no change, the unit matrix, what is active as vectors, and what is constant."""
        count, device = len(steps.nodes), device_of(self._given.graph)
        vectors = []
        for each in steps.active:
            size = prod(self.nodes[self.numbers[each.nodes[0]]].shape)
            if each.is_shared:
                row = Ref(self.append(Call(aten.reshape.default, (self._ref(each), (1, size))), (1, size)))
                vectors.append(self.append(Call(aten.expand.default, (row, (count, size))), (count, size)))
            else:
                stack = Ref(self._stack(each))
                vectors.append(self.append(Call(aten.reshape.default, (stack, (count, size))), (count, size)))
        width = sum(self.nodes[each].shape[1] for each in vectors)
        return [
            self.constant(torch.zeros(count, width, dtype=self.dtype, device=device)),
            self.constant(torch.eye(width, dtype=self.dtype, device=device)),
            self.append(Call(aten.cat.default, (tuple(map(Ref, vectors)), 1)), (count, width)),
            *[self._ref(each).node if each.is_shared else self._stack(each) for each in steps.constant],
        ]

    def _ref(self, taken: Taken) -> Ref:
        return Ref(self.numbers[taken.nodes[0]])

    def _stack(self, taken: Taken) -> int:
        return self.stack([self.numbers[each] for each in taken.nodes])
