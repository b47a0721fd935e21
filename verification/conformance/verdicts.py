"""The verdict on one number, given what the oracles say: numbers only, no tensors."""

import math
from dataclasses import dataclass
from typing import NamedTuple

RIGHT = "right"
WRONG = "wrong"
REFUSED = "refused"  # an UnsupportedOpError, as promised
SLOW = "too slow"
BROKEN = "broken"  # any other exception
UNJUDGED = "unjudged"  # no oracle, or too few of them, can tell

FAILURES = (WRONG, BROKEN, REFUSED, SLOW)

_NESTED = 1e-8  # rounding in nested formulas, relative
_NUMERICAL = 1e-6  # the same in differences, beside their own error
_BLUNT = 1e-4  # with a larger error an oracle has no say
_MARGIN = 100  # between what agrees and what differs an oracle has no say either


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the oracles say of one derivative, nan where one fails.

    Attributes:
        reverse: By nested reverse mode.
        forward: By nested forward mode.
        differences: By differences.
        error: The error of the differences, as they estimate it.
        floor: A size below which numbers count as zero: small beside the derivatives of lower orders.
        resolution: Of the coarsest dtype of the outputs, relative.
    """

    reverse: float
    forward: float
    differences: float
    error: float
    floor: float = 1e-6
    resolution: float = 1e-16

    def scale(self, *numbers: float) -> float:
        """Return what an error of these numbers is relative to."""
        return max([self.floor, *(abs(number) for number in numbers if math.isfinite(number))])


class Judgement(NamedTuple):
    """A verdict and how it came about.

    Attributes:
        verdict: One of the words above.
        agree: The oracles with a say that agree with hofunc.
        differ: Those that do not.
    """

    verdict: str
    agree: tuple[str, ...]
    differ: tuple[str, ...]


def judge(got: float, evidence: Evidence, *, convention: bool = False) -> Judgement:
    """Decide whether a number is right.

    The differences decide alone, if their error is small: of all formulas they use only that of the first derivative.
    Where they are blunt, as at a kink, both nested modes together decide, for torch's convention is in them. One
    nested mode alone decides nothing, since hofunc's fallback may share its formulas, and neither do two that
    contradict each other.

    Args:
        got: What hofunc says, nan if it says nothing.
        evidence: What the oracles say.
        convention: Whether torch's derivative is by definition not that of the function, so that the differences
            have no say.
    """
    tolerances = {**_nested_tolerances(evidence), **({} if convention else _numerical_tolerance(evidence))}
    errors = {name: abs(got - getattr(evidence, name)) for name in tolerances}
    agree = tuple(name for name, most in tolerances.items() if errors[name] <= most)
    differ = tuple(name for name, most in tolerances.items() if not errors[name] <= _MARGIN * most)
    return Judgement(_verdict(agree, differ, contradiction=_apart(evidence) > _BLUNT), agree, differ)


def _apart(evidence: Evidence) -> float:
    """Return how far the nested modes are from each other, relative; 0 if there are not two."""
    apart = abs(evidence.reverse - evidence.forward) / evidence.scale(evidence.reverse, evidence.forward)
    return apart if math.isfinite(apart) else 0.0


def _nested_tolerances(evidence: Evidence) -> dict[str, float]:
    """Return how far one may be from each nested mode that has a say: as they may from each other."""
    said = {name: getattr(evidence, name) for name in ("reverse", "forward")}
    apart = _apart(evidence)
    rounding = max(_NESTED, 30 * evidence.resolution, 10 * apart if apart <= _BLUNT else 0)
    return {name: rounding * evidence.scale(number) for name, number in said.items() if math.isfinite(number)}


def _numerical_tolerance(evidence: Evidence) -> dict[str, float]:
    """Return how far one may be from the differences, if they have a say."""
    scale = evidence.scale(evidence.differences)
    coarse = evidence.resolution > _NESTED  # the function is a stair
    sharp = not coarse and math.isfinite(evidence.differences) and evidence.error <= _BLUNT * scale
    return {"differences": max(_NUMERICAL * scale, 30 * evidence.error)} if sharp else {}


def _verdict(agree: tuple[str, ...], differ: tuple[str, ...], *, contradiction: bool) -> str:
    for verdict, names in ((RIGHT, agree), (WRONG, differ)):
        if "differences" in names:
            return verdict
    if len(agree) == 2:
        return RIGHT
    return WRONG if len(differ) == 2 and not contradiction else UNJUDGED
