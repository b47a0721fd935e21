"""The score of a sample, by package, and the mutants that survived it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from verification import scores
from verification.mutation.explained import Explanation
from verification.mutation.mutant import Mutant

HEADINGS = ("package", "sample", "run", "killed", "of them by time", "explained", "survived", "score")


def unexplained(
    mutants: Sequence[Mutant], verdicts: Mapping[str, str], explanations: Sequence[Explanation]
) -> list[Mutant]:
    """List the survivors that nothing explains."""
    survivors = [mutant for mutant in mutants if verdicts.get(mutant.key) == "survived"]
    return [mutant for mutant in survivors if not any(entry.explains(mutant) for entry in explanations)]


class Counts(NamedTuple):
    """What came of the mutants of a sample: how many there are, were run, were killed, and so on."""

    sample: int
    run: int
    killed: int
    by_time: int
    explained: int
    survived: int

    @property
    def score(self) -> str:
        """The percentage of killed among those run that nothing explains."""
        judged = self.killed + self.survived
        return f"{100 * self.killed / judged:.1f} %" if judged else "-"


def counted(mutants: Sequence[Mutant], verdicts: Mapping[str, str], explanations: Sequence[Explanation]) -> Counts:
    """Count what came of mutants."""
    found = [verdicts[mutant.key] for mutant in mutants if mutant.key in verdicts]
    survived, alive = len(unexplained(mutants, verdicts, explanations)), found.count("survived")
    return Counts(len(mutants), len(found), len(found) - alive, found.count("timeout"), alive - survived, survived)


def table(mutants: Sequence[Mutant], verdicts: Mapping[str, str], explanations: Sequence[Explanation]) -> str:
    """Lay out the figures of each package and of all; the score is killed / (run - explained)."""
    packages = sorted({mutant.place.package for mutant in mutants})
    groups = [(name, [mutant for mutant in mutants if mutant.place.package == name]) for name in packages]
    counts = {name: counted(group, verdicts, explanations) for name, group in [*groups, ("all", mutants)]}
    rows = [HEADINGS, *((name, *map(str, each), each.score) for name, each in counts.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def keep(counts: Counts, seed: int, path: Path = scores.FILE) -> None:
    """Keep the score of a sample, once all of it was run."""
    if counts.run == counts.sample:
        figures = {"killed": counts.killed, "explained": counts.explained, "survived": counts.survived}
        scores.keep("mutation", {"seed": seed, "size": counts.sample, **figures}, path)


def survivors(mutants: Sequence[Mutant]) -> str:
    """Show mutants as diffs, with file and line."""
    return "\n".join(f"{m.place.path}:{m.place.line} {m.place.operator}\n{m.diff}" for m in mutants)
