"""Tracing: what a program does to tensors without data, which have shapes and strides and memory that they share.

What a step does depends on the looks of what it takes, which recur along layers and sequences. So it is found out once
for tensors of the same looks: by a rule of shapes, or on meta tensors.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import prod
from operator import getitem
from typing import Any, NamedTuple

import torch

from hofunc import scatter, views
from hofunc.graph.functions import FunctionOp
from hofunc.graph.layout import select_scatter
from hofunc.graph.node import Call
from hofunc.internals import identity_of
from hofunc.plan import adding, lookups, looped, operators, packing, placing, states, tables
from hofunc.plan.builder import cut
from hofunc.plan.memory import Held, Kind, bytes_of, contiguous
from hofunc.plan.pointwise import laid_out_as
from hofunc.plan.program import Given, Program, Register, Step
from hofunc.plan.scratch import called, of_product
from hofunc.rules.lower import isolated

# What a function may raise that needs values; nothing else, as what a limit on time raises is none of it.
_NEEDS_VALUES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
SCATTERS = (select_scatter, torch.diagonal_scatter, views.narrow_scatter)


class Effect(NamedTuple):
    """What a step does wherever it takes tensors of the same looks.

    Attributes:
        operands: The kinds of the tensors that it takes.
        made: For each tensor of the result, its kind and the place of its memory, among those of the operands or after;
            None if that is not known.
        is_view: Whether the result is one tensor that has the memory of an operand.
        scratch: The bytes that it allocates for itself and gives back.
    """

    operands: list[Kind]
    made: Any
    is_view: bool
    scratch: int

    @property
    def result(self) -> Kind | None:
        """The kind of the result, None if it is no tensor."""
        return self.made.kind if type(self.made) is _Made else None


class Trace(NamedTuple):
    """What every register of a program holds, and what its steps do.

    Attributes:
        values: By register a tensor without data, or several; None if that is not known.
        effects: What each step does.
        known: What was found out of tensors of some looks.
    """

    values: dict[int, Any]
    effects: list[Effect]
    known: tuple[dict, dict]

    def of(self, registers: Iterable[int]) -> list[Any]:
        """Return what registers hold."""
        return [self.values[register] for register in registers]


def traced(program: Program, given: Mapping[int, Held] | None = None) -> Trace:
    """Run a program on tensors without data.

    Args:
        program: The program.
        given: What its given registers hold; as the program says if left out.

    Raises:
        RuntimeError: Shapes do not fit each other.
    """
    tracing = _Tracing(program, {}, {})
    with isolated(), torch.no_grad():
        for register, origin in program.given.items():
            tracing.give(register, origin if given is None else given[register])
        effects = [tracing.taken(step) for step in program.steps]
    return Trace(tracing.values, effects, (tracing.kinds, tracing.effects))


def retraced(program: Program, before: Program, trace: Trace) -> Trace:
    """Run a program on tensors without data that has many of the steps of another one.

    A step that was there, and takes what it took, makes what it made.

    Args:
        program: The program.
        before: The other one.
        trace: What its registers hold.

    Raises:
        RuntimeError: Shapes do not fit each other.
    """
    tracing, known = _Tracing(program, *trace.known), trace.values
    values = tracing.values
    done = {step.target: (step, effect) for step, effect in zip(before.steps, trace.effects, strict=True)}
    effects: list[Effect] = []
    with isolated(), torch.no_grad():
        for register, origin in program.given.items():
            if before.given.get(register) is origin:
                values[register] = known[register]
            else:
                tracing.give(register, origin)
        for step in program.steps:
            same, effect = done.get(step.target, (None, None))
            if (
                effect is not None
                and same is step
                and all(values[a.index] is known[a.index] for a in step.args if type(a) is Register)
            ):
                values[step.target] = known[step.target]
                effects.append(effect)
            else:
                effects.append(tracing.taken(step))
    return Trace(values, effects, trace.known)


class _Tracing:
    """Runs steps on meta tensors, those that take tensors of the same looks once.

    Args:
        program: The program that has them.
        kinds: All kinds that are known, of which there is one of each.
        effects: What steps do to tensors of some kinds, as far as it is known.

    Attributes:
        values: What its registers hold so far.
        kinds: What was given.
        effects: Likewise.
    """

    def __init__(self, program: Program, kinds: dict[tuple, Kind], effects: dict[Hashable, Effect]):
        self.values: dict[int, Any] = {}
        self.kinds, self.effects = kinds, effects
        self._program = program

    def give(self, register: int, given: Given | Held) -> None:
        """Set what a given register holds."""
        if isinstance(given, Held):
            kind = given.kind
            key = kind.shape, kind.stride, kind.dtype, kind.nbytes
            self.values[register] = given._replace(kind=self.kinds.setdefault(key, kind))
        else:
            kind = self._kind_of(_given(given))
            self.values[register] = Held(kind, {object(): kind.nbytes})

    def taken(self, step: Step) -> Effect:
        """Take a step, and return what it does."""
        if step.function is getitem and type(several := self.values[step.args[0].index]) is tuple:
            self.values[step.target] = held = several[step.args[1]]
            return Effect([], None if type(held) is not Held else _Made(held.kind, 0), True, 0)
        memories: list[dict[Any, int]] = []
        looks: list[Any] = [step.function]  # kinds by their identity, as there is one of each
        for arg in (*step.args[:2], *step.args[3:]) if step.function in _STARTING else step.args:
            if type(arg) is not Register:
                looks.append((arg,))
            elif type(value := self.values[arg.index]) is Held:
                memories.append(value.memory)
                looks.append(id(value.kind))
            else:
                looks.append(self._named(value, memories))
        shared = None
        if len(memories) > 1:
            names = [*map(id, memories)]
            shared = None if len({*names}) == len(names) else tuple(map(names.index, names))
        key = (*looks, shared, self._program.shapes.get(step.target))
        effect = self.effects.get(key)
        if effect is None:
            memories = []
            args = [self._seen(self.values[a.index], memories) if type(a) is Register else a for a in step.args]
            self.effects[key] = effect = self._ruled(step, args, len(memories)) or self._effect(step, args, memories)
        self.values[step.target] = self._held(effect.made, memories)
        return effect

    def _named(self, value: Any, memories: list[dict[Any, int]]) -> Any:
        """Return what names the kinds of what a register holds, and note the memories."""
        if type(value) is Held:
            memories.append(value.memory)
            return id(value.kind)
        return tuple([self._named(item, memories) for item in value]) if type(value) is tuple else value

    def _seen(self, value: Any, memories: list[dict[Any, int]]) -> Any:
        """Return the kinds of what a register holds, and note the memories."""
        if type(value) is Held:
            memories.append(value.memory)
            return value.kind
        return tuple([self._seen(item, memories) for item in value]) if type(value) is tuple else value

    def _held(self, made: Any, memories: list[dict[Any, int]]) -> Any:
        """Return tensors without data, given their kinds and the places of their memories."""
        if type(made) is tuple:
            return tuple([self._held(item, memories) for item in made])
        if made is None:
            return None
        kind, place = made.kind, made.place
        while place >= len(memories):
            memories.append({object(): kind.nbytes})
        return Held(kind, memories[place])

    def _ruled(self, step: Step, args: Sequence[Any], count: int) -> Effect | None:
        """Tell what a step does that returns a view, or a new tensor, of a shape that is easily told."""
        kinds = [arg for arg in args if type(arg) is Kind]
        function = step.function
        if function in _LOOKS and (looks := _LOOKS[function](*args)) is not None:
            (given,) = kinds
            shape, stride = (tuple(map(int, each)) for each in looks)
            return Effect(kinds, _Made(self._kind(shape, stride, given.dtype, given.nbytes), 0), True, 0)
        if isinstance(function, Call) or function in _SCRATCH or step.target in self._program.shapes:
            return None
        rule = _in_full if function is torch.reshape else _SHAPES.get(function)
        if rule is None:
            return None
        shape, dtype = tuple(map(int, rule(*args))), _dtype(kinds)
        stride = contiguous(shape)
        if function in _STRIDED and not all(kind.is_contiguous for kind in kinds):
            if function not in _ELEMENTWISE or 0 in shape:
                return None
            stride = laid_out_as(shape, [(kind.shape, kind.stride) for kind in kinds])
        kind = self._kind(shape, stride, dtype, prod(shape) * dtype.itemsize)
        return Effect(kinds, _Made(kind, count), False, 0)

    def _effect(self, step: Step, args: Sequence[Any], memories: Sequence[dict[Any, int]]) -> Effect:
        """Take a step on meta tensors."""
        shown: dict[int, torch.UntypedStorage] = {}
        metas = {a.index: _shown(self.values[a.index], shown) for a in step.args if isinstance(a, Register)}
        result, scratch = _result(step, metas, self._program)
        places = {identity_of(shown[id(memory)]): place for place, memory in reversed([*enumerate(memories)])}
        made = self._made(result, places, [len(memories)])
        is_view = type(made) is _Made and made.place < len(memories)
        return Effect([arg for arg in args if type(arg) is Kind], made, is_view, scratch)

    def _made(self, result: Any, places: dict[int, int], count: list[int]) -> Any:
        if isinstance(result, tuple | list):
            return tuple([self._made(item, places, count) for item in result])
        if not isinstance(result, torch.Tensor):
            return None
        name = identity_of(result.untyped_storage())
        if name not in places:
            places[name] = count[0]
            count[0] += 1
        return _Made(self._kind_of(result), places[name])

    def _kind_of(self, tensor: torch.Tensor) -> Kind:
        nbytes = tensor.untyped_storage().nbytes()
        return self._kind(tuple(tensor.shape), tensor.stride(), tensor.dtype, nbytes)

    def _kind(self, *looks: Any) -> Kind:
        if looks not in self.kinds:
            self.kinds[looks] = Kind(*looks)
        return self.kinds[looks]


Shaped = torch.Tensor | Kind

_STARTING = {cut, torch.narrow, torch.select}  # their third argument is where a view starts, which changes no looks


class _Made(NamedTuple):
    """A tensor of a result: its kind, and the place of its memory."""

    kind: Kind
    place: int


def _shown(value: Any, shown: dict[int, torch.UntypedStorage]) -> Any:
    """Return meta tensors for tensors without data, those of one memory likewise."""
    if type(value) is tuple:
        return tuple([_shown(item, shown) for item in value])
    if value is None:
        return None
    kind, memory = value
    if id(memory) not in shown:
        shown[id(memory)] = torch.empty(kind.nbytes, dtype=torch.uint8, device="meta").untyped_storage()
    empty = torch.empty(0, dtype=kind.dtype, device="meta")
    return empty.set_(shown[id(memory)], 0, kind.shape, kind.stride)


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
    is_call = isinstance(function, Call) or function is looped.looped
    if is_call or (step.target in program.shapes and function is not getitem):
        return _called(step, args, program)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if function in SCATTERS:
        return _scattered(args[0]), 0
    if function in _STRIDED and not all(tensor.is_contiguous() for tensor in tensors):
        return called(function, args)
    if function in _SHAPES:
        result = _meta(_SHAPES[function](*args), _dtype(tensors))
        return result, _SCRATCH[function](args, result) if function in _SCRATCH else 0
    if function is getitem and args[0] is None:
        return _declared(program, step), 0
    return (function(*args), 0) if function in _LOOKS else called(function, args)


def _dtype(tensors: Sequence[Shaped]) -> torch.dtype:
    return next((tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point), tensors[0].dtype)


def _called(step: Step, args: Sequence[Any], program: Program) -> tuple[Any, int]:
    """Return the result of a call, as the program declares it where the call cannot be made on meta tensors."""
    if step.function is looped.looped:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        return tuple([_meta(shape, _dtype(tensors)) for shape in args[0].shapes]), args[1].scratch
    is_unknown = any(args[place] is None for place, arg in enumerate(step.args) if isinstance(arg, Register))
    is_custom = isinstance(step.function, Call) and isinstance(step.function.op, FunctionOp)  # which may do anything
    if step.function is operators.zeros or is_unknown or is_custom:
        return _declared(program, step), 0
    if isinstance(step.function, Call) and step.function.op in states.PASSES:
        return _declared(program, step), 2 * args[0].nbytes
    try:
        return called(step.function, args)
    except _NEEDS_VALUES:
        return _declared(program, step), 0


def _declared(program: Program, step: Step) -> torch.Tensor | None:
    """Return a meta tensor as the program says that a step returns it."""
    return _meta(*program.shapes[step.target]) if step.target in program.shapes else None


def _meta(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _broadcast(left: Shaped, right: Any, *_: Any) -> tuple[int, ...]:
    shapes = [tuple(getattr(x, "shape", ())) for x in (left, right)]  # a number has none
    rank = max(map(len, shapes))
    padded = list(zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True))
    _check_equal(pair for pair in padded if 1 not in pair)
    return tuple(a if b == 1 else b for a, b in padded)


def _broadcast_all(tensors: Sequence[Shaped]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*[tensor.shape for tensor in tensors]))


def _product(left: Shaped, right: Shaped) -> tuple[int, ...]:
    *batch, rows, inner = left.shape
    *other_batch, other_inner, columns = right.shape
    _check_equal(zip((*batch, inner), (*other_batch, other_inner), strict=True))
    return (*batch, rows, columns)


def _folded(left: Shaped, right: Shaped) -> tuple[int, ...]:
    _check_equal([(left.shape[-1], right.shape[0])])
    return (*left.shape[:-1], *right.shape[1:])


def _check_equal(pairs: Iterable[tuple[int, int]]) -> None:
    """Fail, as the function itself would, where sizes do not fit each other."""
    if any(one != other for one, other in pairs):
        raise RuntimeError("shapes do not fit each other")


def _collected(tensor: Shaped, places: Shaped, size: int) -> tuple[int, ...]:
    _check_equal([(tensor.shape[0] * tensor.shape[1], places.shape[0])])
    return (size, *tensor.shape[2:])


def _scaled(tensor: Shaped, weights: Shaped) -> tuple[int, ...]:
    _check_equal([(tensor.shape[0], weights.shape[0])])
    return tuple(tensor.shape)


def _concatenated(dim: int, *tensors: Shaped) -> tuple[int, ...]:
    before, after = tensors[0].shape[:dim], tensors[0].shape[dim + 1 :]
    _check_equal(
        pair for t in tensors for pair in zip((*t.shape[:dim], *t.shape[dim + 1 :]), (*before, *after), strict=True)
    )
    return (*before, sum(tensor.shape[dim] for tensor in tensors), *after)


def _first(tensor: Shaped, *_: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _onto(total: Shaped | tuple[int, int], *_: Any) -> tuple[int, ...]:
    return total if isinstance(total, tuple) else tuple(total.shape)


def _embedded(tensor: Shaped, offset: int, first: int, second: int) -> list[int]:
    shape = list(tensor.shape[:-1])
    for dim in sorted((first, second)):
        shape.insert(dim, tensor.shape[-1] + abs(offset))
    return shape


# The shape of what a function returns, where torch's own way to find it is slow: its meta kernels are Python.
_SHAPES: dict[Callable, Callable[..., Sequence[int]]] = {
    torch.mm: _product,
    torch.bmm: _product,
    torch.matmul: _folded,
    views.folded: _folded,
    torch.mul: _broadcast,
    torch.add: _broadcast,
    views.add_scaled: _broadcast,
    operators.passed_on: _broadcast,
    torch.sum: lambda tensor, dims: [size for dim, size in enumerate(tensor.shape) if dim not in dims],
    torch.index_select: lambda tensor, dim, index: (*tensor.shape[:dim], *index.shape, *tensor.shape[dim + 1 :]),
    torch.diag_embed: _embedded,
    views.concatenated: _concatenated,
    views.stacked: lambda *tensors: (len(tensors), *tensors[0].shape),
    views.filled: lambda _, shape, __: shape,
    placing.flat: lambda *tensors: (sum(prod(tensor.shape) for tensor in tensors),),
    placing.scattered: lambda _places, size, *_: (size,),
    placing.gathered: lambda index, *_: tuple(index.shape),
    scatter.added: lambda size, width, *_: (size, width),
    lookups.multiplied: lambda _, one, other, *at: (at[0].shape[0], one.shape[-2], other.shape[-2]),
    **dict.fromkeys((lookups.products_added, adding.added_in_pieces), _onto),
    packing.collected: _collected,
    packing.scaled_rows: _scaled,
    tables.place_among: lambda _, *indices: tuple(indices[0].shape),
    tables.pairs_of: lambda *args: (2, args[-1]),
    tables.ranked: lambda _, *places: (sum(each.shape[0] for each in places),),
    tables.different: lambda _, __, room, *___: (room,),
    tables.rows_of: lambda table, _, *at: (*_broadcast_all(at), *table.shape[len(at) :]),
    tables.elements_or_zero: lambda tensor: (tensor.shape[0] + 1, *tensor.shape[1:]),
    tables.filled: lambda _, index, __: tuple(index.shape),
    **dict.fromkeys((torch.neg, views.put, tables.index_of, tables.inside), _first),
    operators.one_like: lambda _: (),
    operators.eye_like: lambda _, size: (size, size),
}


def _scattered(base: torch.Tensor) -> torch.Tensor:
    """Return a view of a copy of all the memory that the tensor to write to is a view of: that is what torch does."""
    if any(stride == 0 and size > 1 for size, stride in zip(base.shape, base.stride(), strict=True)):
        return _meta(base.shape, base.dtype)
    whole = _meta((base.untyped_storage().nbytes() // base.element_size(),), base.dtype)
    return whole.as_strided(base.shape, base.stride(), base.storage_offset())


Looks = tuple[tuple[int, ...], tuple[int, ...]]  # shape and strides


def _permuted(kind: Kind, dims: tuple[int, ...]) -> Looks:
    return tuple([kind.shape[dim] for dim in dims]), tuple([kind.stride[dim] for dim in dims])


def _transposed(kind: Kind, one: int, other: int) -> Looks:
    dims = [*range(len(kind.shape))]
    dims[one], dims[other] = dims[other], dims[one]
    return _permuted(kind, tuple(dims))


def _narrowed(kind: Kind, dim: int, start: int, length: int) -> Looks:
    dim %= len(kind.shape)
    if start + length > kind.shape[dim]:
        raise RuntimeError("more than there is")
    return (*kind.shape[:dim], length, *kind.shape[dim + 1 :]), kind.stride


def _cut(kind: Kind, dim: int, start: int, sizes: tuple[int, ...]) -> Looks:
    shape, stride = _narrowed(kind, dim, start, prod(sizes))
    steps = [step * stride[dim] for step in contiguous(sizes)]
    return (*shape[:dim], *sizes, *shape[dim + 1 :]), (*stride[:dim], *steps, *stride[dim + 1 :])


def _selected(kind: Kind, dim: int, place: int) -> Looks:
    _narrowed(kind, dim, place, 1)
    dim %= len(kind.shape)
    return kind.shape[:dim] + kind.shape[dim + 1 :], kind.stride[:dim] + kind.stride[dim + 1 :]


def _unsqueezed(kind: Kind, dim: int) -> Looks:
    dim %= len(kind.shape) + 1
    step = kind.shape[dim] * kind.stride[dim] if dim < len(kind.shape) else 1
    return (*kind.shape[:dim], 1, *kind.shape[dim:]), (*kind.stride[:dim], step, *kind.stride[dim:])


def _expanded(kind: Kind, shape: tuple[int, ...]) -> Looks:
    new = len(shape) - len(kind.shape)
    sizes = [own if size == -1 else size for size, own in zip(shape[new:], kind.shape, strict=True)]
    _check_equal(pair for pair in zip(sizes, kind.shape, strict=True) if pair[1] != 1)
    steps = [step if size == own else 0 for size, own, step in zip(sizes, kind.shape, kind.stride, strict=True)]
    return (*shape[:new], *sizes), (*[0] * new, *steps)


def _diagonal(kind: Kind, offset: int, one: int, other: int) -> Looks:
    one, other = one % len(kind.shape), other % len(kind.shape)
    size = min(kind.shape[one] + min(offset, 0), kind.shape[other] - max(offset, 0))
    kept = [dim for dim in range(len(kind.shape)) if dim not in (one, other)]
    shape, stride = _permuted(kind, tuple(kept))
    return (*shape, max(size, 0)), (*stride, kind.stride[one] + kind.stride[other])


def _reshaped(kind: Kind, shape: tuple[int, ...]) -> Looks | None:
    """Return the looks of a view, None for a copy."""
    shape = _in_full(kind, shape)
    if kind.is_contiguous:
        return shape, contiguous(shape)
    stride = kind.viewed(shape)
    return None if stride is None else (shape, stride)


def _in_full(kind: Kind, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a tensor is to have, of which one size may be left out."""
    if -1 in shape:
        shape = tuple([kind.numel // -prod(shape) if size == -1 else size for size in shape])
    _check_equal([(kind.numel, prod(shape))])
    return shape


# The looks of the view that a function returns.
_LOOKS: dict[Any, Callable[..., Looks | None]] = {
    torch.permute: _permuted,
    torch.transpose: _transposed,
    torch.narrow: _narrowed,
    cut: _cut,
    torch.select: _selected,
    torch.unsqueeze: _unsqueezed,
    torch.diagonal: _diagonal,
    torch.Tensor.expand: _expanded,
    torch.reshape: _reshaped,
}

# Those whose result is laid out as what they take.
_ELEMENTWISE = (torch.mul, torch.add, torch.neg, views.add_scaled)
_STRIDED = (*_ELEMENTWISE, torch.sum, operators.passed_on, packing.scaled_rows)


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _turned(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of tensors that are copied where their entries are read in order."""
    return _bytes([tensor for tensor in tensors if not tensor.is_contiguous()])


_SCRATCH: dict[Callable, Callable[[Sequence[Any], torch.Tensor], int]] = {
    torch.mm: lambda args, _: of_product(*args),
    torch.matmul: lambda args, _: of_product(*[tensor for tensor in args if tensor.dim() > 1]),
    views.folded: lambda args, _: _turned(args[:1]) + of_product(*[tensor for tensor in args[1:] if tensor.dim() > 1]),
    packing.collected: lambda args, result: packing.scratch(args[0], result),
    placing.flat: lambda args, _: _turned(args),
    placing.scattered: lambda args, result: bytes_of(result) + _bytes(args[2:]) + _turned(args[2:]),
    scatter.added: lambda args, _: scatter.scratch(*args[2:]),
    lookups.multiplied: lambda args, result: lookups.scratch(args[1], args[2], len(result)),
    placing.gathered: lambda args, _: _bytes(args[1:]) + _turned(args[1:]),
    tables.pairs_of: lambda args, result: tables.scratch_of_pairs(args[0].shape[0], args[1].shape[0], result.shape[1]),
    tables.ranked: lambda args, result: tables.scratch_of_ranks(args[0], result.shape[0]),
    tables.different: lambda args, result: 2 * bytes_of(args[0]) + bytes_of(result),
    tables.index_of: lambda _, result: bytes_of(result) * 9 // 8,  # with which indices are spare
    tables.place_among: lambda _, result: bytes_of(result) * 9 // 8,
    tables.inside: lambda _, result: bytes_of(result) // 8,
    tables.rows_of: lambda args, _: _bytes(args[:1]) + _bytes(args[3:]),
    adding.added_in_pieces: lambda args, _: adding.scratch(args[1], args[2], args[5]),
    lookups.products_added: lambda args, result: lookups.scratch_of_adding(
        args[4], args[5], len(args[2]), bytes_of(result)
    ),
}
