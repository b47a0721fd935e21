"""How a tensor reads the numbers that its storage holds: complex ones are pairs of real ones, for views of either kind.

So memory is real, whatever the tensor is that it was allocated for, and what is written through ``z.real`` or through
`torch.view_as_complex(x)` is written to the same memory as z and x are. Views of complex tensors may also conjugate or
negate what they read.
"""

from collections.abc import Callable

import torch

from hofunc.graph.layout import Layout, layout_of

aten = torch.ops.aten

Op = Callable[[torch.Tensor], torch.Tensor]


def real_layout_of(tensor: torch.Tensor) -> Layout:
    """Return where the real numbers of a tensor lie in its storage.

    Example:
        >>> real_layout_of(torch.ones(3, dtype=torch.complex64))
        Layout(size=(3, 2), stride=(2, 1), offset=0)
    """
    layout = layout_of(tensor)
    if not tensor.is_complex():
        return layout
    return Layout((*layout.size, 2), (*(2 * stride for stride in layout.stride), 1), 2 * layout.offset)


def as_held(tensor: torch.Tensor) -> list[Op]:
    """Return the ops that make of the value of a tensor the real numbers which its storage holds."""
    return [op for op, _ in _steps(tensor)]


def as_read(tensor: torch.Tensor) -> list[Op]:
    """Return the ops that make the value of a tensor of the real numbers which its storage holds."""
    return [op for _, op in reversed(_steps(tensor))]


def _steps(tensor: torch.Tensor) -> list[tuple[Op, Op]]:
    """Return the ops that lead from the value of a tensor to what is held, each with the one that leads back."""
    steps: list[tuple[Op, Op]] = []
    if tensor.is_neg():
        steps.append((aten.neg.default, aten.neg.default))
    if tensor.is_conj():
        steps.append((aten.conj_physical.default, aten.conj_physical.default))
    if tensor.is_complex():
        steps.append((aten.view_as_real.default, aten.view_as_complex.default))
    return steps
