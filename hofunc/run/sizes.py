"""Numbers in terms of sizes: of what a number is for a few sizes, what it is for all.

What is found from some of them has to be right for the others. A number that is no form is nobody's for other sizes.
"""

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import copysign, isclose, prod
from operator import add
from typing import Any, NamedTuple

Sizes = tuple[int, ...]
SPARE = 3  # for how many sizes a form has to be right beyond those that it is found from
_MOST_POWERS = 6  # of sizes in a product
_CLOSE = 2e-15  # what is a form in floats is rounded a few times
_NEAR = 1e-11  # and more often before its coefficients are known


class Form(NamedTuple):
    """A number in terms of sizes: a sum of coefficients times powers, or a power of that with a sign."""

    terms: tuple[tuple[Any, Sizes], ...]
    power: int = 1
    sign: int = 1

    def at(self, sizes: Sizes) -> Any:
        """Return the number for some sizes."""
        total = sum(coefficient * _power(sizes, powers) for coefficient, powers in self.terms)
        return self.sign * total**self.power if self.power > 0 else self.sign / total**-self.power


def form_of(values: Sequence[float], sizes: Sequence[Sizes]) -> Form | None:
    """Return the form that is a number for each of some sizes, None if there is none to be found."""
    is_whole = all(isinstance(value, int) for value in values)
    for form in _whole(values, sizes) if is_whole else _fractional(values, sizes):
        if form.terms and all(_is(form.at(size), value) for size, value in zip(sizes, values, strict=True)):
            return form
    return None


def _is(got: Any, value: float) -> bool:
    return got == value if isinstance(value, int) else isclose(got, value, rel_tol=_CLOSE)


def _whole(values: Sequence[float], sizes: Sequence[Sizes]) -> Iterator[Form]:
    """Yield forms in integers that are right for the first sizes: a product, one and a constant, or a sum of sizes."""
    nothing = (0,) * len(sizes[0])
    if len(sizes) >= 2 + SPARE - 1:
        for powers in _products(len(nothing), least=0):
            yield Form(((values[0] // _power(sizes[0], powers), powers),))
    if len(sizes) >= 2 + SPARE:
        for powers in _products(len(nothing), least=0):
            difference = _power(sizes[1], powers) - _power(sizes[0], powers)
            if difference and (factor := (values[1] - values[0]) // difference):
                yield Form(((factor, powers), (values[0] - factor * _power(sizes[0], powers), nothing)))
    for powers in (nothing, *_products(len(nothing), least=0)):
        coefficients = _solved(values, sizes, powers)
        if coefficients is not None and all(each.denominator == 1 for each in coefficients):
            yield _sum(map(int, coefficients), powers)


def _fractional(values: Sequence[float], sizes: Sequence[Sizes]) -> Iterator[Form]:
    """Yield forms in floats that are right for the first sizes: a product or quotient, a sum, or one over its power."""
    nothing = (0,) * len(sizes[0])
    for powers in _products(len(nothing), least=-_MOST_POWERS):
        yield Form(((_simple(values[0] / _power(sizes[0], powers)), powers),))
    signs = [*{copysign(1, value) for value in values}]
    for powers in (nothing, *_products(len(nothing), least=0)):
        for power in (1, -1, -2, -3) if len(signs) == 1 and 0.0 not in values else (1,):
            sign = 1 if power == 1 else signs[0]
            roots = values if power == 1 else [abs(value) ** (1 / power) for value in values]
            coefficients = _solved(roots, sizes, powers)
            if coefficients is not None:
                form = _sum(map(_simple, map(float, coefficients)), powers)
                yield form._replace(power=power, sign=int(sign))


def _products(count: int, least: int) -> Iterator[Sizes]:
    """Yield the powers of products of sizes, those of few factors first."""
    every = product(range(least, _MOST_POWERS + 1), repeat=count)
    few = [powers for powers in every if 0 < sum(map(abs, powers)) <= _MOST_POWERS]
    return iter(sorted(few, key=lambda powers: sum(map(abs, powers))))


def _power(sizes: Sizes, powers: Sizes) -> Any:
    over = prod(size**-power for size, power in zip(sizes, powers, strict=True) if power < 0)
    whole = prod(size**power for size, power in zip(sizes, powers, strict=True) if power > 0)
    return whole if over == 1 else whole / over


def _simple(value: float) -> float:
    """Return the fraction of small numbers that a float is nearly, as it was computed; or else the float."""
    near = float(Fraction(value).limit_denominator(10**4))
    return near if isclose(near, value, rel_tol=_NEAR, abs_tol=_NEAR) else value


def _sum(coefficients: Iterable[Any], factor: Sizes) -> Form:
    """Return a constant and multiples of sizes, times a product of them."""
    ones = [tuple(int(place == each) for each in range(len(factor))) for place in range(-1, len(factor))]
    powers = [tuple(map(add, each, factor)) for each in ones]
    return Form(tuple(term for term in zip(coefficients, powers, strict=True) if term[0]))


def _solved(values: Sequence[float], sizes: Sequence[Sizes], factor: Sizes) -> list[Fraction] | None:
    """Return the constant and the factors of sizes in a sum, of which times a product of sizes the first values are.

    Returns:
        The constant and the factors; None if these values do not tell, or leave too few that confirm it.
    """
    count = len(factor) + 1
    if len(sizes) < count + SPARE:
        return None
    scaled = [Fraction(value) / _power(size, factor) for size, value in zip(sizes, values, strict=True)]
    rows = [[Fraction(1), *map(Fraction, size), value] for size, value in zip(sizes, scaled, strict=True)][:count]
    for column in range(count):
        pivot = next((row for row in rows[column:] if row[column]), None)
        if pivot is None:
            return None
        rows.remove(pivot)
        pivot = [each / pivot[column] for each in pivot]
        rows = [[each - row[column] * other for each, other in zip(row, pivot, strict=True)] for row in rows]
        rows.insert(column, pivot)
    return [row[-1] for row in rows]
