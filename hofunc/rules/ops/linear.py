"""Sums, scalings and masks: linear ops that keep every element where it is, or add some of them up."""

from math import prod
from typing import Any

import torch

from hofunc.algebra.labels import Axes, Label, full
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Mask, Ref
from hofunc.rules.axes import dims_of
from hofunc.rules.kinds import Site
from hofunc.rules.registry import define_linear, define_masked, define_relabelling, define_sum

aten = torch.ops.aten

Dims = int | list[int] | tuple[int, ...] | None

# Weighted sums of tensors.

define_sum(aten.add.Tensor, lambda x, y, *, alpha=1: (1, alpha))
define_sum(aten.add.Scalar, lambda x, y, alpha=1: (1, alpha))
define_sum(aten.sub.Tensor, lambda x, y, *, alpha=1: (1, -alpha))
define_sum(aten.sub.Scalar, lambda x, y, alpha=1: (1, -alpha))
define_sum(aten.rsub.Tensor, lambda x, y, *, alpha=1: (-alpha, 1))
define_sum(aten.rsub.Scalar, lambda x, y, alpha=1: (-alpha, 1))
define_sum(aten.neg.default, lambda x: (-1,))
define_sum(aten._neg_view.default, lambda x: (-1,))
define_sum(aten.mul.Scalar, lambda x, factor: (factor,))
define_sum(aten.lerp.Scalar, lambda x, y, weight: (1 - weight, weight))


# Reductions.


def reduced(x: Axes, dims: Dims = None, keepdim: bool = False, **_: Any) -> Axes:
    """Return the axes that are left when some are summed; with keepdim, an axis of one index in place of each."""
    dropped = dims_of(dims, len(x))
    return tuple(
        (full(Label(1)),) if dim in dropped else axis for dim, axis in enumerate(x) if keepdim or dim not in dropped
    )


def _one_over_count(x: Axes, dims: Dims = None, *_: Any, **__: Any) -> float:
    return 1 / max(1, prod(x[dim][0].extent for dim in dims_of(dims, len(x))))


define_relabelling(aten.sum.default, reduced)
define_relabelling(aten.sum.dim_IntList, reduced)
define_relabelling(aten.mean.default, reduced, scale=_one_over_count)
define_relabelling(aten.mean.dim, reduced, scale=_one_over_count)


@define_linear(aten.trace.default)
def _trace(site: Site, x: Axes) -> dict[int, list[Term]]:
    label = Label(min(site.shapes[0]))
    diagonal = tuple((full(label)._replace(extent=axis[0].extent),) for axis in x)
    return {0: [Term(1, (), (), (diagonal,))]}


# Masks. Where a condition holds, the tensor is passed on.


def holds(condition: torch.Tensor) -> torch.Tensor:
    """Return where a condition holds."""
    return condition.to(torch.bool)


def fails(condition: torch.Tensor) -> torch.Tensor:
    """Return where a condition does not hold."""
    return ~holds(condition)


def mask(condition: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return one where a condition holds and zero elsewhere, in the shape and dtype of out."""
    return condition.to(out.dtype).expand_as(out)


def larger(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Return one where x is not smaller than y, and a half where they are equal; with nan there is no smaller one."""
    return mask(~(x < y), out) - mask(x == y, out) / 2


def lower_triangle(out: torch.Tensor, diagonal: int) -> torch.Tensor:
    """Return ones on and below a diagonal of every matrix, in the shape of out."""
    return out.new_ones(out.shape[-2:]).tril(diagonal).expand_as(out)


def upper_triangle(out: torch.Tensor, diagonal: int) -> torch.Tensor:
    """Return ones on and above a diagonal of every matrix, in the shape of out."""
    return out.new_ones(out.shape[-2:]).triu(diagonal).expand_as(out)


def _where(condition: Ref, x: Any, y: Any, out: Ref) -> tuple[Call | None, ...]:
    calls = (Mask(holds, (condition,)), Mask(fails, (condition,)))
    return (None, *(call for call, tensor in zip(calls, (x, y), strict=True) if isinstance(tensor, Ref)))


define_masked(aten.where.self, _where)
define_masked(aten.where.ScalarSelf, _where)
define_masked(aten.where.ScalarOther, _where)
define_masked(aten.masked_fill.Scalar, lambda x, at, value, out: (Mask(fails, (at,)), None))
define_masked(aten.masked_fill.Tensor, lambda x, at, value, out: (Mask(fails, (at,)), None, Mask(holds, (at,))))
define_masked(aten.maximum.default, lambda x, y, out: (Call(larger, (x, y, out)), Call(larger, (y, x, out))))
define_masked(aten.minimum.default, lambda x, y, out: (Call(larger, (y, x, out)), Call(larger, (x, y, out))))
define_masked(aten.tril.default, lambda x, k=0, *, out: (Call(lower_triangle, (out, k)),))
define_masked(aten.triu.default, lambda x, k=0, *, out: (Call(upper_triangle, (out, k)),))


# The largest and smallest elements: piecewise linear, with weights that the values make.


def extreme(x: torch.Tensor, out: torch.Tensor, dims: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    """Return the weight of each element in the extreme of its row: ties share it evenly, as in torch."""
    if not keepdim:
        for dim in sorted(dims):
            out = out.unsqueeze(dim)
    hits = (x == out).to(x.dtype)
    return hits / hits.sum(dims, keepdim=True)


def _define_extreme(op: Any) -> None:
    @define_linear(op)
    def _terms(site: Site, x: Axes, dims: Dims = None, keepdim: bool = False) -> dict[int, list[Term]]:
        dropped = dims_of(dims, len(x))
        weights = Call(extreme, (site.ref(0), Ref(site.node.number), dropped, keepdim))
        return {0: [Term(1, (Factor(weights, x),), reduced(x, dims, keepdim), (x,))]}


for _op in (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default):
    _define_extreme(_op)
