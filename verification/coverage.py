"""What the programs of a run were made of, by order, and whether that is enough."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from verification.programs import Program
from verification.programs.table import ROWS


@dataclass
class Coverage:
    """Counts of programs by order.

    Attributes:
        programs: How many programs there were of each order.
        rows: How often each row of the table was in one.
        pairs: How often one row took the result of another.
        verdicts: How often an oracle was found to be wrong, by what it is and the order.
    """

    programs: Counter[int] = field(default_factory=Counter)
    rows: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    pairs: defaultdict[int, Counter[tuple[str, str]]] = field(default_factory=lambda: defaultdict(Counter))
    verdicts: Counter[str] = field(default_factory=Counter)

    def add(self, program: Program, order: int) -> None:
        """Count a program that was differentiated."""
        self.programs[order] += 1
        self.rows[order].update(program.rows())
        self.pairs[order].update(program.pairs())

    def of_all(self) -> tuple[set[str], set[tuple[str, str]]]:
        """Return all rows, and all pairs of them, that there were at any order."""
        return set().union(*self.rows.values()), set().union(*self.pairs.values())

    def packed(self) -> dict[str, Any]:
        """Return all counts in plain lists, which other processes can be sent."""
        return {
            "programs": [*self.programs.items()],
            "rows": [(order, row, count) for order, rows in self.rows.items() for row, count in rows.items()],
            "pairs": [(order, *pair, count) for order, pairs in self.pairs.items() for pair, count in pairs.items()],
            "verdicts": [*self.verdicts.items()],
        }

    def merge(self, packed: dict[str, Any]) -> None:
        """Add the counts of another process."""
        for order, count in packed["programs"]:
            self.programs[order] += count
        for order, row, count in packed["rows"]:
            self.rows[order][row] += count
        for order, maker, taker, count in packed["pairs"]:
            self.pairs[order][maker, taker] += count
        for verdict, count in packed["verdicts"]:
            self.verdicts[verdict] += count


COVERAGE = Coverage()

# What a whole run has at least: programs altogether, and of the ops of the table and pairs of them, at every order and
# altogether. A tenth less than what the profile ci has; one of dev is too small for any.
LEAST_PROGRAMS = {"ci": 2_000, "nightly": 100_000}
LEAST_ROWS = 0.9
LEAST_ROWS_OF_ALL = 0.98
LEAST_PAIRS = {1: 900, 2: 900, 3: 700, 4: 500}
LEAST_PAIRS_OF_ALL = 2_000


def complaints(coverage: Coverage, profile: str) -> list[str]:
    """Return what a whole run lacks."""
    if profile not in LEAST_PROGRAMS:
        return []
    rows, pairs = coverage.of_all()
    found = [
        ("programs", coverage.programs.total(), LEAST_PROGRAMS[profile]),
        ("ops", len(rows), LEAST_ROWS_OF_ALL * len(ROWS)),
        ("pairs of ops", len(pairs), LEAST_PAIRS_OF_ALL),
        *((f"ops at order {order}", len(coverage.rows[order]), LEAST_ROWS * len(ROWS)) for order in LEAST_PAIRS),
        *(
            (f"pairs of ops at order {order}", len(coverage.pairs[order]), least)
            for order, least in LEAST_PAIRS.items()
        ),
    ]
    return [f"{got} {what}, expected at least {least:.0f}" for what, got, least in found if got < least]


def report(coverage: Coverage) -> list[str]:
    """Return the lines of a table of what there was, by order."""
    rows, pairs = coverage.of_all()
    counts = [
        (str(order), coverage.programs[order], len(coverage.rows[order]), len(coverage.pairs[order]))
        for order in sorted(coverage.programs)
    ]
    return [
        f"{'order':>5} {'programs':>9} {f'ops of {len(ROWS)}':>12} {'pairs of ops':>13}",
        *(f"{order:>5} {programs:>9} {ops:>12} {pairs:>13}" for order, programs, ops, pairs in counts),
        f"{'all':>5} {coverage.programs.total():>9} {len(rows):>12} {len(pairs):>13}",
        *(f"{count} times {verdict}" for verdict, count in sorted(coverage.verdicts.items())),
    ]
