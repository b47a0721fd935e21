"""Packed symmetric axes: one index for every multiset of directions, in place of one axis for every differentiation.

A Taylor polynomial in n directions has, at order m, one coefficient for each of the C(n + m - 1, m) monomials of degree
m. An axis that runs over them, in lexicographic order, is the packed form of m symmetric axes of size n. An entry is
the derivative by the monomial's directions divided by the monomial's factorial, so that a product of polynomials needs
no binomial coefficients.
"""

from collections.abc import Iterable, Sequence
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


@lru_cache(maxsize=256)
def product_places(n: int, left: int, right: int) -> tuple[int, ...]:
    """Say where the products of all monomials of one order with all of another lie among those of their sum.

    The left factor varies slowest, so that this is the row-major order of an outer product.
    """
    if left == 0:
        return tuple(range(count(n, right)))
    inner, others = count(n, right), product_places(n, left - 1, right)
    parts = (others[_first(n, left - 1, direction) * inner :] for direction in range(n))
    return _through(_rows(n, left + right - 1), parts)


@lru_cache(maxsize=256)
def unpacked_places(n: int, order: int) -> tuple[int, ...]:
    """Say where, in the packed axis, each entry of the row-major order of its symmetric axes lies."""
    if order == 0:
        return (0,)
    return _through(_rows(n, order - 1), repeat(unpacked_places(n, order - 1), n))


def factorials(n: int, order: int) -> tuple[int, ...]:
    """Return the factorial of every monomial: derivative over Taylor coefficient."""
    return _factorials(n, order)[0]


def _first(n: int, order: int, direction: int) -> int:
    """Return the place of the first monomial without directions before one; those behind it have none either."""
    return count(n, order) - count(n - direction, order)


@lru_cache(maxsize=256)
def _rows(n: int, order: int) -> list[list[int]]:
    """Say, for every direction, where its product with each monomial of an order lies among those of one order more.

    A direction that is not behind the first of the monomial comes first itself. Of others that first direction stays,
    and they are multiplied with the rest: monomials with one first direction have all rests without any before it.
    """
    if order == 0:
        return [[direction] for direction in range(n)]
    # where the rests of those with a first direction start, and how much further back they lie with it before them
    firsts = [(_first(n, order - 1, d), _first(n, order + 1, d) - _first(n, order, d)) for d in range(n)]
    found = []
    for direction, before in enumerate(_rows(n, order - 1)):
        row = [place + more for start, more in firsts[:direction] for place in before[start:]]
        more = firsts[direction][1]
        found.append([*row, *range(len(row) + more, count(n, order) + more)])
    return found


def _through(rows: Sequence[Sequence[int]], parts: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the entries of rows at the places that a part gives of each."""
    return tuple([row[place] for row, part in zip(rows, parts, strict=True) for place in part])


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
