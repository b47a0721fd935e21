"""The verdict on one entry at one order: by nested torch.func, nested torch.autograd and differences."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.errors import HofuncError
from verification.conformance import lines
from verification.conformance.limits import TooSlowError, limited
from verification.conformance.measure import derivative
from verification.conformance.sample import Sample
from verification.conformance.verdicts import BROKEN, REFUSED, RIGHT, SLOW, UNJUDGED, WRONG, Evidence, judge
from verification.zoo.entry import Case, Entry, Refusal

ORDERS = (2, 3)
SECONDS = 20.0  # for hofunc, and for each oracle, at one order
_ALONE = 1e-6  # how far hofunc may be from the only oracle that works, relative
_ZERO = 1e-6


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found at one order.

    Attributes:
        order: The order.
        verdict: One of the words of `verification.conformance.verdicts`.
        by: The oracles that agree, or differ where it is wrong.
        note: What the error said, or what the numbers are, unless it is right.
    """

    order: int
    verdict: str
    by: tuple[str, ...]
    note: str = ""


def sample_of(case: Case) -> Sample:
    """Return the function of an entry as one that returns a list of tensors."""
    f, inputs = case

    def listed(*tensors: Tensor) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(f(*tensors)) if isinstance(leaf, Tensor) and leaf.is_floating_point()]

    followed = [tensor.detach().requires_grad_() for tensor in inputs]  # of which f may ask for gradients
    return Sample(listed, inputs, [output.detach() for output in listed(*followed)])


def verdict(entry: Entry, sample: Sample, judged_on: Sample, order: int, seconds: float = SECONDS) -> Verdict:
    """Judge hofunc on an entry at an order.

    Args:
        entry: The entry.
        sample: Its function.
        judged_on: What the oracles differentiate: the same, or a function of the same values.
        order: The order.
        seconds: The most that hofunc, or an oracle, may take.
    """
    directions = lines.directions_of(sample)
    try:
        with limited(seconds), hofunc.options(**entry.resolved()):
            got = derivative(sample, directions, order)
    except TooSlowError:
        return Verdict(order, SLOW, (), f"planning took over {seconds:.0f} s")
    except HofuncError as error:
        return Verdict(order, REFUSED, (), f"{type(error).__name__}: {error}")
    except Exception as error:  # whatever it is, the other entries go on
        return Verdict(order, BROKEN, (), f"{type(error).__name__}: {error}"[:500])
    resolution = max(torch.finfo(y.dtype).eps for y in sample.outputs)
    return _judged(entry, order, got, directions.line(judged_on), resolution, seconds)


def is_as_said(verdict: Verdict, refusal: Refusal | None) -> bool:
    """Tell whether an entry was refused just as it says."""
    return refusal is not None and verdict.note.startswith(f"{refusal.error}:") and refusal.phrase in verdict.note


def _judged(entry: Entry, order: int, got: float, line: lines.Line, resolution: float, seconds: float) -> Verdict:
    reverse = _attempted(lambda: lines.reverse(line, order), math.nan, seconds) if not entry.kills_torch else math.nan
    is_plain = not math.isfinite(reverse)
    reverse = _attempted(lambda: lines.plain(line, order), math.nan, seconds) if is_plain else reverse
    forward = math.nan if is_plain else _attempted(lambda: lines.forward(line, order), math.nan, seconds)
    slope = lines.plain_slope(line) if is_plain else None
    numerical = _attempted(lambda: lines.differences(line, order, slope), (math.nan, math.inf), seconds)
    evidence = Evidence(reverse, forward, numerical[0], numerical[1], resolution=resolution)
    found, agree, differ = judge(got, evidence, convention=entry.is_convention)
    if found == UNJUDGED and math.isfinite(reverse) and not _apart(forward, reverse) > _ALONE:
        is_right = _apart(got, reverse) <= _ALONE
        found, agree, differ = (RIGHT, ("reverse",), ()) if is_right else (WRONG, (), ("reverse",))
    by = tuple("autograd" if name == "reverse" and is_plain else name for name in (differ if found == WRONG else agree))
    note = "" if found == RIGHT else f"{got:.9g}; torch {reverse:.9g}, {forward:.9g}; differences {numerical}"
    return Verdict(order, found, by, note)


def _apart(number: float, expected: float) -> float:
    """Return how far a number is from another, relative; nan if there are not two."""
    return abs(number - expected) / max(abs(expected), _ZERO)


def _attempted(compute: Callable[[], Any], otherwise: Any, seconds: float) -> Any:
    """Return what an oracle says, or something else where it fails."""
    with suppress(Exception), limited(seconds), torch.enable_grad():
        return compute()
    return otherwise
