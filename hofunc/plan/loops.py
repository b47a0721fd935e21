"""Loops over a label that is summed: what leads to sums over it is made for some of its entries at a time.

Where a derivative is a sum over the entries of a label, as of features, rows or edges, what is multiplied for it may be
many times as large as the sum. So what leads from a large tensor to sums over one of its labels, and to nothing else,
becomes one step, which runs it for some entries after the others (`hofunc.plan.looped`). Several sums over one label
are one loop. What others take as well, and is as cheap to make as to read, is made anew for it.

Of several layers no label leads to sums alone: what edges are added to is multiplied by itself. There a loop keeps what
is small beside what it is made of, and writes it for some entries at a time to where they lie among all of them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hofunc.algebra.extents import UnevenError
from hofunc.plan.known import Known
from hofunc.plan.program import Program, Step
from hofunc.plan.regions import Region
from hofunc.plan.tracing import Trace


class Loop(NamedTuple):
    """The steps that do in a loop what a region does, and the bytes that it holds beside its results."""

    region: Region
    steps: list[Step]
    scratch: int

    @classmethod
    def of(cls, known: Known, region: Region, size: int, number: int = 0) -> "Loop | None":
        """Return the loop of a region; None if it turns out that there is none.

        Args:
            known: The program.
            region: The region.
            size: How many entries it takes at a time.
            number: Its number among loops of the program that may be made together.
        """
        try:
            steps = region.looped(size, known.fresh + number)
        except (UnevenError, RuntimeError):  # the latter where shapes do not fit each other for fewer entries
            return None
        return cls(region, steps, steps[0].args[1].scratch)

    def follows(self, other: "Loop", known: Known) -> bool:
        """Tell whether it takes what another loop makes, or what is made of that."""
        return known.depend(self.region.taken, other.region.results)


def with_loops(known: Known, loops: Iterable[Loop]) -> tuple[Program, Trace] | None:
    """Return a program, and its trace, with loops; None if it turns out that they have no place in it."""
    try:
        return known.changed({step.target: step for loop in loops for step in loop.steps})
    except (UnevenError, RuntimeError):
        return None


def apart(known: Known, loops: Iterable[Loop]) -> list[Loop]:
    """Return those of some loops that the program can have together with those before them."""
    found: list[Loop] = []
    for loop in loops:
        is_apart = all(loop.region.results.isdisjoint(other.region.results) for other in found)
        if is_apart and not _goes_in_circles(known, [*found, loop]):
            found.append(loop)
    return found


def _goes_in_circles(known: Known, loops: Sequence[Loop]) -> bool:
    """Tell whether some loops follow each other."""
    left = [*loops]
    while left:
        first = [loop for loop in left if not any(loop.follows(other, known) for other in left if other is not loop)]
        if not first:
            return True
        left = [loop for loop in left if loop not in first]
    return False
