"""What hofunc reads of sizes that torch keeps as symbols, as in a function that is compiled for many sizes.

It imports what torch has symbols of, which takes long, and so is imported where something is compiled, and not before.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import guard_bool, guard_int, guard_scalar

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SMOOTH = (sympy.Symbol, sympy.Number, sympy.Add, sympy.Mul, sympy.Pow)
_SMOOTH_OF_TORCH = {"CleanDiv", "FloatTrueDiv", "IntTrueDiv", "PowByNatural", "ToFloat"}


class Symbols:
    """The symbols that stand for sizes among some values.

    Args:
        values: Tensors without elements, and numbers, among which is every symbol of which sizes consist.

    Attributes:
        places: Where each symbol is among the values: the place of a number, or of a tensor and then of an axis.
        numbers: The numbers that are the symbols.
        hints: The size for which each one stands now.
        fixed: The sizes of the tensors that are numbers.
    """

    def __init__(self, values: Sequence[Any]):
        found: dict[Any, tuple[tuple[int, ...], torch.SymInt]] = {}
        for place, value in enumerate(values):
            shape = enumerate(value.shape) if isinstance(value, torch.Tensor) else ()
            for where, number in (((place,), value), *(((place, axis), size) for axis, size in shape)):
                if isinstance(number, torch.SymInt) and _symbol(number) is not None:
                    found.setdefault(_symbol(number), (where, number))
        if {*found} != {symbol for each in _sizes_in(values) for symbol in each.node.expr.free_symbols}:
            found = {}  # something is not known of them
        self._names = [*found]
        self.places = [place for place, _ in found.values()]
        self.numbers = [number for _, number in found.values()]
        self.hints = tuple(int(each.node.hint) for each in self.numbers)
        every: Any = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
        self.fixed = frozenset([int(size) for size in every if isinstance(size, int) or size.node.expr.is_number])
        self._env: Any = self.numbers[0].node.shape_env if found else None

    def value(self, number: Any, sizes: Sequence[int]) -> Any:
        """Return what a number is where the symbols stand for some sizes."""
        if isinstance(number, torch.SymInt):
            return int(number.node.expr.xreplace(self._known(sizes)))
        return guard_scalar(number) if isinstance(number, SYMBOLS) else number

    def allow(self, sizes: Sequence[int]) -> bool:
        """Tell whether what was assumed of the symbols so far is true of some sizes."""
        known = self._known(sizes)
        ranges = (self._env.var_to_range[name] for name in self._names)
        if not all(bound.lower <= size <= bound.upper for bound, size in zip(ranges, sizes, strict=True)):
            return False
        return not any(guard.expr.xreplace(known) == sympy.false for guard in self._env.guards)

    def bounds(self) -> list[tuple[int, int | None]]:
        """Return the least and the largest size for which each symbol may stand, None if there is none."""
        ranges = [self._env.var_to_range[name] for name in self._names]
        return [(int(each.lower), int(each.upper) if each.upper.is_Integer else None) for each in ranges]

    def bent(self, values: Sequence[Any]) -> frozenset[int]:
        """Return which symbols something depends on by pieces, given tensors and numbers that follow from sizes.

        It may be one form of a size for small ones and another for large ones, as the less of it and 20 is.
        """
        sizes = [size for each in values for size in (each.shape if isinstance(each, torch.Tensor) else (each,))]
        every = {each.node.expr for each in sizes if isinstance(each, SYMBOLS)}
        bent = [each for each in every if not all(map(_is_smooth, sympy.preorder_traversal(each)))]
        names = {name for each in bent for name in each.free_symbols}
        return frozenset(number for number, name in enumerate(self._names) if name in names)

    def _known(self, sizes: Sequence[int]) -> dict[Any, Any]:
        return {name: sympy.Integer(size) for name, size in zip(self._names, sizes, strict=True)}


def fix(values: Sequence[Any]) -> None:
    """Let symbols stand for what they stand for now: what is compiled holds for that alone."""
    for each in _sizes_in(values):
        guard_int(each)


def tie(values: Sequence[torch.SymInt], least: int) -> None:
    """Let symbols that stand for equal sizes be one, that is not less than another: what is compiled holds for that."""
    guard_bool(values[0] >= least)
    for each in values[1:]:
        guard_bool(each == values[0])


def _is_smooth(part: Any) -> bool:
    """Tell whether a part of an expression is the same form of all sizes."""
    return isinstance(part, _SMOOTH) or type(part).__name__ in _SMOOTH_OF_TORCH


def _symbol(number: torch.SymInt) -> Any:
    """Return the symbol that a number is, None if it is something else."""
    expression = number.node.expr
    return expression if isinstance(expression, sympy.Symbol) and number.node.hint is not None else None


def _sizes_in(values: Sequence[Any]) -> Iterator[torch.SymInt]:
    for value in values:
        sizes = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
        yield from (each for each in sizes if isinstance(each, torch.SymInt))
