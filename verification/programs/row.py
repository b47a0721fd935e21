"""Rows of the table of ops: how each is written, on what shapes, and where it is smooth."""

import math
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from verification.programs.domain import EVERYWHERE, Domain

Shape = tuple[int, ...]
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Row:
    """An op, or a few that belong together.

    Attributes:
        name: Under which it is counted.
        arity: How many operands it has.
        uses: From the shapes of the operands, all ways to write it, none where it does not fit them. Each is an
            expression, or statements that end with ``{out}`` being the result. ``{0}``, ``{1}`` ... are the operands,
            ``{w:2,3}`` a captured tensor of random numbers of that shape, ``{r:2,3}`` one of a ramp, ``{i:1,0}`` one
            of those integers.
        domain: Where it is smooth.
        tolerance: How exact torch itself is, relative to the largest entry.
    """

    name: str
    arity: int
    uses: Callable[..., Sequence[str]]
    domain: Domain = EVERYWHERE
    tolerance: float = TOLERANCE

    @cache  # noqa: B019 - rows live as long as the table
    def fitting(self, *shapes: Shape) -> tuple[str, ...]:
        """Return all ways to write the op on operands of these shapes."""
        return tuple(self.uses(*shapes))


def row(
    name: str,
    *uses: str,
    domain: Domain = EVERYWHERE,
    where: Callable[..., bool] | None = None,
    tolerance: float = TOLERANCE,
) -> Row:
    """Return a row of expressions that do not depend on the shapes, but for whether they fit.

    Args:
        name: Its name.
        uses: The expressions, all of the same operands.
        domain: Where they are smooth.
        where: Whether they fit operands of these shapes; by default all that broadcast.
        tolerance: How exact torch is.
    """
    fits = where or broadcastable
    return Row(name, operands_of(uses[0]), lambda *shapes: uses if fits(*shapes) else (), domain, tolerance)


def shaped(
    name: str,
    uses: Callable[..., Sequence[str] | Iterator[str]],
    *,
    domain: Domain = EVERYWHERE,
    tolerance: float = TOLERANCE,
) -> Row:
    """Return a row of expressions made from the shapes of the operands, which are the arguments of the function."""
    return Row(name, uses.__code__.co_argcount, lambda *shapes: tuple(uses(*shapes)), domain, tolerance)


def along(name: str, *calls: str, domain: Domain = EVERYWHERE, least: int = 1) -> Row:
    """Return a row of ops along one axis, whichever it is.

    Args:
        name: Its name.
        calls: Each with ``{}`` in place of the axis, and ``{{0}}`` for the operand.
        domain: Where they are smooth.
        least: Size of the smallest axis that they can be applied to.
    """
    return Row(name, 1, lambda x: tuple(call.format(dim) for call in calls for dim in dims(x, least)), domain)


def operands_of(use: str) -> int:
    """Return how many operands an expression has."""
    fields = {field for _, field, _, _ in string.Formatter().parse(use) if field is not None and field.isdigit()}
    return len(fields)


# Shapes.


def broadcastable(*shapes: Shape) -> bool:
    """Tell whether shapes broadcast."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return all(len({size for size in sizes if size != 1}) < 2 for sizes in zip(*padded, strict=True))


def expandable(small: Shape, large: Shape) -> bool:
    """Tell whether a tensor of the one shape expands to the other."""
    return len(small) <= len(large) and all(
        size in {1, other} for size, other in zip(small[::-1], large[::-1], strict=False)
    )


def equal(*shapes: Shape) -> bool:
    """Tell whether all shapes are the same."""
    return len(set(shapes)) == 1


def of_rank(*ranks: int) -> Callable[..., bool]:
    """Return a function that tells whether the shapes have these ranks, one each."""
    return lambda *shapes: tuple(map(len, shapes)) == ranks


def dims(shape: Shape, least: int = 1) -> list[int]:
    """Return the dims of at least some size, counted from both ends."""
    return [dim for dim in range(-len(shape), len(shape)) if shape[dim] >= least]


def listed(shape: Sequence[int]) -> str:
    """Write a shape as the arguments of a function."""
    return ", ".join(map(str, shape))


@cache
def same_size(numel: int, rank: int = 3) -> tuple[Shape, ...]:
    """Return all shapes of a number of elements."""
    return tuple(
        shape
        for length in range(rank + 1)
        for shape in product(range(1, numel + 1), repeat=length)
        if math.prod(shape) == numel and shape.count(1) < 3
    )
