"""Stretches of a sequence that repeat, one after the other, as the ops of equal layers or of steps in time do."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LONGEST = 1024  # items of a stretch


class Repeat(NamedTuple):
    """A stretch that is there several times in a row.

    Attributes:
        start: Where the first one may start, at the earliest.
        stop: Where the last one may end, at the latest.
        length: How many items one has.
    """

    start: int
    stop: int
    length: int

    @property
    def times(self) -> int:
        """How often it is there in full."""
        return (self.stop - self.start) // self.length

    @property
    def spared(self) -> int:
        """How many items are like others that come before them."""
        return max(self.times - 1, 0) * self.length


def repeats(items: Sequence[Hashable], least: int) -> list[Repeat]:
    """Return stretches that repeat, in order, of which none overlap: of those that do, the one that spares most.

    Args:
        items: The sequence.
        least: How many items a stretch has at least; what repeats and is shorter counts as several at a time.
    """
    numbers = {item: number for number, item in enumerate(dict.fromkeys(items))}
    sequence = torch.tensor([numbers[item] for item in items])
    found = [
        Repeat(start, stop, -(-least // length) * length)
        for length in range(1, min(LONGEST, len(items) // 2) + 1)
        for start, stop in _runs(sequence, length)
    ]
    chosen: list[Repeat] = []
    for each in sorted(found, key=lambda each: (-each.spared, each.length, each.start)):
        if each.spared and all(each.stop <= other.start or other.stop <= each.start for other in chosen):
            chosen.append(each)
    return sorted(chosen)


def _runs(sequence: Tensor, length: int) -> list[tuple[int, int]]:
    """Return from where to where a sequence repeats itself after a length, at least once."""
    differs = (sequence[:-length] != sequence[length:]).nonzero().flatten() + 1
    ends = torch.tensor([len(sequence) - length + 1])
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), differs])
    stops = torch.cat([differs, ends]) - 1
    is_run = stops - starts >= length
    return [(int(start), int(stop) + length) for start, stop in zip(starts[is_run], stops[is_run], strict=True)]
