"""Packed symmetric axes: their monomials and the factorials of these, by hand and as multisets."""

import numpy as np
import pytest

from hofunc.algebra.packed import count, monomials

SIZES = [0, 1, 2, 3, 5]
ORDERS = [1, 2, 3, 4, 5]


# Counts and order.


@pytest.mark.parametrize(
    ("n", "order", "expected"),
    [
        (0, 0, 1),
        (0, 1, 0),
        (0, 3, 0),
        (1, 0, 1),
        (1, 1, 1),
        (1, 5, 1),
        (2, 1, 2),
        (2, 2, 3),
        (2, 5, 6),
        (3, 2, 6),
        (3, 3, 10),
        (10, 2, 55),
        (10, 5, 2002),
    ],
)
def test_counts(n: int, order: int, expected: int) -> None:
    assert count(n, order) == expected


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("order", [0, *ORDERS])
def test_the_monomials_are_all_multisets_in_lexicographic_order(n: int, order: int) -> None:
    found = monomials(n, order)
    assert len(found) == count(n, order)
    assert list(found) == sorted({tuple(sorted(index)) for index in np.ndindex(*[n] * order)})


def test_the_monomials_by_hand() -> None:
    assert monomials(3, 2) == ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
    assert monomials(2, 3) == ((0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1))
    assert monomials(4, 0) == ((),)
    assert monomials(0, 2) == ()
