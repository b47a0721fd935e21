"""Tensors that exchange what they hold while a function is recorded, by `torch.utils.swap_tensors`: they are refused.

Neither a mode nor autograd sees that, and a tensor is known by its object, which then is another tensor.
"""

from typing import NoReturn

import torch

from hofunc.errors import UntracedError
from hofunc.graph.tape import is_recording
from hofunc.internals import before_swaps, has_weak_reference


def refuse_swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse to exchange two tensors, if a function is being recorded.

    Raises:
        UntracedError: One is.
    """
    if is_recording():
        _refuse(f"tensors of shapes {tuple(one.shape)} and {tuple(other.shape)}")


def check_swap(error: RuntimeError) -> None:
    """Refuse the same where torch does, since the tape has a weak reference to a tensor that f made.

    Raises:
        UntracedError: It is what an error says.
    """
    if has_weak_reference(error):
        _refuse("tensors that it made", error)


def _refuse(which: str, cause: RuntimeError | None = None) -> NoReturn:
    raise UntracedError(
        "hofunc: f exchanges two tensors by torch.utils.swap_tensors",
        got=f"{which}, which no op exchanges",
        expected="tensors that stay what they are while f runs",
        remedy="Exchange the names in Python, as in a, b = b, a, or swap them before f is called.",
    ) from cause


before_swaps(refuse_swap)
