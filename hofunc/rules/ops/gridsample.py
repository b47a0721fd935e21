"""Sampling at places that are given: piecewise polynomials in the places, linear in what is sampled."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hofunc.rules.registry import define_composite

aten = torch.ops.aten

LINEAR, NEAREST = 0, 1  # else cubic
ZEROS, BORDER = 0, 1  # else reflection
CUBIC = -0.75


class Axis(NamedTuple):
    """How places along an axis are given.

    Attributes:
        size: Number of elements.
        padding: What lies outside.
        align_corners: Whether -1 and 1 are the middle of the first and the last element, and not their ends.
    """

    size: int
    padding: int
    align_corners: bool

    def unnormalised(self, place: Tensor) -> Tensor:
        """Return the place in elements, of one from -1 to 1."""
        if self.align_corners:
            return (place + 1) * ((self.size - 1) / 2)
        return (place + 1) * (self.size / 2) - 0.5

    def inside(self, place: Tensor) -> Tensor:
        """Bring a place into the range of the axis, if what lies outside is not zero; on its ends it is constant."""
        if self.padding == ZEROS:
            return place
        place = place if self.padding == BORDER else self._reflected(place)
        return torch.where(place <= 0, 0, torch.where(place >= self.size - 1, self.size - 1, place))

    def _reflected(self, place: Tensor) -> Tensor:
        low, span = (0, self.size - 1) if self.align_corners else (-0.5, self.size)
        if span == 0:
            return place * 0
        apart = torch.where(place < low, low - place, place - low)
        flips = (apart.detach() / span).floor()
        rest = apart - flips * span
        return torch.where(flips % 2 == 0, rest, span - rest) + low


class Neighbours(NamedTuple):
    """The elements near each place along an axis, by their numbers, and their weights there.

    Both are of shape (batch, elements, places).
    """

    numbers: Tensor
    weights: Tensor | None


def neighbours(place: Tensor, axis: Axis, mode: int) -> Neighbours:
    """Return the elements along an axis of which a sample is the sum, with their weights."""
    place = axis.unnormalised(place).unsqueeze(1)
    if mode == NEAREST:
        return Neighbours(axis.inside(place.detach()).round(), None)
    if mode == LINEAR:
        place = axis.inside(place)
        low = place.detach().floor()
        return Neighbours(torch.cat([low, low + 1], 1), torch.cat([low + 1 - place, place - low], 1))
    low = place.detach().floor()
    t = place - low
    near, far = _near(torch.cat([t, 1 - t], 1)), _far(torch.cat([t + 1, 2 - t], 1))
    first, last = far.split(1, 1)
    numbers = torch.cat([low - 1, low, low + 1, low + 2], 1)
    return Neighbours(axis.inside(numbers), torch.cat([first, near, last], 1))


def _near(t: Tensor) -> Tensor:
    """Return the weight of an element no further than one away: the polynomial of cubic convolution."""
    return ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1


def _far(t: Tensor) -> Tensor:
    """Return the weight of an element between one and two away."""
    return ((t - 5) * t + 8) * t * CUBIC - 4 * CUBIC


def _sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    """Sample all elements near each place at once, and sum them axis by axis."""
    sizes, places = x.shape[2:], grid.flatten(1, -2).unbind(-1)[::-1]
    axes = [Axis(size, padding, align_corners) for size in sizes]
    along = [neighbours(place, axis, mode) for place, axis in zip(places, axes, strict=True)]
    numbers = [_apart(each.numbers, dim, len(sizes)) for dim, each in enumerate(along)]
    number, within = _element(numbers, sizes)
    read = x.flatten(2).gather(2, number.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1))
    values = torch.where(within.unsqueeze(1), read.unflatten(2, number.shape[1:]), 0)
    for each in reversed(along):  # of which the last axis is left at a time, before that of the places
        values = values.squeeze(-2) if each.weights is None else _summed(values, each.weights)
    return values.unflatten(2, grid.shape[1:-1])


def _apart(numbers: Tensor, dim: int, count: int) -> Tensor:
    """Give an axis of elements its own place among those of all axes."""
    shape = [1] * count
    shape[dim] = numbers.shape[1]
    return numbers.unflatten(1, shape)


def _summed(values: Tensor, weights: Tensor) -> Tensor:
    """Sum over the last axis of elements, with weights."""
    shape = (weights.shape[0], *[1] * (values.dim() - 3), *weights.shape[1:])
    return (values * weights.reshape(shape)).sum(-2)


def _element(numbers: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the number of an element in the flat tensor, and whether there is one."""
    flat, within = numbers[0], (numbers[0] >= 0) & (numbers[0] < sizes[0])
    for number, size in zip(numbers[1:], sizes[1:], strict=True):
        within = within & (number >= 0) & (number < size)
        flat = flat * size + number
    return torch.where(within, flat, 0).long(), within


define_composite(aten.grid_sampler_2d.default, _sampled)
define_composite(aten.grid_sampler_3d.default, _sampled)
