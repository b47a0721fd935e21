"""Who is right: a derivative is compared with an oracle, and where they disagree others decide."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from verification.oracles import Estimate, along, contracted, nested_autograd, nested_reverse, nested_written_out
from verification.oracles.measure import error_over_all

Argnums = int | tuple[int, ...]
Oracle = Callable[..., Any]

AGREED = "both agree"
ORACLE_WRONG = "the oracle is wrong"
WRONG = "what is judged is wrong"
UNDECIDED = "undecided"

TRUSTED = 1e-2  # differences that are not this exact, relative to the derivative, decide nothing
LOOPS = 3  # the highest order at which loops over autograd decide: they keep every graph of a lower order
STEPS = (0.03, 0.008, 0.002)  # the smaller ones where f varies fast, or the larger are across a kink
LEVELS = 4
ROUNDING = 10  # times as far as two oracles are from each other a derivative may be from one of them
MOST_ROUNDING = 1e-6  # if they are no further apart than this
SAFETY = 100  # times the error that differences say they have, which rounding within f can exceed
ROUGH = 1e-5  # relative to the derivative, how exact they are where f cancels digits, and still tell two apart


class Verdict(NamedTuple):
    """What has been found.

    Attributes:
        kind: One of AGREED, ORACLE_WRONG, WRONG and UNDECIDED.
        error: The largest difference from the oracle, relative to its largest entry; from finite differences, if no
            oracle could differentiate f.
        oracle: Name of the oracle.
        reason: What decided.
    """

    kind: str
    error: float
    oracle: str
    reason: str


@dataclass(frozen=True)
class Question:
    """A derivative to be judged.

    Attributes:
        got: The derivative of f, nested as by `nested_reverse`.
        f: The function, smooth around the inputs, in float64.
        inputs: Its arguments.
        order: Order of the derivative.
        argnums: What it was differentiated by.
        tolerance: How far it may be from what is right, relative to the largest entry.
    """

    got: Any
    f: Callable[..., Any]
    inputs: Sequence[Tensor]
    order: int
    argnums: Argnums
    tolerance: float
    _said: dict[Oracle, Any] = field(default_factory=dict, init=False)

    def by(self, oracle: Oracle) -> Any:
        """Return what an oracle says, asked once, or None if it cannot differentiate f so often."""
        if oracle not in self._said:
            try:
                self._said[oracle] = oracle(self.f, self.order, self.argnums)(*self.inputs)
            except RuntimeError:
                self._said[oracle] = None
        return self._said[oracle]

    @cached_property
    def directions(self) -> list[list[Tensor]]:
        """For each slot a random direction of length one in all inputs that f is differentiated by."""
        generator = torch.Generator().manual_seed(0)
        return [self._direction(generator) for _ in range(self.order)]

    def _direction(self, generator: torch.Generator) -> list[Tensor]:
        places = (self.argnums,) if isinstance(self.argnums, int) else self.argnums
        drawn = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in self.inputs]
        parts = [part * (place in places) for place, part in enumerate(drawn)]
        length = torch.cat([part.reshape(-1) for part in parts]).norm()
        return [(part / length).to(x.device) for part, x in zip(parts, self.inputs, strict=True)]

    @cached_property
    def estimate(self) -> Estimate:
        """What finite differences say along the directions; with an infinite error where they say nothing."""
        tried = [along(self.f, self.inputs, self.directions, step=step, levels=LEVELS) for step in STEPS]
        best = min(tried, key=lambda found: math.inf if math.isnan(found.error) else found.error)
        return best._replace(error=SAFETY * best.error if best.error <= TRUSTED * _scale(best) else math.inf)

    @property
    def bounds(self) -> tuple[float, float, float]:
        """How far from the estimate a derivative may be: by its error, the tolerance as well, and roughly."""
        error, scale = self.estimate.error, _scale(self.estimate)
        return error, error + self.tolerance * scale, error + ROUGH * scale

    def distance(self, derivative: Any) -> float:
        """Return how far a derivative is from the estimate."""
        difference = contracted(derivative, self.directions, self.argnums) - self.estimate.value
        return difference.abs().max().item() if difference.numel() else 0.0

    def agrees(self, one: Any, other: Any) -> bool:
        """Tell whether two derivatives are the same."""
        return error_over_all(one, other) <= self.tolerance


def _scale(estimate: Estimate) -> float:
    return max(1.0, estimate.value.abs().max().item()) if estimate.value.numel() else 1.0


def judge(
    got: Any,
    f: Callable[..., Any],
    inputs: Sequence[Tensor],
    order: int,
    argnums: Argnums = 0,
    *,
    tolerance: float,
    oracles: Sequence[Oracle] = (nested_reverse,),
) -> Verdict:
    """Compare a derivative with an oracle, and let finite differences decide where they disagree.

    Args:
        got: The derivative of f, nested as by `nested_reverse`.
        f: The function, smooth around the inputs, in float64.
        inputs: Its arguments.
        order: Order of the derivative.
        argnums: What it was differentiated by.
        tolerance: How far they may be apart, relative to the largest entry.
        oracles: Some that nest torch; the first that can differentiate f so often is asked.

    Raises:
        AssertionError: The derivative has not the shapes, dtypes or structure of the oracle's.
    """
    question = Question(got, f, inputs, order, argnums, tolerance)
    for place, oracle in enumerate(oracles):
        expected = question.by(oracle)
        if expected is not None:
            error = error_over_all(got, expected)
            agrees = error <= tolerance or error <= ROUNDING * _apart(question, expected, oracles[place + 1 :])
            kind, reason = (AGREED, "") if agrees else _decided(question, expected, oracles[place + 1 :])
            return Verdict(kind, error, oracle.__name__, reason)
    error = question.distance(got)
    kind = AGREED if error <= question.bounds[1] < math.inf else UNDECIDED
    return Verdict(kind, error, "differences", "no oracle can differentiate f so often")


def _apart(question: Question, expected: Any, others: Sequence[Oracle]) -> float:
    """Return how far another oracle is from the first, 0 if there is none or it is more than rounding."""
    found = (question.by(other) for other in others)
    apart = next((error_over_all(expected, other) for other in found if other is not None), 0.0)
    return apart if apart <= MOST_ROUNDING else 0.0


def _decided(question: Question, expected: Any, others: Sequence[Oracle]) -> tuple[str, str]:
    """Decide between a derivative and an oracle that disagree; return the kind of the verdict and the reason.

    Who agrees with another oracle is right: two formulas are not wrong in the same digits. That the oracle does proves
    nothing, since torch's own share theirs.
    """
    for other in (nested_written_out, *others):
        if (third := question.by(other)) is not None and question.agrees(question.got, third):
            return ORACLE_WRONG, other.__name__
    if question.estimate.error < math.inf:
        for bound in question.bounds:
            ours, theirs = question.distance(question.got) <= bound, question.distance(expected) <= bound
            if ours != theirs:
                return ORACLE_WRONG if ours else WRONG, f"differences, to {bound:.0e}"
        if not ours:
            return UNDECIDED, f"differences are near neither, to {bound:.0e}"
    third = question.by(nested_autograd) if question.order <= LOOPS else None
    if third is None:
        return UNDECIDED, "differences do not decide, and autograd cannot"
    ours, theirs = question.agrees(question.got, third), question.agrees(expected, third)
    kind = UNDECIDED if ours == theirs else ORACLE_WRONG if ours else WRONG
    return kind, "autograd in loops, where differences do not decide"
