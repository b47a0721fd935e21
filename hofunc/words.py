"""What is told of plans in words: names of ops, shapes, and amounts in the unit that suits them."""

from collections.abc import Iterable
from typing import Any

from hofunc.graph.node import Call
from hofunc.internals import OpOverload


def op_name(op: Any) -> str:
    """Return what an op, or the function of a step, is called."""
    while isinstance(op, Call):
        op = op.op
    return str(op) if isinstance(op, str | OpOverload) else getattr(op, "__name__", str(op))


def shape_text(shape: Iterable[int]) -> str:
    """Return a shape as text: ``5x3``."""
    return "x".join(map(str, shape)) or "()"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun, of which the plural is regular but for axes: ``1 axis``, ``2 axes``."""
    several = "axes" if noun == "axis" else f"{noun}s"
    return f"{number} {noun if number == 1 else several}"


def percent(share: float) -> str:
    """Return a share as text: ``12%``."""
    return f"{100 * share:.0f}%"


def count(number: float) -> str:
    """Return a large number as text: ``1.2 M``."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def size_text(number: int) -> str:
    """Return a number of bytes as text: ``1.2 MB``."""
    text = count(number)
    return f"{text}B" if text[-1].isalpha() else f"{text} B"


def time_text(seconds: float) -> str:
    """Return a time as text: ``1.2 ms``."""
    return f"{1e3 * seconds:.3g} ms"
