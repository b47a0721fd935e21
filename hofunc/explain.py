"""The outline of a plan as text to be read in a terminal."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from hofunc.outline import Item, Outline, Subject, Table, full_outline_of, outline_of, pictures_of
from hofunc.plan.blueprint import Limits
from hofunc.plan.cost import Cost
from hofunc.plan.wanted import Wanted
from hofunc.structured.reached import Picture
from hofunc.words import percent

_WIDTH = 110
_LEAST = 0.005  # of the time that is told of


class Told(NamedTuple):
    """What is left of a subject where its plan is loaded: its outline, and what a plan reads of itself.

    Attributes:
        strategy: The strategy that was taken.
        wanted: As of a subject, as are the next three.
        limits: As there.
        at_once: As there.
        cost: As there.
        outline: What explains it.
        pictures: Where the entries of its results may be.
    """

    strategy: str
    wanted: Wanted
    limits: Limits
    at_once: Cost
    cost: Cost
    outline: Outline
    pictures: tuple[Picture, ...]


def told(subject: Subject | Told) -> Told:
    """Return what is left of a subject in a file; strategies that were not planned so far are not planned for it."""
    if isinstance(subject, Told):
        return subject
    kept = subject.strategy, subject.wanted, subject.limits, subject.at_once, subject.cost
    return Told(*kept, outline_of(subject), pictures_of(subject))


def explain(subject: Subject | Told) -> str:
    """Return the text, of at most 110 columns."""
    outline = subject.outline if isinstance(subject, Told) else full_outline_of(subject)
    tables = (outline.strategies, graph_of(outline), outline.results, outline.steps)
    parts = [[outline.title, *outline.amounts], *map(_lines, tables)]
    return "\n\n".join("\n".join(line[:_WIDTH].rstrip() for line in part) for part in parts)


def graph_of(outline: Outline) -> Table:
    """Return the graph of a plan as a table, without the columns that are empty."""
    title = ["Graph, as derived: constant is what the inputs to differentiate by do not reach"]
    if any(item.vectors for item in outline.items):
        title[-1] += "."
        title.append("Vectors: how many of its shape each node carries along slots, and how many adjoints")
    rows = [_cells(item) for item in outline.items]
    kept = [n for n, name in enumerate(_GRAPH) if n not in _OPTIONAL or any(row[n] for row in rows)]
    right = tuple([place for place, n in enumerate(kept) if n in _RIGHT])
    shown = tuple([tuple([row[n] for n in kept]) for row in rows])
    notes = (f"{percent(outline.rest)} of the time puts results together",) if outline.rest >= _LEAST else ()
    return Table(tuple(title), tuple([_GRAPH[n] for n in kept]), shown, right, notes)


_GRAPH = ("node", "op", "of", "shape", "vectors", "time", "rule", "line", "in place of")
_RIGHT, _OPTIONAL = (0, 4, 5), (4, 7)


def _cells(item: Item) -> tuple[str, ...]:
    time = percent(item.share) if item.share else ""
    of = " ".join(map(str, item.operands))
    return str(item.number), item.name, of, item.shape, item.vectors, time, item.kind, item.line, item.within


def _lines(table: Table) -> list[str]:
    rows = _aligned(table.header, table.rows, table.right) if table.rows else []
    return [*table.title, *rows, *(f"  {note}" for note in table.notes)]


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
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
