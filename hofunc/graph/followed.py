"""Whether anybody follows what is done with tensors, who has to see every value as it was."""

from collections.abc import Iterable

import torch

from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.internals import (
    VmapInterpreter,
    get_unwrapped,
    has_forward_level,
    is_batchedtensor,
    retrieve_all_functorch_interpreters,
)


def is_followed(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether autograd, a transform of torch.func or another recording follows what is done with tensors."""
    return (
        in_transform()
        or has_forward_level()
        or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        or is_recording()
    )


def is_kept(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether values are kept for whoever follows what is done with tensors; `torch.func.vmap` keeps none.

    What is kept is not held any shorter for being computed some at a time.
    """
    if not in_transform():
        return is_followed(tensors)
    if (
        has_forward_level()
        or is_recording()
        or not all(isinstance(at, VmapInterpreter) for at in retrieve_all_functorch_interpreters())
    ):
        return True
    return torch.is_grad_enabled() and any(map(has_history, tensors))


def has_history(tensor: torch.Tensor) -> bool:
    """Tell whether autograd follows what a tensor was computed from, which one that `torch.func.vmap` maps hides."""
    return tensor.requires_grad or (is_batchedtensor(tensor) and _innermost(tensor).requires_grad)


def _innermost(tensor: torch.Tensor) -> torch.Tensor:
    while is_batchedtensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor
