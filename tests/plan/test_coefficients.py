"""Coefficients that note what becomes of them, and what that makes of others."""

from math import inf, nan

import pytest
import torch

from hofunc.errors import InternalError
from hofunc.plan.coefficients import Arithmetic, settled


def test_what_is_done_with_some_numbers_is_done_with_others() -> None:
    arithmetic = Arithmetic([2, 3.0, 5])
    one, other, third = arithmetic.given
    made = [1 + one, one - 1, 7 - one, one * other, 6 * one, one / other, 1 / third, -one, abs(-other), abs(third)]
    for numbers in ([2, 3.0, 5], [0.5, 4.0, 7]):
        found = arithmetic.with_numbers(numbers)
        assert found is not None
        a, b, c = numbers
        expected = [1 + a, a - 1, 7 - a, a * b, 6 * a, a / b, 1 / c, -a, b, c]
        assert [found[number.place] for number in made] == expected


def test_numbers_that_compare_otherwise_are_not_done_the_same_with() -> None:
    arithmetic = Arithmetic([2, 3.0])
    one, other = arithmetic.given
    assert one != other
    assert one
    assert 1 < one <= 2 < other < 4
    assert one in (1, 2)
    assert other not in (1, 2)
    assert arithmetic.with_numbers([2, 3.5]) is not None
    for numbers in ([2.5, 3.0], [2, 4], [2, 2], [0, 3.0], [inf, 3.0], [2, nan]):
        assert arithmetic.with_numbers(numbers) is None


def test_numbers_that_were_not_compared_may_be_equal() -> None:
    arithmetic = Arithmetic([2, 3.0])
    one, other = arithmetic.given
    weights = {one: "one", other: "other"}
    assert weights[other] == "other"
    total = one + other
    found = arithmetic.with_numbers([3.0, 3.0])
    assert found is not None
    assert found[total.place] == 6


def test_what_needs_plain_numbers_gets_them_and_holds_for_equal_ones_alone() -> None:
    arithmetic = Arithmetic([2, 3.0, 4.0])
    one, other, _ = arithmetic.given
    assert settled((1, (one, torch.Size((2,))), "text")) == (1, (2, (2,)), "text")
    assert float(other) == 3
    assert arithmetic.with_numbers([2, 3.0, 5.0]) is not None
    assert arithmetic.with_numbers([2.5, 3.0, 4.0]) is None
    assert arithmetic.with_numbers([2, 3.5, 4.0]) is None


def test_coefficients_of_other_terms_are_refused() -> None:
    (one,), (other,) = Arithmetic([2]).given, Arithmetic([3]).given
    with pytest.raises(InternalError, match="one of other terms"):
        one + other


def test_coefficients_of_a_recipe_that_is_part_of_another_one() -> None:
    """The numbers of the inner one note what becomes of them in the outer one, which are those that are compared."""
    whole = Arithmetic([2.0])
    part = Arithmetic([whole.given[0] * 3])
    assert settled(part.given[0] + 1) == 7
    assert whole.with_numbers([2.0]) is not None
    assert whole.with_numbers([2.5]) is None
