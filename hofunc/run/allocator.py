"""What the allocator of the C library keeps of memory that is freed.

NOTE [pages]: That of glibc maps a large block when it is asked for, and unmaps it when it is freed; and it gives the
end of the heap back where much of it is free. The kernel clears each page then that is written to first, at every call,
which may take longer than what is computed there. How large, and how much, goes by what was freed before: a block of up
to 32 MB that is freed is kept from then on, and twice as much at the end of the heap. So where a plan holds more than
any before, one block of that size is freed as it is made, to which nobody wrote.
"""

import torch

LEAST = 1 << 17  # bytes, up to which blocks are kept anyway
MOST = 31 << 20  # bytes of the largest block that is kept, about

_kept = LEAST


def keep(count: int, device: torch.device) -> None:
    """Have so much memory kept that is freed by a call on a device, as far as the allocator does."""
    global _kept  # noqa: PLW0603 - it is one allocator
    count = min(count, MOST)
    if device.type == "cpu" and count > _kept:
        _kept = count
        torch.empty(count, dtype=torch.uint8)
