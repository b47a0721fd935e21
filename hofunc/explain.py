"""What a plan does and why, as text to be read in a terminal."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.derivative import Derivative
from hofunc.errors import ArgumentError
from hofunc.graph.node import Call, Graph, Node
from hofunc.internals import OpOverload
from hofunc.plan import packing, planner
from hofunc.plan.batch import first_loss
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.chunks import Chunks
from hofunc.plan.cost import Cost
from hofunc.plan.packing import DirectionsError
from hofunc.plan.program import Program, TooManyStepsError
from hofunc.plan.strategies import strategies_of
from hofunc.plan.wanted import Chosen, Contractions, Wanted, highest, orders_of
from hofunc.rules.kinds import (
    Autonomous,
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

MAX_STEPS = 20
_WIDTH = 110


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

    @property
    def strategy(self) -> str:
        """The strategy that was taken."""
        return self.chosen.strategy


class Told(NamedTuple):
    """What is left of a subject where its plan is loaded: the text, and what a plan reads of itself.

    Attributes:
        strategy: The strategy that was taken.
        wanted: As of a subject, as are the next three.
        limits: As there.
        at_once: As there.
        cost: As there.
        text: What explains it.
    """

    strategy: str
    wanted: Wanted
    limits: Limits
    at_once: Cost
    cost: Cost
    text: str


def explain(subject: Subject | Told) -> str:
    """Return the text, of at most 110 columns."""
    return subject.text if isinstance(subject, Told) else _text(subject, *_compared(subject))


def told(subject: Subject | Told) -> Told:
    """Return what is left of a subject in a file; strategies that were not planned so far are not planned for it."""
    if isinstance(subject, Told):
        return subject
    others = [strategy for strategy in strategies_of(subject.wanted) if strategy not in subject.costs]
    text = _text(subject, subject.costs, dict.fromkeys(others, "was not planned before the plan was saved"))
    return Told(subject.strategy, subject.wanted, subject.limits, subject.at_once, subject.cost, text)


def _text(subject: Subject, costs: dict[str, Cost], refused: dict[str, str]) -> str:
    strategies = _strategies(subject, costs, refused)
    parts = (_headline(subject), strategies, _nodes(subject), _blocks(subject), _steps(subject))
    return "\n\n".join("\n".join(line[:_WIDTH].rstrip() for line in part) for part in parts)


def _headline(subject: Subject) -> list[str]:
    cost, orders = subject.cost, orders_of(subject.wanted)
    order = f"order {orders[0]}" if len(orders) == 1 else f"orders {orders[0]} to {orders[-1]}"
    amounts = f"{_count(cost.flops)} flops, {_bytes(cost.bytes)} moved, {_bytes(cost.peak_bytes)} at the peak"
    return [
        f"{subject.name}: {order}{_share(subject)}, by the strategy {subject.chosen.strategy}",
        f"{len(cost.steps)} steps, {amounts}, {_time(cost.seconds)} by estimate",
        *_chunks(subject.chosen.chunks),
    ]


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
    admitted = possible if subject.asked != "auto" else planner.admitted(subject.chosen.lowered, wanted)
    for strategy in possible:
        if strategy == "mixed" and highest(wanted) == 1:
            refused[strategy] = "the same as reverse at order 1"
        elif strategy not in admitted:
            refused[strategy] = "was left out: it may multiply an infinite slope behind a mask by zero, which is nan"
        elif strategy not in costs:
            try:
                made = planner.rival(
                    subject.chosen, wanted, compact=subject.compact, strategy=strategy, limits=subject.limits
                )
                costs[strategy] = made.run_cost
            except DirectionsError as error:
                entries = _count(packing.MAX_ENTRIES)
                many = f"{error.directions} directions take more than {entries} entries"
                refused[strategy] = f"does not apply: at order {error.order}, {many}"
            except TooManyStepsError:
                refused[strategy] = "was given up: its steps are too many to be as fast, whatever they compute"
            except ArgumentError:
                refused[strategy] = "does not keep to chunk_size or max_bytes"
    return costs, refused


def _strategies(subject: Subject, costs: dict[str, Cost], refused: dict[str, str]) -> list[str]:
    """Show what strategies cost, and why others are none."""
    rows = []
    for strategy, cost in sorted(costs.items(), key=lambda item: item[1].seconds):
        mark = "*" if strategy == subject.chosen.strategy else ""
        amounts = (_count(cost.flops), _bytes(cost.bytes), _bytes(cost.peak_bytes), _time(cost.seconds))
        rows.append((mark, strategy, str(len(cost.steps)), *amounts))
    table = _table(("", "strategy", "steps", "flops", "moved", "peak", "estimate"), rows, right={2, 3, 4, 5, 6})
    why = "asked for" if subject.asked != "auto" else "the least estimated time"
    return [
        f"Strategies, for the derivatives alone (* taken: {why})",
        *table,
        *(f"  {strategy} {reason}" for strategy, reason in refused.items()),
    ]


# The graph.


def _nodes(subject: Subject) -> list[str]:
    lowered = subject.chosen.lowered
    owners = _owners(subject)
    names = dict(zip(lowered.graph.inputs, subject.inputs, strict=True))
    rows = []
    for node in lowered.graph.nodes:
        operands = " ".join(str(operand) for operand in dict.fromkeys(node.operands))
        rule = _kind(lowered.rules.get(node.number), node)
        what = names.get(node.number, _op_name(node.op))
        rows.append([str(node.number), what, operands, _shape(node.shape), rule, owners.get(node.number, "")])
    title = "Graph, as derived: constant is what the inputs to differentiate by do not reach"
    header = ["node", "op", "of", "shape", "rule", "in place of"]
    if subject.chosen.carried:
        title += ".\nVectors: how many of its shape each node carries along slots, and how many adjoints"
        header.insert(4, "vectors")
        for row, node in zip(rows, lowered.graph.nodes, strict=True):
            row.insert(4, "+".join(map(str, subject.chosen.carried.get(node.number, ()))))
    return [*title.splitlines(), *_table(header, rows, right={0, 4} if subject.chosen.carried else {0})]


def _owners(subject: Subject) -> dict[int, str]:
    """Return, for nodes that a composite op was expanded into, the op."""
    lowered, recorded = subject.chosen.lowered, subject.recorded
    ends = {lowered.numbers[node.number]: node for node in recorded.nodes if node.number in lowered.numbers}
    owners: dict[int, str] = {}
    owner: Node | None = None
    for node in reversed(lowered.graph.nodes):
        owner = ends.get(node.number, owner)
        if owner is not None and owner.op != node.op:
            owners[node.number] = _op_name(owner.op)
    return owners


def _kind(rule: Rule | None, node: Node) -> str:
    if node.is_given:
        return "input, differentiated by" if node.active else str(node.op)
    if rule is None:
        return "constant"
    kinds = {
        Autonomous: "elementwise",
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


def _blocks(subject: Subject) -> list[str]:
    lowered = subject.chosen.lowered
    if isinstance(subject.wanted, Contractions):
        return _contractions(subject.wanted, lowered.graph)
    names = dict(zip(lowered.graph.inputs, subject.inputs, strict=True))
    rows = []
    for output in dict.fromkeys(lowered.graph.outputs):
        for (of, key), terms in subject.chosen.patterns.items():
            if of == output:
                place = lowered.graph.outputs.index(output)
                by = ", ".join(names[variable] for variable in key)
                rows.append((f"output {place}", by, Derivative(terms, (), torch.float32, torch.device("cpu")).pattern))
    lines = ["Results: the axes of the output, then of every input; all inputs share those named from b on"]
    lines += _table(("of", "by", "pattern"), rows) if rows else ["  all are zero"]
    for variable in lowered.graph.inputs:
        node = lowered.graph.nodes[variable]
        if node.active and node.shape and node.shape[0] > 1:
            lines += [f"  {line}" for line in _batch(lowered, variable, names[variable])]
    return lines


def _contractions(wanted: Contractions, graph: Graph) -> list[str]:
    rows = []
    for number, (first, *_) in enumerate(wanted.sums):
        asked = first.of(graph)
        axes = ", ".join(f"{name} of {asked.sizes(graph)[name]}" for name in asked.result) or "a number"
        rows.append((str(number), f"output {first.output[0]}", str(len(first.slots)), axes))
    return ["Results, by the labels of their axes", *_table(("result", "of", "order", "axes"), rows, right={2})]


def _batch(lowered: Lowered, variable: int, name: str) -> list[str]:
    loss = first_loss(lowered, variable)
    if loss is None:
        return [f"axis 0 of {name} is kept by all nodes"]
    op = _op_name(lowered.graph.nodes[loss.node].op)
    return [f"axis 0 of {name} is first lost at node {loss.node}, {op},", f"  which {loss.reason}"]


# The steps.


def _steps(subject: Subject) -> list[str]:
    steps = list(zip(subject.program.steps, subject.at_once.steps, strict=True))
    costly = sorted(range(len(steps)), key=lambda place: -steps[place][1].seconds)[:MAX_STEPS]
    rows = []
    for place in sorted(costly):
        step, cost = steps[place]
        share = cost.seconds / subject.at_once.seconds if subject.at_once.seconds else 0
        amounts = (_count(cost.flops), _bytes(cost.bytes), f"{100 * share:.0f}%")
        rows.append((str(place), _op_name(step.function), _shape(cost.shape), *amounts))
    title = "Steps" if len(costly) == len(steps) else f"Steps: the {len(costly)} that take longest, of {len(steps)}"
    return [title, *_table(("step", "function", "result", "flops", "moved", "time"), rows, right={0, 3, 4, 5})]


# Words and numbers.


def _op_name(op: Any) -> str:
    while isinstance(op, Call):
        op = op.op
    return str(op) if isinstance(op, str | OpOverload) else getattr(op, "__name__", str(op))


def _shape(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "()"


def _count(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def _bytes(number: int) -> str:
    text = _count(number)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Align rows under a header, columns of numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in (header, *rows)
    ]
