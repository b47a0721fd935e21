"""How far two derivatives are apart, and a derivative along directions."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

SMALL = 1.0  # derivatives that are all smaller are compared as if one were so large: terms that cancel may have been


def relative_error(got: Any, expected: Any) -> float:
    """Return the largest difference between two pytrees of tensors, relative to the largest entry of each tensor.

    A tensor that should vanish is compared with one.
    """
    errors: list[float] = []

    def compare(a: Tensor, b: Tensor) -> None:
        if a.shape != b.shape or a.dtype != b.dtype:
            raise AssertionError(f"got {tuple(a.shape)} {a.dtype}, expected {tuple(b.shape)} {b.dtype}")
        if b.numel():
            a, b = a.detach(), b.detach()
            scale = b.abs().max().item()
            error = (a - b).abs().max().item() / (scale if scale > 1e-12 else 1.0)
            errors.append(math.inf if math.isnan(error) else error)

    tree_map(compare, got, expected)
    return max(errors, default=0.0)


def error_over_all(got: Any, expected: Any) -> float:
    """Return the largest difference between two pytrees of tensors, relative to the largest entry of all of them.

    A block that only rounding keeps from vanishing counts for as little as it is beside the others.
    """
    scale = max([SMALL, *(leaf.abs().max().item() for leaf in tree_leaves(expected) if leaf.numel())])
    return relative_error(
        tree_map(lambda leaf: _beside(leaf, scale), got), tree_map(lambda leaf: _beside(leaf, scale), expected)
    )


def _beside(leaf: Tensor, scale: float) -> Tensor:
    return torch.cat([leaf.detach().reshape(-1) / scale, torch.ones(1, dtype=leaf.dtype, device=leaf.device)])


def contracted(derivative: Any, directions: Sequence[Sequence[Tensor]], argnums: int | Sequence[int]) -> Tensor:
    """Contract every slot of a derivative of f with a direction.

    Args:
        derivative: As nested ``torch.func.jacrev`` returns it.
        directions: For each slot one tensor for every argument of f, of its shape.
        argnums: What was differentiated by.

    Returns:
        All outputs, flattened into one vector.
    """
    if isinstance(argnums, int):
        derivative, argnums = _in_tuples(derivative, len(directions)), (argnums,)
    places = tuple(argnums)

    def summed(block: Any, left: Sequence[Sequence[Tensor]], taken: Sequence[Tensor]) -> Tensor:
        if left:
            return torch.stack(
                [summed(part, left[1:], [*taken, left[0][place]]) for part, place in zip(block, places, strict=True)]
            ).sum(0)
        for direction in reversed(taken):
            block = block.flatten(block.dim() - direction.dim()) if direction.dim() else block[..., None]
            block = block @ direction.reshape(-1)
        result: Tensor = block.reshape(-1)
        return result

    return torch.cat([summed(output, directions, []) for output in _outputs(derivative, len(directions))])


def _depth(tree: Any) -> int:
    return 1 + _depth(tree[0]) if isinstance(tree, tuple) else 0


def _outputs(derivative: Any, order: int) -> Sequence[Any]:
    """Return the derivative of every output."""
    return derivative if _depth(derivative) > order else (derivative,)


def _in_tuples(derivative: Any, order: int) -> Any:
    """Nest the derivative by one argument as that by a tuple of it."""
    if isinstance(derivative, tuple):
        return tuple(_in_tuples(output, order) for output in derivative)
    for _ in range(order):
        derivative = (derivative,)
    return derivative
