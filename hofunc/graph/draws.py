"""Random numbers under an outer vmap: drawn again wherever a recording is computed again, as vmap's randomness says.

Under vmap a function is recorded on stand-ins, and its graph is computed again on what is mapped. So what draws random
numbers is a node also where it takes no input, and torch itself then draws one number for all rows, or one for each,
or refuses. The recording starts from the same state of the generators as that, so that both draw the same numbers.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters
from torch.random import fork_rng


def is_random(op: Any) -> bool:
    """Tell whether an op draws random numbers."""
    return op is drawn or torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def drawn(op: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return what an op in place makes of a tensor.

    It is what the functional form of the op returns, except that vmap minds its randomness for ops in place only.
    """
    return op(tensor.clone(), *args, **kwargs)


def differs_by_row() -> bool:
    """Tell whether a vmap that is running asks for other random numbers for every row."""
    levels = retrieve_all_functorch_interpreters()
    return any(isinstance(level, VmapInterpreter) and level.randomness() == "different" for level in levels)


@contextmanager
def drawn_again(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Leave the generators of the devices of some tensors as they were."""
    devices = {tensor.device for tensor in tensors if tensor.device.type not in {"cpu", "meta"}}
    kind = next((device.type for device in devices), "cuda")
    with fork_rng([device.index for device in devices], device_type=kind):
        yield
