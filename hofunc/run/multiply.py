"""Products of matrices by the library that is the faster one for them, as rates of the device tell.

A step that multiplies matrices is called with such of one shape always, by the same program. So what is to multiply
them is chosen at the first call, and takes the place of what chose it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hofunc.internals import count_dispatch_modes
from hofunc.internals_linear import has_linear, linear, linear_added, linear_with_bias
from hofunc.plan.devices import rates_of
from hofunc.views import folded

PRODUCTS = frozenset((torch.mm, torch.matmul, folded, torch.addmm))  # for which there may be something else
LEAST = 1.25  # times as fast, from which on it pays: between other calls, one of oneDNN takes longer than over and over
MOST_COPIED = 4 << 20  # bytes of a right matrix, which oneDNN lays out anew: nobody counts them as held


def is_seen() -> bool:
    """Tell whether somebody sees which ops are called, who may know no others than those of a program."""
    return count_dispatch_modes() > 0 or torch.jit.is_tracing()  # type: ignore[attr-defined]


def chosen(namespace: dict[str, Any], name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what multiplies matrices, and takes its place in a namespace what does so the fastest.

    Args:
        namespace: The namespace.
        name: Its name in there.
        function: One of `PRODUCTS`.
    """

    def first(*args: Tensor) -> Tensor:
        namespace[name] = found = _fastest(function, *args)
        return found(*args)

    return first


def _fastest(function: Callable[..., Tensor], *args: Tensor) -> Callable[..., Tensor]:
    """Return what multiplies matrices like the last two, and adds what is before, if there is anything."""
    *before, left, right = args
    are_plain = all(each.dtype is torch.float32 and each.device.type == "cpu" for each in args)
    if not are_plain or left.dim() < 2 or right.dim() != 2 or right.nbytes > MOST_COPIED or not has_linear():
        return function
    if not left.is_contiguous() or not (right.is_contiguous() or right.t().is_contiguous()):  # it would be copied first
        return function
    rates, flops = rates_of(left.device), 2 * left.numel() * right.shape[1]
    if LEAST * rates.multiplied(flops) >= flops / rates.flops:
        return function
    if not before:
        return linear
    if before[0].shape == right.shape[1:]:
        return linear_with_bias
    return linear_added if before[0].shape == (left.shape[0], right.shape[1]) else function
