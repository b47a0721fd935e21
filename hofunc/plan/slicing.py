"""Slices of steps: along which axes a step takes some entries of what it takes, for some entries of what it makes.

Where all that leads from one tensor to sums over one of its labels can be done for some entries of that label at a
time, what is made on the way is never held as a whole. Only what is listed here is known to be done so: of a function
that mixes entries, no slice of its result follows from slices of what it takes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.graph.draws import is_random
from hofunc.graph.layout import select_scatter
from hofunc.graph.node import Call, Ref, fill
from hofunc.graph.quick import QUICK
from hofunc.internals import OpOverload
from hofunc.plan.builder import cut
from hofunc.plan.lookups import elements, multiplied
from hofunc.plan.memory import Held
from hofunc.plan.operators import passed_on
from hofunc.plan.program import Register, Step
from hofunc.plan.relations import add_last, read_last
from hofunc.rules.kinds import is_elementwise
from hofunc.rules.ops.maps import (
    flipped,
    picked,
    put_back,
    rolled,
    rolled_back,
    running_sum,
    running_sum_transposed,
)
from hofunc.rules.ops.softmax import OF_PROBABILITIES
from hofunc.scatter import added, flat_places
from hofunc.views import Reads, add_scaled, concatenated, filled, folded, narrow_scatter, put, stacked

INDEX = torch.ops.aten.index.Tensor

Looks = Mapping[int, Any]  # by register, what it holds


class Along(NamedTuple):
    """Where a label lies in a tensor: along an axis that runs over it, and maybe over other labels around it.

    Attributes:
        dim: The axis.
        outer: How many entries of it there are for those labels that come before.
        inner: Likewise for those that come after.
    """

    dim: int
    outer: int = 1
    inner: int = 1


Taken = list[tuple[int, Along | None]]  # registers, each with where its entries are taken, None if it is as a whole


class Some(NamedTuple):
    """A size that is so many times the number of entries that are taken."""

    factor: int


def sized(arg: Any, count: int) -> Any:
    """Return an argument with the sizes for so many entries."""
    if type(arg) is tuple:
        return tuple([sized(each, count) for each in arg])
    return arg.factor * count if type(arg) is Some else arg


def taken(step: Step, along: Along, looks: Looks) -> Taken | None:
    """Return what a step takes for some entries of its result; None if it is not known to do that."""
    if not _are_tensors(step, looks):
        return None
    shape = looks[step.target].shape
    if step.function is torch.reshape:
        found = _through_reshape(shape, along, looks[step.args[0].index].shape)
        return None if found is None else [(step.args[0].index, found)]
    if step.function is added:
        return _of_columns(step, along, looks)
    rule, args = _rule_of(step)
    dims = None if rule is None else rule(shape, along.dim, *_operands(args, looks))
    if dims is None:
        return None
    pairs = zip(args, dims, strict=True)
    return [(a.index, None if dim is None else along._replace(dim=dim)) for a, dim in pairs if type(a) is Register]


def made(step: Step, register: int, along: Along, looks: Looks) -> Along | None:
    """Return where entries of what a step takes lie in what it makes; None if they do not or if that is not known."""
    if not _are_tensors(step, looks):
        return None
    shape = looks[step.target].shape
    if step.function is torch.reshape:
        return _through_reshape(looks[register].shape, along, shape)
    if step.function is added:
        tried = _laid_out(looks[register].shape, along, step.args[1])
        tries = [] if tried is None else [tried]
    else:
        tries = [along._replace(dim=dim) for dim in range(len(shape))]
    for each in tries:
        found = taken(step, each, looks)
        if found is not None and all(own == along for other, own in found if other == register):
            return each
    return None


def summed(step: Step, register: int, along: Along, looks: Looks) -> Taken | None:
    """Return what a step takes of entries over which it sums, given where they lie in one of its operands.

    None if it does not sum over them, or if that is not known.
    """
    if not _are_tensors(step, looks):
        return None
    if step.function is torch.sum:
        return [(register, along)] if along.dim in _dims_of(looks[register].shape, *step.args[1:]) else None
    at_indices = _of_entries if step.function is added else _of_last_entries
    if step.function is added or _is_of_last(step.function, _ADDING):
        return at_indices(step, register, along, looks)
    if step.function not in _CONTRACTED or any(type(arg) is not Register for arg in step.args):
        return None
    left, right = (arg.index for arg in step.args)
    dims = _CONTRACTED[step.function](looks[left].shape, looks[right].shape)
    if any(own == register and dim != along.dim for own, dim in zip((left, right), dims, strict=True)):
        return None
    return [(own, along._replace(dim=dim)) for own, dim in zip((left, right), dims, strict=True)]


def template(step: Step, looks: Looks, axes: Mapping[int, Along]) -> tuple:
    """Return what a step takes, with sizes that tell how many entries there are in place of those of all of them."""
    args, own = list(step.args), axes.get(step.target)
    if own is None:
        return tuple(args)
    if step.function in (torch.reshape, torch.Tensor.expand, filled):
        shape = list(looks[step.target].shape)
        shape[own.dim] = Some(own.outer * own.inner)
        args[1] = tuple(shape)
    elif step.function is added:
        args[1] = Some(own.outer * own.inner)
    elif step.function is flat_places:
        args[0] = (Some(own.outer * own.inner),)
    return tuple(args)


def _are_tensors(step: Step, looks: Looks) -> bool:
    return all(type(looks[each]) is Held for each in (step.target, *registers_of(step)))


def registers_of(step: Step) -> Iterator[int]:
    """Yield the registers that a step reads."""
    return (arg.index for arg in step.args if type(arg) is Register)


def _operands(args: Sequence[Any], looks: Looks) -> list[Any]:
    return [looks[arg.index].shape if type(arg) is Register else arg for arg in args]


def _through_reshape(shape: Sequence[int], along: Along, other: Sequence[int]) -> Along | None:
    """Return where a label lies after a reshape, None if it is part of no axis as a whole."""
    count = shape[along.dim] // (along.outer * along.inner)
    ahead = prod(shape[: along.dim]) * along.outer
    before = 1
    for dim, size in enumerate(other):
        if size != 1 and before and ahead % before == 0 and (before * size) % (ahead * count) == 0:
            return Along(dim, ahead // before, before * size // (ahead * count))
        before *= size
    return None


def _of_columns(step: Step, along: Along, looks: Looks) -> Taken | None:
    """Return what an addition of rows takes for some columns."""
    if along.dim != 1:
        return None
    count = len(step.args[2])
    places, rows = step.args[3 : 3 + count], step.args[3 + count :]
    found: Taken = [(register.index, None) for register in places]
    for register, where in zip(rows, places, strict=True):
        laid = (looks[where.index].shape[0], step.args[1])
        own = _through_reshape(laid, along, looks[register.index].shape)
        if own is None:
            return None
        found.append((register.index, own))
    return found


def _of_last_entries(step: Step, register: int, along: Along, looks: Looks) -> Taken | None:
    """Return what is taken of entries of the last axis that are added up at a vector of indices."""
    tensor, index = (arg.index for arg in step.args)
    is_plain = len(looks[index].shape) == 1 and register == tensor != index
    if not is_plain or along.dim != len(looks[tensor].shape) - 1:
        return None
    return [(tensor, along), (index, along._replace(dim=0))]


def _is_of_last(function: Any, ops: frozenset) -> bool:
    return isinstance(function, Call) and function.op in ops


def _laid_out(shape: Sequence[int], along: Along, width: int) -> Along | None:
    """Return the columns that entries of rows are, whatever axes these have."""
    found = _through_reshape(shape, along, (prod(shape) // width, width))
    return found if found is not None and found.dim == 1 else None


def _of_entries(step: Step, register: int, along: Along, looks: Looks) -> Taken | None:
    """Return what an addition of rows takes of some of them, if all that it adds are as many and lie alike."""
    count, width = len(step.args[2]), step.args[1]
    places, rows = step.args[3 : 3 + count], step.args[3 + count :]
    entries = looks[places[0].index].shape[0]
    found = _through_reshape(looks[register].shape, along, (entries, width))
    if found is None or found.dim != 0 or any(looks[where.index].shape[0] != entries for where in places):
        return None
    if all(each.index != register for each in rows):
        return None
    owns = [_through_reshape((entries, width), found, looks[each.index].shape) for each in rows]
    pairs = [(each.index, own) for each, own in zip(rows, owns, strict=True) if own is not None]
    return [*((where.index, found) for where in places), *pairs] if len(pairs) == count else None


_CONTRACTED: dict[Any, Callable[[Sequence[int], Sequence[int]], tuple[int, int]]] = {
    torch.mm: lambda left, right: (1, 0),  # noqa: ARG005 - of matrices
    torch.bmm: lambda left, right: (2, 1),  # noqa: ARG005
    torch.matmul: lambda left, right: (len(left) - 1, max(0, len(right) - 2)),
    folded: lambda left, right: (len(left) - 1, 0),  # noqa: ARG005
}


# The axes of operands along which a step takes entries, for entries along an axis of its result.

Axes = Sequence[int | None] | None


def elementwise(shape: Sequence[int], axis: int, *operands: Any) -> Axes:
    """Return the axes of what is broadcast against each other."""
    axes = [axis - len(shape) + len(each) if type(each) is tuple else None for each in operands]
    return [
        None if place is None or place < 0 or each[place] == 1 else place
        for place, each in zip(axes, operands, strict=True)
    ]


def _permuted(_: Sequence[int], axis: int, __: Any, dims: Sequence[int]) -> Axes:
    return [dims[axis], None]


def _transposed(shape: Sequence[int], axis: int, _: Any, one: int, other: int) -> Axes:
    one, other = one % len(shape), other % len(shape)
    return [{one: other, other: one}.get(axis, axis), None, None]


def _unsqueezed(shape: Sequence[int], axis: int, _: Any, dim: int) -> Axes:
    dim %= len(shape)
    return None if axis == dim else [axis - (axis > dim), None]


def _expanded(shape: Sequence[int], axis: int, before: Sequence[int], _: Any) -> Axes:
    own = axis - len(shape) + len(before)
    return [None if own < 0 or before[own] == 1 else own, None]


def _read_elements(_: Sequence[int], axis: int, __: Any, *indices: Sequence[int]) -> Axes:
    if any(len(each) != 1 for each in indices):
        return None
    return [None, *[0 for _ in indices]] if axis == 0 else [axis - 1 + len(indices), *[None for _ in indices]]


def _of_last(shape: Sequence[int], axis: int, before: Sequence[int], index: Sequence[int], _: int) -> Axes:
    """Return the axes of what reads, or adds to, the last axis at one vector of indices."""
    is_plain = len(index) == 1 and len(before) == len(shape)
    return [axis, None, None] if is_plain and axis < len(shape) - 1 else None


def _but_last(shape: Sequence[int], axis: int, _: Any, *others: Any) -> Axes:
    """Return the axes of what moves or adds up entries of the last axis, by numbers."""
    return [axis, *[None for _ in others]] if axis < len(shape) - 1 else None


def _of_probabilities(
    shape: Sequence[int], axis: int, before: Sequence[int], p: Sequence[int], order: Sequence[int], count: int
) -> Axes:
    """Return the axes of a map of probabilities over the last axes, which have others along which it is separate."""
    if axis >= len(shape) - count:
        return None
    place = axis - len(shape) + len(order)
    own = order[place] if place >= 0 else None
    return [None if before[axis] == 1 else axis, None if own is None or p[own] == 1 else own, None, None]


def _indexed(_: Sequence[int], axis: int, __: Any, *index: Sequence[int]) -> Axes:
    if len(index) != 1 or len(index[0]) != 1:
        return None
    return [None, 0] if axis == 0 else [axis, None]


def _read_last(shape: Sequence[int], axis: int, before: Sequence[int], index: Sequence[int], extent: int) -> Axes:
    is_last = axis == len(shape) - 1 and len(index) == 1
    return [None, 0, None] if is_last else _of_last(shape, axis, before, index, extent)


def _selected_at(_: Sequence[int], axis: int, __: Any, dim: int, ___: Any) -> Axes:
    return [None, None, 0] if axis == dim else [axis, None, None]


def _selected(_: Sequence[int], axis: int, before: Sequence[int], dim: int, __: int) -> Axes:
    return [axis + (axis >= dim % len(before)), None, None]


def _narrowed(shape: Sequence[int], axis: int, _: Any, dim: int, __: int, ___: int) -> Axes:
    return None if axis == dim % len(shape) else [axis, None, None, None]


def _cut(_: Sequence[int], axis: int, __: Any, dim: int, ___: int, sizes: Sequence[int]) -> Axes:
    if dim <= axis < dim + len(sizes):
        return None
    return [axis if axis < dim else axis - len(sizes) + 1, None, None, None]


def _dims_of(shape: Sequence[int], dims: Any = (), keeps: bool = False) -> Sequence[int]:
    """Return the axes that are summed away, none if they are kept."""
    every = (dims,) if type(dims) is int else tuple(dims or range(len(shape)))
    return () if keeps else tuple([dim % len(shape) for dim in every])


def _summed(_: Sequence[int], axis: int, before: Sequence[int], *how: Any) -> Axes:
    if len(how) > 1 or not before:
        return None
    dims = _dims_of(before, *how)
    return [[dim for dim in range(len(before)) if dim not in dims][axis], *[None for _ in how]]


def _diagonal(_: Sequence[int], axis: int, before: Sequence[int], __: int, one: int, other: int) -> Axes:
    rest = [dim for dim in range(len(before)) if dim not in (one, other)]
    return [rest[axis], None, None, None] if axis < len(rest) else None


def _diagonal_written(shape: Sequence[int], axis: int, _: Any, __: Any, ___: int, one: int, other: int) -> Axes:
    rest = [dim for dim in range(len(shape)) if dim not in (one, other)]
    return [axis, rest.index(axis), None, None, None] if axis in rest else None


def _select_written(_: Sequence[int], axis: int, __: Any, ___: Any, dim: int, ____: int) -> Axes:
    return None if axis == dim else [axis, axis - (axis > dim), None, None]


def _narrow_written(_: Sequence[int], axis: int, __: Any, ___: Any, dim: int, *rest: int) -> Axes:
    return None if axis == dim else [axis, axis, None, *[None for _ in rest]]


def _put(shape: Sequence[int], axis: int, _: Any, part: Sequence[int], reads: Reads) -> Axes:
    found = _filled(shape, axis, part, shape, reads)
    return None if found is None else [axis, found[0], None]


def _filled(shape: Sequence[int], axis: int, part: Sequence[int], _: Any, reads: Reads) -> Axes:
    """Return the axes of what is written to a view of views, none of which may cut the axis or take it apart."""
    dims = [*range(len(shape))]  # that each axis of the view is
    for name, *args in reads:
        if name == "reshape":
            return None
        gone = [dims[dim] for dim in (args[1:] if name == "diagonal" else args[:1])]
        if axis in gone:
            return None
        if name != "narrow":
            dims = [dim for dim in dims if dim not in gone] + gone[:1] * (name == "diagonal")
    own = dims.index(axis) - len(dims) + len(part)
    return [None if own < 0 or part[own] == 1 else own, None, None]


def _concatenated(_: Sequence[int], axis: int, dim: int, *tensors: Any) -> Axes:
    return None if axis == dim else [None, *[axis for _ in tensors]]


def _stacked(_: Sequence[int], axis: int, *tensors: Any) -> Axes:
    return [axis - 1 for _ in tensors] if axis else None


def _matrix(_: Sequence[int], axis: int, *__: Any) -> Axes:
    return [0, None] if axis == 0 else [None, 1]


def _matrices(_: Sequence[int], axis: int, *__: Any) -> Axes:
    return [(0, 0), (1, None), (None, 2)][axis]


def _folded(_: Sequence[int], axis: int, left: Sequence[int], __: Any) -> Axes:
    return [axis, None] if axis < len(left) - 1 else [None, axis - len(left) + 2]


def _multiplied(shape: Sequence[int], axis: int, left: Sequence[int], right: Sequence[int]) -> Axes:
    return _folded(shape, axis, left, right) if len(right) <= 2 else None


def _of_products(_: Sequence[int], axis: int, *args: Any) -> Axes:
    return None if axis else [None, None, None, *[0 for _ in args[3:]]]


def _of_places(shape: Sequence[int], _: int, sizes: Sequence[int], __: Any, ___: Any, *indices: Sequence[int]) -> Axes:
    is_along = len(sizes) == 1 and bool(indices) and all(tuple(each) == tuple(shape) for each in indices)
    return [None, None, None, *[0 for _ in indices]] if is_along else None


Rule = Callable[..., Axes]

RULES: dict[Any, Rule] = {
    torch.mul: elementwise,
    torch.add: elementwise,
    torch.neg: elementwise,
    torch.Tensor.to: elementwise,
    torch.Tensor.contiguous: elementwise,
    add_scaled: elementwise,
    passed_on: elementwise,
    torch.permute: _permuted,
    torch.transpose: _transposed,
    torch.unsqueeze: _unsqueezed,
    torch.Tensor.expand: _expanded,
    torch.diagonal: _diagonal,
    torch.diagonal_scatter: _diagonal_written,
    torch.select: _selected,
    select_scatter: _select_written,
    torch.narrow: _narrowed,
    cut: _cut,
    narrow_scatter: _narrow_written,
    put: _put,
    filled: _filled,
    concatenated: _concatenated,
    stacked: _stacked,
    elements: _read_elements,
    read_last: _read_last,
    add_last: _of_last,
    picked: _read_last,
    put_back: _of_last,
    **dict.fromkeys((flipped, rolled, rolled_back, running_sum, running_sum_transposed), _but_last),
    **dict.fromkeys(OF_PROBABILITIES, _of_probabilities),
    torch.sum: _summed,
    torch.mm: _matrix,
    torch.bmm: _matrices,
    torch.matmul: _multiplied,
    folded: _folded,
    torch.index_select: _selected_at,
    multiplied: _of_products,
    flat_places: _of_places,
}


VIEWS = frozenset(
    {
        torch.permute,
        torch.transpose,
        torch.unsqueeze,
        torch.reshape,
        torch.Tensor.expand,
        torch.diagonal,
        torch.select,
        torch.narrow,
        cut,
    }
)
_SIZED = frozenset({torch.Tensor.expand, filled, flat_places})  # by sizes, which no call that holds them can change
_ADDING = frozenset({add_last, put_back})
_POINTWISE = frozenset(function for op, function in QUICK.items() if torch.Tag.pointwise in op.tags)
# What takes as long to make as to read, or as to write and to read.
_OF_ROWS = frozenset({elements, torch.index_select, INDEX})
READS = _OF_ROWS | {read_last, picked}
_CHEAP = VIEWS | {torch.mul, torch.add, torch.neg, torch.Tensor.contiguous, add_scaled, passed_on, *READS}


def is_read(step: Step, found: Taken) -> bool:
    """Tell whether a step reads parts of rows at all indices, which takes about as long as to read whole ones."""
    return op_of(step.function) in _OF_ROWS and found[-1][1] is None


def is_cheap(function: Any) -> bool:
    """Tell whether what a function makes takes about as long to make as to read."""
    return op_of(function) in _CHEAP


def is_reading(function: Any) -> bool:
    """Tell whether a function reads rows at indices."""
    return op_of(function) in READS


def op_of(function: Any) -> Any:
    """Return the op that a call is of, and any other function as it is."""
    return function.op if isinstance(function, Call) else function


def _rule_of(step: Step) -> tuple[Rule | None, tuple]:
    """Return the rule of what a step calls, None if there is none, and what it calls that with."""
    function = step.function
    if not isinstance(function, Call):
        return (elementwise if function in _POINTWISE else RULES.get(function)), step.args
    op = function.op
    if op is INDEX:
        return (_indexed if function.args[1:] == ((Ref(1),),) else None), step.args
    if isinstance(op, OpOverload):
        is_pointwise = torch.Tag.pointwise in op.tags and not is_random(op, function.args, function.kwargs)
    else:
        is_pointwise = is_elementwise(op)
    if is_pointwise:
        return elementwise, step.args
    rule = None if function.kwargs or op in _SIZED else RULES.get(op)
    return rule, fill(function.args, iter(step.args))
