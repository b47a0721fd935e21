"""Evaluating a recorded call: its plan, run on its values or on a replay of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

import torch

from hofunc.algebra.operators import sources, with_sources
from hofunc.algebra.term import Term
from hofunc.derivative import Derivative
from hofunc.errors import HofuncError, UntracedError
from hofunc.graph.followed import has_history
from hofunc.graph.identity import is_fake
from hofunc.graph.lines import Lines, is_detecting, undetected
from hofunc.graph.node import CONSTANT, NUMBER, Graph
from hofunc.graph.recording import Recording, replay, with_histories
from hofunc.graph.standin import batches_of, in_batches, is_wrapper, stand_in
from hofunc.graph.stood_in import StandIns
from hofunc.graph.values import Values, by_number
from hofunc.graph.world import without_autocast
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.operators import zeros
from hofunc.plan.tables import UnfitError
from hofunc.plan.wanted import Contractions, InGraph, Wanted, blocks_of, highest
from hofunc.rules.lower import Lowered
from hofunc.rules.numbers import as_tensors, number_at
from hofunc.run.anomaly import Search, first_kind, kind_of, refuse
from hofunc.run.arrange import Arrangement, arranged, block_of
from hofunc.run.bare import note, of_bare
from hofunc.run.cache import Planned, planned
from hofunc.run.history import Led, Noted, origins_of
from hofunc.run.room import SMALL, check_room
from hofunc.trees import tree_flatten
from hofunc.views import Emit, run_now

_NOBODY: WeakSet[Any] = WeakSet()
_UNMAPPED: Mapping[int, int] = MappingProxyType({})
_CONTRACTED = -1  # stands for contractions among orders, of which none is below zero,
_GIVEN = -2  # and for that on which the value depends


Run = Callable[[Blueprint, Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class Structure(NamedTuple):
    """What a compact derivative is, but for its tensors.

    Attributes:
        output: The output that is differentiated.
        terms: The terms, with the places of results in them.
        places: These places in turn.
        shapes: The shapes of the output and of the inputs of the slots.
        kinds: The inputs of the slots.
    """

    output: int
    terms: tuple[Term, ...]
    places: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[int, ...]


class Evaluation(NamedTuple):
    """What one call came to; outputs and inputs are numbered as f's tensors are.

    Attributes:
        plan: The plan.
        wanted: What it was asked for.
        results: What its program returned.
        tensors: The tensors that f returned, aux included.
        inputs: The tensors by which it is differentiated.
        arrangements: By order, of what the derivatives consist, for all calls of the plan.
        emit: Runs what arranges results, or appends it to a program of which results are registers.
        batches: The levels and sizes of the vmaps that map an input.
        checked: The sources of the functions that are known not to ask whether autograd follows what they are given.
        history: Lets derivatives lead where the outputs do, see NOTE [history] in `hofunc.run.history`.
    """

    plan: Blueprint
    wanted: Wanted
    results: Sequence[Any]
    tensors: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    arrangements: dict[int, Any]
    emit: Emit = run_now
    batches: Mapping[int, int] = _UNMAPPED
    checked: WeakSet[Any] = _NOBODY
    history: Led | Noted | None = None

    def values(self) -> list[torch.Tensor]:
        """Return the tensors that f returned, where gradients are off without the history that recording gives them."""
        has_grad = torch.is_grad_enabled()
        return [value.detach() if value.requires_grad and not has_grad else value for value in self.tensors]

    def dense(self, order: int) -> list[Any]:
        """Return all derivatives of an order, each a tensor of shape (*output, *input, ...).

        They are in the order of the outputs, and of the blocks that are asked for; all blocks are in the order of the
        inputs of each slot, of which the first is outermost.
        """
        known: Arrangement | None = self.arrangements.get(order)
        if known is None:
            outputs = self.tensors[: len(self.plan.lowered.graph.outputs)]
            shapes = [tuple(tensor.shape) for tensor in (*outputs, *self.inputs)]
            known = arranged(self.plan, shapes[: len(outputs)], shapes[len(outputs) :], self.blocks(order))
            self.arrangements[order] = known
        found = known.gathered(self.results, self.tensors, self.emit)
        found = [in_batches(tensor, self.batches) for tensor in found] if self.batches else found
        count = len(self.plan.lowered.graph.outputs)
        return self._led(found, ((place * count // len(found),) for place in range(len(found))))

    def compact(self, order: int) -> list[Derivative]:
        """Return all derivatives of an order as terms, in the same order."""
        known: list[Structure] | None = self.arrangements.get(order)
        if known is None:
            outputs = range(len(self.plan.lowered.graph.outputs))
            known = [self._structure(output, slots) for output, slots in product(outputs, self.blocks(order))]
            self.arrangements[order] = known
        return [*map(self._filled, known)]

    def blocks(self, order: int) -> Iterable[tuple[int, ...]]:
        """Return the inputs of the slots of every block of an order."""
        return blocks_of(self.wanted, order, len(self.inputs))

    def contracted(self, wanted: Contractions) -> list[Any]:
        """Return all contractions, in order."""
        graph, found = self.plan.lowered.graph, []
        places: list[int | None] | None = self.arrangements.get(_CONTRACTED)
        if places is None:
            blocks = [(graph.outputs[first.output[0]], (number,)) for number, (first, *_) in enumerate(wanted.sums)]
            places = self.arrangements[_CONTRACTED] = [*map(self.plan.dense.get, blocks)]
        if not self.batches and None not in places:
            found = [self.results[place] for place in places if place is not None]
            return self._led(found, _outputs_of(wanted))
        in_graph = InGraph(graph)
        for place, (contraction, *_) in zip(places, wanted.sums, strict=True):
            if place is None:
                output, _ = contraction.output
                sizes = in_graph.sizes(in_graph.of(contraction))
                shape = tuple([int(sizes[name]) for name in contraction.result])
                found.append(self.emit(zeros, shape, self.tensors[output].dtype, self.tensors[output].device))
            else:
                found.append(in_batches(self.results[place], self.batches) if self.batches else self.results[place])
        return self._led(found, _outputs_of(wanted))

    def _led(self, found: list[Any], outputs: Iterable[Iterable[int]]) -> list[Any]:
        """Return results, each of some outputs, that lead where these do."""
        return found if self.history is None else self.history.of(found, outputs)

    def _structure(self, output: int, inputs: Sequence[int]) -> Structure:
        block, order = block_of(self.plan, self.plan.terms, output, inputs)
        shapes = (tuple(self.tensors[output].shape), *(tuple(self.inputs[number].shape) for number in inputs))
        terms = tuple(
            term._replace(slots=tuple([term.slots[order.index(slot)] for slot in range(len(order))]))
            for term in self.plan.terms.get(block, ())
        )
        return Structure(output, terms, tuple(sources(terms)), shapes, tuple(inputs))

    def _filled(self, structure: Structure) -> Derivative:
        """Put tensors in place of the places in terms."""
        tensors: Iterable[Any] = [self.results[place] for place in structure.places]
        if self.batches:
            tensors = [in_batches(tensor, self.batches) for tensor in tensors]
        terms, y = with_sources(structure.terms, iter(tensors)), self.tensors[structure.output]
        found = Derivative(terms, structure.shapes, y.dtype, y.device, kinds=structure.kinds)
        return found if self.history is None else self.history.terms(found, structure.output)

    def vanishes(self, output: int, inputs: Sequence[int]) -> bool:
        """Tell whether a derivative of an order that is planned is zero whatever the values."""
        return not self.plan.patterns.get(block_of(self.plan, self.plan.patterns, output, inputs)[0])


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
        found = _evaluated(recording, inputs, outputs, wanted, compact, strategy, limits, run)
    except (AssertionError, RuntimeError, TypeError) as error:  # of torch, in which each means this in some place
        abstract = next(filter(None, map(_abstract, (*inputs, *recording.values))), None)
        if abstract is None or isinstance(error, HofuncError):
            raise
        raise _refused(f"{abstract}, of which it was asked: {_line(error)}") from error
    if is_detecting():
        undetected(_check_finite, recording, found, outputs, highest(wanted))
    return found


def check_sizes(tensors: Iterable[torch.Tensor]) -> None:
    """Check that the sizes of tensors are numbers.

    Raises:
        UntracedError: Some are symbols, as torch traces for any.
    """
    for tensor in tensors:
        if any(type(size) is not int for size in tensor.shape):
            raise _refused(f"{_abstract(tensor)}, of which the sizes are needed")


def _refused(got: str) -> UntracedError:
    return UntracedError(
        "hofunc: derivatives are taken while torch traces",
        got=got,
        expected="tensors with values and sizes",
        remedy="Make a plan from real tensors before, and call it there.",
    )


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_finite(recording: Recording, found: Evaluation, outputs: int, order: int) -> None:
    """Check that what a function returned, and its derivatives, are finite.

    Raises:
        AnomalyError: They are not.
    """
    kinds = [kind_of(tensor) for tensor in found.tensors[:outputs]]
    output = next((place for place, kind in enumerate(kinds) if kind is not None), None)
    if output is None and first_kind(_numbers_of(found)) is None:
        return
    graph, values = recording.graph, recording.values
    if recording.wrappers is not None:
        known = {node.number: values[node.number] for node in graph.nodes if node.op is CONSTANT}
        values = without_autocast(replay, graph, recording.wrappers, known)
    refuse_where(graph._replace(outputs=graph.outputs[:outputs]), values, order, recording.lines, output)


def refuse_where(
    graph: Graph, values: Sequence[torch.Tensor], order: int, lines: Lines, output: int | None
) -> NoReturn:
    """Raise the error that names where what is not finite arose.

    Args:
        graph: The graph.
        values: The value of each of its nodes.
        order: The highest order of derivatives that was computed.
        lines: Which lines computed which nodes.
        output: Which output is not finite; None for a derivative.

    Raises:
        AnomalyError: Always.
    """
    search = Search(graph, values, order, _derivatives_of)
    refuse(search, None if output is None else graph.outputs[output], lines)


def _derivatives_of(graph: Graph, values: Sequence[torch.Tensor], order: int) -> Sequence[torch.Tensor]:
    """Return what derivatives of a graph by its active inputs consist of, of all orders up to one."""
    plain = [stand_in(value)[0] if is_wrapper(value) else value for value in values]
    wrappers = [values[number] for number in graph.inputs] if any(map(is_wrapper, values)) else None
    inputs = [values[number] for number in graph.inputs if graph.nodes[number].active]
    recording = Recording(graph, plain, [], tree_flatten(())[1], wrappers)
    orders = tuple(range(1, order + 1))
    return _numbers_of(_evaluated(recording, inputs, len(graph.outputs), orders, True, "auto", Limits(), None))


def _numbers_of(found: Evaluation) -> list[torch.Tensor]:
    """Return the tensors that derivatives consist of, and one of the coefficients of terms."""
    coefficients = [term.coefficient for terms in found.plan.terms.values() for term in terms]
    return [*found.results, torch.tensor(coefficients, dtype=torch.float64)]


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
    unfit: list[Planned] = []
    graph = _graph_of(recording, outputs)
    while True:
        found = planned(
            graph,
            recording.values,
            wanted,
            compact=compact,
            strategy=strategy,
            limits=limits,
            replayed=recording.wrappers is not None,
            unfit=unfit,
        )
        try:
            return _by_plan(recording, found, inputs, wanted, compact, limits, run)
        except UnfitError:
            unfit.append(found)


def _graph_of(recording: Recording, outputs: int) -> Graph:
    """Return the graph of a recording, in which the outputs after some are not differentiated."""
    graph = recording.graph
    places = graph.outputs
    return graph if len(places) <= outputs else graph._replace(outputs=places[:outputs], aux=places[outputs:])


def _by_plan(
    recording: Recording,
    found: Planned,
    inputs: Sequence[torch.Tensor],
    wanted: Wanted,
    compact: bool,
    limits: Limits,
    run: Run | None,
) -> Evaluation:
    """Evaluate by a plan.

    Raises:
        UnfitError: The plan is for other indices.
    """
    if found.needs > SMALL and limits.max_bytes is None:
        check_room(found.plan, found.needs, wanted, compact=compact)
    if recording.is_bare:
        given = _given(recording, found)
        results = None if run else of_bare(recording, found)
        if results is not None:
            tensors, checked = recording.outputs, found.checked
            known = found.arrangements, run_now, _UNMAPPED, checked
            return Evaluation(found.plan, wanted, results, tensors, inputs, *known, Led(given))
        recording = with_histories(recording)
    graph, places = recording.graph, list(recording.graph.outputs)
    numbers = {spot: number_at(graph, spot) for spot in found.spots}
    values = as_tensors(graph, numbers, recording.values) if numbers else recording.values
    if recording.wrappers is not None:
        lowered = found.plan.lowered
        shown: Mapping[int, torch.Tensor] = recording.values.known if isinstance(recording.values, StandIns) else {}
        constants = _constants(lowered, values, shown)
        plain = {lowered.numbers[len(graph.nodes) + place]: number for place, number in enumerate(numbers.values())}
        computed = {lowered.numbers[number]: value for number, value in shown.items() if number in lowered.numbers}
        values = without_autocast(replay, lowered.graph, recording.wrappers, constants | computed, plain)
        places = [lowered.numbers[place] for place in places]
    batches = batches_of(recording.wrappers or ())
    tensors = [values[place] for place in places]
    outputs = tensors[: len(found.plan.lowered.graph.outputs)]
    is_led = not run and torch.is_grad_enabled() and any(map(has_history, outputs))
    history = Led(_given(recording, found, values)) if is_led else None
    if run:
        results = without_autocast(run, found.plan, values)
    else:
        if is_detecting() or found.may_refuse:
            values = values.copy()  # those of the recording are looked at afterwards
        elif values is not recording.values:
            recording.values.clear()
        taken: Any = values.given_up() if isinstance(values, Values) else values
        results = without_autocast(found.run, taken)  # which empties them, so that nobody holds what it needs no more
    if not run:
        note(recording, found, inputs)
    known = found.arrangements, run_now, batches, found.checked
    return Evaluation(found.plan, wanted, results, tensors, inputs, *known, history)


def _outputs_of(wanted: Contractions) -> Iterator[set[int]]:
    """Yield the outputs that every contraction is of."""
    return ({one.output[0] for one in sums} for sums in wanted.sums)


def _given(
    recording: Recording, found: Planned, values: Sequence[torch.Tensor] | None = None
) -> list[list[torch.Tensor]]:
    """Return for every output what is given of what it depends on.

    Args:
        recording: The recording.
        found: The plan.
        values: The values on which the plan is run, of the lowered graph where the recording is of wrappers.
    """
    numbers: tuple[tuple[int, ...], ...] | None = found.arrangements.get(_GIVEN)
    if numbers is None:
        ends = recording.graph.outputs[: len(found.plan.lowered.graph.outputs)]
        numbers = found.arrangements[_GIVEN] = origins_of(recording.graph._replace(outputs=ends))
    names, known = found.plan.lowered.numbers, by_number(recording.values if values is None else values)
    if recording.wrappers is None:
        return [[known[number] for number in each] for each in numbers]
    return [[known[names[number]] for number in each if number in names] for each in numbers]


def _constants(
    lowered: Lowered, values: Sequence[torch.Tensor], shown: Mapping[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Return the value of every constant of a lowered graph: of the recording, or of the plan.

    Args:
        lowered: The graph.
        values: The values of recorded nodes.
        shown: Those that calls showed.
    """
    numbers = {node: number for number, node in lowered.numbers.items()}

    def value(node: int) -> torch.Tensor:
        number = numbers[node]
        return shown[number] if number in shown else values[number]

    return {
        node.number: origin if isinstance(origin, torch.Tensor) else value(node.number)
        for node, origin in zip(lowered.graph.nodes, lowered.origins, strict=True)
        if node.op in (CONSTANT, NUMBER)
    }
