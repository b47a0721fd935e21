"""Elements that are chosen by their order: sorted ones, those in the middle, the largest so far.

The values make the choice, and once it is made the op is a selection.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hofunc.algebra.labels import Axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Ref
from hofunc.internals import OpOverload, schema_of
from hofunc.rules.kinds import Site
from hofunc.rules.ops.linear import reduced
from hofunc.rules.registry import define_composite, define_linear

aten = torch.ops.aten


# One element of each row.


def chosen(op: Callable, x: Tensor, *args: int) -> Tensor:
    """Return one at the element of each row that op names, and zero elsewhere; the last of args is the axis."""
    return torch.zeros_like(x).scatter(args[-1], op(x, *args, True)[1], 1)


def _define_choice(op: OpOverload) -> None:
    """Enter an op of a tensor, an axis and whether it stays, that names one element of each row."""

    @define_linear(op)
    def _terms(site: Site, x: Axes, dim: int = -1, keepdim: bool = False) -> dict[int, list[Term]]:
        hits = Call(chosen, (op, site.ref(0), dim))
        return {0: [Term(1, (Factor(hits, x),), reduced(x, dim, keepdim), (x,))]}


for _op in (aten.max.dim, aten.min.dim, aten.median.dim, aten.nanmedian.dim, aten.mode.default):
    _define_choice(_op)


@define_linear(aten.kthvalue.default)
def _kthvalue(site: Site, x: Axes, k: int, dim: int = -1, keepdim: bool = False) -> dict[int, list[Term]]:
    hits = Call(chosen, (aten.kthvalue.default, site.ref(0), k, dim))
    return {0: [Term(1, (Factor(hits, x),), reduced(x, dim, keepdim), (x,))]}


# The middle one of all elements.


def equals(x: Tensor, out: Tensor) -> Tensor:
    """Return the weight of each element in the one that was chosen: equal ones share it evenly, as in torch."""
    hits = ((x == out) | (x.isnan() & out.isnan())).to(x.dtype)
    return hits / hits.sum()


def _define_middle(op: OpOverload) -> None:
    @define_linear(op)
    def _terms(site: Site, x: Axes) -> dict[int, list[Term]]:
        return {0: [Term(1, (Factor(Call(equals, (site.ref(0), Ref(site.node.number))), x),), (), (x,))]}


_define_middle(aten.median.default)
_define_middle(aten.nanmedian.default)


# Several elements of each row.


def _define_selection(op: OpOverload) -> None:
    """Enter an op that returns elements along an axis and their places."""
    names = [argument.name for argument in schema_of(op).arguments]

    def function(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        dim = {"dim": -1, **dict(zip(names[1:], args, strict=False)), **kwargs}["dim"]
        return x.gather(dim, op(x.detach(), *args, **kwargs)[1])

    define_composite(op, function)


for _op in (aten.sort.default, aten.sort.stable, aten.topk.default, aten.cummax.default, aten.cummin.default):
    _define_selection(_op)
