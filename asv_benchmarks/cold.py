"""What the first call of a function takes, recorded and planned, and those after it, beside nested torch.func.

Run it as `python -m asv_benchmarks.cold`: it prints a table in Markdown of programs at three sizes each, with the
exponents by which figures grow, and then where goals are missed. A first call finds no plan in the cache, and that of
torch is its very first evaluation; later calls are medians of both in turn. Each program has a process of its own,
whose time and memory are limited; sizes for which they are too short are missing in the table.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import log

from asv_benchmarks.benchmarks.programs import PROGRAMS, Program
from asv_benchmarks.first_calls import Nested, Row, measured

SECONDS = 300.0  # for a program; a limit of processor time would make Linux count that by ticks of 4 ms
SHORT = 0.3  # seconds of processor time that any first call may take
TIMES_NESTED = 3.0  # of torch's first evaluation, which it may take otherwise

COLUMNS = {
    "planning steps": lambda row: row.effort,
    "first call, ms": lambda row: 1e3 * row.first,
    "torch's first, ms": lambda row: row.nested and 1e3 * row.nested.first,
    "later call, ms": lambda row: 1e3 * row.later,
    "torch's later, ms": lambda row: row.nested and 1e3 * row.nested.later,
    "steps of the plan": lambda row: row.steps,
    "at the peak, MB": lambda row: row.peak_bytes / 1e6,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or measure one program in this process and print each row of it as JSON."""
    parser = argparse.ArgumentParser(prog="cold", description="First and later calls of programs that grow.")
    parser.add_argument("--program", default="", metavar="NAME", help="only those whose names start so")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each program")
    parser.add_argument("--here", action="store_true", help="print rows as JSON, measured in this process")
    chosen = parser.parse_args(arguments)
    programs = [program for program in PROGRAMS if program.name.startswith(chosen.program)]
    if chosen.here:
        for row in (row for program in programs for row in measured(program)):
            print(json.dumps(asdict(row)), flush=True)
        return
    print(*header(), sep="\n")
    missed: list[str] = []
    for program in programs:
        rows = in_a_process(program, chosen.seconds)
        print(line(program, rows), flush=True)
        missed += misses(program, rows)
    print("\nGoals missed:\n", *(missed or ["none"]), sep="\n- ")


def in_a_process(program: Program, seconds: float) -> list[Row]:
    """Measure a program in a process of its own, and return what it came to before its time was over."""
    command = [sys.executable, "-m", "asv_benchmarks.cold", "--here", "--program", program.name]
    try:
        printed = subprocess.run(command, stdout=subprocess.PIPE, timeout=seconds, check=False).stdout  # noqa: S603 - ours
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
    return [row_of(json.loads(found)) for found in printed.decode().splitlines() if found.endswith("}")]


def row_of(fields: dict) -> Row:
    """Return a row from what was printed of it."""
    nested = fields.pop("nested")
    return Row(**fields, nested=Nested(**nested) if nested else None)


def header() -> Iterator[str]:
    """Yield the first lines of the table."""
    titles = ["program", "sizes", *COLUMNS, "strategy, nest", "difference"]
    yield "| " + " | ".join(titles) + " |"
    yield "|" + " --- |" * len(titles)


def line(program: Program, rows: Sequence[Row]) -> str:
    """Return the line of a program: figures at its sizes, and the exponent in parentheses."""
    cells = [program.name, " / ".join(str(row.size) for row in rows) or "none in time"]
    for figure in COLUMNS.values():
        values = [figure(row) for row in rows]
        power = exponent(rows, figure)
        cells.append(" / ".join(map(_number, values)) + ("" if power is None else f" ({power:.1f})"))
    nests = dict.fromkeys(name for row in rows for name in (row.strategy, row.nested.name if row.nested else "-"))
    cells.append(", ".join(nests))
    errors = [row.nested.error for row in rows if row.nested]
    cells.append(f"{max(errors):.0e}" if errors else "-")
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def exponent(rows: Sequence[Row], figure: Callable[[Row], float | None]) -> float | None:
    """Return the slope of a figure by the size, both as logarithms, fitted by least squares."""
    points = [(log(row.size), log(value)) for row in rows if (value := figure(row))]
    if len(points) < 2:
        return None
    middle, height = (sum(each) / len(points) for each in zip(*points, strict=True))
    return sum((x - middle) * (y - height) for x, y in points) / sum((x - middle) ** 2 for x, _ in points)


def misses(program: Program, rows: Sequence[Row]) -> Iterator[str]:
    """Yield where a program misses a goal."""
    power = exponent(rows, COLUMNS["planning steps"])
    if power is not None and power > program.exponent:
        yield f"{program.name}: planning steps grow by an exponent of {power:.2f}, more than {program.exponent:.1f}"
    for row in rows:
        most = max(SHORT, TIMES_NESTED * row.nested.first) if row.nested else SHORT
        if row.first > most:
            yield f"{program.name}, {row.size}: the first call takes {row.first:.2f} s, more than {most:.2f}"
        if row.nested and row.later > row.nested.later:
            yield f"{program.name}, {row.size}: a later call takes {row.later / row.nested.later:.2f} times torch's"
    for size in program.sizes[len(rows) :]:
        yield f"{program.name}, {size}: not done in time"


if __name__ == "__main__":
    main()
