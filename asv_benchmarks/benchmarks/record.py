"""What recording costs beyond running the function."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hofunc.graph.record import record

from .shown import shown
from .timing import interleaved

OPS, ROUNDS = 100, 200


def chain(inputs: Sequence[Tensor], others: Any = ()) -> Tensor:
    """Apply OPS ops, one after the other."""
    del others
    x = inputs[0]
    for _ in range(OPS):
        x = x.tanh()
    return x


class Overhead:
    """Microseconds of recording for each op, beyond those of running it: one thread, float32, 10 x 10."""

    unit = "us"

    def setup(self) -> None:
        """Make the input."""
        torch.set_num_threads(1)
        self.inputs = [torch.randn(10, 10, generator=torch.Generator().manual_seed(0))]

    @shown("Recording: time for each op, beyond running it")
    def track_per_op(self) -> float:
        """Return the difference of the medians of recorded and of plain calls, for one op."""
        functions = {"plain": lambda: chain(self.inputs), "recorded": lambda: record(chain, self.inputs)}
        seconds = interleaved(functions, ROUNDS)
        return 1e6 * (median(seconds["recorded"]) - median(seconds["plain"])) / OPS
