"""Plans take the memory that they say, and no more than they may.

Claim: ``peak_bytes`` is what torch's allocator hands out at most during a call, and with ``max_bytes`` that is no more,
the least that a refusal names being enough.
Source: the allocator itself, by torch's profiler.
Falsifier: results of chunks that are held twice, a view taken for a copy, what a rule or a kernel allocates inside.
Tolerance: 2 %, and 1 kB for numbers; 3 % of a call, whose function may hold what it did not return.
"""

import pytest
import torch

import hofunc
from verification.memory import (
    FUNCTIONS,
    IN_ROWS,
    STRATEGIES,
    assert_keeps_to_max_bytes,
    assert_takes_what_it_says,
    drawn,
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in FUNCTIONS
        for dtype in (torch.float64, torch.float32)
        if dtype == torch.float64 or name != "a convolution"  # which oneDNN lays out by the machine's vectors
    ],
)
def test_what_is_said(name: str, dtype: torch.dtype, strategy: str) -> None:
    f, shape, order = FUNCTIONS[name]
    x = drawn(*shape).to(dtype)
    for size in (None, 30) if name in IN_ROWS else (None,):
        assert_takes_what_it_says(hofunc.hod(f, order, layout="compact", strategy=strategy, chunk_size=size), x)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "auto"])
@pytest.mark.parametrize("name", IN_ROWS)
def test_what_is_allowed(name: str, strategy: str) -> None:
    f, shape, order = FUNCTIONS[name]
    assert_keeps_to_max_bytes(f, order, strategy, drawn(*shape))
