"""Packed symmetric axes: one index for every multiset of directions, in place of one axis for every differentiation.

A Taylor polynomial in n directions has, at order m, one coefficient for each of the C(n + m - 1, m) monomials of degree
m. An axis that runs over them, in lexicographic order, is the packed form of m symmetric axes of size n. An entry is
the derivative by the monomial's directions divided by the monomial's factorial, so that a product of polynomials needs
no binomial coefficients.
"""

from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

Monomial = tuple[int, ...]


def count(n: int, order: int) -> int:
    """Return how many monomials of an order in n directions there are."""
    return comb(n + order - 1, order) if n else int(order == 0)


@lru_cache(maxsize=256)
def monomials(n: int, order: int) -> tuple[Monomial, ...]:
    """List the monomials of an order in n directions, each as its directions in ascending order."""
    return tuple(combinations_with_replacement(range(n), order))
