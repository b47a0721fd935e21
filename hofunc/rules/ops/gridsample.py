"""Sampling at places that are given: piecewise polynomials in the places, linear in what is sampled."""

from collections.abc import Iterator, Sequence
from itertools import product
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


class Neighbour(NamedTuple):
    """An element near a place, by its number along an axis, and its weight there."""

    number: Tensor
    weight: Tensor | None


def neighbours(place: Tensor, axis: Axis, mode: int) -> list[Neighbour]:
    """Return the elements along an axis of which a sample is the sum, with their weights."""
    place = axis.unnormalised(place)
    if mode == NEAREST:
        return [Neighbour(axis.inside(place.detach()).round(), None)]
    if mode == LINEAR:
        place = axis.inside(place)
        low = place.detach().floor()
        return [Neighbour(low, low + 1 - place), Neighbour(low + 1, place - low)]
    low = place.detach().floor()
    t = place - low
    weights = (_far(t + 1), _near(t), _near(1 - t), _far(2 - t))
    return [Neighbour(axis.inside(low + step), weight) for step, weight in enumerate(weights, -1)]


def _near(t: Tensor) -> Tensor:
    """Return the weight of an element no further than one away: the polynomial of cubic convolution."""
    return ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1


def _far(t: Tensor) -> Tensor:
    """Return the weight of an element between one and two away."""
    return ((t - 5) * t + 8) * t * CUBIC - 4 * CUBIC


def _sampled(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    sizes, places = x.shape[2:], grid.flatten(1, -2).unbind(-1)[::-1]
    axes = [Axis(size, padding, align_corners) for size in sizes]
    along = [neighbours(place, axis, mode) for place, axis in zip(places, axes, strict=True)]
    flat, total = x.flatten(2), None
    for corner in product(*along):
        number, within = _element([neighbour.number for neighbour in corner], sizes)
        values = flat.gather(2, number.unsqueeze(1).expand(-1, x.shape[1], -1))
        values = torch.where(within.unsqueeze(1), values, 0)
        for weight in _weights(corner):
            values = values * weight.unsqueeze(1)
        total = values if total is None else total + values
    return total.unflatten(2, grid.shape[1:-1])  # type: ignore[union-attr]


def _element(numbers: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the number of an element in the flat tensor, and whether there is one."""
    flat, within = torch.zeros_like(numbers[0]), torch.ones_like(numbers[0], dtype=torch.bool)
    for number, size in zip(numbers, sizes, strict=True):
        within = within & (number >= 0) & (number < size)
        flat = flat * size + number
    return torch.where(within, flat, 0).long(), within


def _weights(corner: Sequence[Neighbour]) -> Iterator[Tensor]:
    return (neighbour.weight for neighbour in corner if neighbour.weight is not None)


define_composite(aten.grid_sampler_2d.default, _sampled)
define_composite(aten.grid_sampler_3d.default, _sampled)
