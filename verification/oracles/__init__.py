"""Oracles: other ways to get a derivative, each with what it cannot judge.

None of them uses hofunc, and where two disagree a third has to decide: torch's own formulas are not always right.
"""

from verification.oracles.differences import Estimate, along, central_differences
from verification.oracles.einsum import contraction, nested_slots
from verification.oracles.measure import contracted, relative_error
from verification.oracles.nested import nested_autograd, nested_forward, nested_forward_over_reverse, nested_reverse
from verification.oracles.numbers import (
    FORTY_DIGITS,
    derivatives_by_differences,
    derivatives_of_numbers,
    partial_derivatives,
)
from verification.oracles.written import nested_written_out

__all__ = [
    "FORTY_DIGITS",
    "Estimate",
    "along",
    "central_differences",
    "contracted",
    "contraction",
    "derivatives_by_differences",
    "derivatives_of_numbers",
    "nested_autograd",
    "nested_forward",
    "nested_forward_over_reverse",
    "nested_reverse",
    "nested_slots",
    "nested_written_out",
    "partial_derivatives",
    "relative_error",
]
