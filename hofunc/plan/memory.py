"""Memory: what tensors look like and which memory they have, with data or without.

Memory is counted once, whoever views it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.internals import identity_of, tree_leaves


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What a tensor looks like; in one trace there is one of each.

    Attributes:
        shape: Its shape.
        stride: Its strides.
        dtype: Its dtype.
        nbytes: The bytes of all of its memory.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int

    @property
    def numel(self) -> int:
        """How many entries it has."""
        return prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether its entries lie one after the other, in order."""
        pairs = zip(self.shape, self.stride, contiguous(self.shape), strict=True)
        return not self.numel or all(size == 1 or own == stride for size, own, stride in pairs)

    def viewed(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the strides of a view of another shape; None if there is none, or if there are no elements.

        Axes that lie as one in memory may be taken apart and merged, and others may not.
        """
        if 0 in self.shape:
            return None
        sizes = [(size, step) for size, step in zip(self.shape, self.stride, strict=True) if size != 1]
        stride, place, step = [1] * len(shape), len(shape), 1
        while sizes:
            size, step = sizes.pop()
            while sizes and sizes[-1][1] == size * step:
                size *= sizes.pop()[0]
            part = 1
            while part < size and place:
                place -= 1
                stride[place] = part * step
                part *= shape[place]
            if part != size:
                return None
        return tuple(stride)


class Held(NamedTuple):
    """A tensor without data.

    Attributes:
        kind: What it looks like.
        memory: What names its memory, and the bytes of that; the same object for all that view it.
    """

    kind: Kind
    memory: dict[Any, int]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.kind.shape

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""
        return self.kind.dtype

    @classmethod
    def fresh(cls, shape: tuple[int, ...], dtype: torch.dtype) -> "Held":
        """Return what a new tensor is."""
        nbytes = prod(shape) * dtype.itemsize
        return cls(Kind(shape, contiguous(shape), dtype, nbytes), {object(): nbytes})

    def narrowed(self, dim: int, _start: int, size: int) -> "Held":
        """Return the view of so many entries along an axis."""
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        return Held(Kind(shape, self.kind.stride, self.dtype, self.kind.nbytes), self.memory)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new tensor."""
    return tuple([prod(shape[dim + 1 :]) for dim in range(len(shape))])


def memory_of(values: Any) -> dict[Any, int]:
    """Return the bytes of the memory of tensors, by what names it."""
    if type(values) is Held:
        return values.memory
    if isinstance(values, torch.Tensor):
        storage = values.untyped_storage()
        return {identity_of(storage): storage.nbytes()}
    if any(type(value) is Held for value in values or ()):
        return {name: size for value in values if value is not None for name, size in memory_of(value).items()}
    leaves = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    tensors = [leaf for leaf in leaves if leaf.layout is torch.strided]  # others have no memory of their own
    return {identity_of(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in tensors}


def bytes_of(values: Any, outside: Iterable[Any] = ()) -> int:
    """Return how many bytes tensors take together, beside what is held outside."""
    apart = {*outside}
    return sum(size for place, size in memory_of(values).items() if place not in apart)
