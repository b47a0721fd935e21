"""Accept kept contests: `python -m asv_benchmarks.markdown PAGE TITLE=FILE ... --conditions TEXT`.

Their ratios become a run of `accepted.json`, from which the tables at the head of the page are made; the table of every
contest takes the place of an earlier one.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from asv_benchmarks import accepted, results, table
from asv_benchmarks.contest import Contest
from asv_benchmarks.table import Ratios

MARK = "<!-- What follows is written by `python -m asv_benchmarks.markdown`. -->"
Cells = Sequence[str]


def page(before: str, runs: Mapping[str, Ratios], contests: Mapping[str, Sequence[Contest]]) -> str:
    """Return a page with tables after MARK, or at its end.

    Args:
        before: The page as it is; tables of contests that are not given stay.
        runs: The ratios of all workloads, by title.
        contests: Contests by the title of their run.
    """
    text, _, tables = before.partition(MARK)
    known = {part.partition("\n")[0]: part for part in tables.rstrip().split("\n### ")[1:]}
    known |= {f"{each.name}: {title}": _section(each, title) for title in contests for each in contests[title]}
    lines = [text.rstrip(), "", MARK]
    for title, ratios in runs.items():
        lines += ["", f"## {title}", "", *overview(ratios)]
    named = (f"{name}: {title}" for title in runs for name in runs[title])
    lines += [f"\n### {known[heading].rstrip()}" for heading in named if heading in known]
    return "\n".join(lines) + "\n"


def _section(contest: Contest, title: str) -> str:
    return "\n".join([f"{contest.name}: {title}", "", f"Result {table.size(contest.nbytes)}.", "", *rows(contest)])


def overview(ratios: Ratios) -> Iterator[str]:
    """Yield the two tables of a run."""
    yield from means(ratios)
    yield ""
    yield from by_workload(ratios)


def means(ratios: Ratios) -> Iterator[str]:
    """Yield the means and minima of the ratios, by family and class."""
    lines = [["family", "points", *(f"{kind}, {title}" for kind in table.CLASSES for title in table.REDUCTIONS)]]
    for family, members in table.families(ratios).items():
        values = [table.reduced(members, title, kind) for kind in table.CLASSES for title in table.REDUCTIONS]
        lines.append([family, str(len(members)), *(_number(value, ".2f") for value in values)])
    return _table(lines)


def by_workload(ratios: Ratios) -> Iterator[str]:
    """Yield for every workload and class the ratio, and who was the fastest of the peers."""
    lines = [["workload", *(title for kind in table.CLASSES for title in (kind, "hofunc, ms", "best peer, ms"))]]
    for name, row in ratios.items():
        lines.append([name])
        for ratio in row.values():
            best = f"{_number(ratio.best, '.3g')} {ratio.peer}".rstrip()
            lines[-1] += [_number(ratio.value, ".2f"), _number(ratio.ours, ".3g"), best]
    return _table(lines)


def rows(contest: Contest) -> Iterator[str]:
    """Yield all entries of a contest, and who was skipped."""
    lines = [["way", "class", "median, ms", "quartiles, ms", "difference"]]
    for entry in table.ordered(contest):
        low, high = (f"{1e3 * seconds:.3f}" for seconds in entry.quartiles)
        times = [f"{1e3 * entry.median:.3f}", f"{low} to {high}"]
        lines.append([entry.name, entry.kind, *times, f"{entry.difference:.0e}"])
    lines += [[name, "", "", f"skipped: {reason}", ""] for name, reason in contest.skipped.items()]
    return _table(lines)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _table(lines: Sequence[Cells]) -> Iterator[str]:
    header, *rest = lines
    yield from ("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rest))


def accept(path: Path, conditions: str, contests: Mapping[str, Sequence[Contest]], kept: Path = accepted.FILE) -> None:
    """Keep the ratios of contests, by the title of their run, and write the tables of a page."""
    runs = accepted.read(kept) if kept.exists() else []
    runs += [accepted.measured(path.stem, title, conditions, found) for title, found in contests.items()]
    accepted.write(runs, kept)
    rewrite(path, accepted.read(kept), contests)  # as rounded there, so that it can be written anew


def rewrite(path: Path, runs: Iterable[accepted.Run], contests: Mapping[str, Sequence[Contest]]) -> None:
    """Write the tables of a page from the runs that are its own, and from new contests."""
    ratios = accepted.latest(run for run in runs if run.page == path.stem)
    path.write_text(page(path.read_text(encoding="utf-8"), ratios, contests), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="markdown", description="Accept kept contests as the figures of a page.")
    parser.add_argument("page", type=Path)
    parser.add_argument("runs", nargs="+", metavar="TITLE=FILE", help="as compare --keep wrote it")
    parser.add_argument("--conditions", required=True, help="the machine, versions, and what ran beside")
    chosen = parser.parse_args(arguments)
    named = (run.split("=", maxsplit=1) for run in chosen.runs)
    accept(chosen.page, chosen.conditions, {title: results.read(Path(path)) for title, path in named})


if __name__ == "__main__":
    main()
