"""What was found of each entry, kept in files: a run that breaks off loses nothing, and entries can be redone."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from verification.zoo.judge import Verdict
from verification.zoo.pace import Pace

DIED = "the process died"
FOLDER = Path(__file__).parents[2] / "build" / "zoo"


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of an entry.

    Attributes:
        key: Its key.
        version: That of its library.
        verdicts: At each order.
        paces: At each order at which it is right.
        failure: Why there is nothing else, as where the library is not installed.
    """

    key: str
    version: str = ""
    verdicts: tuple[Verdict, ...] = ()
    paces: tuple[Pace, ...] = ()
    failure: str = ""


def save(found: Found, folder: Path = FOLDER) -> None:
    """Keep what was found of an entry, in place of what was found before."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{found.key}.part"  # so that who reads meanwhile finds all of it or none
    part.write_text(json.dumps(asdict(found), indent=1), encoding="utf-8")
    part.replace(folder / f"{found.key}.json")


def load(folder: Path = FOLDER) -> dict[str, Found]:
    """Return what was found of each entry, by key."""
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return {fields["key"]: _found(fields) for fields in kept}


def _found(fields: dict) -> Found:
    verdicts = tuple(Verdict(**{**each, "by": tuple(each["by"])}) for each in fields.pop("verdicts"))
    paces = tuple(Pace(**each) for each in fields.pop("paces"))
    return Found(verdicts=verdicts, paces=paces, **fields)
