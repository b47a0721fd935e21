"""Tensors in a vector of memory: what recording makes of in-place ops.

A layout whose strides nest is a relabelling: the vector is split into one digit for every axis, and each axis is part
of its digit. So writing to a slice keeps the labels of all other axes.
"""

from math import prod
from typing import Any, NoReturn

import torch

from hofunc.algebra.labels import Axes, Axis, Label, Segment, fresh_axes, full
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
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
from hofunc.rules.registry import by_map, define_composite, define_linear

define_composite(in_memory_order, in_memory_order)
define_composite(overwritten, overwritten)
define_composite(unseen, unseen)


def digits(layout: Layout, length: int) -> tuple[Axis, Axes] | None:
    """Label a vector and the tensor that lies in it at a layout so that equal labels mean equal elements.

    Returns:
        The axis of the vector and the axes of the tensor; None if the strides do not nest in each other and in the
        vector's length, or an axis runs over the end of its digit.
    """
    axes = [(full(Label(size)),) for size in layout.size]
    vector: list[Segment] = []
    above, left = length, layout.offset
    for dim in sorted(range(len(axes)), key=lambda dim: -layout.stride[dim]):
        size, stride = layout.size[dim], layout.stride[dim]
        if size == 1:
            continue
        if stride == 0 or above % stride:
            return None
        start, left = divmod(left, stride)
        if start + size > above // stride:
            return None
        vector.append(Segment(axes[dim][0].label, start, above // stride))
        above = stride
    if above > 1:
        vector.append(Segment(None, left, above))
    return tuple(vector), tuple(axes)


@define_linear(restrided)
@define_linear(read_strided)
def _read(site: Site, contents: Axes, layout: Layout) -> dict[int, list[Term]]:
    length = site.shapes[0][0]
    if labelled := digits(layout, length):
        return {0: [Term(1, (), labelled[1], ((labelled[0],),))]}
    out = fresh_axes(layout.size)
    reading = Map(_read_last, _add_last, (layout, length), outs=len(out))
    return {0: [by_map(reading, out, contents, out, contents)]}


@define_linear(write_strided)
def _write(site: Site, contents: Axes, value: Axes, layout: Layout) -> dict[int, list[Term]]:
    length = site.shapes[0][0]
    kept = Factor(Call(outside, (Ref(site.node.number), layout)), contents)
    terms = {0: [Term(1, (kept,), contents, (contents,))]}
    if labelled := digits(layout, length):
        terms[1] = [Term(1, (), (labelled[0],), (labelled[1],))]
    else:
        writing = Map(_add_last, _read_last, (layout, length), ins=len(value))
        terms[1] = [by_map(writing, contents, value, contents, value)]
    return terms


def _refused(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedOpError(
        "hofunc: no rule for aten.as_strided_scatter.default",
        got="an op of which torch's own gradient is wrong, and whose result depends on the strides of its input",
        expected="an op of shapes and values",
        remedy="Write in place instead: y = x.clone(); y.as_strided(size, stride).copy_(source).",
    )


define_composite(torch.ops.aten.as_strided_scatter.default, _refused)


def outside(contents: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a vector of ones, and zeros where a tensor of the layout lies."""
    return torch.ones_like(contents).index_fill(0, places(layout, contents.device), 0)


def _read_last(tensor: torch.Tensor, layout: Layout, length: int) -> torch.Tensor:
    """Take the tensors that lie in the vectors along the last axis."""
    flat = tensor.index_select(-1, places(layout, tensor.device))
    return flat.reshape(*tensor.shape[:-1], *layout.size)


def _add_last(tensor: torch.Tensor, layout: Layout, length: int) -> torch.Tensor:
    """Put tensors into vectors of zeros along a new last axis."""
    lead = tensor.shape[: tensor.dim() - len(layout.size)]
    flat = tensor.reshape(*lead, prod(layout.size))
    return torch.index_add(tensor.new_zeros(*lead, length), -1, places(layout, tensor.device), flat)
