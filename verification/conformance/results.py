"""What was found, kept entry by entry, so that a run that breaks off loses nothing and single entries can be redone."""

import json
from dataclasses import asdict
from pathlib import Path

from verification.conformance.examine import Examined, Finding

FOLDER = Path(__file__).parents[2] / "build" / "conformance"
COMPLEX_FOLDER = FOLDER / "complex"


def save(examined: Examined, folder: Path = FOLDER) -> None:
    """Keep what was found of an entry, in place of what was found before."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{examined.name}.json").write_text(json.dumps(asdict(examined), indent=1), encoding="utf-8")


def load(folder: Path = FOLDER) -> dict[str, Examined]:
    """Return what was found of each entry, by name."""
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return {fields["name"]: _examined(fields) for fields in kept}


def _examined(fields: dict) -> Examined:
    findings = tuple(
        Finding(sample, order, verdict, tuple(agree), tuple(differ), note)
        for sample, order, verdict, agree, differ, note in fields["findings"]
    )
    return Examined(fields["name"], tuple(fields["kinds"]), tuple(fields["fallback"]), findings, fields["skipped"])
