"""What options are given: one check for every kind of value, and what is said of one that is of no such kind."""

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NoReturn

from hofunc.errors import ArgumentError

MOST_ORDERS = 170  # the factorial of 171 is no double-precision number
_LONGEST = 80  # characters of a value that are shown


def refuse(name: str, what: str, got: str, expected: str, remedy: str) -> NoReturn:
    """Raise the error of a transform about what it was given."""
    raise ArgumentError(f"{name}: {what}", got=got, expected=expected, remedy=remedy)


def shown(given: Any) -> str:
    """Return as text what was given: short, and without the entries of arrays."""
    shape = getattr(given, "shape", None)
    if shape is not None and not isinstance(given, type):
        return f"{type(given).__name__} of shape {tuple(shape)}"
    if isinstance(given, int) and given.bit_length() > _LONGEST * 3:
        return f"an int of {given.bit_length()} bits"
    text = repr(given)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def check_flag(name: str, what: str, given: Any) -> None:
    """Check that an option is on or off.

    Raises:
        ArgumentError: It is no bool.
    """
    if type(given) is not bool:
        refuse(name, what, shown(given), "True or False", "Leave it out if in doubt.")


def check_choice(name: str, what: str, given: Any, choices: Sequence[str | bool], remedy: str) -> None:
    """Check that an option is one of some words.

    Raises:
        ArgumentError: It is none of them.
    """
    if type(given) not in {str, bool} or given not in choices:
        refuse(name, what, shown(given), f"one of {choices}", remedy)


def check_amount(name: str, what: str, given: Any, least: int, remedy: str) -> None:
    """Check that an option is a whole number, of at least some size.

    Raises:
        ArgumentError: It is no int, or less.
    """
    if type(given) is not int or given < least:
        refuse(name, what, shown(given), f"an int of at least {least}", remedy)


def check_order(name: str, order: Any) -> None:
    """Check that there are derivatives of an order.

    Raises:
        ArgumentError: It is no positive int, or so large that its factorial is no floating-point number.
    """
    check_amount(name, "order", order, 1, "The value itself is f(x), or derivatives()[0].")
    if order > MOST_ORDERS:
        expected = f"at most {MOST_ORDERS}, above which the factorial is no double-precision number"
        refuse(name, "order", shown(order), expected, "Take a lower order.")


def check_tolerance(name: str, what: str, given: Any) -> None:
    """Check that an option is None, or how far off something may be.

    Raises:
        ArgumentError: It is something else.
    """
    if given is not None and (type(given) not in {int, float} or not given >= 0):
        refuse(name, what, shown(given), "a number of at least 0, or None", "Leave it out if in doubt.")


def path_of(name: str, given: Any) -> Path:
    """Return what names a file or folder.

    Raises:
        ArgumentError: It is no path of characters.
    """
    if not isinstance(given, str | PathLike) or not isinstance(fspath(given), str):
        refuse(name, "path", shown(given), "a str or pathlib.Path", "Pass the name of a file or folder.")
    return Path(given)


def listed(name: str, what: str, given: Any, expected: str, remedy: str) -> tuple[Any, ...]:
    """Return the entries of what is a collection.

    Raises:
        ArgumentError: It has no entries to go through.
    """
    try:
        return tuple(given)
    except TypeError:
        refuse(name, what, shown(given), expected, remedy)
