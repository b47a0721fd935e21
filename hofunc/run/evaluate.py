"""Evaluating a recorded call: its plan, run on its values or on a replay of them."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch

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
from hofunc.plan.wanted import Contractions, Wanted
from hofunc.rules.lower import Lowered
from hofunc.rules.numbers import as_tensors, number_at
from hofunc.run.arrange import Arrangement, arranged, block_of
from hofunc.run.cache import planned
from hofunc.run.executor import Runner
from hofunc.run.room import SMALL, check_room
from hofunc.views import Emit, run_now

_NOBODY: WeakSet[Any] = WeakSet()
_ARRANGEMENTS: WeakKeyDictionary[Runner, dict[int, Arrangement]] = WeakKeyDictionary()  # while the plan is cached


Run = Callable[[Blueprint, Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class Evaluation(NamedTuple):
    """What one call came to; outputs and inputs are numbered as f's tensors are.

    Attributes:
        plan: The plan.
        results: What its program returned.
        tensors: The tensors that f returned, aux included.
        inputs: The tensors by which it is differentiated.
        arrangements: By order, of what the dense derivatives consist, for all calls of the plan.
        emit: Runs what arranges results, or appends it to a program of which results are registers.
        batches: The levels and sizes of the vmaps that map an input.
        checked: The sources of the functions that are known not to ask whether autograd follows what they are given.
    """

    plan: Blueprint
    results: Sequence[Any]
    tensors: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    arrangements: dict[int, Arrangement]
    emit: Emit = run_now
    batches: Mapping[int, int] = MappingProxyType({})
    checked: WeakSet[Any] = _NOBODY

    def dense(self, order: int) -> list[Any]:
        """Return all derivatives of an order, each a tensor of shape (*output, *input, ...).

        They are in the order of the outputs, and of the inputs of each slot, of which the first is outermost.
        """
        known = self.arrangements.get(order)
        if known is None:
            outputs = self.tensors[: len(self.plan.lowered.graph.outputs)]
            shapes = [tuple(tensor.shape) for tensor in (*outputs, *self.inputs)]
            known = arranged(self.plan, shapes[: len(outputs)], shapes[len(outputs) :], order)
            self.arrangements[order] = known
        found = known.gathered(self.results, self.tensors, self.emit)
        return [in_batches(tensor, self.batches) for tensor in found] if self.batches else found

    def compact(self, order: int) -> list[Derivative]:
        """Return all derivatives of an order as terms, in the same order."""
        outputs, inputs = range(len(self.plan.lowered.graph.outputs)), range(len(self.inputs))
        return [self._compact(output, slots) for output, slots in product(outputs, product(inputs, repeat=order))]

    def contracted(self, wanted: Contractions) -> list[Any]:
        """Return all contractions, in order."""
        graph, found = self.plan.lowered.graph, []
        for number, (contraction, *_) in enumerate(wanted.sums):
            output, _ = contraction.output
            place = self.plan.dense.get((graph.outputs[output], (number,)))
            if place is None:
                asked = contraction.of(graph)
                shape = tuple([int(asked.sizes(graph)[name]) for name in asked.result])
                found.append(self.emit(zeros, shape, self.tensors[output].dtype, self.tensors[output].device))
            else:
                found.append(in_batches(self.results[place], self.batches) if self.batches else self.results[place])
        return found

    def _compact(self, output: int, inputs: Sequence[int]) -> Derivative:
        block, order = block_of(self.plan, self.plan.terms, output, inputs)
        y = self.tensors[output]
        terms = self.plan.terms.get(block, ())
        shapes = (tuple(y.shape), *(tuple(self.inputs[number].shape) for number in inputs))
        return Derivative(tuple(self._real(term, order) for term in terms), shapes, y.dtype, y.device)

    def vanishes(self, output: int, inputs: Sequence[int]) -> bool:
        """Tell whether a derivative of an order that is planned is zero whatever the values."""
        return not self.plan.patterns.get(block_of(self.plan, self.plan.patterns, output, inputs)[0])

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
    wanted: Wanted,
    *,
    compact: bool,
    strategy: str = "auto",
    limits: Limits = Limits(),  # noqa: B008 - it is a tuple
    run: Run | None = None,
) -> Evaluation:
    """Compute derivatives of the first tensors that a recorded function returned.

    Args:
        recording: The recorded call.
        inputs: The tensors by which it is differentiated.
        outputs: How many of the tensors that it returned are differentiated.
        wanted: The orders wanted, or the contractions.
        compact: Whether to keep derivatives as terms.
        strategy: One of the planner's strategies, or "auto".
        limits: Rows at a time, and memory.
        run: What runs the plan; it itself if left out.

    Raises:
        UntracedError: What it needs has no values or no sizes, as torch traces.
    """
    try:
        return _evaluated(recording, inputs, outputs, wanted, compact, strategy, limits, run)
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
    wanted: Wanted,
    compact: bool,
    strategy: str,
    limits: Limits,
    run: Run | None,
) -> Evaluation:
    """Evaluate, see above."""
    places = list(recording.graph.outputs)
    graph = recording.graph._replace(outputs=tuple(places[:outputs]), aux=tuple(places[outputs:]))
    replayed = recording.wrappers is not None
    found = planned(
        graph, recording.values, wanted, compact=compact, strategy=strategy, limits=limits, replayed=replayed
    )
    if found.needs > SMALL and limits.max_bytes is None:
        check_room(found.plan, found.needs, wanted, compact=compact)
    numbers = {spot: number_at(graph, spot) for spot in found.spots}
    values: Sequence[torch.Tensor] = as_tensors(graph, numbers, recording.values) if numbers else recording.values
    if recording.wrappers is not None:
        lowered = found.plan.lowered
        constants = _constants(lowered, values)
        plain = {lowered.numbers[len(graph.nodes) + place]: number for place, number in enumerate(numbers.values())}
        values = without_autocast(replay, lowered.graph, recording.wrappers, constants, plain)
        places = [lowered.numbers[place] for place in places]
    batches = batches_of(recording.wrappers or ())
    results = without_autocast(run, found.plan, values) if run else without_autocast(found.run, values)
    tensors = [values[place] for place in places]
    arrangements = _ARRANGEMENTS.setdefault(found.run, {})
    return Evaluation(found.plan, results, tensors, inputs, arrangements, run_now, batches, found.checked)


def _constants(lowered: Lowered, values: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the value of every constant of a lowered graph: of the recording, or of the plan."""
    recorded = {node: values[number] for number, node in lowered.numbers.items()}
    return {
        node.number: origin if isinstance(origin, torch.Tensor) else recorded[node.number]
        for node, origin in zip(lowered.graph.nodes, lowered.origins, strict=True)
        if node.op in (CONSTANT, NUMBER)
    }
