"""Extents that are proportional to the number of rows, so that a plan for all rows serves for any number of them."""

from typing import Any


class UnevenError(Exception):
    """An extent depends on the number of rows in another way than by a factor, so that rows cannot be taken apart."""


class Rows(int):
    """An int that is a factor times a number of rows, and stays one under multiplication.

    What else is done to it gives an int that knows no number of rows; whoever asks it for one gets an UnevenError.

    Attributes:
        factor: The factor, None if there is none.
    """

    factor: int | None

    def __new__(cls, rows: int, factor: int | None = 1) -> "Rows":
        """Return factor * rows; without a factor, rows as it is."""
        self = super().__new__(cls, rows if factor is None else rows * factor)
        self.factor = factor
        return self

    @property
    def _rows(self) -> int:
        return int(self) if not self.factor else int(self) // self.factor

    def of(self, rows: int) -> int:
        """Return what the extent is for another number of rows.

        Raises:
            UnevenError: It is not proportional.
        """
        if self.factor is None:
            raise UnevenError
        return self.factor * rows

    def __mul__(self, other: int) -> "Rows":
        if not isinstance(other, int):
            return NotImplemented
        if isinstance(other, Rows) or self.factor is None:
            return Rows(int(self) * int(other), None)
        return Rows(self._rows, self.factor * other)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        if isinstance(other, Rows):
            even = bool(self.factor and other.factor) and self._rows == other._rows
            return int(self) // int(other) if even else Rows(int(self) // int(other), None)
        if self.factor is None or self.factor % other:
            return Rows(int(self) // other, None)
        return Rows(self._rows, self.factor // other)

    def __mod__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        remainder = int(self) % int(other)
        return remainder if remainder == 0 else Rows(remainder, None)

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def __sub__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        if isinstance(other, Rows) and (self.factor, int(self)) == (other.factor, int(other)):
            return 0
        return self if int(other) == 0 else Rows(int(self) - int(other), None)

    def __rsub__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        return Rows(int(other) - int(self), None)

    def __add__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        return self if int(other) == 0 else Rows(int(self) + int(other), None)

    __radd__ = __add__

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self._rows, self.factor)

    def __rfloordiv__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        return Rows(int(other) // int(self), None)

    def __rmod__(self, other: int) -> int:
        if not isinstance(other, int):
            return NotImplemented
        remainder = int(other) % int(self)
        return remainder if remainder == 0 else Rows(remainder, None)

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        return other // self, other % self


def sized(value: Any, rows: int) -> Any:
    """Replace every extent of nested tuples by what it is for another number of rows.

    Raises:
        UnevenError: One is not proportional.
    """
    if isinstance(value, Rows):
        return value.of(rows)
    if not has_rows(value):
        return value
    items = [sized(item, rows) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


_LEAF, _NESTED, _ROWS = 0, 1, 2
_kinds: dict[type, int] = {int: _LEAF, tuple: _NESTED, Rows: _ROWS}


def has_rows(value: Any) -> bool:
    """Tell whether there is an extent of rows in nested tuples."""
    if not isinstance(value, tuple):
        return isinstance(value, Rows)
    for item in value:
        kind = _kinds.get(type(item))
        if kind is None:
            kind = _kinds[type(item)] = _ROWS if isinstance(item, Rows) else _NESTED * isinstance(item, tuple)
        if kind and (kind == _ROWS or has_rows(item)):
            return True
    return False


def distinct(value: Any) -> Any:
    """Replace every extent of rows in nested tuples by what is unlike an int, and unlike extents of other factors."""
    if type(value) is int:
        return value
    if isinstance(value, Rows):
        return Rows, int(value), value.factor
    return tuple(map(distinct, value)) if has_rows(value) else value


def plain(value: Any) -> Any:
    """Replace every extent of nested tuples by an int that knows no rows."""
    if isinstance(value, Rows):
        return int(value)
    if not has_rows(value):
        return value
    items = [plain(item) for item in value]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
