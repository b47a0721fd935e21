"""What a program costs: operations, bytes moved, memory held, and from these an estimate of its time.

The program is run once on meta tensors, which have shapes and no data, so that a cost is the same on every machine.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc import views
from hofunc.graph.layout import select_scatter
from hofunc.graph.node import Call
from hofunc.plan import operators, packing
from hofunc.plan.program import Program, Register, Step
from hofunc.rules.lower import isolated
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


def cost_of(program: Program, device: torch.device) -> Cost:
    """Return what a program costs on a device, without running it there."""
    rates = rates_of(device)
    held = metas_of(program)
    given = {_storage(held[register]) for register in program.given}
    costs, sizes, peak = [], {}, 0  # bytes of what lives, by storage and by register
    for step, freed in zip(program.steps, program.frees, strict=True):
        result = held[step.target]
        operands = [held[register] for register in _registers(step) if held[register] is not None]
        costs.append(_step_cost(step, operands, result, rates))
        if result is not None and _storage(result) not in given:
            sizes[step.target] = (_storage(result), result.untyped_storage().nbytes())
        peak = max(peak, sum(dict(sizes.values()).values()) + _scratch(step, operands, result))
        for register in freed:
            sizes.pop(register, None)
    return Cost(tuple(costs), peak)


def metas_of(program: Program) -> dict[int, Any]:
    """Return a meta tensor for every register of a program, None for one that holds several tensors."""
    with isolated(), torch.no_grad():
        held: dict[int, Any] = {register: _meta(given.shape, given.dtype) for register, given in program.given.items()}
        for step in program.steps:
            held[step.target] = _result(step, held, program)
    return held


def _registers(step: Step) -> list[int]:
    return [arg.index for arg in step.args if isinstance(arg, Register)]


def _scratch(step: Step, operands: Sequence[torch.Tensor], result: Any) -> int:
    """Return the bytes that a step may allocate for itself and give back: zeros to add to, merged copies, columns."""
    if step.function is packing.collected:
        return _nbytes(result) + _nbytes(operands[0])
    work = work_of(step.function, operands, result) if isinstance(step.function, Call) else None
    return work.columns * result.element_size() if work else 0


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _result(step: Step, held: dict[int, Any], program: Program) -> Any:
    """Return the result of a step on meta tensors; None if it is not a tensor."""
    args = [held[arg.index] if isinstance(arg, Register) else arg for arg in step.args]
    if step.target in program.shapes:
        return _meta(*program.shapes[step.target])
    if isinstance(step.function, Call):
        return None  # one with several results, each of which is taken by a step of its own
    if step.function in _SCATTERS:
        return _scattered(args[0])
    if step.function in _SHAPES:
        dtypes = [arg.dtype for arg in args if isinstance(arg, torch.Tensor)]
        return _meta(_SHAPES[step.function](*args), dtypes[0])
    return step.function(*args)  # views, and what is as fast


def _meta(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _broadcast(left: torch.Tensor, right: Any, *_: Any) -> tuple[int, ...]:
    shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else () for x in (left, right)]
    rank = max(map(len, shapes))
    padded = list(zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True))
    _check_equal(pair for pair in padded if 1 not in pair)
    return tuple(a if b == 1 else b for a, b in padded)


def _product(left: torch.Tensor, right: torch.Tensor) -> tuple[int, ...]:
    *batch, rows, inner = left.shape
    *other_batch, other_inner, columns = right.shape
    _check_equal(zip((*batch, inner), (*other_batch, other_inner), strict=True))
    return (*batch, rows, columns)


def _check_equal(pairs: Iterable[tuple[int, int]]) -> None:
    """Fail, as the function itself would, where sizes do not fit each other."""
    if any(one != other for one, other in pairs):
        raise RuntimeError("shapes do not fit each other")


def _collected(tensor: torch.Tensor, places: torch.Tensor, size: int) -> tuple[int, ...]:
    _check_equal([(tensor.shape[0] * tensor.shape[1], len(places))])
    return (size, *tensor.shape[2:])


def _scaled(tensor: torch.Tensor, weights: torch.Tensor) -> tuple[int, ...]:
    _check_equal([(tensor.shape[0], len(weights))])
    return tuple(tensor.shape)


def _first(tensor: torch.Tensor, *_: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _embedded(tensor: torch.Tensor, offset: int, first: int, second: int) -> list[int]:
    shape = list(tensor.shape[:-1])
    for dim in sorted((first, second)):
        shape.insert(dim, tensor.shape[-1] + abs(offset))
    return shape


# The shape of what a function returns, where torch's own way to find it is slow: its meta kernels are Python.
_SHAPES: dict[Callable, Callable[..., Sequence[int]]] = {
    torch.mm: _product,
    torch.bmm: _product,
    torch.mul: _broadcast,
    torch.add: _broadcast,
    views.add_scaled: _broadcast,
    operators.passed_on: _broadcast,
    torch.neg: _first,
    torch.sum: lambda tensor, dims: [size for dim, size in enumerate(tensor.shape) if dim not in dims],
    torch.index_select: lambda tensor, dim, index: (*tensor.shape[:dim], len(index), *tensor.shape[dim + 1 :]),
    torch.diag_embed: _embedded,
    packing.collected: _collected,
    packing.scaled_rows: _scaled,
    operators.one_like: lambda _: (),
    operators.eye_like: lambda _, size: (size, size),
}


_SCATTERS = (select_scatter, torch.diagonal_scatter, views.narrow_scatter)


def _scattered(base: torch.Tensor) -> torch.Tensor:
    """Return a view of a copy of all the memory that the tensor to write to is a view of: that is what torch does."""
    if any(stride == 0 and size > 1 for size, stride in zip(base.shape, base.stride(), strict=True)):
        return _meta(base.shape, base.dtype)
    whole = _meta((base.untyped_storage().nbytes() // base.element_size(),), base.dtype)
    return whole.as_strided(base.shape, base.stride(), base.storage_offset())


def _step_cost(step: Step, operands: Sequence[torch.Tensor], result: Any, rates: Rates) -> StepCost:
    if not isinstance(result, torch.Tensor):
        return StepCost(0, 0, (), rates.view)
    if _storage(result) in map(_storage, operands):
        return StepCost(0, 0, tuple(result.shape), rates.view)
    written = result.untyped_storage().nbytes() if step.function in _SCATTERS else _nbytes(result)
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
