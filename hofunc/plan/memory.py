"""Memory: what a program holds as it runs, seen on meta tensors, which have shapes and strides and no data.

Memory is counted once, whoever views it. What is given to a program is not counted unless it is handed over to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import getitem
from typing import Any, NamedTuple

import torch

from hofunc import views
from hofunc.graph.functions import FunctionOp
from hofunc.graph.layout import select_scatter
from hofunc.graph.node import Call
from hofunc.internals import identity_of, tree_leaves
from hofunc.plan import operators, packing, placing
from hofunc.plan.program import Given, Program, Register, Step
from hofunc.plan.scratch import called, of_product
from hofunc.rules.lower import isolated

# What a function may raise that needs values; nothing else, as what a limit on time raises is none of it.
_NEEDS_VALUES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
SCATTERS = (select_scatter, torch.diagonal_scatter, views.narrow_scatter)


class Trace(NamedTuple):
    """What every register of a program holds, and what its steps take beside.

    Attributes:
        values: By register a meta tensor, or several.
        scratch: By the target of a step, the bytes that it allocates for itself and gives back.
    """

    values: dict[int, Any]
    scratch: dict[int, int]

    def of(self, registers: Iterable[int]) -> list[Any]:
        """Return what registers hold."""
        return [self.values[register] for register in registers]


def traced(program: Program, given: Mapping[int, torch.Tensor] | None = None) -> Trace:
    """Run a program on meta tensors.

    Args:
        program: The program.
        given: What its given registers hold; as the program says if left out.

    Raises:
        RuntimeError: Shapes do not fit each other.
    """
    with isolated(), torch.no_grad():
        values: dict[int, Any] = {r: _given(g) if given is None else given[r] for r, g in program.given.items()}
        scratch: dict[int, int] = {}
        for step in program.steps:
            values[step.target], scratch[step.target] = _result(step, values, program)
    return Trace(values, scratch)


def memory_of(values: Any) -> dict[int, int]:
    """Return the bytes of the memory of tensors, by what names it."""
    if isinstance(values, torch.Tensor):
        storage = values.untyped_storage()
        return {identity_of(storage): storage.nbytes()}
    leaves = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    tensors = [leaf for leaf in leaves if leaf.layout is torch.strided]  # others have no memory of their own
    return {identity_of(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in tensors}


def bytes_of(values: Any, outside: Iterable[int] = ()) -> int:
    """Return how many bytes tensors take together, beside what is held outside."""
    return sum(size for place, size in memory_of(values).items() if place not in {*outside})


def peak_of(program: Program, trace: Trace, outside: Iterable[int] | None = None) -> int:
    """Return the most that is held at once while a program runs, its results included.

    Args:
        program: The program.
        trace: What its registers hold.
        outside: The memory that others hold, which does not count; that of all that is given if left out.
    """
    memories = {register: memory_of(value) for register, value in trace.values.items()}
    given = [memories[register] for register in program.given]
    held = _Held({place for memory in given for place in memory} if outside is None else outside)
    for memory in given:
        held.take(memory)
    peak = held.bytes
    for step, freed in zip(program.steps, program.frees, strict=True):
        held.take(memories[step.target])
        peak = max(peak, held.bytes + trace.scratch[step.target])
        for register in freed:
            held.drop(memories[register])
    return peak


class _Held:
    """Counts the bytes of the memories that are held.

    Args:
        outside: Those that do not count.
    """

    def __init__(self, outside: Iterable[int]):
        self._holders = dict.fromkeys(outside, 1)  # of these there is one more, who never lets go
        self.bytes = 0

    def take(self, memory: dict[int, int]) -> None:
        """Hold a value, given its memory."""
        for place, size in memory.items():
            holders = self._holders.get(place, 0)
            self._holders[place] = holders + 1
            if not holders:
                self.bytes += size

    def drop(self, memory: dict[int, int]) -> None:
        """Hold it no longer."""
        for place, size in memory.items():
            self._holders[place] -= 1
            if not self._holders[place]:
                self.bytes -= size


# Steps on meta tensors.


def _given(given: Given) -> torch.Tensor:
    """Return a meta tensor for what is given; it has the strides of a constant, if that has any."""
    if isinstance(given.origin, torch.Tensor) and given.origin.layout is torch.strided:
        return torch.empty_strided(given.shape, given.origin.stride(), dtype=given.dtype, device="meta")
    return _meta(given.shape, given.dtype)


def _result(step: Step, values: Mapping[int, Any], program: Program) -> tuple[Any, int]:
    """Return the result of a step on meta tensors, None if it is not known, and the bytes that it takes beside."""
    args = [values[arg.index] if isinstance(arg, Register) else arg for arg in step.args]
    function = step.function
    if isinstance(function, Call) or (step.target in program.shapes and function is not getitem):
        return _called(step, args, program)
    if function in SCATTERS:
        return _scattered(args[0]), 0
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if function in _STRIDED and not all(tensor.is_contiguous() for tensor in tensors):
        return called(function, args)
    if function in _SHAPES:
        dtype = next((tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point), tensors[0].dtype)
        result = _meta(_SHAPES[function](*args), dtype)
        return result, _SCRATCH[function](args, result) if function in _SCRATCH else 0
    if function is getitem and args[0] is None:
        return _declared(program, step), 0
    return function(*args), 0  # views, and what is as fast


def _called(step: Step, args: Sequence[Any], program: Program) -> tuple[Any, int]:
    """Return the result of a call, as the program declares it where the call cannot be made on meta tensors."""
    is_unknown = any(args[place] is None for place, arg in enumerate(step.args) if isinstance(arg, Register))
    is_custom = isinstance(step.function, Call) and isinstance(step.function.op, FunctionOp)  # which may do anything
    if step.function is operators.zeros or is_unknown or is_custom:
        return _declared(program, step), 0
    try:
        return called(step.function, args)
    except _NEEDS_VALUES:
        return _declared(program, step), 0


def _declared(program: Program, step: Step) -> torch.Tensor | None:
    """Return a meta tensor as the program says that a step returns it."""
    return _meta(*program.shapes[step.target]) if step.target in program.shapes else None


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


def _concatenated(dim: int, *tensors: torch.Tensor) -> tuple[int, ...]:
    before, after = tensors[0].shape[:dim], tensors[0].shape[dim + 1 :]
    _check_equal(
        pair for t in tensors for pair in zip((*t.shape[:dim], *t.shape[dim + 1 :]), (*before, *after), strict=True)
    )
    return (*before, sum(tensor.shape[dim] for tensor in tensors), *after)


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
    views.concatenated: _concatenated,
    placing.scattered: lambda _places, size, *_: (size,),
    placing.gathered: lambda index, *_: tuple(index.shape),
    packing.collected: _collected,
    packing.scaled_rows: _scaled,
    operators.one_like: lambda _: (),
    operators.eye_like: lambda _, size: (size, size),
}


def _scattered(base: torch.Tensor) -> torch.Tensor:
    """Return a view of a copy of all the memory that the tensor to write to is a view of: that is what torch does."""
    if any(stride == 0 and size > 1 for size, stride in zip(base.shape, base.stride(), strict=True)):
        return _meta(base.shape, base.dtype)
    whole = _meta((base.untyped_storage().nbytes() // base.element_size(),), base.dtype)
    return whole.as_strided(base.shape, base.stride(), base.storage_offset())


# Those whose result is laid out as what they take.
_STRIDED = (torch.mul, torch.add, torch.neg, torch.sum, views.add_scaled, operators.passed_on, packing.scaled_rows)

_SCRATCH: dict[Callable, Callable[[Sequence[Any], torch.Tensor], int]] = {
    torch.mm: lambda args, _: of_product(*args),
    packing.collected: lambda args, result: packing.scratch(args[0], result),
    placing.scattered: lambda args, result: bytes_of(result) + sum(t.numel() * t.element_size() for t in args[2:]),
    placing.gathered: lambda args, _: sum(tensor.numel() * tensor.element_size() for tensor in args[1:]),
}
