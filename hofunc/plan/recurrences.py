"""Recurrences: all steps of a solver or of a recurrent network as one batch, by which all states are one tensor.

Node by node, each step takes planning and calls of its own, though all of them are alike. The states S of a recurrence
are where S = F(S, ...), of which every step of F takes the state before; all steps of F are one batch.

NOTE [chords]: from the states, k steps of the chord method, S <- S + (1 - J)^-1 (F(S, ...) - S) with the slopes J of F
at the states, have the derivatives of the states up to order k, if the first of them starts at constants. For each
makes right the lowest order that is not yet, as J is the slope there. What J makes of the states is taken away from F,
rather than from the sum, so that nothing leads linearly from one step of the method to the next. That is a graph of
batches, k times F, between which (1 - J)^-1 is one pass over the steps (`hofunc.plan.states`): whatever is propagated
through it, be it along slots forwards or backwards, is propagated through all steps at once, but for the passes.
Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 15, for derivatives of what is defined implicitly;
Lim, Zhu, Selfridge and Kasim, Parallelizing non-linear sequential models over the sequence length (2024), for
recurrences as such.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple, cast

import torch

from hofunc.graph.node import Call, Graph, Mask, Node, Ref
from hofunc.plan.batched import Derivations, Derived
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.program import device_of, is_on_one_device
from hofunc.plan.rows import unmarked
from hofunc.plan.sequences import Sequences
from hofunc.plan.states import (
    ADDED,
    GIVEN,
    JOINED,
    STEPPED,
    TAKEN,
    added,
    given,
    is_line,
    joined,
    stepped,
    taken,
)
from hofunc.plan.steps import LEAST, Steps, Taken, all_steps, own_of, parted
from hofunc.rules.lower import Lowered, Origin

aten = torch.ops.aten

PREACCUMULATED = 2  # the order at which derivatives of a step by all that it takes are found first
PARTS = 3  # batches that steps are taken in at most, as each of them is planned,
WORK = 1 << 26  # and products of two numbers for each, which take as long as some hundred calls
ENTRIES = 4096  # of the slope of a node by the state, beyond which later calls take longer than node by node


class Batch(NamedTuple):
    """Steps of a recurrence, one after the other, as one batch.

    Attributes:
        steps: The steps; what they give starts with the state that the next one takes.
        derived: What computes their derivatives: of all orders by all that they take, or the slopes by the states.
        inner: Their graph, by the nodes of which they are propagated; None if that is done by their derivatives.
        carried: How many of what they take are the state.
        varied: By how many of what they take there are derivatives.
    """

    steps: Steps
    derived: Derived
    inner: Lowered | None
    carried: int
    varied: int


def with_recurrences(
    lowered: Lowered,
    local: dict[int, Local],
    order: int,
    *,
    whole: bool,
    least: int = 0,
    pays: Callable[[Steps], bool] = lambda _: True,
    with_masks: bool = False,
) -> Lowered | None:
    """Return a graph in which all steps of a recurrence are batches; None if it has no recurrence that gains by it.

    No rows are marked in it, as steps mix them. Where derivatives of a step are infinite, others may be nan for it.

    Args:
        lowered: The graph.
        local: Its local derivatives.
        order: The highest order that is wanted.
        whole: Whether whole derivatives are wanted, for which it pays to have those of each step as a matrix; along
            slots, no second derivative of a step is ever formed.
        least: How many nodes a recurrence is to have.
        pays: Tells whether it may pay to take steps as a batch, by counts alone, before more is done.
        with_masks: Whether steps may leave out what is not finite by masks, which their derivatives do not.
    """
    graph = lowered.graph
    if lowered.decided or not is_on_one_device(graph):
        return None
    derivations = Derivations(lowered, order)
    some = [
        batch
        for steps in all_steps(graph, local, least)
        if pays(steps) and (with_masks or not _have_masks(local, steps.nodes[0]))
        for batch in _batches(lowered.graph, local, steps, order, whole, derivations)
    ]
    return _Rebuilding(lowered._replace(graph=unmarked(graph)), local, some, order).lowered() if some else None


def has_batches(graph: Graph) -> bool:
    """Tell whether steps of recurrences are batches in a graph."""
    return any(node.op is given for node in graph.nodes)


def _have_masks(local: Mapping[int, Local], nodes: Iterable[int]) -> bool:
    terms = (term for node in nodes for found in local[node].values() for term in found)
    return any(isinstance(factor.source, Mask) for term in terms for factor in term.factors)


def _batches(
    graph: Graph, local: Mapping[int, Local], steps: Steps, order: int, whole: bool, derivations: Derivations
) -> list[Batch]:
    """Return all steps of a recurrence as one batch, or some; none if they are better propagated node by node."""
    first = steps.nodes[0]
    before = [each.nodes[1] for each in steps.active if each.nodes[1] in first]
    handed = [first.index(node) for node in before]
    if not handed or _leads_around(graph, steps):
        return []
    steps = steps._replace(given=[*handed, *(place for place in steps.given if place not in handed)])
    every = derivations.derived(steps, order, len(steps.active)) if whole else None
    if every is not None:
        return [Batch(steps, every, None, len(handed), len(steps.active))]
    are_own = whole and order == PREACCUMULATED and not any(each.is_shared for each in steps.active)
    by_all = [(len(steps.active), 1)] if are_own else []
    for varied, count in (*by_all, (len(handed), _parts(graph, local, steps, order) if whole else 1)):
        parts = parted(steps, count)
        slopes = derivations.derived(parts[0], 1, varied, ENTRIES)
        inner = None if slopes is None else derivations.batched(parts[0], len(handed))
        if slopes is not None and inner is not None:
            return [Batch(part, slopes, inner, len(handed), varied) for part in parts]
    return []


def _parts(graph: Graph, local: Mapping[int, Local], steps: Steps, order: int) -> int:
    """Return in how many batches it pays to take steps, of which each takes something of its own.

    They depend on nothing that later ones take. What is zero for that is multiplied in one batch like all else: most of
    it is left out between batches, of which two have three quarters of the entries of one, and three two thirds.
    """
    nodes, count = graph.nodes, len(steps.nodes)
    own = count * sum(prod(nodes[steps.taken[number].nodes[0]].shape) for number in own_of(steps))
    varied = min(own, sum(prod(nodes[number].shape) for number in graph.inputs if nodes[number].active))
    elements = count * sum(prod(nodes[number].shape) for number in steps.nodes[0] if is_nonlinear(local[number]))
    return int(max(1, min(PARTS, elements * varied**order // WORK, count // LEAST)))


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
        local: Its local derivatives.
        found: The batches.
        order: The highest order.
    """

    def __init__(self, lowered: Lowered, local: Mapping[int, Local], found: Sequence[Batch], order: int):
        super().__init__(lowered)
        self._local, self._found, self._order = local, found, order
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
        is_constant = is_inside or node.number not in self._local
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
        carried = batch.steps.taken[: batch.carried]
        now = states = self._states(carried)
        start = self._joined([self.numbers[each.nodes[0]] for each in carried])
        slopes, adding = (self._by_derivatives if batch.inner is None else self._by_nodes)(batch, states)
        count, height, width = self.nodes[slopes].shape
        inner = self.cut(slopes, 1, 0, width)
        for _ in range(self._order if batch.steps.bent.start < batch.carried else 1):
            adds = adding(now)
            call = Call(taken, tuple(map(Ref, (states, inner, adds, start))))
            now = self.append(call, (count, width), rule=TAKEN)
        call = Call(given, tuple(map(Ref, (adds, slopes, now))))
        self._part(batch, self.append(call, (count, height), rule=GIVEN))

    def _by_nodes(self, batch: Batch, states: int) -> tuple[int, Callable[[int], int]]:
        """Append the slopes; returns those by the states, and what appends what steps give but for the part of these.

        Where all that changes is their own, what is left has no first derivative by that, of which
        `hofunc.plan.preaccumulated` makes use.
        """
        steps, (count, width) = batch.steps, self.nodes[states].shape
        others = [self._taken(each) for each in steps.taken[batch.carried :]]
        own = others[: batch.varied - batch.carried]
        vectors = self._beside([states, *map(self._as_vectors, own)])
        (slopes,) = self._derivatives(batch, vectors, others[len(own) :])
        by_states, by_own = self.cut(slopes, 2, 0, width), self._by_each(slopes, width, own)
        shape = count, self.nodes[slopes].shape[1]

        def adding(now: int) -> int:
            gives = self.spliced(cast(Lowered, batch.inner), [now, *others])
            call = Call(added, tuple(map(Ref, (gives, by_states, now, *by_own))))
            found = self.append(call, shape, rule=ADDED)
            return self.append(Call(given, tuple(map(Ref, (found, *by_own)))), shape, rule=GIVEN) if own else found

        return by_states, adding

    def _by_each(self, slopes: int, start: int, taken: Sequence[int]) -> list[int]:
        """Append the slopes by each of what steps take beside the states; returns them, each before what it is by."""
        found: list[int] = []
        for number in taken:
            (count, height, _), (_, *shape) = self.nodes[slopes].shape, self.nodes[number].shape
            part = self.cut(slopes, 2, start, prod(shape))
            found += [part if len(shape) == 1 else self.reshaped(part, (count, height, *shape)), number]
            start += prod(shape)
        return found

    def _by_derivatives(self, batch: Batch, states: int) -> tuple[int, Callable[[int], int]]:
        """Append all derivatives; returns the slopes by the states, and what appends what steps give but for these."""
        steps, (count, width) = batch.steps, self.nodes[states].shape
        others = [self._vectors(each, count) for each in steps.active[batch.carried :]]
        bent, carried = steps.bent, batch.carried
        sizes = [prod(self.nodes[self.numbers[each.nodes[0]]].shape) for each in steps.active]
        before, after = sum(sizes[: bent.start]), sum(sizes[bent.stop :])
        # No derivative depends on the value of what is linear, which may not be computed otherwise.
        values = [self._states(steps.taken[bent.start : carried])] if bent.start < carried else []
        values += others[max(0, bent.start - carried) : bent.stop - carried] if bent.stop > carried else []
        around = [self._zeros(count, size) for size in (before, after)]
        vectors = self._beside([around[0], *values, around[1]])
        first, *higher = self._derivatives(batch, vectors, [self._taken(each) for each in steps.constant])
        own = self.cut(first, 2, width, self.nodes[first].shape[2] - width)
        higher = [self._by_some(each, before, sum(sizes[bent.start : bent.stop])) for each in higher]
        parts = [self.stack([self._values[step[place]] for step in steps.nodes]) for place in steps.given]
        gives = self._beside([self._as_vectors(each) for each in parts])

        def adding(now: int) -> int:
            taken = Ref(self._beside([now, *others]))
            call = Call(stepped, (Ref(gives), taken, before, *map(Ref, (own, *higher))))
            return self.append(call, self.nodes[gives].shape, rule=STEPPED)

        return self.cut(first, 2, 0, width), adding

    def _by_some(self, number: int, start: int, size: int) -> int:
        """Append what derivatives of steps are by some elements only of what they take."""
        for dim in range(2, len(self.nodes[number].shape)):
            number = self.cut(number, dim, start, size)
        return number

    def _derivatives(self, batch: Batch, vectors: int, others: Sequence[int]) -> list[int]:
        """Append the derivatives of steps, of every order."""
        count, width = self.nodes[vectors].shape
        unit = torch.eye(width, dtype=self.dtype, device=device_of(self._given.graph))
        given = [self._zeros(count, width), self.constant(unit), vectors, *others]
        return self.inlined(batch.derived.program, batch.derived.trace, given)

    def _zeros(self, count: int, width: int) -> int:
        """Append zeros for each step."""
        return self.constant(torch.zeros(count, width, dtype=self.dtype, device=device_of(self._given.graph)))

    def _states(self, carried: Sequence[Taken]) -> int:
        """Append the state that each step takes, as constants, as a vector."""
        numbers = [[cast(int, self._number(node, is_constant=True)) for node in each.nodes] for each in carried]
        return self._beside([self._as_vectors(self.stack(each)) for each in numbers])

    def _taken(self, each: Taken) -> int:
        """Append what all steps take of one kind, as one tensor unless it is shared."""
        if each.is_shared:
            return self.numbers[each.nodes[0]]
        return self.sequence([self.numbers[node] for node in each.nodes])

    def _vectors(self, each: Taken, count: int) -> int:
        """Append what all steps take of one kind, as a vector for each."""
        if not each.is_shared:
            return self._as_vectors(self._taken(each))
        flat = self.flat(self._taken(each))
        shape = count, *self.nodes[flat].shape
        return self.ruled(Call(aten.expand.default, (Ref(flat), shape)), shape)

    def _as_vectors(self, number: int) -> int:
        """Return what has a part for each step, as a vector for each."""
        count, *shape = self.nodes[number].shape
        return number if len(shape) == 1 else self.reshaped(number, (count, prod(shape)))

    def _beside(self, numbers: Sequence[int]) -> int:
        """Append vectors of all steps as one for each."""
        numbers = [each for each in numbers if self.nodes[each].shape[1]]
        count, width = self.nodes[numbers[0]].shape[0], sum(self.nodes[each].shape[1] for each in numbers)
        call = Call(aten.cat.default, (tuple(map(Ref, numbers)), 1))
        return numbers[0] if len(numbers) == 1 else self.ruled(call, (count, width))

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
