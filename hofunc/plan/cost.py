"""What a program costs: operations, bytes moved, memory held, and from these an estimate of its time.

The program is run once on meta tensors, which have shapes and no data, so that a cost is the same on every machine.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.graph.node import Call
from hofunc.internals import identity_of
from hofunc.plan.memory import SCATTERS, Trace, peak_of, traced
from hofunc.plan.program import Program, Register, Step
from hofunc.rules.ops.convolution import work_of

_PRODUCTS = (torch.mm, torch.bmm, torch.addmm)


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
    """

    view: float
    call: float
    item: float
    flops: float
    bytes: float
    fresh: float
    large: int


# Measured in float32 with one thread on the CPU of a shared server; those of a GPU are its data sheet's order.
RATES = {
    "cpu": Rates(1e-6, 1.5e-6, 1e-7, 9e10, 5e10, 1e10, 1 << 20),
    "cuda": Rates(2e-6, 6e-6, 1e-9, 2e13, 2e12, 1e12, 1 << 62),
}


def rates_of(device: torch.device) -> Rates:
    """Return how fast a device works; one of an unknown kind as a GPU does."""
    return RATES.get(device.type, RATES["cuda"])


class StepCost(NamedTuple):
    """What one step costs.

    Attributes:
        flops: Floating-point operations: of a matrix product or a convolution two for each product, of any other op one
            an element.
        bytes: Bytes that it reads and writes; zero for a view.
        shape: Shape of the result.
        seconds: Estimated time.
    """

    flops: int
    bytes: int
    shape: tuple[int, ...]
    seconds: float


class Cost(NamedTuple):
    """What a program costs.

    Attributes:
        steps: What each of its steps costs.
        peak_bytes: The most that is held at once of what the program allocates, its results included.
    """

    steps: tuple[StepCost, ...]
    peak_bytes: int

    @property
    def flops(self) -> int:
        """Floating-point operations of all steps."""
        return sum(step.flops for step in self.steps)

    @property
    def bytes(self) -> int:
        """Bytes that all steps read and write."""
        return sum(step.bytes for step in self.steps)

    @property
    def seconds(self) -> float:
        """Estimated time of all steps."""
        return sum(step.seconds for step in self.steps)


def cost_of(program: Program, device: torch.device, trace: Trace | None = None) -> Cost:
    """Return what a program costs on a device, without running it there.

    Args:
        program: The program.
        device: Where it is to run.
        trace: What its registers hold, if that is known.
    """
    trace, rates = trace or traced(program), rates_of(device)
    costs = []
    for step in program.steps:
        operands = [trace.values[arg.index] for arg in step.args if isinstance(arg, Register)]
        costs.append(
            _step_cost(step, [x for x in operands if isinstance(x, torch.Tensor)], trace.values[step.target], rates)
        )
    return Cost(tuple(costs), peak_of(program, trace))


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _storage(tensor: torch.Tensor) -> int:
    return identity_of(tensor.untyped_storage())


def _step_cost(step: Step, operands: Sequence[torch.Tensor], result: Any, rates: Rates) -> StepCost:
    if not isinstance(result, torch.Tensor):
        return StepCost(0, 0, (), rates.view)
    if _storage(result) in map(_storage, operands):
        return StepCost(0, 0, tuple(result.shape), rates.view)
    written = result.untyped_storage().nbytes() if step.function in SCATTERS else _nbytes(result)
    moved = written + sum(map(_nbytes, operands))
    seconds = rates.call + (written / rates.fresh if written >= rates.large else 0)
    if step.function in _PRODUCTS:
        flops = 2 * result.numel() * operands[-2].shape[-1]  # a sum with a product has the product last
        items = prod(result.shape[:-2])
        return StepCost(flops, moved, tuple(result.shape), seconds + rates.item * items + flops / rates.flops)
    work = work_of(step.function, operands, result) if isinstance(step.function, Call) else None
    if work:
        columns = work.columns * result.element_size()
        seconds += columns / rates.bytes + (columns / rates.fresh if columns >= rates.large else 0)
        return StepCost(2 * work.products, moved, tuple(result.shape), seconds + 2 * work.products / rates.flops)
    return StepCost(result.numel(), moved, tuple(result.shape), seconds + moved / rates.bytes)
