"""Where the entries of terms may be: a coarse picture, told from axes alone, so that it costs the same for any size.

The indices that a term reaches are those at which its labels have equal values on all axes that bear them. What is
drawn is a matrix: down the first slot, or the output at order 1, and across the last slot. Ranges of all labels are
halved until what they reach lies in one square of the picture, or fills what it spans.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import NamedTuple

import torch

from hofunc.algebra.labels import Axes, Label
from hofunc.algebra.term import Term
from hofunc.graph.identity import PLAIN
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.scatter import Position, positions, reads_of

MOST = 32  # squares along an axis
_BOXES = 3000  # that are looked at for a picture, beyond which what they span is taken for filled
_INDICES = 4096  # elements of a tensor of indices that are looked at

Range = tuple[int, int]  # the first and the last index
Box = Mapping[Label, Range]


class Picture(NamedTuple):
    """Which squares of a matrix may have an entry other than zero.

    Attributes:
        columns: How many squares there are in a row.
        rows: For every row of squares a number whose bit c is one if there may be an entry in column c.
        is_sharp: Whether every square that is filled does have an entry, unless that happens to be zero.
    """

    columns: int
    rows: tuple[int, ...]
    is_sharp: bool


def picture_of(terms: Sequence[Term], shapes: Sequence[Sequence[int]], most: int = MOST) -> Picture:
    """Return a picture of where the entries of terms may be.

    Args:
        terms: The terms; of their factors only tensors of indices matter.
        shapes: Those of the output and of every slot.
        most: How many squares there may be along an axis; of more indices several share one.

    Example:
        >>> from hofunc.algebra.labels import fresh_axes
        >>> from hofunc.algebra.term import identity
        >>> [f"{row:03b}" for row in picture_of([identity(fresh_axes((3,)))], [(3,), (3,)]).rows]
        ['001', '010', '100']
    """
    down, across = shapes[min(1, len(shapes) - 2)], shapes[-1]
    canvas = _Canvas(prod(map(int, down)), prod(map(int, across)), most)
    for term in terms if canvas.rows else ():
        groups = (term.out, *term.slots)
        canvas.draw(term, groups[min(1, len(groups) - 2)], groups[-1])
    return Picture(canvas.columns, tuple(canvas.rows), canvas.is_sharp)


class _Span(NamedTuple):
    """The place of an index in a group of axes: a sum of labels times strides, each from some index on."""

    start: int
    parts: tuple[tuple[Label, int], ...]

    @classmethod
    def of(cls, axes: Axes) -> "_Span":
        """Return that of axes in row-major order."""
        start, stride, parts = 0, 1, []
        for axis in reversed(axes):
            for segment in reversed(axis):
                start += stride * int(segment.start)
                if segment.label is not None:
                    parts.append((segment.label, stride))
                stride *= int(segment.extent)
        return cls(start, tuple(parts))


class _Canvas:
    """What is drawn so far.

    Args:
        height: How many indices there are down.
        width: How many there are across.
        most: How many squares there may be along each.

    Attributes:
        rows: As of the picture.
        columns: As there.
        is_sharp: As there.
    """

    def __init__(self, height: int, width: int, most: int):
        self._height, self._width = height, width
        self.columns = min(width, most)
        self.rows = [0] * (min(height, most) if width else 0)
        self.is_sharp = True
        self._boxes = 0

    def draw(self, term: Term, down: Axes, across: Axes) -> None:
        """Fill what a term reaches."""
        read = positions(reads_of(term))
        reader, spans = _Reader(read), (_Span.of(down), _Span.of(across))
        borne = [label for span in spans for label, _ in span.parts]
        labels = [own for label in borne for own in (read[label].where.labels if label in read else (label,))]
        waiting: list[Box] = [{label: (0, int(label.size) - 1) for label in labels}]
        if any(last < 0 for _, last in waiting[0].values()):
            return
        while waiting:
            box = waiting.pop()
            self._boxes += 1
            waiting += self._halves(box, reader, *spans)

    def _halves(self, box: Box, reader: "_Reader", down: _Span, across: _Span) -> Iterator[Box]:
        """Fill what a box of labels reaches, or yield its halves."""
        first, last = _squares(reader.range(box, down), len(self.rows), self._height)
        left, right = _squares(reader.range(box, across), self.columns, self._width)
        bits = (1 << right - left + 1) - 1 << left
        if all(row & bits == bits for row in self.rows[first : last + 1]):
            return
        is_filled = (first, left) == (last, right) or self._is_filled(box, reader, down, across)
        label = None if is_filled or self._boxes > _BOXES else self._widest(box, reader, down, across)
        if label is not None:
            low, high = box[label]
            middle = (low + high) // 2
            yield {**box, label: (low, middle)}
            yield {**box, label: (middle + 1, high)}
            return
        self.is_sharp &= is_filled
        for row in range(first, last + 1):
            self.rows[row] |= bits

    def _is_filled(self, box: Box, reader: "_Reader", down: _Span, across: _Span) -> bool:
        """Tell whether a box leaves no square empty of all that it spans: each index is there with every other."""
        parts = [part for part in (*down.parts, *across.parts) if part[0] in reader.read or _length(box[part[0]]) > 1]
        labels = [label for label, _ in parts]
        if len({*labels}) < len(labels) or any(label in reader.read for label in labels):
            return False
        sizes = ((down, self._height, len(self.rows)), (across, self._width, self.columns))
        return all(_is_dense(box, span, size // squares) for span, size, squares in sizes)

    def _widest(self, box: Box, reader: "_Reader", down: _Span, across: _Span) -> Label | None:
        """Return the label along which a box spans most of the picture, None if it is one index."""
        spans: dict[Label, float] = {}
        for span, size in ((down, self._height), (across, self._width)):
            for label, stride in span.parts:
                low, high = reader.label(box, label)
                for own in reader.labels(label):
                    if _length(box[own]) > 1:
                        spans[own] = spans.get(own, 0) + (high - low) * stride / size
        return max(spans, key=lambda label: spans[label]) if any(spans.values()) else None


class _Reader:
    """Tells ranges of labels that are read through indices.

    Args:
        read: Where each is read.

    Attributes:
        read: See above.
    """

    def __init__(self, read: Mapping[Label, Position]):
        self.read = read
        self._tensors = {label: _looked_at(position) for label, position in read.items()}

    def labels(self, label: Label) -> Sequence[Label]:
        """Return the labels on whose ranges that of a label depends."""
        known = label not in self.read or self._tensors[label] is not None
        return (self.read[label].where.labels if label in self.read else (label,)) if known else ()

    def range(self, box: Box, span: _Span) -> Range:
        """Return the range of the places of indices in a group of axes."""
        ranges = [(self.label(box, label), stride) for label, stride in span.parts]
        return (
            span.start + sum(low * stride for (low, _), stride in ranges),
            span.start + sum(high * stride for (_, high), stride in ranges),
        )

    def label(self, box: Box, label: Label) -> Range:
        """Return the range of a label."""
        if label not in self.read:
            return box[label]
        tensor, whole = self._tensors[label], (0, int(label.size) - 1)
        if tensor is None:
            return whole
        ranges = [box[own] for own in self.read[label].where.labels]
        part = tensor[tuple([slice(low, high + 1) for low, high in ranges])]
        return (int(part.min()), int(part.max())) if part.numel() else whole


def _looked_at(position: Position) -> torch.Tensor | None:
    """Return the indices of a label, if looking at them copies nothing from a device and is noted by nobody."""
    tensor = position.where.tensor
    if type(tensor) not in PLAIN or tensor.device.type != "cpu" or tensor.numel() > _INDICES:
        return None
    if in_transform() or is_recording() or tensor.dim() != len(position.where.labels):
        return None
    steps = tensor.div(position.step, rounding_mode="floor")
    return steps.remainder(position.extent) if position.extent else steps


def _squares(found: Range, squares: int, size: int) -> Range:
    """Return the squares that a range of indices lies in."""
    return found[0] * squares // size, found[1] * squares // size


def _length(found: Range) -> int:
    return found[1] - found[0] + 1


def _is_dense(box: Box, span: _Span, square: int) -> bool:
    """Tell whether indices of different labels leave no gap of a square."""
    reached = 1
    for stride, length in sorted((stride, _length(box[label])) for label, stride in span.parts):
        if length > 1 and stride > max(reached, square):
            return False
        reached += stride * (length - 1)
    return True


def as_svg(picture: Picture, side: int = 96) -> str:
    """Return a picture as SVG in the colour of the text that it stands in, so that it is seen on any background.

    Args:
        picture: The picture.
        side: The length of its longer side in pixels.
    """
    height, width = len(picture.rows), picture.columns
    if not height or not width:
        return ""
    scale = side / max(height, width)
    path = "".join(f"M{left} {row}h{size}v1h-{size}z" for row, left, size in _runs(picture))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width * scale:.0f}" height="{height * scale:.0f}" '
        f'viewBox="0 0 {width} {height}" preserveAspectRatio="none" shape-rendering="crispEdges">'
        "<title>Where entries may be other than zero: down the first slot, across the last</title>"
        f'<rect width="{width}" height="{height}" fill="currentColor" fill-opacity="0.08"/>'
        f'<path d="{path}" fill="currentColor" fill-opacity="0.75"/></svg>'
    )


def _runs(picture: Picture) -> Iterator[tuple[int, int, int]]:
    """Yield the row, the first column and the length of runs of squares that are filled."""
    is_filled = partial(_bit, picture.rows)
    for row, column in product(range(len(picture.rows)), range(picture.columns)):
        if is_filled(row, column) and not is_filled(row, column - 1):
            size = next(n for n in range(1, picture.columns - column + 2) if not is_filled(row, column + n))
            yield row, column, size


def _bit(rows: Sequence[int], row: int, column: int) -> bool:
    return column >= 0 and bool(rows[row] >> column & 1)
