"""Tensors in memory: what recording makes of in-place ops.

Reading and writing slices of memory are relabellings, as slices of a tensor are, and so keep the labels of all axes.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

import torch

from hofunc.algebra.labels import Axes
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term, identity
from hofunc.errors import UnsupportedOpError
from hofunc.graph.layout import (
    Layout,
    in_memory_order,
    overwritten,
    places,
    read_strided,
    restrided,
    unseen,
    write_strided,
)
from hofunc.graph.node import Call, Ref
from hofunc.rules.kinds import Site
from hofunc.rules.memory import Place, around, place_of
from hofunc.rules.registry import define_composite, define_linear

define_composite(in_memory_order, in_memory_order)
define_composite(overwritten, overwritten)


@define_linear(unseen)
def _unseen(site: Site, before: Axes, value: Axes) -> dict[int, list[Term]]:
    return {0: [identity(before)]}


@define_linear(restrided)
@define_linear(read_strided)
def _read(site: Site, memory: Axes, layout: Layout) -> dict[int, list[Term]]:
    place = place_of(layout, site.shapes[0])
    reading: tuple[Factor, ...] = ()
    if rest := place.rest:
        read = Map(_read_last, _add_last, (rest.layout, rest.shape), len(rest.tensor), len(rest.memory))
        reading = (Factor(read, (*rest.tensor, *rest.memory)),)
    return {0: [Term(1, reading, place.tensor, (place.memory,))]}


@define_linear(write_strided)
def _write(site: Site, memory: Axes, value: Axes, layout: Layout) -> dict[int, list[Term]]:
    if 0 in layout.size:
        return {0: [identity(memory)]}
    place = place_of(layout, site.shapes[0])
    writing: tuple[Factor, ...] = ()
    if rest := place.rest:
        write = Map(_add_last, _read_last, (rest.layout, rest.shape), len(rest.memory), len(rest.tensor))
        writing = (Factor(write, (*rest.memory, *rest.tensor)),)
    return {0: _kept(site, place), 1: [Term(1, writing, place.memory, (place.tensor,))]}


def _kept(site: Site, place: Place) -> list[Term]:
    """Return the terms of memory where a tensor is written to a place of it."""
    if place.rest is None:
        return [identity(axes) for axes in around(place.memory)]
    mask = Call(outside, (Ref(site.node.number), place.rest.layout, place.rest.whole))
    return [Term(1, (Factor(mask, place.rest.memory),), place.memory, (place.memory,))]


def _refused(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedOpError(
        "hofunc: no rule for aten.as_strided_scatter.default",
        got="an op of which torch's own gradient is wrong, and whose result depends on the strides of its input",
        expected="an op of shapes and values",
        remedy="Write in place instead: y = x.clone(); y.as_strided(size, stride).copy_(source).",
    )


define_composite(torch.ops.aten.as_strided_scatter.default, _refused)


def outside(memory: torch.Tensor, layout: Layout, whole: Sequence[int]) -> torch.Tensor:
    """Return zeros where a tensor of the layout lies in memory without some whole axes, and ones elsewhere."""
    for dim in reversed(whole):
        memory = memory.select(dim, 0)
    ones = torch.ones_like(memory).reshape(-1)
    return ones.index_fill(0, places(layout, memory.device), 0).reshape(memory.shape)


def _read_last(tensor: torch.Tensor, layout: Layout, shape: Sequence[int]) -> torch.Tensor:
    """Take the tensors that lie in the memories of some shape along the last axes."""
    lead = tensor.shape[: tensor.dim() - len(shape)]
    flat = tensor.reshape(*lead, prod(shape)).index_select(-1, places(layout, tensor.device))
    return flat.reshape((*lead, *layout.size))


def _add_last(tensor: torch.Tensor, layout: Layout, shape: Sequence[int]) -> torch.Tensor:
    """Put tensors into memories of zeros along new last axes."""
    lead = tensor.shape[: tensor.dim() - len(layout.size)]
    flat = tensor.reshape(*lead, prod(layout.size))
    zeros = tensor.new_zeros(*lead, prod(shape))
    return torch.index_add(zeros, -1, places(layout, tensor.device), flat).reshape((*lead, *shape))
