"""The ratios that the pages of benchmarks have, and had: what runs of `make bench-compare` came to, in `accepted.json`.

A run holds what it measured, so that the latest figures are the last of every workload. Its commit is the one that was
checked out; of the runs of 2026-11-21 to 23, which were found in the history of the pages, the one that brought them.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from asv_benchmarks.contest import Contest
from asv_benchmarks.table import CLASSES, Ratio, Ratios, ratios
from verification.scores import now

FILE = Path(__file__).with_name("accepted.json")


@dataclass(frozen=True)
class Run:
    """Ratios by workload and class that were measured together.

    Attributes:
        page: The page that has them, as `benchmarks`.
        title: Their section there, as `One thread`.
        commit: What was measured.
        date: When, as `2026-11-21`.
        conditions: On what machine, with which versions, beside what.
        workloads: The ratios.
    """

    page: str
    title: str
    commit: str
    date: str
    conditions: str
    workloads: Ratios


def read(path: Path = FILE) -> list[Run]:
    """Return all runs, the oldest first."""
    return [_run(**fields) for fields in json.loads(path.read_text(encoding="utf-8"))]


def _run(workloads: dict[str, list[list]], **fields: str) -> Run:
    rows = {
        name: {kind: Ratio(*cells) for kind, cells in zip(CLASSES, row, strict=True)} for name, row in workloads.items()
    }
    return Run(**fields, workloads=rows)


def write(runs: Iterable[Run], path: Path = FILE) -> None:
    """Write runs, a line for each workload, so that differences can be read."""
    path.write_text("[\n" + ",\n".join(map(_text, runs)) + "\n]\n", encoding="utf-8")


def _text(run: Run) -> str:
    fields = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in vars(run).items() if name != "workloads"]
    rows = [
        f"  {json.dumps(name)}: {json.dumps([[*map(_rounded, ratio)] for ratio in row.values()])}"
        for name, row in run.workloads.items()
    ]
    return "{" + ",\n ".join([*fields, '"workloads": {\n' + ",\n".join(rows) + "}}"])


def _rounded(cell: float | str | None) -> float | str | None:
    return float(f"{cell:.4g}") if isinstance(cell, float) else cell


def latest(runs: Iterable[Run]) -> dict[str, Ratios]:
    """Return the last ratios of every workload, by title."""
    found: dict[str, Ratios] = {}
    for run in runs:
        found[run.title] = {**found.get(run.title, {}), **run.workloads}
    return found


def measured(page: str, title: str, conditions: str, contests: Sequence[Contest]) -> Run:
    """Return a run of today, of what is checked out."""
    return Run(page, title, *now(), conditions, ratios(contests))
