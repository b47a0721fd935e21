"""The score of a sample, by package, and the mutants that survived it."""

from collections.abc import Mapping, Sequence

from verification.mutation.explained import Explanation
from verification.mutation.mutant import Mutant

HEADINGS = ("package", "sample", "run", "killed", "of them by time", "explained", "survived", "score")


def unexplained(
    mutants: Sequence[Mutant], verdicts: Mapping[str, str], explanations: Sequence[Explanation]
) -> list[Mutant]:
    """List the survivors that nothing explains."""
    survivors = [mutant for mutant in mutants if verdicts.get(mutant.key) == "survived"]
    return [mutant for mutant in survivors if not any(entry.explains(mutant) for entry in explanations)]


def _row(
    name: str, mutants: Sequence[Mutant], verdicts: Mapping[str, str], explanations: Sequence[Explanation]
) -> tuple[str, ...]:
    found = [verdicts[mutant.key] for mutant in mutants if mutant.key in verdicts]
    survived = len(unexplained(mutants, verdicts, explanations))
    explained = found.count("survived") - survived
    killed = len(found) - found.count("survived")
    score = f"{100 * killed / (killed + survived):.1f} %" if killed + survived else "-"
    return (name, *map(str, (len(mutants), len(found), killed, found.count("timeout"), explained, survived)), score)


def table(mutants: Sequence[Mutant], verdicts: Mapping[str, str], explanations: Sequence[Explanation]) -> str:
    """Lay out the figures of each package and of all; the score is killed / (run - explained)."""
    packages = sorted({mutant.place.package for mutant in mutants})
    groups = [(name, [mutant for mutant in mutants if mutant.place.package == name]) for name in packages]
    rows = [HEADINGS, *(_row(name, group, verdicts, explanations) for name, group in [*groups, ("all", mutants)])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def survivors(mutants: Sequence[Mutant]) -> str:
    """Show mutants as diffs, with file and line."""
    return "\n".join(f"{m.place.path}:{m.place.line} {m.place.operator}\n{m.diff}" for m in mutants)
