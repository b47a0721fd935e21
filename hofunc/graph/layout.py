"""Tensors in memory: where their elements lie, and the ops by which a graph reads and writes them.

Memory is a tensor whose elements, in their order, are those of a storage. It has the axes of the tensor that the
storage was allocated for, so that what lies along some of them still does.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch


def select_scatter(tensor: torch.Tensor, part: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """Return the tensor with a part written to where `torch.select` takes it from.

    It is ``torch.select_scatter``, the gradient of which torch gets wrong behind vmap, see
    docs/explanations/torch-errors.md.
    """
    place = index % tensor.shape[dim]
    return torch.slice_scatter(tensor, part.unsqueeze(dim), dim, place, place + 1)


def as_pairs(z: torch.Tensor) -> torch.Tensor:
    """Return the real and imaginary parts of a complex tensor along a new last axis."""
    return torch.view_as_real(z.resolve_conj())


def as_complex(pairs: torch.Tensor) -> torch.Tensor:
    """Return the complex tensor whose parts stand along the last axis."""
    return torch.view_as_complex(pairs.contiguous())


# Ops that are right for the recorded values only, by what computes the values of a later call, which may have other
# strides, be mapped by vmap, and be followed by autograd where those were not.
COMPUTED_AGAIN: dict[Any, Callable] = {
    torch.ops.aten.view.default: torch.reshape,
    torch.ops.aten._unsafe_view.default: torch.reshape,
    torch.ops.aten.select_scatter.default: select_scatter,
    torch.ops.aten.view_as_real.default: as_pairs,
    torch.ops.aten.view_as_complex.default: as_complex,
    torch.ops.aten._neg_view.default: torch.neg,
    torch.ops.aten._embedding_bag_forward_only.default: torch.ops.aten._embedding_bag.default,
}


class Layout(NamedTuple):
    """Where the elements of a tensor lie in memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return where the elements of a tensor lie in its storage."""
    return Layout(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def copied_as_laid(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor that has its strides."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    size, stride = tensor.shape, tensor.stride()
    last = sum((extent - 1) * step for extent, step in zip(size, stride, strict=True))
    return tensor.as_strided((last + 1 if tensor.numel() else 0,), (1,)).clone().as_strided(size, stride, 0)


def memory_order(stride: Sequence[int]) -> tuple[int, ...]:
    """Return the axes in the order of memory, the one with the largest stride first."""
    return tuple(sorted(range(len(stride)), key=lambda dim: -stride[dim]))


def within(layout: Layout, memory: Layout) -> Layout | None:
    """Return where a tensor lies in another one as memory.

    Args:
        layout: Where it lies in a storage.
        memory: Where the other one lies in the same storage.

    Returns:
        None if the other one has gaps or overlaps itself, or if the tensor lies in part outside of it.
    """
    count = 1
    for dim in reversed(memory_order(memory.stride)):
        if memory.size[dim] != 1 and memory.stride[dim] != count:
            return None
        count *= memory.size[dim]
    start = layout.offset - memory.offset
    last = start + sum((size - 1) * stride for size, stride in zip(layout.size, layout.stride, strict=True))
    return layout._replace(offset=start) if start >= 0 and last < count and 0 not in layout.size else None


def read_strided(memory: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the tensor that lies in memory at a layout."""
    vector = memory.reshape(-1)
    if (start := _start_of_run(layout)) is not None:
        return vector.narrow(0, start, prod(layout.size)).clone().reshape(layout.size)
    return vector.index_select(0, places(layout, memory.device)).reshape(layout.size)


def restrided(memory: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the tensor that lies in memory at a layout, for which f itself asked by its strides."""
    return read_strided(memory, layout)


def write_strided(memory: torch.Tensor, value: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the memory with a tensor written into it at a layout."""
    vector, values = memory.reshape(-1), value.reshape(-1)
    if (start := _start_of_run(layout)) is not None:
        written = torch.slice_scatter(vector, values, 0, start, start + prod(layout.size))
    else:
        written = vector.index_copy(0, places(layout, memory.device), values)
    return written.reshape(memory.shape)


def _start_of_run(layout: Layout) -> int | None:
    """Return where a tensor starts whose elements follow one another in memory; None for others."""
    count = 1
    for size, stride in zip(reversed(layout.size), reversed(layout.stride), strict=True):
        if size != 1 and stride != count:
            return None
        count *= size
    return layout.offset


def overwritten(
    tensor: torch.Tensor,
    source: torch.Tensor,
    non_blocking: bool = False,  # noqa: ARG001 - as of copy_
) -> torch.Tensor:
    """Return what a tensor is once another was copied into it: aten.copy, which autograd cannot differentiate."""
    return source.to(tensor).expand(tensor.shape)


def unseen(before: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return what a tensor is after a write that autograd did not see: the value written, the derivative of before."""
    finite = torch.where(before.isfinite(), before, 0)  # where it is not, the difference would be nan
    return value.detach() + (finite - finite.detach())


def in_memory_order(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor as memory: its axes in the order in which they lie there."""
    return tensor.permute(order)


def places(layout: Layout, device: torch.device) -> torch.Tensor:
    """Return the places of a tensor's elements in memory, in the order of its own elements."""
    places = torch.full((), layout.offset, device=device)
    for size, stride in zip(layout.size, layout.stride, strict=True):
        places = places[..., None] + stride * torch.arange(size, device=device)
    return places.reshape(-1)
