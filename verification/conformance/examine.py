"""Examining an entry of the database: hofunc and the oracles on each of its samples, at every order."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from hofunc.errors import UnsupportedOpError
from verification.conformance import lines
from verification.conformance.entries import name_of, samples_of
from verification.conformance.expected import CONVENTIONS
from verification.conformance.limits import TooSlowError, limited
from verification.conformance.lines import ORDERS
from verification.conformance.measure import Rules, derivative, rules_of
from verification.conformance.sample import Sample
from verification.conformance.verdicts import BROKEN, REFUSED, SLOW, UNJUDGED, Evidence, Judgement, judge

SECONDS = 10.0  # for hofunc, and for each oracle, on one sample at one order
PATIENCE = 5  # how often an entry may be too slow, before its other samples are left out


class Finding(NamedTuple):
    """The verdict on one sample at one order.

    Attributes:
        sample: Its number among the samples of the entry.
        order: The order.
        verdict: One of the words of `verdicts`.
        agree: The oracles with a say that agree with hofunc.
        differ: Those that do not.
        note: What was got and what the oracles say, or the exception, unless all is well.
    """

    sample: int
    order: int
    verdict: str
    agree: tuple[str, ...]
    differ: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Examined:
    """What there is to say of an entry.

    Attributes:
        name: Its name.
        kinds: The kinds of the rules that its samples need.
        fallback: The ops that nested torch.func differentiates.
        findings: The verdicts.
        skipped: Why samples could not be used, and how many.
    """

    name: str
    kinds: tuple[str, ...]
    fallback: tuple[str, ...]
    findings: tuple[Finding, ...]
    skipped: dict[str, int]


def examine(
    op: Any, samples: int | None = None, seconds: float = SECONDS, dtype: torch.dtype = torch.float64
) -> Examined:
    """Examine an entry.

    Args:
        op: The entry.
        samples: How many of its samples to look at; None for all.
        seconds: The most that hofunc, or the oracles, may take at one order of one sample.
        dtype: That of the samples; complex ones are looked at to order 2.
    """
    orders = ORDERS[:2] if dtype.is_complex else ORDERS
    rules: list[Rules] = []
    findings: list[Finding] = []
    skipped: Counter[str] = Counter()
    for number, sample in enumerate(samples_of(op, samples, dtype)):
        if isinstance(sample, str):
            skipped[sample] += 1
        elif sum(finding.verdict == SLOW for finding in findings) >= PATIENCE:
            skipped["after too many that are too slow"] += 1
        else:
            rules += _attempted(partial(_listed_rules, sample), [], seconds)[0]
            findings += _findings(number, sample, seconds, orders, convention=name_of(op) in CONVENTIONS)
    kinds = sorted({kind for rule in rules for kind in rule.kinds})
    fallback = sorted({op for rule in rules for op in rule.fallback})
    return Examined(name_of(op), tuple(kinds), tuple(fallback), tuple(findings), dict(skipped))


def _findings(
    number: int, sample: Sample, seconds: float, orders: Sequence[int], *, convention: bool
) -> Iterator[Finding]:
    directions = lines.directions_of(sample)
    resolution = max((torch.finfo(y.dtype).eps for y in sample.outputs), default=0.0)
    line = directions.line(sample)
    value, _ = _attempted(lambda: line(lines.origin()).item(), math.nan, seconds)
    floor = max(1e-6, 1e-3 * abs(value)) if math.isfinite(value) else 1e-6
    for order in orders:
        got, error = _attempted(partial(derivative, sample, directions, order), math.nan, seconds)
        evidence = _evidence(line, order, floor, resolution, seconds)
        judgement = judge(got, evidence, convention=convention)
        verdict = judgement.verdict if error is None else _failure(error, judgement)
        note = "" if verdict == "right" and not judgement.differ else f"{error or got}; {evidence}"
        yield Finding(number, order, verdict, judgement.agree, judgement.differ, note)
        floor = max(floor, 1e-3 * evidence.scale(evidence.reverse, evidence.forward))


def _listed_rules(sample: Sample) -> list[Rules]:
    return [rules_of(sample)]


def _evidence(line: lines.Line, order: int, floor: float, resolution: float, seconds: float) -> Evidence:
    """Ask the oracles, each of which may fail."""
    reverse, _ = _attempted(lambda: lines.reverse(line, order), math.nan, seconds)
    forward, _ = _attempted(lambda: lines.forward(line, order), math.nan, seconds)
    (differences, error), _ = _attempted(lambda: lines.differences(line, order), (math.nan, math.inf), seconds)
    return Evidence(reverse, forward, differences, error, floor, resolution)


def _attempted(compute: Callable[[], Any], otherwise: Any, seconds: float) -> tuple[Any, Exception | None]:
    """Return what a function returns, or another value and the exception that the function raised."""
    try:
        with limited(seconds):
            return compute(), None
    except Exception as error:
        return otherwise, error


def _failure(error: Exception, judgement: Judgement) -> str:
    """Return the verdict where hofunc raised: none, if there is nothing that it could have returned."""
    if judgement.verdict == UNJUDGED:
        return UNJUDGED
    if isinstance(error, TooSlowError):
        return SLOW
    return REFUSED if isinstance(error, UnsupportedOpError) else BROKEN
