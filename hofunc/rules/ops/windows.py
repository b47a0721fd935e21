"""Windows along an axis: which places of it lie in which window, as a linear map.

Convolutions and poolings are sums over windows. One map for each axis is all the structure that they have, and none of
their derivatives needs more: the matrix of a convolution is never built.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hofunc.algebra.labels import Axes, Axis, Label, fresh_axes, full
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
from hofunc.rules.axes import replaced
from hofunc.rules.kinds import Site
from hofunc.rules.registry import define_linear

aten = torch.ops.aten

Shape = Sequence[int]


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

    @property
    def is_whole(self) -> bool:
        """Whether there are as many windows as fit, with as much padding behind as before."""
        fit = self.length + 2 * self.padding - (self.width - 1) * self.dilation - 1
        return self.number == fit // self.stride + 1

    @property
    def is_turnable(self) -> bool:
        """Whether places are in windows as windows are in places, if each window is turned round."""
        around = (self.width - 1) * self.dilation
        return self.stride == 1 and self.padding <= around and self.reach == self.length + 2 * self.padding

    @property
    def turned(self) -> "Windows":
        """The windows in which windows are for a place, where they are turnable."""
        around = (self.width - 1) * self.dilation
        return self._replace(number=self.length, length=self.number, padding=around - self.padding)


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


# Windows as they stand.


@define_linear(aten.unfold.default)
def _unfold(site: Site, x: Axes, dim: int, size: int, step: int) -> dict[int, list[Term]]:
    if not x:
        return {0: [Term(1, (), ((full(Label(1)),),), (x,))]}
    dim %= len(x)
    window, place = fresh_axes((site.node.shape[dim], size))
    windows = Windows(site.node.shape[dim], size, site.shapes[0][dim], step, 0, 1)
    out = (*replaced(x, dim, window), place)
    return {0: [Term(1, (along_windows(windows, window, place, x[dim]),), out, (x,))]}


def _columned(
    image: tuple[int, ...], kernel: Shape, dilation: Shape, padding: Shape, stride: Shape
) -> tuple[Axes, Axes, tuple[Factor, ...]]:
    """Return the axes of an image of some shape and of its windows as columns, and the factors between them."""
    options = [tuple(option) * (2 // len(option)) for option in (kernel, stride, padding, dilation)]
    windows = [
        Windows((length + 2 * before - (width - 1) * apart - 1) // step + 1, width, length, step, before, apart)
        for length, width, step, before, apart in zip(image[-2:], *options, strict=True)
    ]
    axes = fresh_axes(image)
    numbers, places = (fresh_axes(sizes) for sizes in zip(*((w.number, w.width) for w in windows), strict=True))
    columns = (*axes[:-3], axes[-3] + sum(places, ()), sum(numbers, ()))
    return axes, columns, tuple(map(along_windows, windows, numbers, places, axes[-2:]))


@define_linear(aten.im2col.default)
def _im2col(site: Site, x: Axes, *options: Shape) -> dict[int, list[Term]]:
    image, columns, factors = _columned(site.shapes[0], *options)
    return {0: [Term(1, factors, columns, (image,))]}


@define_linear(aten.col2im.default)
def _col2im(site: Site, x: Axes, size: Shape, *options: Shape) -> dict[int, list[Term]]:
    image, columns, factors = _columned(site.node.shape, *options)
    return {0: [Term(1, factors, image, (columns,))]}
