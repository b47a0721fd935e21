"""Sources of factors that are applied rather than built: Kronecker deltas and linear maps along axes."""

from collections.abc import Callable
from typing import NamedTuple


class Delta:
    """One where the indices of the factor's two axes are equal, zero elsewhere."""


class Map(NamedTuple):
    """A linear map, known by what it does to a tensor; its matrix is never built if that can be helped.

    The axes of its factor are those of its output, then those of its input, then those along which it acts
    separately. ``forward(t, *args)`` takes a tensor whose last dimensions are the separate ones and those of the
    input, and returns the same with those of the output in their place; ``transpose`` takes it back.

    Attributes:
        forward: Applies the map.
        transpose: Applies its transpose.
        args: Arguments of both, tensors as what names them.
        outs: Number of output axes.
        ins: Number of input axes.
    """

    forward: Callable
    transpose: Callable
    args: tuple
    outs: int = 1
    ins: int = 1


DELTA = Delta()
