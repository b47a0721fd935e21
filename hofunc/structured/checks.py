"""Checks of what operations on structured derivatives are given."""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch

from hofunc.errors import ArgumentError
from hofunc.structured.rows import Index

Shape = tuple[int, ...]
_NAME = "hofunc.Derivative"


def check_vectors(
    vectors: Sequence[Any], slots: Sequence[Shape], mapped: Shape, dtype: torch.dtype, device: torch.device
) -> None:
    """Check what is put into slots.

    Raises:
        ArgumentError: There are more vectors than slots, or one is not what its slot takes.
    """
    if len(vectors) > len(slots):
        raise ArgumentError(
            f"{_NAME}.contract",
            got=f"{len(vectors)} vectors",
            expected=f"at most {len(slots)}, one for every slot",
            remedy="Pass None for a slot that is left open.",
        )
    for slot, (vector, shape) in enumerate(zip(vectors, slots, strict=False)):
        if vector is None:
            continue
        if not isinstance(vector, torch.Tensor):
            got = type(vector).__name__
        elif tuple(vector.shape) not in {shape, (*mapped, *shape)} or vector.dtype != dtype or vector.device != device:
            got = f"shape {tuple(vector.shape)}, {vector.dtype} on {vector.device}"
        else:
            continue
        raise ArgumentError(
            f"{_NAME}.contract: the vector of slot {slot}",
            got=got,
            expected=f"a tensor of shape {shape}, {dtype} on {device}",
            remedy="For several vectors at once, map this under torch.func.vmap.",
        )


def check_block(entries: Sequence[Any], order: int) -> None:
    """Check that entries name the only block of a derivative by one tensor.

    Raises:
        ArgumentError: They do not.
    """
    if len(entries) != order or any(type(entry) is not int or entry != 0 for entry in entries):
        raise ArgumentError(
            f"{_NAME}.block",
            got=", ".join(map(repr, entries)) or "nothing",
            expected=f"0 for each of {order} slots, as this is one block",
            remedy="A derivative by several tensors, in a pytree or by argnums, is a hofunc.Blocks and has several.",
        )


def check_alike(name: str, slots: Sequence[Shape]) -> None:
    """Check that all slots have one shape.

    Raises:
        ArgumentError: They do not.
    """
    if len({*slots}) > 1:
        raise ArgumentError(
            f"{_NAME}.{name}",
            got=f"slots of shapes {', '.join(map(str, slots))}",
            expected="slots of one shape",
            remedy="Take the block that is by one input in all slots.",
        )


def checked_pairs(pairs: Sequence[Any], slots: Sequence[Shape]) -> list[tuple[int, int]]:
    """Return pairs of slots to be summed over, by default those that are beside each other.

    Raises:
        ArgumentError: They are not pairs of different slots of one shape, or there is none.
    """
    count = len(slots)
    found = [*pairs] or [(first, first + 1) for first in range(0, count - 1, 2)]
    taken = [slot for pair in found if isinstance(pair, tuple | list) for slot in pair]
    is_right = all(type(slot) is int and -count <= slot < count for slot in taken)
    is_right = is_right and len({slot % count for slot in taken}) == len(taken) == 2 * len(found) > 0
    if not is_right or any(len(pair) != 2 for pair in found):
        raise ArgumentError(
            f"{_NAME}.trace",
            got=f"pairs {tuple(found)} of {count} slots",
            expected="pairs of slots, each slot in one at most",
            remedy="Name slots by number, as in .trace((0, 1)).",
        )
    for first, second in found:
        check_alike("trace", [slots[first], slots[second]])
    return [(first % count, second % count) for first, second in found]


def check_symmetric(groups: Sequence[Sequence[int]], shapes: Sequence[Shape]) -> None:
    """Check that all slots may be exchanged.

    Raises:
        ArgumentError: Some may not.
    """
    if len(groups) > 1:
        raise ArgumentError(
            f"{_NAME}.packed",
            got=f"slots of shapes {', '.join(map(str, shapes[1:]))}, of which {groups} may be exchanged",
            expected="a derivative by one input in all slots",
            remedy="Take the block that is by one input in all slots, or .dense().",
        )


def check_dtype(dtype: torch.dtype) -> None:
    """Check what a derivative is turned into.

    Raises:
        ArgumentError: It is not made of floating-point numbers.
    """
    if not dtype.is_floating_point:
        raise ArgumentError(
            f"{_NAME}.to",
            got=str(dtype),
            expected="a floating-point dtype",
            remedy="Convert .dense() instead.",
        )


def checked_number(number: Any, dtype: torch.dtype, device: torch.device) -> float | torch.Tensor:
    """Return what a derivative is multiplied by: a number, or a tensor of no dimension in its dtype.

    Raises:
        ArgumentError: It is neither, or complex.
    """
    is_truth = isinstance(number, bool)
    if isinstance(number, Real) and not is_truth:
        return float(number)
    if isinstance(number, torch.Tensor) and number.dim() == 0 and not number.is_complex():
        return number.to(device, dtype)
    raise ArgumentError(
        f"{_NAME}: a multiple",
        got=_described(number),
        expected="a real number, or a real tensor of shape ()",
        remedy="Use .contract(...) for products with vectors, or .dense().",
    )


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}, {value.dtype}"
    return f"{value!r}" if isinstance(value, int | float | complex | str) else type(value).__name__


def check_sum(one: Any, other: Any) -> None:
    """Check that two derivatives can be added.

    Raises:
        ArgumentError: One is not a derivative, or they differ in shape, dtype or device.
    """
    if type(one) is not type(other):
        got, expected = _described(other), f"a {type(one).__name__}"
    else:
        mine, its = ((each.mapped, each.shapes, each.dtype, each.device) for each in (one, other))
        if mine == its:
            return
        got, expected = (
            f"shapes {shapes}, {dtype} on {device}" + f", mapped {mapped}" * bool(mapped)
            for mapped, shapes, dtype, device in (its, mine)
        )
    raise ArgumentError(
        f"{_NAME}: a sum", got=got, expected=expected, remedy="Use .to(...), or add what .dense() gives."
    )


def plain_indices(index: Any) -> list[Any]:
    """Return indices one by one, lists as tensors.

    Raises:
        ArgumentError: One is not an index of rows.
    """
    found = [torch.as_tensor(each) if isinstance(each, list) else each for each in _several(index)]
    for each in found:
        is_tensor = isinstance(each, torch.Tensor) and not (each.is_floating_point() or each.is_complex())
        if not (type(each) is int or isinstance(each, slice) or (is_tensor and each.dim() <= 1)):
            raise ArgumentError(
                f"{_NAME}[...]",
                got=_described(each),
                expected="an int, a slice, a list or vector of ints, or a mask, for rows",
                remedy="It is rows that are indexed; for entries use .dense(...).",
            )
    return found


def _several(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def check_batch(count: int, indices: Sequence[Any]) -> None:
    """Check that there are as many labels of rows as indices.

    Raises:
        ArgumentError: There are fewer.
    """
    if count < len(indices):
        raise ArgumentError(
            f"{_NAME}[...]",
            got=f"{len(indices)} indices, and {count} labels that all slots share",
            expected="an index for each of these labels at most",
            remedy="See .pattern; of what has no rows of its own take .dense() first.",
        )


def checked_indices(indices: Sequence[Any], sizes: Sequence[int]) -> list[Index]:
    """Return indices as what indexes tensors: ints that count from the front, slices, and vectors of ints.

    Raises:
        ArgumentError: There is no such row, or a mask is not as long as there are rows.
    """
    return [_checked_index(index, size) for index, size in zip(indices, sizes, strict=False)]


def _checked_index(index: Any, size: int) -> Index:
    if isinstance(index, slice):
        start, stop, step = index.indices(size)
        if step > 0:
            return slice(start, max(start, stop), step)
        index = torch.arange(size)[list(range(size))[index]]
    if isinstance(index, torch.Tensor) and index.dtype == torch.bool:
        if tuple(index.shape) != (size,):
            raise _no_row(f"a mask of shape {tuple(index.shape)}", f"one of shape ({size},)")
        return index.nonzero()[:, 0]
    if isinstance(index, torch.Tensor) and index.dim() == 0:
        index = int(index)
    if isinstance(index, int):
        if not -size <= index < size:
            raise _no_row(f"row {index}", f"one from {-size} to {size - 1}")
        return index % size
    if index.numel() and not bool(((index >= -size) & (index < size)).all()):
        raise _no_row(f"rows from {int(index.min())} to {int(index.max())}", f"rows from {-size} to {size - 1}")
    return index.long().remainder(size) if size else index.long()


def _no_row(got: str, expected: str) -> ArgumentError:
    return ArgumentError(
        f"{_NAME}[...]", got=got, expected=expected, remedy="Rows are counted from 0, or from the end."
    )
