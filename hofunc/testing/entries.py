"""Entries of tensors: which one is off, and by how much."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The entry that is furthest off, in terms of what is allowed.

    Attributes:
        tensor: Number of the tensor that it is in.
        index: Its index there.
        got: Its value.
        expected: The value that it should have.
        error: How far apart these are.
        allowed: How far apart they may be.
        count: How many entries are too far off, in all tensors.
        total: How many entries there are.
    """

    tensor: int
    index: tuple[int, ...]
    got: float
    expected: float
    error: float
    allowed: float
    count: int
    total: int

    def __str__(self) -> str:
        return f"{self.error:.3g} off, {self.allowed:.3g} allowed; {self.count} of {self.total} entries differ"


def largest(tensors: Sequence[torch.Tensor]) -> float:
    """Return the largest finite magnitude of an entry, 0 if there is none."""
    return max((float(torch.where(t.isfinite(), t, 0).abs().max()) for t in tensors if t.numel()), default=0.0)


def identical(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Tell for every entry whether it is the same, or nan in both."""
    return (a == b) | (a.isnan() & b.isnan())


def differing(got: torch.Tensor, expected: torch.Tensor, allowed: torch.Tensor | float) -> torch.Tensor:
    """Tell for every entry whether it is too far off; equal infinities are not, nor are two that are both nan."""
    return ~(identical(got, expected) | ((got - expected).abs() <= allowed))


def worst(
    got: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    allowed: Sequence[torch.Tensor | float],
    among: Sequence[torch.Tensor] | None = None,
) -> Mismatch | None:
    """Compare tensors of the same shapes entry by entry.

    Args:
        got: The tensors, in float64.
        expected: What they should be.
        allowed: How far apart entries may be, by tensor or by entry.
        among: Masks of the entries to compare; all of them unless given.

    Returns:
        The entry that is off by the largest multiple of what is allowed, None if all are near enough.
    """
    found: list[tuple[float, int, int]] = []
    count = 0
    for number, (a, b, limit) in enumerate(zip(got, expected, allowed, strict=True)):
        off = differing(a, b, limit)
        if among is not None:
            off &= among[number]
        if off.any():
            count += int(off.sum())
            excess = ((a - b).abs() / limit).nan_to_num(math.inf, math.inf).where(off, -1.0)
            place = int(excess.argmax())
            found.append((float(excess.flatten()[place]), number, place))
    if not found:
        return None
    _, number, place = max(found, key=lambda item: item[0])
    limits = torch.as_tensor(allowed[number], dtype=torch.float64).expand(got[number].shape)
    value, right, permitted = (float(t.flatten()[place]) for t in (got[number], expected[number], limits))
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), got[number].shape))
    total = sum(tensor.numel() for tensor in got)
    return Mismatch(number, index, value, right, abs(value - right), permitted, count, total)
