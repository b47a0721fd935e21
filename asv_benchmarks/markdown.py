"""Write the tables of kept contests at the end of a page: `python -m asv_benchmarks.markdown PAGE TITLE=FILE ...`."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from asv_benchmarks import results, table
from asv_benchmarks.contest import Contest

MARK = "<!-- What follows is written by `python -m asv_benchmarks.markdown`. -->"
Cells = Sequence[str]


def page(before: str, runs: Mapping[str, Sequence[Contest]]) -> str:
    """Return a page with the tables of runs after MARK, or at its end.

    Args:
        before: The page as it is.
        runs: Contests by the title of their run.
    """
    lines = [before.split(MARK, maxsplit=1)[0].rstrip(), "", MARK]
    for title, contests in runs.items():
        lines += ["", f"## {title}", "", *means(contests), "", *ratios(contests)]
    for title, contests in runs.items():
        for contest in contests:
            lines += [
                "",
                f"### {contest.name}: {title}",
                "",
                f"Result {table.size(contest.nbytes)}.",
                "",
                *rows(contest),
            ]
    return "\n".join(lines) + "\n"


def means(contests: Sequence[Contest]) -> Iterator[str]:
    """Yield the means and minima of the ratios, by family and class."""
    lines = [["family", "points", *(f"{kind}, {title}" for kind in table.CLASSES for title in table.REDUCTIONS)]]
    for family, members in table.families(contests).items():
        values = [
            table.reduced(members, title, kinds) for kinds in table.CLASSES.values() for title in table.REDUCTIONS
        ]
        lines.append([family, str(len(members)), *map(_number, values)])
    return _table(lines)


def ratios(contests: Sequence[Contest]) -> Iterator[str]:
    """Yield for every workload and class the ratio, and who was the fastest of the peers."""
    lines = [["workload", *(title for kind in table.CLASSES for title in (kind, "hofunc, ms", "best peer, ms"))]]
    for contest in contests:
        cells = [contest.name]
        for kinds in table.CLASSES.values():
            ours, theirs = contest.best(kinds, ours=True), contest.best(kinds, ours=False)
            cells.append(_number(contest.ratio(kinds)))
            cells.append(f"{1e3 * ours.median:.3g}" if ours else "-")
            cells.append(f"{1e3 * theirs.median:.3g} {theirs.name}" if theirs else "-")
        lines.append(cells)
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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(lines: Sequence[Cells]) -> Iterator[str]:
    header, *rest = lines
    yield from ("| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rest))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser(prog="markdown", description="Write tables of kept contests at the end of a page.")
    parser.add_argument("page", type=Path)
    parser.add_argument("runs", nargs="+", metavar="TITLE=FILE", help="as compare --keep wrote it")
    chosen = parser.parse_args(arguments)
    named = (run.split("=", maxsplit=1) for run in chosen.runs)
    runs = {title: results.read(Path(path)) for title, path in named}
    chosen.page.write_text(page(chosen.page.read_text(encoding="utf-8"), runs), encoding="utf-8")


if __name__ == "__main__":
    main()
