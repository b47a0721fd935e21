"""Every op that takes a tensor of indices or a mask, as a function of two tensors and any indices."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

aten = torch.ops.aten

ROWS = 3  # of the tensor into which indices point


@dataclass(frozen=True)
class Indexed:
    """One use of an op.

    Attributes:
        name: What it shows.
        op: The op that is recorded.
        f: ``f(x, y, index)`` of x (3, 2), y (n, 2) and n indices of rows of x.
        reference: The same of ops that torch can differentiate, if it is not linear in x and y together.
    """

    name: str
    op: Any
    f: Callable[[Tensor, Tensor, Tensor], Tensor]
    reference: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None


def _each(index: Tensor) -> Tensor:
    """Return an index for every element of rows."""
    return index[:, None].expand(-1, 2)


def _mask(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(len(x), 1, dtype=torch.bool, device=x.device).index_fill(0, index, True).expand_as(x)


def _bags(name: str, op: Any, mode: int, *, weighted: bool = False) -> Indexed:
    """Return a use of embedding_bag, of two bags of which the first is empty, and of three if there are indices."""

    def offsets(index: Tensor) -> Tensor:
        return torch.arange(3, device=index.device) * (len(index) // 2)

    def f(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return op(x, index, offsets(index), False, mode, False, y[:, 0].contiguous() if weighted else None)[0]

    def in_bags(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        starts = [*offsets(index).tolist(), len(index)]
        rows = [(y[a:b, :1] if weighted else 1) * x[index[a:b]] for a, b in pairwise(starts)]
        return torch.stack([bag.sum(0) if not len(bag) or not mode else bag.amax(0) for bag in rows])

    return Indexed(f"bags, {name}", op, f, in_bags if weighted or mode == LARGEST else None)


SUM, MEAN, LARGEST = 0, 1, 2


def _reduction(reduce: str, own: bool) -> list[Indexed]:
    """Return the uses of the ops that reduce what is written to one place."""
    name = f"{reduce}{'' if own else ', without itself'}"

    def scattered(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return x.scatter_reduce(0, _each(index), y, reduce, include_self=own)

    def reduced(x: Tensor, y: Tensor, index: Tensor) -> Tensor:
        return x.index_reduce(0, index, y, reduce, include_self=own)

    reference = None if reduce in ("sum", "mean") else scattered
    uses = [Indexed(f"scatter_reduce, {name}", aten.scatter_reduce.two, scattered, reference)]
    if reduce != "sum":
        uses.append(Indexed(f"index_reduce, {name}", aten.index_reduce.default, reduced, reference))
    return uses


TABLE = [
    Indexed("index", aten.index.Tensor, lambda x, y, i: x[i]),
    Indexed("index of two axes", aten.index.Tensor, lambda x, y, i: x[i, i % 2]),
    Indexed("index by a mask", aten.index.Tensor, lambda x, y, i: x[_mask(x, i)]),
    Indexed("_unsafe_index", aten._unsafe_index.Tensor, lambda x, y, i: aten._unsafe_index(x, [i])),
    Indexed(
        "_unsafe_masked_index",
        aten._unsafe_masked_index.default,
        lambda x, y, i: aten._unsafe_masked_index(x, (i > 0)[:, None], [i, None], 0.5),
    ),
    Indexed("take", aten.take.default, lambda x, y, i: x.take(i)),
    Indexed("index_select", aten.index_select.default, lambda x, y, i: x.index_select(0, i)),
    Indexed("gather", aten.gather.default, lambda x, y, i: x.gather(0, _each(i))),
    Indexed("gather along the last axis", aten.gather.default, lambda x, y, i: x.t().gather(-1, i.expand(2, -1))),
    Indexed("masked_select", aten.masked_select.default, lambda x, y, i: x.masked_select(_mask(x, i))),
    Indexed("embedding", aten.embedding.default, lambda x, y, i: F.embedding(i, x)),
    _bags("sums", aten._embedding_bag.default, SUM),
    _bags("means", aten._embedding_bag.default, MEAN),
    _bags("largest", aten._embedding_bag.default, LARGEST),
    _bags("weighted sums", aten._embedding_bag.default, SUM, weighted=True),
    _bags("sums, without a backward pass", aten._embedding_bag_forward_only.default, SUM),
    Indexed("index_put", aten.index_put.default, lambda x, y, i: x.index_put((i,), y)),
    Indexed("index_put of one value", aten.index_put.default, lambda x, y, i: x.index_put((i,), y.sum())),
    Indexed("index_put that adds", aten.index_put.default, lambda x, y, i: x.index_put((i,), y, accumulate=True)),
    Indexed(
        "index_put by a mask", aten.index_put.default, lambda x, y, i: x.index_put((_mask(x, i),), x[_mask(x, i)] * 2)
    ),
    Indexed("_unsafe_index_put", aten._unsafe_index_put.default, lambda x, y, i: aten._unsafe_index_put(x, [i], y)),
    Indexed(
        "_unsafe_masked_index_put_accumulate",
        aten._unsafe_masked_index_put_accumulate.default,
        lambda x, y, i: aten._unsafe_masked_index_put_accumulate(x, (i > 0)[:, None], [i, None], y),
    ),
    Indexed("index_add", aten.index_add.default, lambda x, y, i: x.index_add(0, i, y, alpha=2)),
    Indexed("index_copy", aten.index_copy.default, lambda x, y, i: x.index_copy(0, i, y)),
    Indexed("index_fill", aten.index_fill.int_Tensor, lambda x, y, i: x.index_fill(0, i, y.sum())),
    Indexed("put", aten.put.default, lambda x, y, i: x.put(_each(i), y)),
    Indexed("put that adds", aten.put.default, lambda x, y, i: x.put(_each(i), y, accumulate=True)),
    Indexed("scatter", aten.scatter.src, lambda x, y, i: x.scatter(0, _each(i), y)),
    Indexed("scatter of a number", aten.scatter.value, lambda x, y, i: x.scatter(0, _each(i), 0.5)),
    Indexed("scatter_add", aten.scatter_add.default, lambda x, y, i: x.scatter_add(0, _each(i), y)),
    Indexed("scatter, adding", aten.scatter.reduce, lambda x, y, i: x.scatter(0, _each(i), y, reduce="add")),
    Indexed(
        "scatter, multiplying",
        aten.scatter.reduce,
        lambda x, y, i: x.scatter(0, _each(i), y, reduce="multiply"),
        lambda x, y, i: x.scatter_reduce(0, _each(i), y, "prod"),
    ),
    Indexed(
        "scatter of a number, multiplying",
        aten.scatter.value_reduce,
        lambda x, y, i: x.scatter(0, _each(i), 0.5, reduce="multiply"),
    ),
    *(
        use
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
        for use in _reduction(reduce, own)
    ),
    Indexed("masked_fill", aten.masked_fill.Scalar, lambda x, y, i: x.masked_fill(_mask(x, i), 0.5)),
    Indexed("masked_fill by a tensor", aten.masked_fill.Tensor, lambda x, y, i: x.masked_fill(_mask(x, i), y.sum())),
    Indexed("masked_scatter", aten.masked_scatter.default, lambda x, y, i: x.masked_scatter(_mask(x, i), x * 2 + 1)),
    Indexed("where", aten.where.self, lambda x, y, i: torch.where(_mask(x, i), x, y.sum())),
    Indexed("where, or a number", aten.where.ScalarOther, lambda x, y, i: aten.where.ScalarOther(_mask(x, i), x, 0.5)),
    Indexed("where, of a number", aten.where.ScalarSelf, lambda x, y, i: aten.where.ScalarSelf(_mask(x, i), 0.5, x)),
    Indexed(
        "nll_loss",
        aten.nll_loss_forward.default,
        lambda x, y, i: F.nll_loss(x.t()[:1].expand(len(i), ROWS), i, reduction="none"),
    ),
    Indexed(
        "nll_loss of images",
        aten.nll_loss2d_forward.default,
        lambda x, y, i: F.nll_loss(
            x.t()[:1, :, None, None].expand(1, ROWS, len(i), 1), i[None, :, None], reduction="sum"
        ),
    ),
    Indexed(
        "max_unpool2d",
        aten.max_unpool2d.default,
        lambda x, y, i: F.max_unpool2d(
            x.t()[None, :, None], torch.arange(3, device=x.device).expand(1, 2, 1, 3), (1, 2)
        ),
    ),
]


# What squares and sums a use, and what it is by other means.

Function = Callable[[Tensor], Tensor]


def of_vector(f: Callable[..., Tensor], index: Tensor) -> Function:
    """Return a use as a function of one vector: x and y after each other."""
    return lambda z: f(z[: 2 * ROWS].reshape(-1, 2), z[2 * ROWS :].reshape(-1, 2), index)


def vector(index: Tensor) -> Tensor:
    """Return fixed numbers of order one for x and y."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2 * (ROWS + len(index)), dtype=torch.float64, generator=generator).to(index.device)


def written_out(use: Indexed, index: Tensor) -> Function:
    """Return a use as a function of one vector that torch differentiates right.

    Linear ops are products with their matrices, made of values alone: torch's gradients of some are wrong.
    """
    if use.reference is not None:
        return of_vector(use.reference, index)
    f, zeros = of_vector(use.f, index), torch.zeros_like(vector(index))
    constant = f(zeros)
    matrix = torch.stack([f(row) - constant for row in torch.eye(len(zeros)).to(zeros)], -1)
    return lambda z: matrix @ z + constant


def squared(f: Function) -> Function:
    """Return a number that has all derivatives of a function, and its own."""
    return lambda z: (f(z.sin()) ** 2).sum() + (z**3).sum()


# Names of arguments of ops that are indices or masks, and the ops that have one and do not belong here.
INDICES = {"index", "indices", "mask", "condition", "offsets", "target", "targets", "pivots", "LU_pivots"}
NOT_HERE = {
    aten.mse_loss.default: "its target is a tensor of numbers",
    aten.huber_loss.default: "its target is a tensor of numbers",
    aten.smooth_l1_loss.default: "its target is a tensor of numbers",
    aten.soft_margin_loss.default: "its target is a tensor of numbers",
    aten.binary_cross_entropy.default: "its target is a tensor of numbers",
    aten._ctc_loss.default: "a whole algorithm, in test_ctc.py",
    aten._ctc_loss.Tensor: "a whole algorithm, in test_ctc.py",
    aten.multilabel_margin_loss_forward.default: "a whole loss, in test_losses.py",
    aten._native_multi_head_attention.default: "a whole layer, in test_attention.py",
    aten._transformer_encoder_layer_fwd.default: "a whole layer, in test_attention.py",
    aten.segment_reduce.default: "its segments follow each other, in test_segments.py",
    aten.select.int: "its index is a number",
    aten.select_scatter.default: "its index is a number",
    aten.select_backward.default: "its index is a number",
    aten.lu_unpack.default: "its pivots are a permutation, in test_factorisations.py",
    aten.linalg_lu_solve.default: "its pivots are a permutation, in test_factorisations.py",
}
