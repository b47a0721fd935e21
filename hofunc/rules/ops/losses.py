"""Loss functions: each the formula of its elements, and a reduction over them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Graph, Node, Ref
from hofunc.internals import OpOverload, kernel_of
from hofunc.rules.kinds import Composite, Constant, Fused, Linear, Site
from hofunc.rules.registry import LATE_COMPOSITES, define_composite, define_fusion

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2


def reduced_by(elements: Tensor, reduction: int) -> Tensor:
    """Apply torch's numbered reduction to the losses of the elements."""
    if reduction == MEAN:
        return elements.mean()
    return elements.sum() if reduction == SUM else elements


def _define_loss(op: OpOverload, elements: Callable[..., Tensor]) -> None:
    """Enter a loss ``op(x, target, reduction, *params)`` by the loss of one element."""
    define_composite(
        op, lambda x, t, reduction=MEAN, *params, **kw: reduced_by(elements(x, t, *params, **kw), reduction)
    )


def _huber(x: Tensor, t: Tensor, delta: float = 1.0) -> Tensor:
    difference = x - t
    distance = difference.abs()
    is_near = (distance > delta).logical_not()  # nan is near
    return _pieces(is_near, difference, 0.5, delta * (distance - 0.5 * delta))


def _pieces(is_near: Tensor, difference: Tensor, weight: float, far: Tensor) -> Tensor:
    """Return a weighted square near zero, of what is zero elsewhere, so that its slope is where nothing is finite."""
    near = torch.where(is_near, difference, 0.0)
    return near * near * weight + torch.where(is_near, 0.0, far)


def _smooth_l1(x: Tensor, t: Tensor, beta: float = 1.0) -> Tensor:
    difference = x - t
    distance = difference.abs()
    if beta == 0:
        return distance
    return _pieces(distance < beta, difference, 0.5 / beta, distance - 0.5 * beta)


_define_loss(aten.mse_loss.default, lambda x, t: (x - t) * (x - t))
_define_loss(aten.huber_loss.default, _huber)
_define_loss(aten.smooth_l1_loss.default, _smooth_l1)
_define_loss(aten.soft_margin_loss.default, lambda x, t: torch.nn.functional.softplus(-x * t, threshold=math.inf))


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, None]:
    """Return how far every class that is no label comes within one of every label; labels end at one below zero."""
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    counts = (labels >= 0).to(x.dtype).cumprod(1)
    labels = labels.clamp(min=0)
    other = 1 - torch.zeros_like(rows).scatter_reduce(1, labels, counts, "amax")
    short = (1 - rows.gather(1, labels).unsqueeze(2) + rows.unsqueeze(1)).clamp(min=0)
    losses = (short * counts.unsqueeze(2) * other.unsqueeze(1)).sum((1, 2)) * (1 / rows.shape[1])
    return reduced_by(losses if x.dim() == 2 else losses.squeeze(0), reduction), None


define_composite(aten.multilabel_margin_loss_forward.default, multilabel_margin_loss)

SMALL = 1e-12  # where torch stops to divide by x (1 - x)
LEAST = -100  # where torch stops logarithms


def binary_cross_entropy(x: Tensor, t: Tensor, weight: Tensor | None = None, reduction: int = MEAN) -> Tensor:
    """Return the cross-entropy of probabilities; at zero and one it is a straight line with torch's slope."""
    safe = torch.where(_inside(x), x, 0.5)
    curved = (t - 1) * torch.log1p(-safe) - t * safe.log()
    losses = torch.where(_inside(x), curved, _straight(x, t) + (x - x.detach()) * _end_slope(x, t))
    return reduced_by(losses if weight is None else losses * weight, reduction)


def _inside(x: Tensor) -> Tensor:
    return (x * (1 - x)).detach() > SMALL


def _straight(x: Tensor, t: Tensor) -> Tensor:
    """Return the losses of fixed probabilities, as torch limits them."""
    end = x.detach()
    return (t - 1) * torch.log1p(-end).clamp(min=LEAST) - t * end.log().clamp(min=LEAST)


def _end_slope(x: Tensor, t: Tensor) -> Tensor:
    return (x - t).detach() / SMALL


define_composite(aten.binary_cross_entropy.default, binary_cross_entropy)


def _of_sigmoid(x: Tensor, y: Tensor, t: Tensor, weight: Tensor | None = None, reduction: int = MEAN) -> Tensor:
    """Return the cross-entropy of y, the sigmoid of x; one less y has no digits left where it is nearly one."""
    curved = torch.nn.functional.softplus(x, threshold=math.inf) - t * x
    slope = _end_slope(y, t) * (y * (1 - y)).detach()
    losses = torch.where(_inside(y), curved, _straight(y, t) + (x - x.detach()) * slope)
    return reduced_by(losses if weight is None else losses * weight, reduction)


@define_fusion(aten.binary_cross_entropy.default)
def _with_sigmoid(graph: Graph, node: Node) -> Fused | None:
    y = graph.nodes[node.args[0].node] if isinstance(node.args[0], Ref) else None
    is_sigmoid = y is not None and y.op is aten.sigmoid.default and not y.is_given
    return Fused(_of_sigmoid, y.operands[:1]) if y is not None and is_sigmoid else None


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return the negative log-likelihood loss over classes in dim 1 (dim 0 without a batch), and the total weight."""
    classes = 1 if x.dim() > 1 else 0
    kept = target != ignore_index
    safe = torch.where(kept, target, 0)
    picked = x.gather(classes, safe.unsqueeze(classes)).squeeze(classes)
    weights = _weights(x, weight, kept, safe)
    total = weights.sum()
    whole = total.clamp(min=1) if weight is None else total  # a count, of none as well, by which to divide is safe
    shares = weights / whole if reduction == MEAN else weights
    losses = torch.where(kept, -picked * shares, 0)
    if reduction == NONE:
        return losses, total
    return (losses.sum() + 0 / total if reduction == MEAN else losses.sum()), total  # the mean of nothing is nan


def _weights(x: Tensor, weight: Tensor | None, kept: Tensor, target: Tensor) -> Tensor:
    """Return the weight of every target, which is zero for those that are not kept."""
    return kept.to(x.dtype) if weight is None else torch.where(kept, weight.take(target), 0)


def nll_slopes(
    forward: OpOverload,
    backward: OpOverload,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Tensor:
    """Return the slopes, but for their sign, of a negative log-likelihood that is one number and linear in x."""
    x = x.detach()
    total = sign = x.new_full((), -1)
    if reduction == MEAN:  # what the loss divides by, which it returns as well: to sum weights takes twice as long
        _, total = kernel_of(forward)(x, target, weight, reduction, ignore_index)
    return kernel_of(backward)(sign, x, target, weight, reduction, ignore_index, total)


def _define_nll(forward: OpOverload, backward: OpOverload) -> None:
    """Enter a negative log-likelihood; one that is reduced, with weights that do not vary, is linear in one tensor."""
    define_composite(forward, nll_loss)

    @define_fusion(forward)
    def _reduced(graph: Graph, node: Node) -> Linear | Constant | None:
        weight, reduction = node.args[2:4]
        if reduction == NONE or (isinstance(weight, Ref) and graph.nodes[weight.node].active):
            return None
        return Linear(partial(_slope, forward, backward)) if node.output == 0 else Constant()


def _slope(forward: OpOverload, backward: OpOverload, site: Site) -> dict[int, list[Term]]:
    axes = fresh_axes(site.shapes[0])
    return {0: [Term(-1, (Factor(Call(nll_slopes, (forward, backward, *site.node.args)), axes),), (), (axes,))]}


_define_nll(aten.nll_loss_forward.default, aten.nll_loss_backward.default)
_define_nll(aten.nll_loss2d_forward.default, aten.nll_loss2d_backward.default)


def linear_cross_entropy(
    x: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    *_: Any,
) -> tuple[Tensor]:
    """Return the cross-entropy of a linear layer, but not what torch's op returns beside for its backward pass.

    That it computes only where autograd follows the arguments: recorded where it does not, the pass would be zero.
    """
    logits = torch.nn.functional.linear(x, linear_weight, linear_bias)
    return (torch.nn.functional.cross_entropy(logits, target, weight, None, ignore_index, reduction=reduction),)


def _by_row(
    x: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Any, weight: Any, ignore: int, *_: Any
) -> Tensor:
    return linear_cross_entropy(x, linear_weight, target, linear_bias, weight, "none", ignore)[0]


_IN_CHUNKS = "torch_nn::_linear_cross_entropy_batch_chunked"
LATE_COMPOSITES[_IN_CHUNKS] = Composite(linear_cross_entropy)
LATE_COMPOSITES[f"{_IN_CHUNKS}_no_reduction"] = Composite(_by_row)
