"""What other ops return for meta tensors, told by one call on a few numbers.

torch has kernels in Python for what most ops do to tensors without data. The first of them that a process calls imports
torch's compiler, or sympy, which takes many times as long as to plan the derivatives of a network, and each takes
longer than the op itself on a few numbers.
"""

import sys
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from hofunc.graph.draws import is_random
from hofunc.graph.effects import effects
from hofunc.internals import tells_in_python, tree_map_only

_META = torch.device("meta")
MOST = 1 << 14  # numbers among all arguments; of more, an op may take longer than torch's kernel
MOST_AT_FIRST = 1 << 18  # likewise, than to import what that takes


def tried(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what an op returns for meta tensors, of the strides that it has on a CPU; None for other ops.

    None likewise where it does not take the numbers: ones, and indices that are zero.
    """
    if not tells_in_python(op) or is_random(op, args, kwargs) or effects(op).writes or effects(op).aliases:
        return None
    if torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
        return None
    tensors = [each for arg in args for each in (arg if isinstance(arg, list | tuple) else [arg])]
    tensors = [each for each in tensors if isinstance(each, torch.Tensor)]
    devices = {*(tensor.device for tensor in tensors), *filter(None, [kwargs.get("device")])}
    most = MOST if "sympy" in sys.modules else MOST_AT_FIRST
    if devices != {_META} or sum(prod(tensor.shape) for tensor in tensors) > most:
        return None
    filled = tree_map_only(torch.Tensor, _filled, (tuple(args), dict(kwargs)))
    options = {"device": torch.device("cpu")} if "device" in kwargs else {}
    try:
        found = op(*filled[0], **filled[1] | options)
    except (RuntimeError, IndexError, TypeError):  # of which torch says more
        return None
    return tree_map_only(torch.Tensor, _emptied, found)


def _filled(tensor: torch.Tensor) -> torch.Tensor:
    extent = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    one = tensor.dtype not in (torch.int64, torch.bool)  # of factorisations, the rows exchanged are int32 from one on
    return torch.full((max(extent, 0),), one, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
