"""The boxes and arrows of a drawing: what stands in them, and which colour they have."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import NamedTuple

from hofunc.draw.folding import Fold, folds_of, is_given, is_varied
from hofunc.outline import Item, Outline
from hofunc.words import count, percent

COLOURS = {  # that are told from each other, and from what is behind them, on a light ground and on a dark one
    "input": "#3b82f6",
    "constant": "#8a8f98",
    "linear": "#14a38b",
    "elementwise": "#d97706",
    "multilinear": "#8b5cf6",
    "fallback": "#dc2626",
    "other": "#db2777",
    "result": "#3b82f6",
}
_MEANINGS = {
    "input": "differentiated by",
    "constant": "given or constant",
    "fallback": "no rule",
    "other": "a rule of its own",
}
_RESULTS = 12  # that have a box
_LEAST = 0.005  # of the time that is told of
_OPS = 3  # that are named of nodes that are put together
_WIDTH = 44  # characters of a line


class Box(NamedTuple):
    """A box of a drawing.

    Attributes:
        lines: What stands in it.
        kind: Which of COLOURS it has.
        strength: How strong, from 0 to 1.
        region: Which stretch it is of, of those that are repeated; None if it is of none.
    """

    lines: tuple[str, ...]
    kind: str
    strength: float = 0.0
    region: int | None = None


class Sketch(NamedTuple):
    """What is drawn.

    Attributes:
        title: Lines above it.
        boxes: The boxes.
        arrows: From which box to which, and how many there are, in each repeat if both are of what is repeated.
        regions: How often each stretch is repeated, by its number.
        legend: What the colours mean that occur.
    """

    title: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int, int], ...]
    regions: Mapping[int, int]
    legend: tuple[tuple[str, str], ...]


def sketch_of(outline: Outline) -> Sketch:
    """Return what is drawn of a plan."""
    folds = folds_of(outline.items, outline.outputs)
    place = {outline.items[member].number: box for box, fold in enumerate(folds) for member in fold.places}
    boxes = [_box(fold, [outline.items[member] for member in fold.places]) for fold in folds]
    arrows = Counter((place[operand], place[item.number]) for item in outline.items for operand in item.operands)
    for output, lines in _results(outline):
        arrows[place[outline.outputs[output]], len(boxes)] += 1
        boxes.append(Box(lines, "result"))
    kinds = [kind for kind in COLOURS if kind != "result" and any(box.kind == kind for box in boxes)]
    legend = tuple([(_MEANINGS.get(kind, kind), COLOURS[kind]) for kind in kinds])
    regions = {fold.region: fold.times for fold in folds if fold.region is not None and fold.times > 1}
    drawn = tuple(
        [
            (source, target, 1 if _is_expected(boxes[source], boxes[target], regions, times) else times)
            for (source, target), times in arrows.items()
            if source != target
        ]
    )
    return Sketch(_title(outline, len(folds)), tuple(boxes), drawn, regions, legend)


def _is_expected(source: Box, target: Box, regions: Mapping[int, int], times: int) -> bool:
    """Tell whether there are as many arrows as repeats of what both of their ends are part of."""
    return source.region is not None and source.region == target.region and regions[source.region] == times


def _title(outline: Outline, folds: int) -> tuple[str, ...]:
    lines = [outline.title, *outline.amounts]
    if outline.rest >= _LEAST:
        lines.append(f"{percent(outline.rest)} of the time puts results together")
    if folds < len(outline.items):
        lines.append(f"{len(outline.items)} nodes in {folds} boxes: what is repeated, or costs little, is folded")
    return tuple(lines)


def _box(fold: Fold, items: Sequence[Item]) -> Box:
    """Return the box of some nodes."""
    share, flops = sum(item.share for item in items), sum(item.flops for item in items)
    costliest = max(items, key=lambda item: item.share)
    cost = f"{percent(share)} of the time" if share >= _LEAST else ""
    cost += f", {count(flops)} flops" if cost and flops else ""
    what = _several(items, fold) if fold.is_merged else _one(costliest, items)
    lines = [_short(line) for line in (*what, cost) if line]
    return Box(tuple(lines), _colour(costliest), sqrt(min(1.0, share)), fold.region)


def _one(item: Item, items: Sequence[Item]) -> list[str]:
    """Say what a node is, or nodes that differ by their numbers only."""
    numbers = f"{items[0].number}" if len(items) == 1 else f"{items[0].number}, {items[1].number} to {items[-1].number}"
    within = f"of {item.within}" if item.within else ""
    vectors = f"{item.vectors} vectors" if item.vectors and item.vectors != "0+0" else ""
    lines = [f"{item.name}  ({numbers})", item.shape, within, vectors]
    return [*lines, _joined(dict.fromkeys(each.line for each in items if each.line))]


def _several(items: Sequence[Item], fold: Fold) -> list[str]:
    """Say what nodes are that are put together."""
    names = Counter("given" if is_given(item) else item.name for item in items).most_common()
    named = [f"{times} {name}" for name, times in names[:_OPS]]
    more = sum(times for _, times in names[_OPS:])
    if all(map(is_given, items)):
        return [f"{items[0].name}, {items[1].name} to {items[-1].name}", f"{len(items)} of {items[0].shape}"]
    title = f"{len(items)} nodes  ({items[0].number} to {max(item.number for item in items)})"
    return [title, *named, f"and {more} others" if more else "", "" if fold.times == 1 else f"in {fold.times} repeats"]


def _joined(lines: Mapping[str, None]) -> str:
    first = next(iter(lines), "")
    return first if len(lines) < 2 else f"{first} and {len(lines) - 1} more lines"


def _colour(item: Item) -> str:
    """Return which of COLOURS a node has."""
    if is_varied(item):
        return "input"
    if is_given(item):
        return "constant"
    kind = item.kind.partition(":")[0]
    return kind if kind in COLOURS else "other"


def _results(outline: Outline) -> list[tuple[int, tuple[str, ...]]]:
    """Return the results, each as the place of its output and what is told of it; some of many."""
    of = outline.results.header.index("of")
    found: list[tuple[int, tuple[str, ...]]] = []
    for row in outline.results.rows[:_RESULTS]:
        told = [f"{name} {cell}" for name, cell in zip(outline.results.header, row, strict=True) if name != "of"]
        found.append((int(row[of].removeprefix("output ")), tuple(map(_short, (row[of], *told)))))
    if left := len(outline.results.rows) - len(found):
        place = int(outline.results.rows[-1][of].removeprefix("output "))
        found.append((place, (f"and {left} other results",)))
    return found


def _short(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
