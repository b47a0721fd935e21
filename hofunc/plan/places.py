"""Places: where the products of monomials lie along packed axes, and factorials of monomials, as tensors of integers.

There may be millions of them, as of a third derivative in 200 directions, so that they are computed from the numbers of
monomials alone, all at once. See `hofunc.algebra.packed` for the order that monomials have.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import factorial, prod

import torch

from hofunc.algebra.packed import count
from hofunc.rules.lower import isolated

SMALL = 1 << 16  # integers, up to which they are kept for the plans that follow


class Integers(ABC):
    """Integers that follow from numbers of directions and orders, in one dimension."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many there are."""

    @abstractmethod
    def computed(self) -> torch.Tensor:
        """Compute them."""

    def made(self) -> torch.Tensor:
        """Return them as a tensor, which nobody may write to."""
        return _kept(self) if len(self) <= SMALL else _alone(self)


@dataclass(frozen=True)
class Places(Integers):
    """Where the products of monomials lie among those of the sum of their orders.

    The first factor varies slowest, so that this is the row-major order of an outer product. Of directions, which are
    monomials of order one, it is the order of the entries of symmetric axes that are not packed.

    Attributes:
        n: The number of directions.
        orders: The orders of the factors.
    """

    n: int
    orders: tuple[int, ...]

    @classmethod
    def unpacked(cls, n: int, order: int) -> "Places":
        """Return where each entry of as many symmetric axes lies."""
        return cls(n, (1,) * order)

    def __len__(self) -> int:
        """Return how many there are."""
        return prod([count(self.n, order) for order in self.orders])

    def computed(self) -> torch.Tensor:
        """Compute them, the first factor as one direction and then the rest of its monomial."""
        if not self.orders:
            return torch.zeros(1, dtype=torch.long)
        n, (left, *others) = self.n, self.orders
        found = Places(n, tuple(others)).computed()[None]
        for order in range(1, left + 1):
            first, rest = _parts(n, order)
            found = _times_direction(n, sum(others) + order - 1)[first[:, None], found[rest]]
        return found.flatten()


@dataclass(frozen=True)
class Factorials(Integers):
    """The factorial of every monomial of an order: derivative over Taylor coefficient.

    Attributes:
        n: The number of directions.
        order: The order.
    """

    n: int
    order: int

    def __len__(self) -> int:
        """Return how many there are."""
        return count(self.n, self.order)

    def computed(self) -> torch.Tensor:
        """Compute them: that of the rest of each monomial, times how often its first direction is in it."""
        found, often = torch.ones(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        before = torch.full((1,), -1)  # the first direction of each of one order less
        for order in range(1, self.order + 1):
            first, rest = _parts(self.n, order)
            often = torch.where(before[rest] == first, often[rest] + 1, 1)
            found, before = found[rest] * often, first
        return found


@dataclass(frozen=True)
class Multiplicities(Factorials):
    """How often each monomial of an order is among the entries of as many symmetric axes."""

    def computed(self) -> torch.Tensor:
        """Compute them."""
        return factorial(self.order) // super().computed()


def _alone(numbers: Integers) -> torch.Tensor:
    """Return integers as a tensor, whatever modes a call is in that asks for them."""
    with isolated(), torch.inference_mode(False), torch.device("cpu"):
        return numbers.computed()


_kept = lru_cache(maxsize=256)(_alone)


def _parts(n: int, order: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first direction of each monomial, and the place of the rest of it among those of one order less."""
    numbers = torch.tensor([count(n - direction, order - 1) for direction in range(n)], dtype=torch.long)
    first = torch.repeat_interleave(numbers)
    starts = _starts(n, order) - _starts(n, order - 1)
    return first, torch.arange(count(n, order)) - starts[first]


def _starts(n: int, order: int) -> torch.Tensor:
    """Return where the monomials without directions before one start, direction by direction; they come last."""
    return torch.tensor([count(n, order) - count(n - direction, order) for direction in range(n)], dtype=torch.long)


def _times_direction(n: int, order: int) -> torch.Tensor:
    """Return, for every direction, where its product with each monomial of an order lies among those of one order more.

    A direction that is not behind the first of the monomial comes first itself. Of others that first direction stays,
    and they are multiplied with the rest: monomials with one first direction have all rests without any before it.
    """
    direction = torch.arange(n)[:, None]
    if order == 0:
        return direction
    first, rest = _parts(n, order)
    more = _starts(n, order + 1) - _starts(n, order)  # how much further back monomials lie with one more before them
    ahead = torch.arange(count(n, order)) + more[:, None]
    behind = _times_direction(n, order - 1)[:, rest] + more[first]
    return torch.where(direction <= first, ahead, behind)
