"""Packed symmetric axes: by hand, and against polynomials multiplied and differentiated monomial by monomial."""

from collections import Counter
from functools import reduce
from itertools import permutations
from math import factorial

import numpy as np
import pytest

from hofunc.algebra.packed import Monomial, count, factorials, monomials, product_places, unpacked_places

SIZES = [0, 1, 2, 3, 5]
ORDERS = [1, 2, 3, 4, 5]


def numbers(seed: int, size: int) -> np.ndarray:
    """Return small whole numbers, so that all sums are exact."""
    return np.random.default_rng(seed).integers(-5, 6, size)


def multiplied(n: int, left: int, right: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Multiply two packed homogeneous polynomials in n directions, of orders left and right, at the places given."""
    result = np.zeros(count(n, left + right), dtype=int)
    np.add.at(result, np.array(product_places(n, left, right), dtype=int), np.outer(one, other).reshape(-1))
    return result


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


# Products.


def test_products_by_hand() -> None:
    """The products of (x, y) with (xx, xy, yy) are (xxx, xxy, xyy) and (xxy, xyy, yyy)."""
    assert product_places(2, 1, 2) == (0, 1, 2, 1, 2, 3)
    assert product_places(2, 2, 1) == (0, 1, 1, 2, 2, 3)
    assert product_places(1, 2, 3) == (0,)
    assert product_places(3, 0, 1) == (0, 1, 2)
    assert product_places(0, 0, 0) == (0,)
    assert product_places(0, 1, 1) == ()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("left", "right"), [(left, k - left) for k in ORDERS for left in range(k + 1)])
def test_products_are_those_of_polynomials(n: int, left: int, right: int) -> None:
    one, other = numbers(0, count(n, left)), numbers(1, count(n, right))
    product: Counter[Monomial] = Counter()
    for a, x in zip(monomials(n, left), one, strict=True):
        for b, y in zip(monomials(n, right), other, strict=True):
            product[tuple(sorted(a + b))] += x * y
    expected = [product[monomial] for monomial in monomials(n, left + right)]
    assert multiplied(n, left, right, one, other).tolist() == expected


# Packing, unpacking and factorials.


def test_places_by_hand() -> None:
    assert unpacked_places(2, 2) == (0, 1, 1, 2)
    assert unpacked_places(3, 2) == (0, 1, 2, 1, 3, 4, 2, 4, 5)
    assert unpacked_places(2, 3) == (0, 1, 1, 2, 1, 2, 2, 3)
    assert unpacked_places(1, 4) == (0,)
    assert unpacked_places(3, 1) == (0, 1, 2)
    assert unpacked_places(3, 0) == (0,)
    assert unpacked_places(0, 2) == ()


def test_factorials_by_hand() -> None:
    assert factorials(2, 3) == (6, 2, 2, 6)
    assert factorials(3, 2) == (2, 1, 1, 2, 1, 2)
    assert factorials(2, 4) == (24, 6, 4, 6, 24)
    assert factorials(1, 5) == (120,)
    assert factorials(3, 1) == (1, 1, 1)
    assert factorials(3, 0) == (1,)
    assert factorials(0, 2) == ()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_entry_is_at_as_many_places_as_its_directions_can_be_ordered(n: int, order: int) -> None:
    at = Counter(unpacked_places(n, order))
    assert sum(at.values()) == n**order
    assert [at[place] for place in range(count(n, order))] == [factorial(order) // f for f in factorials(n, order)]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("order", ORDERS)
def test_a_product_of_linear_forms_has_its_permuted_outer_products_for_a_derivative(n: int, order: int) -> None:
    forms = [numbers(seed, n) for seed in range(order)]
    coefficients = forms[0]
    for done in range(1, order):
        coefficients = multiplied(n, done, 1, coefficients, forms[done])
    derivative = (coefficients * factorials(n, order))[list(unpacked_places(n, order))].reshape([n] * order)
    expected = sum(reduce(np.multiply.outer, chosen) for chosen in permutations(forms))
    np.testing.assert_array_equal(derivative, expected)
