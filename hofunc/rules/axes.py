"""Axes of operands and results: broadcasting, einsum subscripts and dimension numbers, for writing rules in a line."""

from collections.abc import Sequence

from hofunc.algebra.labels import Axes, Axis, Label, full

Shape = Sequence[int]


def broadcast(*shapes: Shape) -> tuple[list[Axes], Axes]:
    """Label the broadcast of some shapes; an axis of size 1 that is stretched has no label.

    Returns:
        The axes of every operand, and those of the result.
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    sizes = [next((size for size in column if size != 1), 1) for column in zip(*padded, strict=True)]
    out: Axes = tuple((full(Label(size)),) for size in sizes)
    operands = [
        tuple(axis if shape[dim] == sizes[dim] else () for dim, axis in enumerate(out))[rank - len(original) :]
        for shape, original in zip(padded, shapes, strict=True)
    ]
    return operands, out


def subscripted(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[Axes], Axes]:
    """Label operands by einsum subscripts such as ``"ik,kj->ij"``; ``"...,...->..."`` broadcasts."""
    if "..." in subscripts:
        return broadcast(*shapes)
    inputs, result = subscripts.split("->")
    axes: dict[str, Axis] = {}
    for letters, shape in zip(inputs.split(","), shapes, strict=True):
        for letter, size in zip(letters, shape, strict=True):
            axes.setdefault(letter, (full(Label(size)),))
    return [tuple(axes[letter] for letter in letters) for letters in inputs.split(",")], tuple(axes[c] for c in result)


def dims_of(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return dimension numbers counted from the front; all of them for None or an empty list, none of a scalar."""
    if dims is None or (not isinstance(dims, int) and not dims):
        return tuple(range(rank))
    return tuple(dim % rank for dim in ((dims,) if isinstance(dims, int) else dims) if rank)


def replaced(axes: Axes, dim: int, *new: Axis) -> Axes:
    """Return the axes with the one at dim replaced by any number of others."""
    return (*axes[:dim], *new, *axes[dim + 1 :])
