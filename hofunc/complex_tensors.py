"""Complex inputs and outputs: differentiated as the real tensors of their parts, and put together again.

The engine is real. A complex input of shape (*in) is the real one of shape (*in, 2) that ``torch.view_as_real`` makes
of it, and the function is differentiated from there to the same view of what it returns. See docs/how-to/complex.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hofunc.errors import ArgumentError, UntracedError
from hofunc.graph.identity import check_elements, innermost, is_fake
from hofunc.graph.layout import as_pairs
from hofunc.graph.standin import in_transform
from hofunc.internals import temporarily_clear_interpreter_stack, tree_map
from hofunc.views import Emit


def by_parts(leaf: Any) -> Any:
    """Return a complex tensor as the real one of its parts, along a new last axis; anything else as it is.

    Raises:
        UntracedError: It is sparse or nested.
    """
    if not is_complex(leaf):
        return leaf
    check_elements(leaf)
    return as_pairs(leaf)


def put_together(leaf: torch.Tensor, is_complex: bool) -> torch.Tensor:
    """Return the complex tensor of parts, if it is one."""
    return torch.view_as_complex(leaf) if is_complex else leaf


def is_complex(leaf: Any) -> bool:
    """Tell whether a leaf is a complex tensor."""
    return isinstance(leaf, torch.Tensor) and leaf.is_complex()


def taken_apart(tree: Any) -> Any:
    """Return a pytree with all its complex tensors by parts."""
    return tree_map(by_parts, tree)


def of_complex_output(block: torch.Tensor, dim: int) -> torch.Tensor:
    """Return a derivative as a complex tensor, given the axis at which the parts of the output stand."""
    return torch.complex(block.select(dim, 0), block.select(dim, 1))


def product_of_parts(block: torch.Tensor, factors: int) -> torch.Tensor:
    """Return the product of complex numbers, given those of their parts, one of each along so many last axes."""
    found = of_complex_output(block, -1)
    for _ in range(factors - 1):
        found = found.select(-1, 0) + 1j * found.select(-1, 1)
    return found


class Blocks:
    """The blocks of dense derivatives of complex outputs, put together from those of their parts.

    Args:
        emit: See `hofunc.views`.
        dense: Given the number of an output and that of the input of every slot, the derivative by parts.
        values: The outputs by parts.
        outputs: How many axes each output has by parts, and whether it is complex.
        inputs: How many axes each input has by parts.
        holomorphic: The name of the transform, if it was asked for complex derivatives.
    """

    def __init__(
        self,
        emit: Emit,
        dense: Callable[[int, Sequence[int]], Any],
        values: Sequence[Any],
        outputs: Sequence[tuple[int, bool]],
        inputs: Sequence[int],
        holomorphic: str | None,
    ):
        self._emit, self._dense, self._values = emit, dense, values
        self._outputs, self._inputs, self._holomorphic = outputs, inputs, holomorphic
        self._checked: tuple = ()  # the latest block, on which the next is made to depend, so that a plan keeps it

    def block(self, output: int, inputs: Sequence[int]) -> Any:
        """Return the derivative of an output by inputs, one per slot."""
        found, (rank, is_complex_output) = self._dense(output, inputs), self._outputs[output]
        if not is_complex_output:
            return found
        found = self._emit(of_complex_output, found, rank - 1)
        if self._holomorphic is None:
            return found
        check = Holomorphic(self._holomorphic, (rank, *(self._inputs[number] for number in inputs)))
        self._checked = (self._emit(check, found, self._values[output], *self._checked),)
        return self._checked[0]


class Holomorphic:
    """Returns the complex derivative, given that by parts of the slots, after a check that there is one.

    By the Cauchy-Riemann equations the derivative along the imaginary part of a slot is that along the real part times
    the imaginary unit, whatever stands in the other slots.

    Args:
        name: Of the transform.
        ranks: How many axes the output has by parts, and then the input of every slot.
    """

    __name__ = "holomorphic"

    def __init__(self, name: str, ranks: Sequence[int]):
        self.name = name
        self._dims = [sum(ranks[: slot + 1]) - 2 for slot in range(1, len(ranks))]

    def __call__(self, block: torch.Tensor, value: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        """Return it.

        Raises:
            ArgumentError: There is none.
            UntracedError: There are no values to check.
        """
        if is_fake(innermost(block)):
            raise UntracedError(
                f"{self.name}: holomorphic=True while torch traces",
                got="tensors without values, of which the Cauchy-Riemann equations cannot be checked",
                expected="tensors with values",
                remedy="Leave holomorphic out there, for the derivatives by real and imaginary part.",
            )
        derivative = block
        for dim in reversed(self._dims):
            real, imaginary = derivative.select(dim, 0), derivative.select(dim, 1)
            if not block.is_meta:  # as where the memory of a plan is counted
                self._check(_largest(imaginary - 1j * real), _largest(block), _largest(value), block.dtype)
            derivative = real
        return derivative

    def _check(self, gap: float, largest: float, size: float, dtype: torch.dtype) -> None:
        eps = torch.finfo(dtype).eps
        if gap > eps**0.5 * largest + 100 * eps * size:
            raise ArgumentError(
                f"{self.name}: holomorphic=True",
                got=f"a function whose derivatives of order {len(self._dims)} by real and imaginary part, of up to "
                f"{largest:.3g}, miss the Cauchy-Riemann equations by {gap:.3g}",
                expected="a function that has a complex derivative",
                remedy="Leave holomorphic out, for the derivatives by real and imaginary part.",
            )


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest finite absolute value of a tensor, over all that vmap has mapped; zero if it has none."""
    if in_transform():
        with temporarily_clear_interpreter_stack():
            return _largest(innermost(tensor))
    sizes = tensor.detach().abs()
    finite = sizes[sizes.isfinite()]
    return finite.max().item() if finite.numel() else 0.0
