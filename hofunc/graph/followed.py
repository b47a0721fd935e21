"""Whether anybody follows what is done with tensors, who has to see every value as it was."""

from collections.abc import Iterable

import torch

from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.internals import has_forward_level


def is_followed(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether autograd, a transform of torch.func or another recording follows what is done with tensors."""
    return (
        in_transform()
        or has_forward_level()
        or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        or is_recording()
    )
