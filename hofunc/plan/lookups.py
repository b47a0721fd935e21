"""Products of matrices that are read at indices: read some at a time, so that what is read is never held as a whole.

Of entries that meet there are many more than entries. What is read for all pairs of them is many times as large as what
it is read from and as the products, and takes longest to write and to read again.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

import torch

from hofunc.algebra.labels import Label
from hofunc.graph.followed import is_followed, is_kept
from hofunc.plan.builder import Builder
from hofunc.plan.coefficients import Coefficient
from hofunc.plan.program import Register
from hofunc.scatter import size_of
from hofunc.views import Labelled, add_scaled, aligned

PIECE = 1 << 20  # bytes that are read at a time, which stay in the cache of a core, if the result is as large
LEAST = 1 << 18  # and if it is smaller
Labels = tuple[Label, ...]


def elements(tensor: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    """Return what a tensor has at indices along its first axes."""
    if len(indices) == 1 and indices[0].ndim == 1:
        return tensor.index_select(0, indices[0])
    if any(index.ndim for index in indices):
        return tensor[indices]
    return tensor[tuple([index[None] for index in indices])][0]  # torch would read tensors of one index as numbers


def elements_along(tensor: torch.Tensor, count: int, *indices: torch.Tensor) -> torch.Tensor:
    """Return what a tensor has at indices along the axes after its first ones, which are the first of all indices."""
    like = indices[0]
    along = [torch.arange(size, device=like.device) for size in like.shape[:count]]
    places = [each.reshape(-1, *[1] * (like.ndim - dim - 1)) for dim, each in enumerate(along)]
    return tensor[(*places, *indices)]


class _Read(NamedTuple):
    """An operand that is read at indices: what from, and at which, along its first axes."""

    source: Labelled
    indices: tuple[Register, ...]


def product_at(
    builder: Builder, one: Labelled, other: Labelled, pair: Label, around: tuple[Labels, Labels], summed: Labels
) -> Labelled | None:
    """Multiply two tensors for every index of a label that both have, if they are read at indices there.

    Args:
        builder: Takes the steps.
        one: A tensor.
        other: Another one.
        pair: The label.
        around: The other labels that each is left with.
        summed: The labels that are summed, which both have.

    Returns:
        The products, of the label and then those around; None if the tensors are not read at its indices.
    """
    found = [_read_of(builder, operand, pair) for operand in (one, other)]
    reads = [read for read in found if read is not None]
    if len(reads) < len(found):
        return None
    matrices = [_matrix(builder, read, own, summed) for read, own in zip(reads, around, strict=True)]
    indices = chain.from_iterable(read.indices for read in reads)
    total = builder.emit(multiplied, len(reads[0].indices), *matrices, *indices)
    labels = (pair, *around[0], *around[1])
    return Labelled(builder.emit(torch.reshape, total, tuple(label.size for label in labels)), labels)


def _read_of(builder: Builder, operand: Labelled, pair: Label) -> _Read | None:
    """Return what an operand is read from, if it is read at indices that run over its first label alone."""
    step = builder.step_of(operand.tensor)
    if step is None or step.function is not elements or operand.labels[0] is not pair:
        return None
    tensor, *indices = step.args
    taken = tuple([Label(0) for _ in indices])
    return _Read(Labelled(tensor, (*taken, *operand.labels[1:])), tuple(indices))


def _matrix(builder: Builder, read: _Read, own: Labels, summed: Labels) -> Register:
    """Lay out what is read from as matrices of its own labels and of those that are summed."""
    taken = read.source.labels[: len(read.indices)]
    tensor = aligned(builder.emit, read.source, (*taken, *own, *summed))
    return builder.emit(as_matrices, tensor, len(taken), size_of(own), size_of(summed))


def as_matrices(tensor: torch.Tensor, count: int, rows: int, columns: int) -> torch.Tensor:
    """Return a tensor whose axes after the first ones are those of a matrix."""
    return tensor.reshape(*tensor.shape[:count], rows, columns)


def multiplied(count: int, one: torch.Tensor, other: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    """Return the products of matrices, the second ones transposed, that two tensors have at indices.

    Args:
        count: How many of the indices are along the first axes of the first tensor.
        one: A tensor, whose last two axes are those of matrices.
        other: Another one, with as many columns.
        indices: One-dimensional, for each of the axes before.
    """
    total = len(indices[0])
    size = _size_of_piece(one, other, total * _bytes_of_product(one, other))
    if total <= size or is_kept((one, other)):
        return torch.bmm(elements(one, *indices[:count]), elements(other, *indices[count:]).mT)
    if is_followed((one, other)):
        return _mapped(count, size, one, other, *indices)
    result = one.new_empty(total, one.shape[-2], other.shape[-2])
    for start in range(0, total, size):
        piece, *places = (tensor[start : start + size] for tensor in (result, *indices))
        torch.bmm(elements(one, *places[:count]), elements(other, *places[count:]).mT, out=piece)
    return result


def _mapped(count: int, size: int, one: torch.Tensor, other: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    """Return what `multiplied` does under vmap, of which no op can write to a tensor that it does not map as well."""
    total = len(indices[0])
    places = [index[:size] for index in indices]
    first = torch.bmm(elements(one, *places[:count]), elements(other, *places[count:]).mT)
    result = first.new_empty(total, *first.shape[1:])
    result[:size] = first
    for start in range(size, total, size):
        places = [index[start : start + size] for index in indices]
        result[start : start + size] = torch.bmm(elements(one, *places[:count]), elements(other, *places[count:]).mT)
    return result


class Products(NamedTuple):
    """Products of matrices that are read at indices, times a number: what `multiplied` is given.

    Attributes:
        weight: The number.
        args: How many indices there are for the first tensor, both tensors and all indices.
    """

    weight: float
    args: tuple


def products_in(builder: Builder, register: Register, weight: float) -> list[Products] | None:
    """Return the products that a register is the weighted sum of, None if it is that of anything else."""
    step = builder.step_of(register)
    if step is None:
        return None
    if step.function is torch.reshape:  # an axis for each label, in the same order
        return products_in(builder, step.args[0], weight)
    if step.function is multiplied:
        return [Products(weight, step.args)]
    if step.function is torch.mul and isinstance(step.args[1], int | float | Coefficient):
        return products_in(builder, step.args[0], weight * step.args[1])
    if step.function in (torch.add, add_scaled) and isinstance(step.args[1], Register):
        scale = step.args[2] if len(step.args) > 2 else 1
        left, right = products_in(builder, step.args[0], weight), products_in(builder, step.args[1], weight * scale)
        return None if left is None or right is None else [*left, *right]
    return None


Total = torch.Tensor | tuple[int, int]  # a matrix to which rows are added, or the shape of one of zeros


def start_of(total: Total, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the matrix itself, or zeros of the dtype of the first tensor of numbers that is no index."""
    if isinstance(total, torch.Tensor):
        return total
    return next(tensor for tensor in tensors if tensor.is_floating_point()).new_zeros(total)


def products_added(
    total: Total, weight: float, places: torch.Tensor, count: int, *tensors: torch.Tensor
) -> torch.Tensor:
    """Return a matrix to which weighted products of matrices are added, each to the row of its place.

    Args:
        total: A matrix, whose rows have as many entries as a product, or the shape of one of zeros.
        weight: What products are multiplied by.
        places: The rows.
        count: As of `multiplied`.
        tensors: Likewise the two tensors and all indices.
    """
    matrix = start_of(total, tensors)
    if is_followed((matrix, *tensors[:2])):
        products = multiplied(count, *tensors).reshape(len(places), -1)
        return torch.index_add(matrix, 0, places, products, alpha=weight)
    return add_products(matrix.clone() if matrix is total else matrix, weight, places, count, *tensors)


def add_products(
    total: torch.Tensor, weight: float, places: torch.Tensor, count: int, *tensors: torch.Tensor
) -> torch.Tensor:
    """Add to the matrix itself what `products_added` adds, some products at a time."""
    one, other, *indices = tensors
    size = _size_of_piece(one, other, total.numel() * total.element_size())
    for start in range(0, len(places), size):
        at, *piece = (tensor[start : start + size] for tensor in (places, *indices))
        products = torch.bmm(elements(one, *piece[:count]), elements(other, *piece[count:]).mT)
        products = products if weight == 1 else products.mul_(weight)  # torch takes longer by a weight of its own
        total.index_add_(0, at, products.reshape(len(at), -1))
    return total


def piece_beside(result: int) -> int:
    """Return how many bytes are held at a time beside a result of so many."""
    return min(PIECE, max(LEAST, result))


def _size_of_piece(one: torch.Tensor, other: torch.Tensor, result: int) -> int:
    return max(1, piece_beside(result) // _bytes_of_pair(one, other))


def _bytes_of_pair(*tensors: torch.Tensor) -> int:
    return sum(prod(tensor.shape[-2:]) * tensor.element_size() for tensor in tensors)


def _bytes_of_product(one: torch.Tensor, other: torch.Tensor) -> int:
    return one.shape[-2] * other.shape[-2] * one.element_size()


def scratch_of_adding(one: torch.Tensor, other: torch.Tensor, total: int, result: int) -> int:
    """Return the bytes that `add_products` holds, of so many products, beside so many bytes."""
    size = _size_of_piece(one, other, result)
    return min(total, size) * (_bytes_of_pair(one, other) + _bytes_of_product(one, other))


def scratch(one: torch.Tensor, other: torch.Tensor, total: int) -> int:
    """Return the bytes that `multiplied` holds beside its result, of so many products."""
    size = _size_of_piece(one, other, total * _bytes_of_product(one, other))
    return min(total, size) * _bytes_of_pair(one, other)
