"""Evaluating a recorded call: its plan, run on its values or on a replay of them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term
from hofunc.derivative import Derivative
from hofunc.errors import HofuncError, UntracedError
from hofunc.graph.identity import is_fake
from hofunc.graph.node import CONSTANT, NUMBER
from hofunc.graph.record import Recording, replay
from hofunc.graph.standin import batches_of, in_batches
from hofunc.graph.world import without_autocast
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.operators import zeros
from hofunc.rules.lower import Lowered
from hofunc.rules.numbers import as_tensors, number_at
from hofunc.run.cache import planned
from hofunc.views import Emit, run_now

_NOBODY: WeakSet[Any] = WeakSet()


class Evaluation(NamedTuple):
    """What one call came to; outputs and inputs are numbered as f's tensors are.

    Attributes:
        plan: The plan.
        results: What its program returned.
        tensors: The tensors that f returned, aux included.
        inputs: The tensors by which it is differentiated.
        emit: Runs what arranges results, or appends it to a program of which results are registers.
        batches: The levels and sizes of the vmaps that map an input.
        checked: The sources of the functions that are known not to ask whether autograd follows what they are given.
    """

    plan: Blueprint
    results: Sequence[Any]
    tensors: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    emit: Emit = run_now
    batches: Mapping[int, int] = MappingProxyType({})
    checked: WeakSet[Any] = _NOBODY

    def dense(self, output: int, inputs: Sequence[int]) -> Any:
        """Return the derivative of an output by inputs, one per slot, as a tensor of shape (*output, *input, ...)."""
        return in_batches(self._dense(output, inputs), self.batches)

    def _dense(self, output: int, inputs: Sequence[int]) -> Any:
        block, order = self._block(self.plan.dense, output, inputs)
        place = self.plan.dense.get(block)
        y = self.tensors[output]
        if place is None:
            shape = (*y.shape, *(size for number in inputs for size in self.inputs[number].shape))
            return self.emit(zeros, shape, y.dtype, y.device)
        if order == sorted(order):
            return self.results[place]
        starts, start = [], y.dim()
        for slot in order:
            starts.append(start)
            start += self.inputs[inputs[slot]].dim()
        dims = list(range(y.dim()))
        for slot, number in enumerate(inputs):
            first = starts[order.index(slot)]
            dims += range(first, first + self.inputs[number].dim())
        return self.emit(torch.permute, self.results[place], tuple(dims))

    def compact(self, output: int, inputs: Sequence[int]) -> Derivative:
        """Return the derivative of an output by inputs, one per slot, as terms."""
        block, order = self._block(self.plan.terms, output, inputs)
        y = self.tensors[output]
        terms = self.plan.terms.get(block, ())
        shapes = (tuple(y.shape), *(tuple(self.inputs[number].shape) for number in inputs))
        return Derivative(tuple(self._real(term, order) for term in terms), shapes, y.dtype, y.device)

    def vanishes(self, output: int, inputs: Sequence[int]) -> bool:
        """Tell whether a derivative of an order that is planned is zero whatever the values."""
        return not self.plan.patterns.get(self._block(self.plan.patterns, output, inputs)[0])

    def _block(
        self, blocks: Mapping[tuple[int, Key], Any], output: int, inputs: Sequence[int]
    ) -> tuple[tuple[int, Key], list[int]]:
        """Return the block that holds a derivative, and which of the slots each of its slots is.

        It is that of the sorted variables, unless there is one for the very order of the slots.
        """
        graph = self.plan.lowered.graph
        node, variables = graph.outputs[output], tuple(graph.inputs[number] for number in inputs)
        order = list(range(len(variables)))
        if (node, variables) not in blocks:
            order.sort(key=variables.__getitem__)
        return (node, tuple(variables[slot] for slot in order)), order

    def _real(self, term: Term, order: Sequence[int]) -> Term:
        """Put tensors in place of the places in a term, and its slots in the order asked for."""
        cores = (in_batches(self.results[factor.source], self.batches) for factor in term.factors)
        factors = tuple(Factor(core, factor.axes) for core, factor in zip(cores, term.factors, strict=True))
        slots = tuple(term.slots[order.index(slot)] for slot in range(len(order)))
        return term._replace(factors=factors, slots=slots)


def evaluate(
    recording: Recording,
    inputs: Sequence[torch.Tensor],
    outputs: int,
    orders: tuple[int, ...],
    *,
    compact: bool,
    strategy: str = "auto",
    limits: Limits = Limits(),  # noqa: B008 - it is a tuple
) -> Evaluation:
    """Compute derivatives of the first tensors that a recorded function returned.

    Args:
        recording: The recorded call.
        inputs: The tensors by which it is differentiated.
        outputs: How many of the tensors that it returned are differentiated.
        orders: The orders wanted.
        compact: Whether to keep derivatives as terms.
        strategy: One of the planner's strategies, or "auto".
        limits: Rows at a time, and memory.

    Raises:
        UntracedError: What it needs has no values or no sizes, as torch traces.
    """
    try:
        return _evaluated(recording, inputs, outputs, orders, compact, strategy, limits)
    except (AssertionError, RuntimeError, TypeError) as error:  # of torch, in which each means this in some place
        abstract = next(filter(None, map(_abstract, recording.values)), None)
        if abstract is None or isinstance(error, HofuncError):
            raise
        raise UntracedError(
            "hofunc: derivatives are taken while torch traces",
            got=f"{abstract}, of which it was asked: {(str(error).splitlines() or [type(error).__name__])[0]}",
            expected="tensors with values and sizes",
            remedy="Make a plan from real tensors before, and call it there.",
        ) from error


def _abstract(value: torch.Tensor) -> str | None:
    """Name what a tensor lacks that has no values or no sizes; None for others."""
    if any(type(size) is not int for size in value.shape):
        return f"a tensor of symbolic shape {tuple(value.shape)}"
    return f"a {type(value).__name__}" if is_fake(value) else None


def _evaluated(
    recording: Recording,
    inputs: Sequence[torch.Tensor],
    outputs: int,
    orders: tuple[int, ...],
    compact: bool,
    strategy: str,
    limits: Limits,
) -> Evaluation:
    """Evaluate, see above."""
    places = list(recording.graph.outputs)
    graph = recording.graph._replace(outputs=tuple(places[:outputs]), aux=tuple(places[outputs:]))
    replayed = recording.wrappers is not None
    found = planned(
        graph, recording.values, orders, compact=compact, strategy=strategy, limits=limits, replayed=replayed
    )
    numbers = {spot: number_at(graph, spot) for spot in found.spots}
    values: Sequence[torch.Tensor] = as_tensors(graph, numbers, recording.values) if numbers else recording.values
    if recording.wrappers is not None:
        lowered = found.plan.lowered
        constants = _constants(lowered, values)
        plain = {lowered.numbers[len(graph.nodes) + place]: number for place, number in enumerate(numbers.values())}
        values = without_autocast(replay, lowered.graph, recording.wrappers, constants, plain)
        places = [lowered.numbers[place] for place in places]
    batches = batches_of(recording.wrappers or ())
    results = without_autocast(found.run, values)
    tensors = [values[place] for place in places]
    return Evaluation(found.plan, results, tensors, inputs, run_now, batches, found.checked)


def _constants(lowered: Lowered, values: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the value of every constant of a lowered graph: of the recording, or of the plan."""
    recorded = {node: values[number] for number, node in lowered.numbers.items()}
    return {
        node.number: origin if isinstance(origin, torch.Tensor) else recorded[node.number]
        for node, origin in zip(lowered.graph.nodes, lowered.origins, strict=True)
        if node.op in (CONSTANT, NUMBER)
    }
