"""How hofunc did when it was last judged, and before, in `scores.json`: conformance, and mutation of its code.

The commit of a score is the one that was checked out. Those of 2026-11-21 and 22 are older than the file: of
conformance they have the commit that brought the page, and of mutation the one that the sample is told with.
"""

import json
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("scores.json")


@dataclass(frozen=True)
class Score:
    """What was counted.

    Attributes:
        commit: What was judged.
        date: When, as `2026-11-21`.
        figures: Counts by name; of conformance by order and verdict.
    """

    commit: str
    date: str
    figures: dict[str, Any]


def now() -> tuple[str, str]:
    """Return the commit that is checked out, and today's date."""
    command = ["git", "-C", str(FILE.parent), "rev-parse", "--short", "HEAD"]
    printed = subprocess.check_output(command, text=True)  # noqa: S603 - ours
    return printed.strip(), f"{datetime.now(UTC):%Y-%m-%d}"


def read(path: Path = FILE) -> dict[str, list[Score]]:
    """Return the scores of every kind, the oldest first."""
    kinds = json.loads(path.read_text(encoding="utf-8"))
    return {kind: [Score(**fields) for fields in found] for kind, found in kinds.items()}


def keep(kind: str, figures: dict[str, Any], path: Path = FILE) -> None:
    """Add a score of today, unless its figures are those of the last of its kind."""
    kinds = read(path) if path.exists() else {}
    found = kinds.setdefault(kind, [])
    if not found or found[-1].figures != figures:
        write({**kinds, kind: [*found, Score(*now(), figures)]}, path)


def write(kinds: dict[str, list[Score]], path: Path = FILE) -> None:
    """Write the scores of every kind, a line each."""
    parts = (
        f'"{kind}": [\n' + ",\n".join(f" {json.dumps(asdict(score))}" for score in found) + "\n]"
        for kind, found in kinds.items()
    )
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
