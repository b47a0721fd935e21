"""Contests kept in a file, a line each, so that a table is made of several runs."""

import json
from dataclasses import asdict
from pathlib import Path

from asv_benchmarks.contest import Contest, Entry


def add(path: Path, contest: Contest) -> None:
    """Add a contest at the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(contest)) + "\n")


def read(path: Path) -> list[Contest]:
    """Return the contests of a file, the last of every workload, in the order of names."""
    contests = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        entries = [Entry(**entry) for entry in fields.pop("entries")]
        contests[fields["name"]] = Contest(**fields, entries=entries)
    return list(contests.values())
