"""Packed symmetric axes: one index for every multiset of directions, in place of one axis for every differentiation.

A Taylor polynomial in n directions has, at order m, one coefficient for each of the C(n + m - 1, m) monomials of degree
m. An axis that runs over them, in lexicographic order, is the packed form of m symmetric axes of size n. An entry is
the derivative by the monomial's directions divided by the monomial's factorial, so that a product of polynomials needs
no binomial coefficients.
"""

from collections import Counter
from functools import lru_cache
from itertools import combinations_with_replacement, product
from math import comb, factorial, prod

Monomial = tuple[int, ...]


def count(n: int, order: int) -> int:
    """Return how many monomials of an order in n directions there are."""
    return comb(n + order - 1, order) if n else int(order == 0)


@lru_cache(maxsize=256)
def monomials(n: int, order: int) -> tuple[Monomial, ...]:
    """List the monomials of an order in n directions, each as its directions in ascending order."""
    return tuple(combinations_with_replacement(range(n), order))


@lru_cache(maxsize=256)
def _places(n: int, order: int) -> dict[Monomial, int]:
    return {monomial: place for place, monomial in enumerate(monomials(n, order))}


@lru_cache(maxsize=256)
def product_places(n: int, left: int, right: int) -> tuple[int, ...]:
    """Say where the products of all monomials of one order with all of another lie among those of their sum.

    The left factor varies slowest, so that this is the row-major order of an outer product.
    """
    places = _places(n, left + right)
    return tuple(places[tuple(sorted(one + other))] for one in monomials(n, left) for other in monomials(n, right))


@lru_cache(maxsize=256)
def unpacked_places(n: int, order: int) -> tuple[int, ...]:
    """Say where, in the packed axis, each entry of the row-major order of its symmetric axes lies."""
    places = _places(n, order)
    return tuple(places[tuple(sorted(directions))] for directions in product(range(n), repeat=order))


@lru_cache(maxsize=256)
def factorials(n: int, order: int) -> tuple[int, ...]:
    """Return the factorial of every monomial: derivative over Taylor coefficient."""
    return tuple(prod(map(factorial, Counter(monomial).values())) for monomial in monomials(n, order))
