"""What is read of how torch saves tensors for backward passes, with a test of every fact, as for `hofunc.internals`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor

__all__ = ["saving_hooks", "without_modes"]


def saving_hooks() -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]] | None:
    """Return what packs and unpacks the tensors that autograd saves; None where it saves them as they are."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)


def without_modes() -> AbstractContextManager[object]:
    """Return a context in which no mode of torch functions or of dispatch looks on."""
    modes = ExitStack()
    modes.enter_context(torch._C.DisableTorchFunction())
    modes.enter_context(torch._C._DisableTorchDispatch())
    return modes
