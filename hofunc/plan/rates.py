"""How fast devices work, as standard: what costs are estimated by where nothing is measured."""

from typing import NamedTuple

import torch

FEW = 100  # products of numbers, below which a matrix product of a batch takes the less, the fewer they are
LARGE = 1 << 15  # products of numbers, from which on it takes what one by itself does
CACHE = 1 << 20  # bytes that are at hand for a product, which takes no time to read them beside what it computes
SLOWER = 3  # times as long for each number as in a large one


class Rates(NamedTuple):
    """How fast a kind of device works; only ratios matter to the choice of a strategy.

    Attributes:
        view: Seconds of a call that computes nothing.
        call: Seconds of any other call, beyond what it computes.
        item: Seconds of one matrix product of a batch, beyond what it computes, of more than a few numbers.
        flops: Floating-point operations of a matrix product in a second, in single precision.
        bytes: Bytes read and written in a second.
        fresh: Bytes in a second of new memory, which the system gives where what was let go is not kept.
        large: The bytes of a tensor from which on allocators give its memory back, so that it is always new.
        kept: The bytes that allocators keep in any case, whatever was let go.
        term: Seconds in which a term of a result is read, beyond its entries.
        place: Seconds in which an entry gets its place among others by its indices, by sorting.
        row: Seconds in which a row is added to its place, or read at an index some at a time, beyond its entries.
        pace: Seconds that one of these seconds takes here, which are those of the machine of `RATES`.
        linear: Floating-point operations of a matrix product in a second by a library beside BLAS, in single precision,
            if there is one that is faster.
        linear_call: Seconds of a call of that, beyond those of another call.
    """

    view: float
    call: float
    item: float
    flops: float
    bytes: float
    fresh: float
    large: int
    kept: int
    term: float
    place: float
    row: float
    pace: float = 1.0
    linear: float = 0.0
    linear_call: float = 0.0

    def of(self, dtype: torch.dtype) -> "Rates":
        """Return the rates for tensors of a dtype: in double precision half as many operations take as long."""
        size = max(1.0, dtype.itemsize / torch.float32.itemsize)
        rates = self._replace(linear=0.0) if self.linear and dtype is not torch.float32 else self
        return rates if size == 1 else rates._replace(flops=self.flops / size)

    def multiplied(self, flops: float) -> float:
        """Return the seconds that a matrix product of so many operations takes, beyond those of a call."""
        seconds = flops / self.flops
        return min(seconds, self.linear_call + flops / self.linear) if self.linear else seconds

    def renewed(self, nbytes: float) -> float:
        """Return the seconds that it takes to get memory for a tensor of so many bytes, beyond those of a call."""
        return nbytes / self.fresh if nbytes >= self.large else 0.0

    def regained(self, held: int) -> float:
        """Return the seconds that it takes to get memory again which was given back at the end of the call before.

        Common allocators give all of it back where it is more than they keep, if nothing else lies above it, which is
        taken to be so every other time.

        Args:
            held: How many bytes are held at once.
        """
        return held / self.fresh / 2 if held >= self.kept else 0.0

    def uncached(self, nbytes: int) -> float:
        """Return the seconds that a product takes to read and write what a cache does not hold, beyond computing."""
        return max(0, nbytes - CACHE) / self.bytes

    def batch(self, count: int, products: float) -> float:
        """Return the seconds that a batch of so many matrix products takes, each of so many products of numbers.

        Those of few numbers call no library, and small matrices do not keep a core busy.
        """
        each = 2 * products / self.flops * (SLOWER if products < LARGE else 1)
        return count * (self.item * min(1.0, products / FEW) + each)


# Measured in float32 with one thread on the CPU of a shared server; those of a GPU are its data sheet's order.
RATES = {
    "cpu": Rates(1e-6, 1.5e-6, 1e-7, 9e10, 5e10, 2e9, 1 << 25, 6 << 20, 1e-5, 5e-8, 1e-8),
    "cuda": Rates(2e-6, 6e-6, 1e-9, 2e13, 2e12, 1e12, 1 << 62, 1 << 62, 4e-5, 1e-9, 1e-10),
}
