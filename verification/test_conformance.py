"""Claim: hofunc is right, at orders 1 to 3, on every op that torch's own database says can be differentiated twice.

Source: the samples of `torch.testing`'s OpInfo, and three oracles (`verification.conformance.lines`).
Falsifier: a sample on which the oracles agree on another derivative, or that hofunc refuses although the list of
expected failures does not name its entry; or an entry on that list that passes.
Tolerance: 1e-8 relative to nested torch.func, for the rounding of two formulas in float64, and 1e-6 relative to
differences, which are exact to about 1e-9 for smooth functions and say themselves where they are not.

Of every entry the first sample is examined. The environment variable HOFUNC_SAMPLES says another number, or "all", as
`make conformance` does; then what was found is kept for the page.
"""

import os

import pytest
import torch

from verification.conformance.entries import name_of, usable_entries
from verification.conformance.examine import Examined, examine
from verification.conformance.expected import CONVENTIONS, EXPECTED, EXPECTED_COMPLEX
from verification.conformance.results import COMPLEX_FOLDER, save
from verification.conformance.verdicts import FAILURES

OPS = {name_of(op): op for op in usable_entries()}
COMPLEX_OPS = {name_of(op): op for op in usable_entries(torch.complex128)}
SAMPLES = os.environ.get("HOFUNC_SAMPLES", "1")

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's and hofunc's: an op without a rule is in the table


@pytest.mark.parametrize("name", OPS)
def test_an_entry(name: str) -> None:
    """Examine an entry."""
    examined = examine(OPS[name], None if SAMPLES == "all" else int(SAMPLES))
    if "HOFUNC_SAMPLES" in os.environ:
        save(examined)
    if name not in EXPECTED:
        assert failures(examined) == []
    elif SAMPLES == "all":
        assert failures(examined), f"stale: {name} passes, so it is no expected failure"


@pytest.mark.parametrize("name", COMPLEX_OPS)
def test_an_entry_of_complex_numbers(name: str) -> None:
    """Examine complex samples of an entry, by their real and imaginary parts, at orders 1 and 2."""
    examined = examine(COMPLEX_OPS[name], None if SAMPLES == "all" else int(SAMPLES), dtype=torch.complex128)
    if "HOFUNC_SAMPLES" in os.environ:
        save(examined, COMPLEX_FOLDER)
    if name not in EXPECTED_COMPLEX:
        assert failures(examined) == []


def failures(examined: Examined) -> list[str]:
    """Return what failed, in a line each."""
    return [
        f"sample {finding.sample}, order {finding.order}: {finding.verdict}: {finding.note}"
        for finding in examined.findings
        if finding.verdict in FAILURES
    ]


def test_expected_failures_are_of_entries() -> None:
    """A name that is misspelt would expect nothing."""
    assert {*EXPECTED, *CONVENTIONS} <= {*OPS}
    assert {*EXPECTED_COMPLEX} <= {*COMPLEX_OPS}
