"""Factors that are applied rather than multiplied: Kronecker deltas, linear maps and masks."""

from collections.abc import Collection, Sequence, Set
from math import prod
from typing import Any

import torch

from hofunc.algebra.labels import Axes, Axis, Label, extent, fresh_axes, labels_of, shape_of
from hofunc.algebra.operators import Delta
from hofunc.algebra.term import Factor
from hofunc.graph.followed import is_followed
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Weights
from hofunc.plan.builder import Builder
from hofunc.scatter import size_of
from hofunc.views import Labelled, aligned, each, read, spread

MANY = 1 << 12  # entries of a mask, from which on it is worth it to look how they are passed on soonest

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def applied(
    builder: Builder, operator: Factor, operands: Sequence[Labelled], needed: set[Label]
) -> list[Labelled] | None:
    """Apply an operator to the operand that it is contracted with.

    Args:
        builder: Takes the steps.
        operator: The factor of a delta or a map.
        operands: The tensors of the same product.
        needed: Labels that are visible in the term or that other operators have.

    Returns:
        The operands, one of them transformed; None unless a single operand has all that is contracted and nothing
        else has any of it.
    """
    for transposed in (True, False):
        contracted = _contracted(operator, needed, transposed)
        hosts = [operand for operand in operands if contracted is not None and contracted & {*operand.labels}]
        if contracted is not None and len(hosts) <= 1:
            host = hosts[0] if hosts else Labelled(builder.emit(one_like, builder.like()), ())
            others = [operand for operand in operands if operand is not host]
            return [*others, transformed(builder, operator, host, transposed=transposed)]
    return None


def summable(operator: Factor, needed: set[Label]) -> list[set[Label]]:
    """Return the labels over which an operator may be summed, from either of its sides, as nothing else needs them."""
    found = (_contracted(operator, needed, transposed) for transposed in (True, False))
    return [labels for labels in found if labels is not None]


def _contracted(operator: Factor, needed: set[Label], transposed: bool) -> set[Label] | None:
    taken, given, _ = _ends(operator, transposed)
    contracted = {label for label in labels_of(taken) if label.size > 1}
    return None if contracted & {*needed, *labels_of(given)} else contracted


def _ends(operator: Factor, transposed: bool) -> tuple[Axes, Axes, Axes]:
    """Return the axes that the operator takes, those it gives in their place, and those along which it is separate."""
    outs, ins = (1, 1) if isinstance(operator.source, Delta) else (operator.source.outs, operator.source.ins)
    ends = operator.axes[:outs], operator.axes[outs : outs + ins]
    return (*(ends if transposed else ends[::-1]), operator.axes[outs + ins :])


def applied_to_diagonals(
    builder: Builder, operator: Factor, operands: Sequence[Labelled], needed: set[Label]
) -> list[Labelled] | None:
    """Apply an operator to the operand that it is contracted with, as a diagonal along what others need as well.

    Returns:
        The operands, one of them transformed; None where its matrix has no more columns than there would be then.
    """
    for transposed in (True, False):
        taken, given, separate = _ends(operator, transposed)
        contracted = {label for label in labels_of(taken) if label.size > 1}
        kept = contracted & needed
        hosts = [operand for operand in operands if (contracted - kept) & {*operand.labels}]
        if len(hosts) != 1 or not kept <= {*hosts[0].labels} or not contracted.isdisjoint(labels_of(given, separate)):
            continue
        (host,) = hosts
        columns = prod(label.size for label in host.labels if label in kept or label not in contracted)
        if columns < min(extent(_merged(taken)), extent(_merged(given))):
            others = [operand for operand in operands if operand is not host]
            return [*others, transformed(builder, operator, host, transposed=transposed, kept=kept)]
    return None


def transformed(
    builder: Builder, operator: Factor, host: Labelled, *, transposed: bool, kept: Collection[Label] = ()
) -> Labelled:
    """Apply an operator, or its transpose, to a tensor, which keeps some of the labels that are contracted."""
    taken, given, separate = _ends(operator, transposed)
    without = {*labels_of(taken, separate)}.difference(kept)
    rest = each([label for label in host.labels if label not in without])
    tensor = spread(builder.emit, host, (*rest, *separate, *taken))
    return _apply(builder, operator, tensor, transposed, (*rest, *separate, *given))


def _apply(builder: Builder, operator: Factor, tensor: Any, transposed: bool, axes: Axes) -> Labelled:
    """Apply an operator to a tensor, and view the result through its axes."""
    if not isinstance(operator.source, Delta):
        function = operator.source.transpose if transposed else operator.source.forward
        tensor = builder.apply(function, tensor, operator.source.args, shape_of(axes))
    return read(builder.emit, tensor, axes)


def matrix(builder: Builder, operator: Factor) -> Labelled:
    """Build the operator's matrix, by applying it to the identity of its smaller end."""
    taken, given, _ = _ends(operator, transposed=True)
    transposed = extent(_merged(taken)) <= extent(_merged(given))
    taken, given, separate = _ends(operator, transposed)
    rows, columns = fresh_axes(shape_of(taken)), fresh_axes(shape_of(taken))
    eye = builder.emit(eye_like, builder.like(), extent(_merged(rows)))
    identity = read(builder.emit, eye, (_merged(rows), _merged(columns)))
    tensor = spread(builder.emit, identity, (*rows, *fresh_axes(shape_of(separate)), *columns))
    return _apply(builder, operator, tensor, transposed, (*taken, *separate, *given))


def _merged(axes: Axes) -> Axis:
    return sum(axes, ())


def eye_like(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return an identity matrix of a tensor's dtype and device."""
    return torch.eye(size, dtype=tensor.dtype, device=tensor.device)


def one_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return the number one as a tensor of a tensor's dtype and device."""
    return torch.ones((), dtype=tensor.dtype, device=tensor.device)


def unit_rows(
    places: torch.Tensor, start: int, stride: int, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Return a row for every place: zero but for a one at that place of a tensor of a shape.

    Places count from start on, and the next entry of the tensor is so many of them on; after its last it is the first.
    """
    entries = entries_at(places, start, stride, prod(shape))
    numbers = torch.arange(prod(shape), device=places.device)
    return (entries[:, None] == numbers).to(dtype).reshape(-1, *shape)


def entries_at(places: torch.Tensor, start: int, stride: int, size: int) -> torch.Tensor:
    """Return for every place the entry of so many at which `unit_rows` has a one."""
    if places.is_meta:  # torch's kernels of what follows import its compiler there
        return torch.empty(places.shape, dtype=places.dtype, device="meta")
    return (places - start) // stride % size


def rows_read(tensor: torch.Tensor, places: torch.Tensor, dim: int, start: int, stride: int, size: int) -> torch.Tensor:
    """Return for every place what a tensor has at the entry of an axis of so many."""
    return tensor.index_select(dim, entries_at(places, start, stride, size))


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros."""
    return torch.zeros(shape, dtype=dtype, device=device)


def masked_by(builder: Builder, factor: Factor, mask: Labelled, operands: Sequence[Labelled]) -> list[Labelled]:
    """Apply a mask to the operand that has most of its labels; where there is none it is an operand itself.

    Of several, it is the one that it makes least of: one that lacks labels of it is repeated along them.

    Args:
        builder: Takes the steps.
        factor: The factor of the mask.
        mask: What is read of it.
        operands: The operands.
    """
    if not operands:
        return [Labelled(builder.emit(torch.Tensor.to, mask.tensor, builder.dtype), mask.labels)]
    own = {*mask.labels}
    place = min(range(len(operands)), key=lambda place: _made_of(own, operands[place]))
    operand = operands[place]
    labels = (*operand.labels, *(label for label in mask.labels if label not in operand.labels))
    apply = weighted if isinstance(factor.source, Weights) else passed_on
    kept = builder.emit(apply, *(aligned(builder.emit, one, labels) for one in (operand, mask)))
    return [*operands[:place], Labelled(kept, labels), *operands[place + 1 :]]


def _made_of(labels: Set[Label], operand: Labelled) -> tuple[int, int]:
    """Return how many of some labels an operand lacks, and how many entries it has with them."""
    missing = labels - {*operand.labels}
    return len(missing), size_of([*operand.labels, *missing])


def passed_on(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return a tensor with zeros where a mask is false.

    On CPUs torch.where branches at each entry, so that where masks have no order it takes ten and more times as long as
    to multiply the bits of the numbers.
    """
    bits = _BITS.get(tensor.dtype) if tensor.device.type == "cpu" and mask.numel() >= MANY else None
    if (
        bits is None
        or type(tensor) not in PLAIN
        or type(mask) not in PLAIN
        or tensor.is_neg()
        or is_followed((tensor,))
    ):
        return torch.where(mask, tensor, 0)
    return (mask * tensor.view(bits)).view(tensor.dtype)


def weighted(tensor: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return a tensor times weights, with zeros where these are zero."""
    return passed_on(tensor * weights, weights != 0)
