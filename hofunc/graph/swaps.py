"""Tensors that exchange what they hold while a function is recorded, by `torch.utils.swap_tensors`: they are refused.

Neither a mode nor autograd sees that, and a tensor is known by its object, which then is another tensor.
"""

import torch

from hofunc.errors import UntracedError
from hofunc.graph.tape import is_recording
from hofunc.internals import before_swaps


def refuse_swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse to exchange two tensors, if a function is being recorded.

    Raises:
        UntracedError: One is.
    """
    if is_recording():
        raise UntracedError(
            "hofunc: f exchanges two tensors by torch.utils.swap_tensors",
            got=f"tensors of shapes {tuple(one.shape)} and {tuple(other.shape)}, which no op exchanges",
            expected="tensors that stay what they are while f runs",
            remedy="Exchange the names in Python, as in a, b = b, a, or swap them before f is called.",
        )


before_swaps(refuse_swap)
