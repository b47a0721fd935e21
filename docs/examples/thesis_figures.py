"""The figures of chapter 8 of the THOAD thesis (Montes Lorenzo, 2025), redrawn with hofunc.

Figure 8.3 shows how the time of a derivative grows with the batch size and with the depth, for orders 1 to 3; figure
8.4 how many times as long torch takes for the Hessian, by batch size and by width. The network is the thesis's, but
for two things: its softmax is summed with weights, because the plain sum is constant and all its derivatives are zero,
and tanh takes turns with relu, which is linear wherever it has derivatives.

Run it with `make thesis`, or `python -m docs.examples.thesis_figures --folder somewhere`.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from asv_benchmarks.benchmarks.nests import naive, nested
from asv_benchmarks.benchmarks.peers import ours
from asv_benchmarks.benchmarks.timing import interleaved
from asv_benchmarks.benchmarks.workloads import Workload, thesis_rows, thesis_whole

ORDERS = (1, 2, 3)
WIDTHS = {1: 10, 2: 5, 3: 3}  # the thesis's: 10 over the order
BATCHES = tuple(range(10, 81, 10))
DEPTHS = tuple(range(2, 7))
SIZES = tuple(range(10, 101, 10))
ROUNDS = 15
BURST = 5e-3  # seconds of one turn
COLOURS = ("#2166ac", "#b2182b", "#4d4d4d")

Call = Callable[[], Any]
Spread = tuple[float, float, float]  # quartiles


@dataclass(frozen=True)
class Series:
    """A line of a figure: what it shows, and quartiles at every position."""

    label: str
    positions: Sequence[int]
    values: Sequence[Spread]


def hod(workload: Workload) -> Call:
    """Return hofunc's way to a workload's derivative."""
    return ours(workload)[0].prepare()


def expert(workload: Workload) -> Call:
    """Return the Hessian of every row by nested torch.func, written for a row and mapped."""
    function, x = nested(workload, ("jacrev", "jacrev"))
    return lambda: function(x)


def timed(calls: Mapping[str, Call]) -> dict[str, list[float]]:
    """Return the milliseconds that a call takes, in turn with the others."""
    seconds = interleaved(calls, ROUNDS, BURST)
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


def ratios(shapes: Mapping[int, tuple[int, int]], name: str) -> list[Series]:
    """Return the time of nested torch.func over that of hofunc for the Hessian, round by round."""
    whole, rows = [], []
    for shape in tqdm(shapes.values(), desc=name):
        everything, each = thesis_whole(*shape), thesis_rows(*shape)
        taken = timed({"ours": hod(everything), "naive": naive(everything), "each": hod(each), "expert": expert(each)})
        whole.append(spread([theirs / mine for theirs, mine in zip(taken["naive"], taken["ours"], strict=True)]))
        rows.append(spread([theirs / mine for theirs, mine in zip(taken["expert"], taken["each"], strict=True)]))
    return [
        Series("whole Hessian: torch.func.hessian", tuple(shapes), whole),
        Series("Hessian of each row: vmap(jacrev(jacrev))", tuple(shapes), rows),
    ]


def draw(axes: Axes, lines: Sequence[Series], labels: tuple[str, str]) -> None:
    """Draw medians as lines and quartiles as bands."""
    for series, colour in zip(lines, COLOURS, strict=False):
        low, middle, high = zip(*series.values, strict=True)
        axes.plot(series.positions, middle, marker="o", markersize=4, color=colour, label=series.label)
        axes.fill_between(series.positions, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_xticks(lines[0].positions)
    axes.grid(alpha=0.3)
    axes.legend()


def save(path: Path, title: str, panels: Mapping[tuple[str, str], Sequence[Series]], scale: str) -> None:
    """Draw panels, by the labels of their axes, beside each other into a PNG file."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, (labels, lines) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        axes.set_yscale(scale)
        draw(axes, lines, labels)
        if scale == "log":
            axes.axhline(1, color="black", linewidth=0.8)
        else:
            axes.set_ylim(bottom=0)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def table(labels: tuple[str, str], lines: Sequence[Series]) -> str:
    """Write the series of a panel as a table in Markdown: medians, and quartiles in brackets."""
    header = [labels[0], *(series.label for series in lines)]
    rows = [f"\n{labels[1]}:\n", "| " + " | ".join(header) + " |", "| --- " * len(header) + "|"]
    for number, position in enumerate(lines[0].positions):
        cells = ["{1:.3g} ({0:.3g} to {2:.3g})".format(*series.values[number]) for series in lines]
        rows.append("| " + " | ".join([str(position), *cells]) + " |")
    return "\n".join(rows)


def main() -> None:
    """Time, draw and write the numbers down."""
    parser = argparse.ArgumentParser(description="Redraw the figures of chapter 8 of the thesis of THOAD.")
    parser.add_argument("--folder", type=Path, default=Path("docs/thesis"), help="folder to write into")
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    growths = {
        ("batch size", "milliseconds"): growth(
            lambda batch, order: thesis_rows(batch, WIDTHS[order], order), BATCHES, "batch size"
        ),
        ("layers", "milliseconds"): growth(
            lambda depth, order: thesis_rows(10, WIDTHS[order], order, depth), DEPTHS, "depth"
        ),
    }
    comparisons = {
        ("batch size (width 10)", "time of torch.func / time of hofunc"): ratios(
            {size: (size, 10) for size in SIZES}, "torch.func by batch"
        ),
        ("width (batch size 10)", "time of torch.func / time of hofunc"): ratios(
            {size: (10, size) for size in SIZES}, "torch.func by width"
        ),
    }
    conditions = "one thread, float32"
    first = "Derivatives of each row by hofunc, 3 layers (left), batch size 10 (right)"
    second = "Hessian of the thesis's network by its input: nested torch.func over hofunc"
    save(folder / "figure-8-3.png", f"{first}; {conditions}", growths, "linear")
    save(folder / "figure-8-4.png", f"{second}; {conditions}", comparisons, "log")
    pages = [
        "# The figures of the thesis, redrawn",
        "\nWritten by `make thesis`: see [thesis_figures.py](../examples/thesis_figures.py) for what is measured.",
        f"Medians, with quartiles in brackets, of {ROUNDS} rounds of all contenders in turn: {conditions},",
        f"torch {torch.__version__}.",
        f"\n## Figure 8.3: {first}\n\n![Time by batch size and by depth](figure-8-3.png)",
        *(table(labels, lines) for labels, lines in growths.items()),
        f"\n## Figure 8.4: {second}\n\n![Ratio by batch size and by width](figure-8-4.png)",
        *(table(labels, lines) for labels, lines in comparisons.items()),
    ]
    (folder / "figures.md").write_text("\n".join(pages) + "\n", encoding="utf-8")
    print(f"{folder / 'figures.md'}, with the pictures beside it")


if __name__ == "__main__":
    main()
