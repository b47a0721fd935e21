"""Plots as SVG text: they need no script, take their colours from the style of the page, and fit a phone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2
from statistics import geometric_mean

from asv_benchmarks.table import Ratio

WIDTH = 360  # of every plot, in units that are pixels on a phone
_LANE, _NAME = 14, 17  # heights: of one series of a row, and of its name


@dataclass(frozen=True)
class Axis:
    """Where values lie between two ends, by their logarithms or as they are."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = True

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high, value = map(log2, (self.low, self.high, value)) if self.logarithmic else (self.low, self.high, value)
        return self.start + (value - low) / (high - low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Return the values to name: powers of two, or five steps."""
        if self.logarithmic:
            return [2.0**power for power in range(round(log2(self.low)), round(log2(self.high)) + 1)]
        return [self.low + (self.high - self.low) * step / 4 for step in range(5)]


def powers(values: Sequence[float]) -> tuple[float, float]:
    """Return the powers of two between which values lie, and 1."""
    low, high = 2.0 ** floor(log2(min(*values, 1.0))), 2.0 ** ceil(log2(max(*values, 1.0)))
    return low, max(high, 2 * low)


@dataclass(frozen=True)
class Line:
    """Values at some of the places of a plot.

    Attributes:
        name: Of the series, at its end.
        colour: The class of the style that colours it.
        values: By place, the places in order.
    """

    name: str
    colour: str
    values: Mapping[int, float]


def ratios(
    title: str, families: Mapping[str, str], series: Mapping[str, Mapping[str, Ratio]], ends: tuple[float, float]
) -> str:
    """Draw the ratios of one class: a row for each family, in it a lane for each series, with its geometric mean.

    Args:
        title: What the plot shows, for who cannot see it.
        families: What each letter stands for.
        series: Ratios by workload, the family being the first letter, by the name of the series.
        ends: The least and the largest ratio that has a place.
    """
    axis, top = Axis(*ends, 4, WIDTH - 40), 18
    rows, bottom = [], float(top)
    for letter, name in families.items():
        lanes = {
            place: {work: ratio for work, ratio in found.items() if work[0] == letter and ratio.value is not None}
            for place, found in enumerate(series.values())
        }
        if any(lanes.values()):
            rows.append(_text(0, bottom + 12, f"{letter} {name}", "name"))
            for place, lane in lanes.items():
                if lane:
                    bottom += _LANE
                    rows += _lane(lane, axis, bottom + _NAME - _LANE / 2, place)
            bottom += _NAME + 6
    grid = [
        line
        for tick in axis.ticks()
        for line in (
            _line(axis(tick), top, axis(tick), bottom, "one" if tick == 1 else "grid"),
            _text(axis(tick), bottom + 14, f"{tick:g}", "tick", "middle"),
        )
    ]
    sides = [_text(axis(1) + 5, 11, "hofunc is faster", "side"), _text(axis(1) - 5, 11, "slower", "side", "end")]
    return _svg(title, bottom + 20, [*sides, *grid, *rows])


def _lane(lane: Mapping[str, Ratio], axis: Axis, y: float, place: int) -> Iterator[str]:
    values = {work: ratio.value for work, ratio in lane.items() if ratio.value is not None}
    mean = geometric_mean(values.values())
    yield _line(axis(min(values.values())), y, axis(max(values.values())), y, f"lane s{place}")
    for work, value in values.items():
        yield _circle(axis(value), y, 2.5, f"point s{place}", f"{work}: {value:.2f} beside {lane[work].peer}")
    yield _circle(axis(mean), y, 5, f"mean s{place}", f"geometric mean of {len(values)}: {mean:.2f}")
    yield _text(WIDTH, y + 4, f"{mean:.2f}", f"value s{place}", "end")


def history(title: str, lines: Sequence[Line], places: Sequence[str], axis: tuple[float, float], unit: str = "") -> str:
    """Draw how values went from place to place; what was not measured again goes on as it was, thinly.

    Args:
        title: What the plot shows, for who cannot see it.
        lines: The series.
        places: The names of the places.
        axis: The ends of the values: powers of two, unless there is a unit.
        unit: What follows a value.
    """
    left, right, top, bottom = 34, WIDTH - 26, 10, 190
    up = Axis(*axis, bottom, top, logarithmic=not unit)
    across = Axis(0, max(1, len(places) - 1), left + 14, right - 10, logarithmic=False)
    parts = []
    for tick in up.ticks():
        parts.append(_line(left, up(tick), right, up(tick), "one" if tick == 1 else "grid"))
        parts.append(_text(left - 5, up(tick) + 4, f"{tick:g}{unit}", "tick", "end"))
    for place, name in enumerate(places):
        shown = len(places) - 1 - place
        if shown % ceil(len(places) / 6) == 0:
            parts.append(_text(across(place), bottom + 16, name, "commit", "middle"))
    for line, y in zip(lines, apart([up([*line.values.values()][-1]) for line in lines], 12), strict=True):
        points = [(across(place), up(value)) for place, value in line.values.items()]
        parts.append(_line(*points[-1], right, points[-1][1], f"on {line.colour}"))
        parts.append(f'<polyline class="{line.colour}" points="{" ".join(f"{x:.1f},{at:.1f}" for x, at in points)}"/>')
        for (x, at), (place, value) in zip(points, line.values.items(), strict=True):
            parts.append(_circle(x, at, 3, line.colour, f"{line.name} at {places[place]}: {value:.2f}{unit}"))
        parts.append(_text(right + 4, y + 4, line.name, f"end {line.colour}"))
    return _svg(title, bottom + 24, parts)


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Return places moved down as far as they have to be so that none is nearer to another than a gap."""
    moved, last = [0.0] * len(places), float("-inf")
    for number in sorted(range(len(places)), key=lambda number: places[number]):
        last = moved[number] = max(places[number], last + gap)
    return moved


def bar(title: str, counts: Mapping[str, int]) -> str:
    """Draw shares of a whole as one bar; the class of a part is its name."""
    total, x, parts = sum(counts.values()), 0.0, []
    for name, count in counts.items():
        width = WIDTH * count / max(1, total)
        if count:
            parts.append(
                f'<rect class="part {name.replace(" ", "-")}" x="{x:.1f}" y="0" width="{width:.1f}" height="16">'
                f"<title>{escape(name)}: {count}</title></rect>"
            )
        x += width
    return _svg(title, 16, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    inner = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">\n{inner}\n</svg>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _circle(x: float, y: float, radius: float, style: str, note: str) -> str:
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{escape(note)}</title></circle>'


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
