"""Survivors that are right to survive, each with the reason, in ``explained.toml``."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verification.mutation.mutant import Mutant

LIST = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a change of a line cannot be seen.

    Attributes:
        file: The file, relative to the checkout.
        was: The line, with single spaces.
        becomes: What the mutant makes of it, with single spaces.
        reason: Why no test can, or should, tell.
    """

    file: str
    was: str
    becomes: str
    reason: str

    def explains(self, mutant: Mutant) -> bool:
        """Tell whether this is said of a mutant."""
        return (self.file, self.was, self.becomes) == (mutant.place.path, mutant.was, mutant.becomes)


def read(path: Path = LIST) -> list[Explanation]:
    """Read the list; an entry that lacks something is a TypeError."""
    return [Explanation(**entry) for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("explained", [])]


def stale(explanations: Sequence[Explanation], root: Path, killed: Sequence[Mutant]) -> list[Explanation]:
    """List the entries of lines that there are no more, and those that a test has refuted."""

    def is_stale(entry: Explanation) -> bool:
        file = root / entry.file
        text = " ".join(file.read_text(encoding="utf-8").split()) if file.exists() else ""
        return entry.was not in text or any(entry.explains(mutant) for mutant in killed)

    return [entry for entry in explanations if is_stale(entry)]
