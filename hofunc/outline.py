"""What a plan does and why, as plain data: for the text of `Plan.explain`, for notebooks and for drawings of it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.errors import ArgumentError
from hofunc.graph.lines import Lines
from hofunc.graph.node import Graph, Node
from hofunc.plan import packing, planner
from hofunc.plan.batch import first_loss
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.builder import TooManyStepsError
from hofunc.plan.chunks import Chunks
from hofunc.plan.cost import Cost, StepCost
from hofunc.plan.devices import rates_of
from hofunc.plan.packing import DirectionsError
from hofunc.plan.program import Program, device_of
from hofunc.plan.strategies import strategies_of
from hofunc.plan.wanted import Chosen, Contractions, InGraph, Wanted, highest, orders_of
from hofunc.rules.kinds import (
    Elementwise,
    ElementwisePair,
    Linear,
    Masked,
    Multilinear,
    Opaque,
    PiecewiseLinear,
    Rule,
)
from hofunc.rules.lower import Lowered
from hofunc.structured.naming import pattern_of
from hofunc.structured.reached import Picture, picture_of
from hofunc.words import count, op_name, percent, shape_text, size_text, time_text

MAX_STEPS = 20
MAX_PICTURES = 50
MAX_BATCHES = 20  # inputs of which it is told where their leading axis is lost
_NOTHING = StepCost(0, 0, (), 0)


class Subject(NamedTuple):
    """What is explained.

    Attributes:
        name: Name of the plan.
        wanted: The orders of the derivatives, or the contractions.
        recorded: The recorded graph.
        inputs: What each of its inputs is called.
        chosen: The plan of the derivatives.
        costs: What the strategies that were planned cost, by name.
        asked: The strategy asked for, or "auto".
        compact: Whether derivatives are kept as terms.
        limits: Rows at a time, and memory.
        program: The steps of the function and its derivatives, for all rows at once.
        at_once: What they cost.
        cost: What they cost as they are run, which may be some rows at a time.
        owners: By the register that a step computes, the node of the graph that is derived for which it does.
        lines: Which lines of the function computed which nodes of the recorded graph, where that was noted.
    """

    name: str
    wanted: Wanted
    recorded: Graph
    inputs: tuple[str, ...]
    chosen: Blueprint
    costs: dict[str, Cost]
    asked: str
    compact: bool
    limits: Limits
    program: Program
    at_once: Cost
    cost: Cost
    owners: Mapping[int, int]
    lines: Lines

    @property
    def strategy(self) -> str:
        """The strategy that was taken."""
        return self.chosen.strategy


class Table(NamedTuple):
    """Rows of text under a header.

    Attributes:
        title: Lines that say what it is.
        header: The titles of the columns.
        rows: The cells of every row.
        right: The columns of numbers.
        notes: Lines that follow it.
    """

    title: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class Item(NamedTuple):
    """A node of the graph that is derived.

    Attributes:
        number: Its number.
        name: What an argument is called, or its op.
        operands: The numbers of the nodes that it is computed from.
        shape: The shape of its value.
        kind: The kind of its rule; constant if the inputs do not reach it.
        vectors: How many vectors it carries, and how many adjoints, where that is known.
        within: The op that was replaced by its definition, of which it is a part.
        line: The line of the function that computed it, where that was noted.
        flops: Of the steps that compute its value and all that is composed with its derivatives.
        bytes: Which these move.
        share: The part of the estimated time that they take.
    """

    number: int
    name: str
    operands: tuple[int, ...]
    shape: str
    kind: str
    vectors: str
    within: str
    line: str
    flops: int
    bytes: int
    share: float


class Outline(NamedTuple):
    """What there is to be told of a plan.

    Attributes:
        title: What it computes, and by which strategy.
        amounts: What it costs, and how it is run.
        strategies: What the strategies cost.
        items: The graph.
        outputs: The numbers of the nodes that are differentiated.
        rest: The part of the estimated time that is no node's: what puts results together.
        results: What the plan returns.
        steps: The steps that take longest.
    """

    title: str
    amounts: tuple[str, ...]
    strategies: Table
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    rest: float
    results: Table
    steps: Table


def outline_of(subject: Subject) -> Outline:
    """Return what there is to be told of a plan; strategies that were not planned so far are not planned for it."""
    others = [strategy for strategy in strategies_of(subject.wanted) if strategy not in subject.costs]
    return _outline(subject, subject.costs, dict.fromkeys(others, "was not planned so far"))


def full_outline_of(subject: Subject) -> Outline:
    """Return what there is to be told of a plan, with all strategies compared: those not needed so far are planned."""
    return _outline(subject, *_compared(subject))


def _outline(subject: Subject, costs: dict[str, Cost], refused: dict[str, str]) -> Outline:
    title, *amounts = _headline(subject)
    strategies, results = _strategies(subject, costs, refused), _results(subject)
    outputs, items = subject.chosen.lowered.graph.outputs, _items(subject)
    rest = max(0.0, 1 - sum(item.share for item in items)) if subject.at_once.seconds else 0.0
    return Outline(title, tuple(amounts), strategies, items, outputs, rest, results, _steps(subject))


def _headline(subject: Subject) -> list[str]:
    cost, orders = subject.cost, orders_of(subject.wanted)
    order = f"order {orders[0]}" if len(orders) == 1 else f"orders {orders[0]} to {orders[-1]}"
    amounts = f"{count(cost.flops)} flops, {size_text(cost.bytes)} moved, {size_text(cost.peak_bytes)} at the peak"
    pace = _pace(subject)
    return [
        f"{subject.name}: {order}{_share(subject)}, by the strategy {subject.chosen.strategy}",
        f"{len(cost.steps)} steps, {amounts}, {time_text(pace * cost.seconds)} by estimate",
        *_chunks(subject.chosen.chunks),
    ]


def _pace(subject: Subject) -> float:
    """Return how long one of the seconds of costs takes here."""
    return rates_of(device_of(subject.chosen.lowered.graph)).pace


def _share(subject: Subject) -> str:
    """Say how many blocks are computed, if not all are."""
    if not isinstance(subject.wanted, Chosen):
        return ""
    inputs = sum(subject.recorded.nodes[number].active for number in subject.recorded.inputs)
    every = sum(inputs**order for order in orders_of(subject.wanted))
    return f", {len({*subject.wanted.blocks})} of {every} blocks"


def _chunks(chunks: Chunks | None) -> list[str]:
    if chunks is None:
        return []
    size = max(chunks.sizes, default=0)
    return [f"run in {len(chunks.sizes)} chunks of {size} {chunks.along}; the steps below are those of all at once"]


def _compared(subject: Subject) -> tuple[dict[str, Cost], dict[str, str]]:
    """Compare the strategies; those that the choice did not need are planned now.

    Returns:
        What each costs, and why the others are none.
    """
    costs = dict(subject.costs)
    refused = {}
    possible, wanted = strategies_of(subject.wanted), subject.wanted
    admitted: Sequence[str] = possible
    if subject.asked == "auto":
        admitted = planner.admitted(subject.chosen.lowered, wanted, compact=subject.compact, limits=subject.limits)
    for strategy in possible:
        if strategy == "mixed" and highest(wanted) == 1:
            refused[strategy] = "the same as reverse at order 1"
        elif strategy == "each" and isinstance(wanted, Contractions) and wanted.is_one:
            refused[strategy] = "is for results of several kinds"
        elif strategy not in admitted:
            refused[strategy] = "was left out: it may multiply an infinite slope behind a mask by zero, which is nan"
        elif strategy not in costs:
            try:
                made = planner.rival(
                    subject.chosen, wanted, compact=subject.compact, strategy=strategy, limits=subject.limits
                )
                costs[strategy] = made.run_cost
            except DirectionsError as error:
                entries = count(packing.MAX_ENTRIES)
                many = f"{error.directions} directions take more than {entries} entries"
                refused[strategy] = f"does not apply: at order {error.order}, {many}"
            except TooManyStepsError:
                refused[strategy] = "was given up: its steps are too many to be as fast, whatever they compute"
            except ArgumentError:
                refused[strategy] = "does not keep to chunk_size or max_bytes"
    return costs, refused


def _strategies(subject: Subject, costs: dict[str, Cost], refused: dict[str, str]) -> Table:
    """Show what strategies cost, and why others are none."""
    rows, pace = [], _pace(subject)
    for strategy, cost in sorted(costs.items(), key=lambda item: item[1].price):
        mark = "*" if strategy == subject.chosen.strategy else ""
        amounts = [count(cost.flops), size_text(cost.bytes), size_text(cost.peak_bytes), time_text(pace * cost.seconds)]
        reading = [time_text(pace * cost.reading)] if subject.compact else []  # of the terms
        rows.append((mark, strategy, str(len(cost.steps)), *amounts, *reading))
    why = "asked for" if subject.asked != "auto" else "the least estimated time"
    title = (f"Strategies, for the derivatives alone (* taken: {why})",)
    header = ("", "strategy", "steps", "flops", "moved", "peak", "estimate", *["reading"] * subject.compact)
    notes = tuple([f"{strategy} {reason}" for strategy, reason in refused.items()])
    return Table(title, header, tuple(rows), tuple(range(2, len(header))), notes)


# The graph.


def _items(subject: Subject) -> tuple[Item, ...]:
    """Return the nodes, each with what the steps cost that are taken for it."""
    lowered, costs = subject.chosen.lowered, _costs_of_nodes(subject)
    wholes, total = _wholes(subject), subject.at_once.seconds
    names = dict(zip(lowered.graph.inputs, subject.inputs, strict=True))
    found = []
    for node in lowered.graph.nodes:
        cost = costs.get(node.number, _NOTHING)
        whole = wholes.get(node.number, node)
        lines = () if node.is_given else subject.lines.get(whole.number, ())
        found.append(
            Item(
                node.number,
                names.get(node.number, op_name(node.op)),
                tuple(dict.fromkeys(node.operands)),
                shape_text(node.shape),
                _kind(lowered.rules.get(node.number), node),
                "+".join(map(str, subject.chosen.carried.get(node.number, ()))),
                "" if whole.op == node.op else op_name(whole.op),
                lines[-1].short if lines else "",
                cost.flops,
                cost.bytes,
                cost.seconds / total if total else 0,
            )
        )
    return tuple(found)


def _costs_of_nodes(subject: Subject) -> dict[int, StepCost]:
    """Return what the steps cost that are taken for each node."""
    found: dict[int, StepCost] = {}
    for step, cost in zip(subject.program.steps, subject.at_once.steps, strict=True):
        if (node := subject.owners.get(step.target)) is not None:
            so_far = found.get(node, _NOTHING)
            flops, moved, seconds = (cost.flops, cost.bytes, cost.seconds)
            found[node] = StepCost(so_far.flops + flops, so_far.bytes + moved, (), so_far.seconds + seconds)
    return found


def _wholes(subject: Subject) -> dict[int, Node]:
    """Return, for every node, the recorded one of which it has the value, or which was expanded into it and others."""
    lowered = subject.chosen.lowered
    ends = {lowered.numbers[node.number]: node for node in subject.recorded.nodes if node.number in lowered.numbers}
    found: dict[int, Node] = {}
    whole: Node | None = None
    for node in reversed(lowered.graph.nodes):
        whole = ends.get(node.number, whole)
        if whole is not None:
            found[node.number] = whole
            whole = None if whole.op == node.op else whole  # it was not expanded
    return found


def _kind(rule: Rule | None, node: Node) -> str:
    if node.is_given:
        return "input, differentiated by" if node.active else str(node.op)
    if rule is None:
        return "constant"
    kinds = {
        Elementwise: "elementwise",
        ElementwisePair: "elementwise",
        Linear: "linear",
        Masked: "linear",
        Multilinear: "multilinear",
        PiecewiseLinear: "elementwise",
        Opaque: "fallback: nested torch.func",
    }
    return kinds.get(type(rule), type(rule).__name__.lower())


# The results.


def _results(subject: Subject) -> Table:
    lowered = subject.chosen.lowered
    if isinstance(subject.wanted, Contractions):
        return _contractions(subject.wanted, lowered.graph)
    names = dict(zip(lowered.graph.inputs, subject.inputs, strict=True))
    rows = []
    for (of, key), terms in _listed(subject):
        by = ", ".join(names[variable] for variable in key)
        rows.append((f"output {lowered.graph.outputs.index(of)}", by, pattern_of(terms)))
    notes = [] if rows else ["all are zero"]
    nodes = [lowered.graph.nodes[variable] for variable in lowered.graph.inputs]
    batches = [node.number for node in nodes if node.active and node.shape and node.shape[0] > 1]
    for variable in batches[:MAX_BATCHES]:
        notes += _batch(lowered, variable, names[variable])
    if len(batches) > MAX_BATCHES:
        notes.append(f"axis 0 of {len(batches) - MAX_BATCHES} other inputs is not looked at")
    title = ("Results: the axes of the output, then of every input; all inputs share those named from b on",)
    return Table(title, ("of", "by", "pattern"), tuple(rows), (), tuple(notes))


def _listed(subject: Subject) -> list[tuple[tuple[int, Key], tuple[Term, ...]]]:
    """List the blocks that do not vanish, by outputs, with the axes of their terms."""
    outputs = [*dict.fromkeys(subject.chosen.lowered.graph.outputs)]
    return sorted(subject.chosen.patterns.items(), key=lambda item: outputs.index(item[0][0]))


def pictures_of(subject: Subject) -> tuple[Picture, ...]:
    """Return where the entries may be of the results with which a table of them begins."""
    if isinstance(subject.wanted, Contractions):
        return ()
    nodes, found = subject.chosen.lowered.graph.nodes, []
    for (of, key), terms in _listed(subject)[:MAX_PICTURES]:
        found.append(picture_of(terms, [nodes[number].shape for number in (of, *key)], most=16))
    return tuple(found)


def _contractions(wanted: Contractions, graph: Graph) -> Table:
    rows, in_graph = [], InGraph(graph)
    for number, (first, *_) in enumerate(wanted.sums):
        asked = in_graph.of(first)
        sizes = in_graph.sizes(asked)
        names = {name: "..." if name.startswith("...") else name for name in asked.result}
        axes = ", ".join(f"{shown} of {sizes[name]}" for name, shown in names.items()) or "a number"
        rows.append((str(number), f"output {first.output[0]}", str(len(first.slots)), axes))
    title = ("Results, by the labels of their axes",)
    return Table(title, ("result", "of", "order", "axes"), tuple(rows), (2,))


def _batch(lowered: Lowered, variable: int, name: str) -> list[str]:
    loss = first_loss(lowered, variable)
    if loss is None:
        return [f"axis 0 of {name} is kept by all nodes"]
    op = op_name(lowered.graph.nodes[loss.node].op)
    return [f"axis 0 of {name} is first lost at node {loss.node}, {op},", f"  which {loss.reason}"]


# The steps.


def _steps(subject: Subject) -> Table:
    steps = list(zip(subject.program.steps, subject.at_once.steps, strict=True))
    costly = sorted(range(len(steps)), key=lambda place: -steps[place][1].seconds)[:MAX_STEPS]
    rows = []
    for place in sorted(costly):
        step, cost = steps[place]
        share = cost.seconds / subject.at_once.seconds if subject.at_once.seconds else 0
        amounts = (count(cost.flops), size_text(cost.bytes), percent(share))
        rows.append((str(place), op_name(step.function), shape_text(cost.shape), *amounts))
    title = "Steps" if len(costly) == len(steps) else f"Steps: the {len(costly)} that take longest, of {len(steps)}"
    return Table((title,), ("step", "function", "result", "flops", "moved", "time"), tuple(rows), (0, 3, 4, 5))
