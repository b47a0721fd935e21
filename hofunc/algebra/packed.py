"""Packed symmetric axes: one index for every multiset of directions, in place of one axis for every differentiation.

A Taylor polynomial in n directions has, at order m, one coefficient for each of the C(n + m - 1, m) monomials of degree
m. An axis that runs over them, in lexicographic order, is the packed form of m symmetric axes of size n. An entry is
the derivative by the monomial's directions divided by the monomial's factorial, so that a product of polynomials needs
no binomial coefficients.
"""

from functools import lru_cache
from itertools import combinations_with_replacement, repeat
from math import comb
from operator import mul

Monomial = tuple[int, ...]


def count(n: int, order: int) -> int:
    """Return how many monomials of an order in n directions there are."""
    return comb(n + order - 1, order) if n else int(order == 0)


@lru_cache(maxsize=256)
def monomials(n: int, order: int) -> tuple[Monomial, ...]:
    """List the monomials of an order in n directions, each as its directions in ascending order."""
    return tuple(combinations_with_replacement(range(n), order))


def factorials(n: int, order: int) -> tuple[int, ...]:
    """Return the factorial of every monomial: derivative over Taylor coefficient."""
    return _factorials(n, order)[0]


def _first(n: int, order: int, direction: int) -> int:
    """Return the place of the first monomial without directions before one; those behind it have none either."""
    return count(n, order) - count(n - direction, order)


@lru_cache(maxsize=256)
def _factorials(n: int, order: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the factorial of every monomial, and how often each has its first direction."""
    if order == 0:
        return (1,), (0,)
    of_rests, often = _factorials(n, order - 1)
    times: list[int] = []
    found: list[int] = []
    for direction in range(n):
        start = _first(n, order - 1, direction)
        same = _first(n, order - 1, direction + 1) if order > 1 else start  # those up to it have the direction first
        more = [*(number + 1 for number in often[start:same]), *repeat(1, len(often) - same)]
        found += map(mul, of_rests[start:], more)
        times += more
    return tuple(found), tuple(times)
