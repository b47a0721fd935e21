"""All rules with a closed form or a series are right at orders six to eight.

Claim: the derivatives by t of f(x + t v), up to order eight, are those of mpmath; up to seven for vectors, six for
matrices.
Source: the functions, written again in mpmath's numbers and differentiated by differences in hundreds of digits.
Falsifier: any coefficient that is wrong, of a term that is there up to that order.
Tolerance: 1e-10 relative to the largest element of an order, 1e-9 for functions of one number, up to order six; ten
times as much for each order beyond, since scaled Bessel functions lose a digit with each.
"""

import pytest

from verification.high_orders import CURVES, MATRICES, VECTORS, Curve


@pytest.mark.parametrize("case", CURVES, ids=lambda case: case.name)
def test_orders_up_to_eight(case: Curve) -> None:
    order = 6 if case in MATRICES else 7 if case in VECTORS[1:] else 8
    errors = case.errors(order)
    assert max(errors) < case.tolerance * 10 ** (order - 6), errors
