"""Coefficients that note what becomes of them, so that it is done again with others, see `hofunc.plan.recipes`.

The steps of a loop whose factors differ have derivatives of the same axes, times other numbers. What becomes of terms
is worked out for the first ones with coefficients that note what is made of them, and what they tell where they are
compared. It is what becomes of all others that compare likewise.
"""

from collections.abc import Callable, Sequence
from math import isnan
from operator import add, eq, ge, gt, le, lt, mul, ne, sub, truediv
from typing import Any, NamedTuple

from hofunc.errors import InternalError


class _Operation(NamedTuple):
    """An operation with two numbers, by their places among all there are.

    Attributes:
        function: What is done; None where the first one is no place, but a number that is there in any case.
        one: The first.
        other: The second.
        told: What a comparison told; None if a number was made.
    """

    function: Callable[[Any, Any], Any] | None
    one: Any
    other: int
    told: bool | None


class Arithmetic:
    """What is done with coefficients.

    Args:
        numbers: Those that are given.

    Attributes:
        given: They as coefficients that note what becomes of them.
        count: How many there are, with those that were made of them.
    """

    def __init__(self, numbers: Sequence[float]):
        self.given = [Coefficient(self, place, number) for place, number in enumerate(numbers)]
        self.count = len(numbers)
        self._operations: list[_Operation] = []
        self._known: dict[tuple, Any] = {}

    def with_numbers(self, numbers: Sequence[float]) -> list[float] | None:
        """Return other numbers and all that are made of them, by their places; None if these compare otherwise."""
        found: list[Any] = [*numbers]
        for function, one, other, told in self._operations:
            if function is None:
                found.append(one)
            elif told is None:
                found.append(function(found[one], found[other]))
            elif function(found[one], found[other]) is not told:
                return None
        return found

    def noted(self, function: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
        """Return what a function makes of two numbers, or tells of them."""
        key = function, self._place_of(one), self._place_of(other)
        if key not in self._known:
            result = function(_value(one), _value(other))
            told = result if isinstance(result, bool) else None
            self._operations.append(_Operation(*key, told))
            self._known[key] = self._new(result) if told is None else result
        return self._known[key]

    def _new(self, number: float) -> "Coefficient":
        self.count += 1
        return Coefficient(self, self.count - 1, number)

    def _place_of(self, number: Any) -> int:
        if type(number) is not Coefficient:
            key = type(number), number
            if key not in self._known:
                self._operations.append(_Operation(None, number, 0, None))
                self._known[key] = self._new(number)
            number = self._known[key]
        if number.arithmetic is not self:
            raise InternalError("hofunc.plan: a coefficient", got="one of other terms", expected="one of the terms")
        return number.place


class Coefficient:
    """A number that notes what is done with it.

    Args:
        arithmetic: Where.
        place: Its place among all numbers of that.
        value: What it is.
    """

    __slots__ = ("arithmetic", "place", "value")

    def __init__(self, arithmetic: Arithmetic, place: int, value: float):
        self.arithmetic, self.place, self.value = arithmetic, place, value

    def __add__(self, other: Any) -> Any:
        return self.arithmetic.noted(add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self.arithmetic.noted(add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self.arithmetic.noted(sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.arithmetic.noted(sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self.arithmetic.noted(mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.arithmetic.noted(mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.arithmetic.noted(truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.arithmetic.noted(truediv, other, self)

    def __neg__(self) -> Any:
        return self * -1

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __eq__(self, other: object) -> Any:
        return self.arithmetic.noted(eq, self, other)

    def __ne__(self, other: object) -> Any:
        return self.arithmetic.noted(ne, self, other)

    def __lt__(self, other: Any) -> Any:
        return self.arithmetic.noted(lt, self, other)

    def __le__(self, other: Any) -> Any:
        return self.arithmetic.noted(le, self, other)

    def __gt__(self, other: Any) -> Any:
        return self.arithmetic.noted(gt, self, other)

    def __ge__(self, other: Any) -> Any:
        return self.arithmetic.noted(ge, self, other)

    def __hash__(self) -> int:  # of two that hash alike it is noted whether they are equal; others differ or not
        return hash(self.value)

    def __bool__(self) -> Any:
        return self != 0

    def __float__(self) -> float:
        return float(settled(self))


def _value(number: Any) -> Any:
    return number.value if type(number) is Coefficient else number


def settled(tree: Any) -> Any:
    """Return nested tuples with plain numbers for coefficients, which others are to be equal to for the same."""
    if type(tree) is Coefficient:
        value = settled(tree.value)  # which notes what it becomes itself where a recipe is part of another one
        is_nan = isinstance(value, float) and isnan(value)
        tree.arithmetic.noted(ne if is_nan else eq, tree, tree if is_nan else value)
        return value
    if not isinstance(tree, tuple) or not _has_any(tree):
        return tree
    items = map(settled, tree)
    return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)


def _has_any(tree: tuple) -> bool:
    return any(type(item) is Coefficient or (isinstance(item, tuple) and _has_any(item)) for item in tree)
