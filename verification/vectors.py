"""Programs as functions of one vector, in which the identities of calculus are written, and their comparison."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from hofunc import Derivative
from verification.programs import Program

# Two ways to compute a derivative of a program differ by rounding only, by up to 1e-11 of the largest entry where terms
# of different size cancel: a hundred times that is still far below what any wrong sign, factor or label would change.
TOLERANCE = 1e-9
FLOOR = 1e-3  # of what else there is: a tensor of smaller entries may be all rounding errors of larger terms
ENTRIES = 20_000


class Vector(NamedTuple):
    """A function from a vector to a vector, and the point at which to look at it."""

    f: Callable[[Tensor], Tensor]
    x: Tensor


def vector(program: Program) -> Vector:
    """Return a program as a function of all its inputs, flattened one after the other, to all its outputs."""
    shapes = [x.shape for x in program.inputs]

    def f(x: Tensor) -> Tensor:
        parts = x.split([shape.numel() for shape in shapes])
        output = program(*(part.reshape(shape).clone() for part, shape in zip(parts, shapes, strict=True)))
        return torch.cat([y.reshape(-1) for y in (output if isinstance(output, tuple) else (output,))])

    return Vector(f, torch.cat([x.reshape(-1) for x in program.inputs]))


def mixture(rows: int, columns: int) -> Tensor:
    """Return a matrix of numbers of order one, no two of which are alike."""
    return torch.arange(1.0, rows * columns + 1, dtype=torch.float64).cos().reshape(rows, columns)


def mixed(vector: Vector, size: int = 2) -> Vector:
    """Return a function that adds up the outputs of another, with weights, to a few."""
    weight = mixture(size, vector.f(vector.x).numel())
    return Vector(lambda x: weight @ vector.f(x), vector.x)


def moved(vector: Vector, x: Tensor) -> Vector:
    """Return a function that does near x what another does near its point."""
    shift = 0.5 * mixture(vector.x.numel(), x.numel())
    return Vector(lambda z: vector.f(vector.x + shift @ (z - x)), x)


def fitting(order: int, f: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the highest order, up to the given one, of which the derivative has no more than so many entries."""
    outputs, inputs = f(x).numel(), x.numel()
    while order > 1 and outputs * inputs**order > ENTRIES:
        order -= 1
    return order


def dense(derivative: Any) -> Any:
    """Return a pytree of compact derivatives as tensors."""
    return tree_map(
        lambda leaf: leaf.dense() if isinstance(leaf, Derivative) else leaf,
        derivative,
        is_leaf=lambda leaf: isinstance(leaf, Derivative),
    )


def difference(got: Any, expected: Any, floor: float = FLOOR) -> float:
    """Return the largest difference between pytrees of tensors, relative to the largest entry of its tensor.

    Args:
        got: The one.
        expected: The other.
        floor: What part of the largest entry of all, and of one, a tensor is taken to have at least.
    """
    (tensors, spec), (references, spec_expected) = tree_flatten(got), tree_flatten(expected)
    assert spec == spec_expected, f"got {spec}, expected {spec_expected}"
    errors, overall = [0.0], 1.0 + max((float(b.abs().max()) for b in references if b.numel()), default=0.0)
    for a, b in zip(tensors, references, strict=True):
        assert a.shape == b.shape, f"got shape {tuple(a.shape)}, expected {tuple(b.shape)}"
        assert a.dtype == b.dtype, f"got {a.dtype}, expected {b.dtype}"
        if b.numel():
            error = float((a - b).abs().max()) / max(float(b.abs().max()), floor * overall)
            errors.append(math.inf if math.isnan(error) else error)
    return max(errors)


def assert_close(got: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Compare pytrees of tensors."""
    error = difference(got, expected)
    assert error < tolerance, f"{error:.2g} relative to the largest entry, {tolerance:.0e} allowed"
