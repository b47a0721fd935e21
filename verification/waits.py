"""What makes a host wait for a device: ops that need values, or copy between the two."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
CPU = torch.device("cpu")
MASKS = (torch.bool, torch.uint8)


class Waits(TorchDispatchMode):
    """Notes, of the ops that run in it, those for which a host waits.

    These are ops that return a number, or a shape that depends on values; that select by a mask, but not those that
    fill by one, which torch does in place; that make a tensor of Python numbers; and copies between devices. A tensor
    of one number on the CPU is with the host, which reads it and hands it to a device at no cost.

    Args:
        device: Where all tensors with axes have to be; None if that does not matter.

    Attributes:
        ops: Their names, in order.
    """

    def __init__(self, device: torch.device | None = None):
        super().__init__()
        self.ops: list[str] = []
        self._device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        tensors = [tensor for tensor in _tensors((args, kwargs, out)) if tensor.dim() or not tensor.is_cpu]
        devices = {tensor.device for tensor in tensors}
        is_elsewhere = self._device is not None and not devices <= {self._device}
        is_host = not devices and (self._device not in (None, CPU) or func is aten.lift_fresh.default)
        if is_elsewhere or len(devices) > 1 or (not is_host and _waits(func, args)):
            self.ops.append(str(func))
        return out


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _waits(op: Any, args: tuple) -> bool:
    if op is aten.lift_fresh.default:
        return True
    if op in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default):
        is_fill = op is not aten.index.Tensor and args[2].numel() == 1
        return not is_fill and any(tensor.dtype in MASKS for tensor in _tensors(args[1]))
    return not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}.isdisjoint(op.tags)
