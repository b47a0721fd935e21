"""A mutant, and the sample of mutants that is run."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where an operator of cosmic-ray changes a file, and how: all that is needed to make the mutant.

    Attributes:
        path: The file, relative to the checkout, with slashes.
        operator: The operator's name.
        occurrence: Which of the places where the operator applies to the file.
        line: The first line of that place.
    """

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def package(self) -> str:
        """The package that the file belongs to."""
        return Path(self.path).parent.name


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file with one fault: before and after are the whole text of the file."""

    place: Place
    before: str
    after: str

    @property
    def key(self) -> str:
        """Name the mutant; another text of the file makes it another one."""
        return sha256("\0".join((self.place.path, self.before, self.after)).encode()).hexdigest()

    @property
    def was(self) -> str:
        """The lines that the mutant changes, as they are, with single spaces."""
        return self._changed("-")

    @property
    def becomes(self) -> str:
        """The lines that the mutant puts in their place, with single spaces."""
        return self._changed("+")

    @property
    def diff(self) -> str:
        """The change as a unified diff without context."""
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))

    def _changed(self, sign: str) -> str:
        lines = [line[1:] for line in self.diff.splitlines() if line[0] == sign]
        return " ".join(" ".join(lines).split())


def sample(
    places: Sequence[Place], size: int, seed: int, make: Callable[[Place], Mutant], counts: Callable[[Mutant], bool]
) -> list[Mutant]:
    """Draw mutants that count; the same ones for the same files, and a smaller sample is the start of a larger one.

    Mutants are made, and looked at, one by one as they are drawn: that takes longer than to find their places.
    """

    def lot(place: Place) -> bytes:
        """Draw by hash, so that a change of one file leaves the draw from the others as it was."""
        return sha256(f"{seed} {place.path} {place.operator} {place.occurrence}".encode()).digest()

    return list(islice(filter(counts, map(make, sorted(places, key=lot))), size))
