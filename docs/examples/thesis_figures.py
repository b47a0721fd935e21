"""The figures of chapter 8 of the THOAD thesis (Montes Lorenzo, 2025), redrawn with hofunc.

Figure 8.3 shows how many times as long a derivative takes without batch unification, by batch size, and without
Schwarz's theorem, by depth and by all parameters, for orders 1 to 3; a figure beside it how its time grows with both.
Figure 8.4 shows how many times as long torch takes for the Hessian, by batch size and by width. The network is the
thesis's, but for two things: its softmax is summed with weights, because the plain sum is constant and all its
derivatives are zero, and tanh takes turns with relu, which is linear wherever it has derivatives.

Run it with `make thesis`, or `python -m docs.examples.thesis_figures --folder somewhere`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from asv_benchmarks.benchmarks.nests import naive, nested
from asv_benchmarks.benchmarks.peers import derivative, ours
from asv_benchmarks.benchmarks.timing import interleaved, keep_memory
from asv_benchmarks.benchmarks.workloads import Workload, thesis_parameters, thesis_rows, thesis_whole

ORDERS = (1, 2, 3)
WIDTHS = {1: 10, 2: 5, 3: 3}  # the thesis's: 10 over the order
BATCHES = tuple(range(10, 81, 10))
DEPTHS = tuple(range(2, 7))
SIZES = tuple(range(10, 101, 10))
ROUNDS = 60
ABLATION_ROUNDS = 9  # what is left out takes seconds
TICKS = tuple(factor * 10.0**power for power in range(-2, 4) for factor in (1, 2, 5))
BURST = 1e-3  # seconds of one turn
CONDITIONS = "one thread, float32"
COLOURS = ("#2166ac", "#b2182b", "#4d4d4d")

Call = Callable[[], Any]
Spread = tuple[float, float, float]  # quartiles


@dataclass(frozen=True)
class Series:
    """A line of a figure: what it shows, and quartiles at every position."""

    label: str
    positions: Sequence[int]
    values: Sequence[Spread]


@dataclass(frozen=True)
class Panel:
    """A part of a figure: what runs along its axes, what stays the same, and its lines."""

    across: str
    upward: str
    fixed: str
    lines: Sequence[Series]


def hod(workload: Workload) -> Call:
    """Return hofunc's way to a workload's derivative."""
    return ours(workload)[0].prepare()


def by_strategy(workload: Workload, strategy: str) -> Call:
    """Return hofunc's way by a strategy, its result left as it is."""
    function = derivative(workload, strategy)
    return lambda: function(*workload.args)


def expert(workload: Workload) -> Call:
    """Return the Hessian of every row by nested torch.func, written for a row and mapped."""
    function, x = nested(workload, ("jacrev", "jacrev"))
    return lambda: function(x)


def timed(calls: Mapping[str, Call], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the milliseconds that a call takes, in turn with the others."""
    seconds = interleaved(calls, rounds, BURST)
    return {name: [1e3 * value for value in taken] for name, taken in seconds.items()}


def spread(values: Sequence[float]) -> Spread:
    """Return the quartiles."""
    low, middle, high = quantiles(values)
    return low, middle, high


def growth(make: Callable[[int, int], Workload], positions: Sequence[int], name: str) -> list[Series]:
    """Return the milliseconds of hofunc's derivatives of every order, by make(position, order)."""
    taken: dict[int, list[Spread]] = {order: [] for order in ORDERS}
    for position in tqdm(positions, desc=name):
        results = timed({str(order): hod(make(position, order)) for order in ORDERS})
        for order in ORDERS:
            taken[order].append(spread(results[str(order)]))
    return [Series(f"order {order}, width {WIDTHS[order]}", positions, taken[order]) for order in ORDERS]


def growth_by_batch() -> list[Series]:
    """Return the milliseconds of three layers."""
    return growth(lambda batch, order: thesis_rows(batch, WIDTHS[order], order), BATCHES, "batch size")


def growth_by_depth() -> list[Series]:
    """Return the milliseconds of batches of 10."""
    return growth(lambda depth, order: thesis_rows(10, WIDTHS[order], order, depth), DEPTHS, "layers")


def worth(make: Callable[[int, int], Workload], positions: Sequence[int], without: str) -> list[Series]:
    """Return the time of a strategy without an optimisation over the median of reverse, by make(position, order)."""
    lines = []
    for order in ORDERS:
        values = []
        for position in tqdm(positions, desc=f"{without}, order {order}"):
            workload = make(position, order)
            calls = {name: by_strategy(workload, name) for name in ("reverse", without)}
            taken = timed(calls, ABLATION_ROUNDS)
            values.append(spread([value / median(taken["reverse"]) for value in taken[without]]))
        lines.append(Series(f"order {order}, width {WIDTHS[order]}", positions, values))
    return lines


def worth_of_batch() -> list[Series]:
    """Return what batch unification is worth: three layers, by the input."""
    return worth(lambda batch, order: thesis_rows(batch, WIDTHS[order], order), BATCHES, "reverse-without-batch")


def worth_of_schwarz() -> list[Series]:
    """Return what Schwarz's theorem is worth: batches of 10, by the input and all layers."""
    return worth(
        lambda depth, order: thesis_parameters(WIDTHS[order], 10, depth, order), DEPTHS, "reverse-without-schwarz"
    )


def ratios(shapes: Mapping[int, tuple[int, int]], name: str) -> list[Series]:
    """Return the time of nested torch.func over the median of hofunc's for the Hessian."""
    whole, rows = [], []
    for shape in tqdm(shapes.values(), desc=name):
        everything, each = thesis_whole(*shape), thesis_rows(*shape)
        taken = timed({"ours": hod(everything), "naive": naive(everything), "each": hod(each), "expert": expert(each)})
        whole.append(spread([value / median(taken["ours"]) for value in taken["naive"]]))
        rows.append(spread([value / median(taken["each"]) for value in taken["expert"]]))
    return [
        Series("whole Hessian: torch.func.hessian", tuple(shapes), whole),
        Series("Hessian of each row: vmap(jacrev(jacrev))", tuple(shapes), rows),
    ]


def draw(axes: Axes, panel: Panel, ticks: Sequence[float]) -> None:
    """Draw medians as lines and quartiles as bands, on a logarithmic axis."""
    for series, colour in zip(panel.lines, COLOURS, strict=False):
        low, middle, high = zip(*series.values, strict=True)
        axes.plot(series.positions, middle, marker="o", markersize=4, color=colour, label=series.label)
        axes.fill_between(series.positions, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel=panel.across, ylabel=panel.upward, title=panel.fixed, yscale="log")
    axes.set_xticks(panel.lines[0].positions)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(ticks[0], ticks[-1])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def save(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw panels beside each other, with one scale, into a PNG file."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    medians = [value for panel in panels for series in panel.lines for _, value, _ in series.values]
    ticks = [tick for tick in TICKS if 0.3 * min(medians) <= tick <= 3 * max(medians)]
    everything = figure.subplots(1, len(panels), sharey=True)
    for axes, panel in zip(everything, panels, strict=True):
        draw(axes, panel, ticks)
    figure.legend(*everything[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def table(panel: Panel) -> str:
    """Write the series of a panel as a table in Markdown: medians, and quartiles in brackets."""
    lines = panel.lines
    header = [panel.across, *(series.label for series in lines)]
    rows = [
        f"\n{panel.upward.capitalize()}, {panel.fixed}:\n",
        "| " + " | ".join(header) + " |",
        "| --- " * len(header) + "|",
    ]
    for number, position in enumerate(lines[0].positions):
        cells = ["{1:.3g} ({0:.3g} to {2:.3g})".format(*series.values[number]) for series in lines]
        rows.append("| " + " | ".join([str(position), *cells]) + " |")
    return "\n".join(rows)


def main() -> None:
    """Time, draw and write the numbers down."""
    parser = argparse.ArgumentParser(description="Redraw the figures of chapter 8 of the thesis of THOAD.")
    parser.add_argument("--folder", type=Path, default=Path("docs/explanations/thesis"), help="folder to write into")
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    keep_memory()
    without = "time without / time with"
    worths = (
        Panel("batch size", without, "batch unification, 3 layers", worth_of_batch()),
        Panel("layers", without, "Schwarz, batch size 10, by all layers too", worth_of_schwarz()),
    )
    growths = (
        Panel("batch size", "milliseconds", "3 layers", growth_by_batch()),
        Panel("layers", "milliseconds", "batch size 10", growth_by_depth()),
    )
    ratio = "time of torch.func / time of hofunc"
    comparisons = (
        Panel("batch size", ratio, "width 10", ratios({size: (size, 10) for size in SIZES}, "batch size, torch.func")),
        Panel("width", ratio, "batch size 10", ratios({size: (10, size) for size in SIZES}, "width, torch.func")),
    )
    first = "What the optimisations are worth"
    between = "Derivatives of every row by hofunc"
    second = "Hessian by the input, torch.func beside hofunc"
    save(folder / "figure-8-3.png", f"{first}; {CONDITIONS}", worths)
    save(folder / "growth.png", f"{between}; {CONDITIONS}", growths)
    save(folder / "figure-8-4.png", f"{second}; {CONDITIONS}", comparisons)
    pages = [
        "# The figures of the thesis, redrawn",
        "\nWritten by `make thesis`: see [thesis_figures.py](../examples/thesis_figures.py) for what is measured.",
        f"Medians, with quartiles in brackets, of {ROUNDS} rounds of all contenders in turn, of {ABLATION_ROUNDS} for",
        f"figure 8.3: {CONDITIONS}, torch {torch.__version__}.",
        f"\n## Figure 8.3: {first}\n\n![Ratio by batch size and by depth](figure-8-3.png)",
        *map(table, worths),
        f"\n## Growth: {between}\n\n![Time by batch size and by depth](growth.png)",
        *map(table, growths),
        f"\n## Figure 8.4: {second}\n\n![Ratio by batch size and by width](figure-8-4.png)",
        *map(table, comparisons),
    ]
    (folder / "figures.md").write_text("\n".join(pages) + "\n", encoding="utf-8")
    print(f"{folder / 'figures.md'}, with the pictures beside it")


if __name__ == "__main__":
    main()
