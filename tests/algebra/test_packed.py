"""Packed symmetric axes: their monomials and the factorials of these, by hand and as multisets."""

from collections import Counter
from math import factorial, prod

import numpy as np
import pytest

from hofunc.algebra.packed import count, factorials, monomials

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


# Factorials.


def test_factorials_by_hand() -> None:
    assert factorials(2, 3) == (6, 2, 2, 6)
    assert factorials(3, 2) == (2, 1, 1, 2, 1, 2)
    assert factorials(2, 4) == (24, 6, 4, 6, 24)
    assert factorials(1, 5) == (120,)
    assert factorials(3, 1) == (1, 1, 1)
    assert factorials(3, 0) == (1,)
    assert factorials(0, 2) == ()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("order", [0, *ORDERS])
def test_factorials_are_those_of_how_often_each_direction_is_there(n: int, order: int) -> None:
    expected = [prod(map(factorial, Counter(monomial).values())) for monomial in monomials(n, order)]
    assert list(factorials(n, order)) == expected
