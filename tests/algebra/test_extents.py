"""Extents that are proportional to the number of rows: never wrong for another number, and known where they can be."""

import copy
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from hofunc.algebra.extents import Rows, UnevenError, distinct, plain, sized

OPERATORS: list[Callable[[Any, Any], Any]] = [
    operator.mul,
    operator.add,
    operator.sub,
    operator.floordiv,
    divmod,
]
NUMBERS = [1, 2, 3, 4, 6, 8, 12, 30]
OTHERS: list[Callable[[int], int]] = [*(lambda rows, n=n: n for n in NUMBERS), lambda rows: rows, lambda rows: rows * 3]


def known_sizes(expression: Callable[[int], Any]) -> dict[int, Any]:
    """Return what an expression of six rows is said to be for other numbers of them, where something is said."""
    value = expression(Rows(6))
    assert plain(value) == expression(6)
    found = {}
    for rows in (1, 5, 7, 12):
        with suppress(UnevenError):
            found[rows] = sized(value, rows)
    return found


@pytest.mark.parametrize("operation", OPERATORS, ids=lambda operation: operation.__name__)
@pytest.mark.parametrize("factor", NUMBERS)
def test_whatever_is_done_to_rows_is_right_for_any_number_of_them_or_not_known(
    operation: Callable[[Any, Any], Any], factor: int
) -> None:
    for other in OTHERS:
        for expression in (
            lambda rows, other=other: operation(rows * factor, other(rows)),
            lambda rows, other=other: operation(other(rows), rows * factor),
        ):
            for rows, said in known_sizes(expression).items():
                assert said == expression(rows)


def test_products_of_rows_stay_proportional() -> None:
    merged = Rows(6) * 4
    assert merged == 24
    assert sized((merged, (4 * Rows(6), 5)), 2) == (8, (8, 5))
    assert plain((merged, 3)) == (24, 3)
    assert type(plain(merged)) is int


def test_quotients_by_what_divides_the_factor_stay_proportional() -> None:
    assert sized(Rows(6) * 12 // 4, 5) == 15
    assert sized(divmod(Rows(6) * 4, 2), 5) == (10, 0)
    assert sized((Rows(6) * 4) // 4 * 3, 1) == 3


@pytest.mark.parametrize(
    "fraction",
    [
        lambda rows: rows + 0.5,
        lambda rows: 0.5 + rows,
        lambda rows: rows - 0.5,
        lambda rows: 0.5 - rows,
        lambda rows: rows * 0.5,
        lambda rows: 0.5 * rows,
        lambda rows: rows / 4,
        lambda rows: 1 / rows,
        lambda rows: rows // 0.4,
        lambda rows: 9.5 // rows,
        lambda rows: rows % 0.7,
        lambda rows: 9.5 % rows,
        lambda rows: rows**0.5,
    ],
)
def test_with_fractions_rows_are_numbers(fraction: Callable[[Rows], float]) -> None:
    assert fraction(Rows(6)) == fraction(6)  # type: ignore[arg-type]
    assert type(fraction(Rows(6))) is float


@pytest.mark.parametrize(
    "uneven",
    [
        lambda rows: rows * rows,
        lambda rows: (rows * rows) * 2,
        lambda rows: rows + 1,
        lambda rows: 1 + rows,
        lambda rows: rows - 1,
        lambda rows: rows * 2 - rows,
        lambda rows: 7 - rows,
        lambda rows: rows // 5,
        lambda rows: rows // 2,
        lambda rows: (rows // 2) // 3,
        lambda rows: 12 // rows,
        lambda rows: 20 % rows,
        lambda rows: divmod(12, rows)[0],
        lambda rows: (rows * rows) // rows,
        lambda rows: rows // (rows + 1),
        lambda rows: rows % 5,
        lambda rows: (rows + 1) * 2,
    ],
)
def test_what_is_not_proportional_is_an_int_that_cannot_be_sized(uneven: Callable[[Rows], int]) -> None:
    assert uneven(Rows(6)) == uneven(6)  # type: ignore[arg-type]
    with pytest.raises(UnevenError):
        sized(uneven(Rows(6)), 3)


def test_extents_of_different_numbers_of_rows_have_no_quotient_that_is_known() -> None:
    for one, other in ((6, 4), (4, 6)):
        with pytest.raises(UnevenError):
            sized(Rows(one) * 12 // Rows(other), 3)


def test_a_quotient_of_many_rows_is_known() -> None:
    """Numbers beyond 256 are equal without being the same object."""
    assert sized(Rows(int("1000")) * 12 // (Rows(int("1000")) * 3), 7) == 4


def test_differences_and_quotients_that_rows_drop_out_of() -> None:
    assert type(Rows(6) - Rows(6)) is int
    assert Rows(6) - Rows(6) == 0
    assert divmod(Rows(6) * 4, Rows(6)) == (4, 0)
    assert type(Rows(6) * 4 // Rows(6)) is int


@pytest.mark.parametrize("same", [lambda rows: rows + 0, lambda rows: 0 + rows, lambda rows: rows - 0])
def test_nothing_added_leaves_rows_as_they_are(same: Callable[[Rows], Rows]) -> None:
    assert same(Rows(6)).of(2) == 2


def test_rows_without_a_factor_are_as_many_as_they_are_and_no_multiple_of_anything() -> None:
    assert Rows(6, None) == 6
    with pytest.raises(UnevenError):
        Rows(6, None).of(2)


def test_no_rows_at_all() -> None:
    empty = Rows(6, 0)
    assert empty == 0
    assert empty.of(5) == 0


@pytest.mark.parametrize("rows", [Rows(6), Rows(6) * 4, Rows(6) + 1])
def test_rows_survive_a_copy(rows: Rows) -> None:
    other = copy.deepcopy(rows)
    assert (int(other), other.factor) == (int(rows), rows.factor)


class Step(NamedTuple):
    shape: tuple[int, ...]
    name: str


def test_named_tuples_stay_what_they_are() -> None:
    step = Step((Rows(6), 2), "sum")
    assert sized(step, 3) == Step((3, 2), "sum")
    assert type(sized(step, 3)) is Step
    assert plain(step) == Step((6, 2), "sum")
    assert type(plain(step)) is Step
    assert type(plain(step).shape[0]) is int


def test_extents_of_rows_are_distinct_from_numbers_and_from_each_other() -> None:
    same = (2, ("a", (Rows(4), 3)), None)
    assert distinct(same) == distinct((2, ("a", (Rows(4), 3)), None))
    others = ((2, ("a", (4, 3)), None), (2, ("a", (Rows(2, 2), 3)), None), (2, ("a", (Rows(4, None), 3)), None))
    assert len({distinct(each) for each in (same, *others)}) == 4
    assert distinct(others[0]) is others[0]
