"""How fast devices work: what costs are estimated by."""

from typing import NamedTuple

import torch


class Rates(NamedTuple):
    """How fast a kind of device works; only ratios matter to the choice of a strategy.

    Attributes:
        view: Seconds of a call that computes nothing.
        call: Seconds of any other call, beyond what it computes.
        item: Seconds of one matrix product of a batch, beyond what it computes.
        flops: Floating-point operations of a matrix product in a second.
        bytes: Bytes read and written in a second.
        fresh: Bytes in a second of a new tensor that is too large for memory to be at hand.
        large: From how many bytes on that is so.
        term: Seconds in which a term of a result is read, beyond its entries.
        place: Seconds in which an entry gets its place among others by its indices, by sorting.
    """

    view: float
    call: float
    item: float
    flops: float
    bytes: float
    fresh: float
    large: int
    term: float
    place: float


# Measured in float32 with one thread on the CPU of a shared server; those of a GPU are its data sheet's order.
RATES = {
    "cpu": Rates(1e-6, 1.5e-6, 3e-7, 9e10, 5e10, 1e10, 1 << 20, 1e-5, 5e-8),
    "cuda": Rates(2e-6, 6e-6, 1e-9, 2e13, 2e12, 1e12, 1 << 62, 4e-5, 1e-9),
}


def rates_of(device: torch.device) -> Rates:
    """Return how fast a device works; one of an unknown kind as a GPU does."""
    return RATES.get(device.type, RATES["cuda"])
