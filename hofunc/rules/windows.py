"""Windows along an axis: which places of it lie in which window, as a linear map.

Convolutions and poolings are sums over windows. One map for each axis is all the structure that they have, and none of
their derivatives needs more: the matrix of a convolution is never built.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from hofunc.algebra.labels import Axis
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor


class Windows(NamedTuple):
    """Windows along an axis: the k-th of a window is place ``window * stride + k * dilation - padding``.

    Attributes:
        number: How many windows there are.
        width: How many places each takes.
        length: How many places there are; those beyond them are zero.
        stride: From one window to the next.
        padding: How far the first window starts before the axis.
        dilation: From one place of a window to the next.
    """

    number: int
    width: int
    length: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        """From the start of the first window to the end of the last."""
        return (self.number - 1) * self.stride + (self.width - 1) * self.dilation + 1


def windowed(tensor: Tensor, windows: Windows) -> Tensor:
    """Take windows along the last axis, which becomes two: the window, and the place in it."""
    behind = windows.reach - windows.padding - windows.length
    padded = torch.constant_pad_nd(tensor, (windows.padding, behind)) if windows.padding or behind else tensor
    return padded.unfold(-1, (windows.width - 1) * windows.dilation + 1, windows.stride)[..., :: windows.dilation]


def unwindowed(tensor: Tensor, windows: Windows) -> Tensor:
    """Add windows, of which the last two axes are the number and the place in it, up along an axis."""
    apart = tensor.transpose(-1, -2)
    if windows.stride > 1:
        apart = torch.constant_pad_nd(apart.unsqueeze(-1), (0, windows.stride - 1)).flatten(-2)
    total = tensor.new_zeros(*tensor.shape[:-2], windows.length)
    for place in range(windows.width):
        start = place * windows.dilation - windows.padding
        behind = windows.length - start - apart.shape[-1]
        if start < windows.length and behind < windows.length:
            total = total + torch.constant_pad_nd(apart.select(-2, place), (start, behind))
    return total


def along_windows(windows: Windows, window: Axis, place: Axis, axis: Axis) -> Factor:
    """Return the factor of a map between the windows of an axis, with the place in each, and the axis."""
    return Factor(Map(windowed, unwindowed, (windows,), outs=2), (window, place, axis))
