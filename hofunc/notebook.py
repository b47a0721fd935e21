"""What a notebook shows of plans: what they return and cost, and all else folded away."""

from collections.abc import Iterable, Sequence
from typing import Any

from hofunc.explain import Told, graph_of
from hofunc.outline import Outline, Table
from hofunc.structured.reached import as_svg
from hofunc.structured.shown import ROWS, bar, folded, paragraph, table
from hofunc.words import count, size_text

_OPEN = 15  # nodes that are not folded away


def as_html(told: Told, takes: str, *, is_compiled: bool) -> str:
    """Return HTML of a plan.

    Args:
        told: What is told of it.
        takes: What it was made for.
        is_compiled: Whether it runs through torch.compile.
    """
    outline = told.outline
    lines = [outline.title + ", compiled" * is_compiled, *outline.amounts, f"for {takes}"]
    drawn = [as_svg(picture, side=32) for picture in told.pictures]
    parts = [*map(paragraph, lines), _table(outline.results, drawn=drawn), _graph(outline)]
    parts += [folded(each.title[0], _table(each._replace(title=()))) for each in (outline.strategies, outline.steps)]
    return f"<div>{''.join(parts)}</div>"


def _table(told: Table, *, drawn: Sequence[str] = ()) -> str:
    """Return a table with what stands above and below it."""
    rows = table(told.header, told.rows, right=told.right, drawn=drawn) if told.rows else ""
    return "".join(map(paragraph, told.title)) + rows + "".join(map(paragraph, _joined(told.notes)))


def _joined(notes: Iterable[str]) -> list[str]:
    """Join lines that are indented to those before them."""
    found: list[str] = []
    for note in notes:
        if note.startswith(" ") and found:
            found[-1] += f" {note.strip()}"
        else:
            found.append(note)
    return found


def _graph(outline: Outline) -> str:
    """Return what every node costs; of many those that take longest."""
    costly = sorted(range(len(outline.items)), key=lambda place: -outline.items[place].share)[:ROWS]
    items = tuple([outline.items[place] for place in sorted(costly)])
    told = graph_of(outline._replace(items=items))
    costs = [(count(item.flops), size_text(item.bytes)) if item.share else ("", "") for item in items]
    rows = [(*row, *cost) for row, cost in zip(told.rows, costs, strict=True)]
    every = len(outline.items)
    title = f"{every} nodes" if every == len(items) else f"{every} nodes, those {len(items)} that take longest"
    header, right = (*told.header, "flops", "moved"), (*told.right, len(told.header), len(told.header) + 1)
    header, right = (*told.header, "flops", "moved"), (*told.right, len(told.header), len(told.header) + 1)
    content = table(header, rows, right=right, drawn=[bar(item.share) for item in items])
    above, below = "".join(map(paragraph, told.title[1:])), "".join(map(paragraph, told.notes))
    return folded(f"Graph: {title}", above + content + below, is_open=every <= _OPEN)


def kept_as_html(title: str, kept: Sequence[tuple[Any, str]]) -> str:
    """Return HTML of plans that are kept, each with why it was made; of many, of those at the end."""
    rows = [
        (plan.takes, plan.strategy, f"{plan.steps}", count(plan.flops), size_text(plan.peak_bytes), reason)
        for plan, reason in kept[-ROWS:]
    ]
    header = ("made for", "strategy", "steps", "flops", "peak", "why")
    return paragraph(title) + table(header, rows, right=(2, 3, 4), more=len(kept) - len(rows))
