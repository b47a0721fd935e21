"""The last coefficients of closed forms and series, which enter at high orders; see `verification.high_orders`."""

import pytest

from verification.high_orders import CURVES, VECTORS, Curve

# Slow at order six, and left to verification there.
FAST = {"norm of order 2", "log_softmax", "logsumexp"}
SLOW = {"determinant of 5 rows", "determinant of 6 rows", "matrix exponential"} | {case.name for case in VECTORS} - FAST


@pytest.mark.parametrize("case", CURVES, ids=lambda case: case.name)
def test_orders_up_to_six(case: Curve) -> None:
    errors = case.errors(4 if case.name in SLOW else 6)
    assert max(errors) < case.tolerance, errors
