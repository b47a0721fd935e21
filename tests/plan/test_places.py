"""Places along packed axes, and factorials: by hand, and against polynomials multiplied monomial by monomial."""

from collections import Counter
from functools import reduce
from itertools import permutations
from math import factorial, prod

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from hofunc.algebra.packed import Monomial, count, monomials
from hofunc.plan import places
from hofunc.plan.places import Factorials, Multiplicities, Places

SIZES = [0, 1, 2, 3, 5]
ORDERS = [1, 2, 3, 4, 5]


def product_places(n: int, left: int, right: int) -> list[int]:
    return Places(n, (left, right)).made().tolist()


def factorials(n: int, order: int) -> list[int]:
    return Factorials(n, order).made().tolist()


def unpacked_places(n: int, order: int) -> list[int]:
    return Places.unpacked(n, order).made().tolist()


def numbers(seed: int, size: int) -> np.ndarray:
    """Return small whole numbers, so that all sums are exact."""
    return np.random.default_rng(seed).integers(-5, 6, size)


def multiplied(n: int, left: int, right: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Multiply two packed homogeneous polynomials in n directions, of orders left and right, at the places given."""
    result = np.zeros(count(n, left + right), dtype=int)
    np.add.at(result, np.array(product_places(n, left, right), dtype=int), np.outer(one, other).reshape(-1))
    return result


# Products.


def test_products_by_hand() -> None:
    """The products of (x, y) with (xx, xy, yy) are (xxx, xxy, xyy) and (xxy, xyy, yyy)."""
    assert product_places(2, 1, 2) == [0, 1, 2, 1, 2, 3]
    assert product_places(2, 2, 1) == [0, 1, 1, 2, 2, 3]
    assert product_places(1, 2, 3) == [0]
    assert product_places(3, 0, 1) == [0, 1, 2]
    assert product_places(0, 0, 0) == [0]
    assert product_places(0, 1, 1) == []


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


# Symmetric axes.


def test_places_by_hand() -> None:
    assert unpacked_places(2, 2) == [0, 1, 1, 2]
    assert unpacked_places(3, 2) == [0, 1, 2, 1, 3, 4, 2, 4, 5]
    assert unpacked_places(2, 3) == [0, 1, 1, 2, 1, 2, 2, 3]
    assert unpacked_places(1, 4) == [0]
    assert unpacked_places(3, 1) == [0, 1, 2]
    assert unpacked_places(3, 0) == [0]
    assert unpacked_places(0, 2) == []


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
    derivative = (coefficients * np.array(factorials(n, order), dtype=int))[unpacked_places(n, order)].reshape(
        [n] * order
    )
    expected = sum(reduce(np.multiply.outer, chosen) for chosen in permutations(forms))
    np.testing.assert_array_equal(derivative, expected)


@pytest.mark.parametrize("orders", [(), (0,), (3,), (2, 1, 1), (0, 2, 0, 1)])
def test_of_any_number_of_factors(orders: tuple[int, ...]) -> None:
    factors = [monomials(3, order) for order in orders]
    start: list[Monomial] = [()]
    products = reduce(lambda one, other: [(*a, *b) for a in one for b in other], factors, start)
    at = {monomial: place for place, monomial in enumerate(monomials(3, sum(orders)))}
    wanted = Places(3, orders)
    assert wanted.made().tolist() == [at[tuple(sorted(product))] for product in products]
    assert len(wanted) == len(products)


# Factorials.


def test_factorials_by_hand() -> None:
    assert factorials(2, 3) == [6, 2, 2, 6]
    assert factorials(3, 2) == [2, 1, 1, 2, 1, 2]
    assert factorials(2, 4) == [24, 6, 4, 6, 24]
    assert factorials(1, 5) == [120]
    assert factorials(3, 1) == [1, 1, 1]
    assert factorials(3, 0) == [1]
    assert factorials(0, 2) == []


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("order", [0, *ORDERS])
def test_factorials_are_those_of_how_often_each_direction_is_there(n: int, order: int) -> None:
    expected = [prod(map(factorial, Counter(monomial).values())) for monomial in monomials(n, order)]
    assert factorials(n, order) == expected


# Where they are asked for.


def test_small_ones_are_kept_and_large_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Places(4, (1, 2)).made() is Places(4, (1, 2)).made()
    monkeypatch.setattr(places, "SMALL", 39)
    assert Places(4, (1, 2)).made() is not Places(4, (1, 2)).made()


def test_they_are_plain_tensors_whatever_modes_they_are_asked_for_in() -> None:
    """Those that are kept serve calls outside of these modes."""
    with torch.inference_mode(), FakeTensorMode(), torch.device("meta"):
        found = Places(7, (3, 1)).made()
    assert type(found) is torch.Tensor
    assert found.device.type == "cpu"
    assert not found.is_inference()
    assert torch.equal(found, Places(7, (3, 1)).computed())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", SIZES)
def test_multiplicities_count_the_entries(n: int, order: int) -> None:
    counts = np.bincount(unpacked_places(n, order), minlength=count(n, order)).tolist()
    assert Multiplicities(n, order).made().tolist() == counts
    assert len(Multiplicities(n, order)) == len(counts)
