"""Logarithms of sigmoids, differentiated as functions of what the sigmoid is of.

A sigmoid rounds to one, and one less it has no digits left long before. The logarithm of a sigmoid has all of its
digits everywhere, and so have the logarithm of one less it, and the log-odds, which are what the sigmoid is of.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hofunc.graph.node import Graph, Node, Ref
from hofunc.rules.kinds import Fused
from hofunc.rules.registry import define_fusion

aten = torch.ops.aten


def _made_by(graph: Graph, value: Any, *ops: Any) -> Node | None:
    """Return the node that computes a value, if that is one of some ops."""
    node = graph.nodes[value.node] if isinstance(value, Ref) else None
    return node if node is not None and node.op in ops else None


def _sigmoid(graph: Graph, value: Any) -> int | None:
    """Return the node of which a value is the sigmoid."""
    node = _made_by(graph, value, aten.sigmoid.default)
    return None if node is None else node.operands[0]


def _rest(graph: Graph, value: Any) -> int | None:
    """Return the node of which a value is one less the sigmoid."""
    node = _made_by(graph, value, aten.rsub.Scalar)
    is_rest = node is not None and node.args[1:] == (1,) and not node.kwargs
    return _sigmoid(graph, node.args[0]) if node is not None and is_rest else None


def _negative(graph: Graph, value: Any) -> int | None:
    """Return the node of which a value is minus the sigmoid."""
    node = _made_by(graph, value, aten.neg.default)
    return None if node is None else _sigmoid(graph, node.args[0])


def _fused(
    forms: tuple[tuple[Callable[[Graph, Any], int | None], Callable[..., Tensor]], ...],
) -> Callable[[Graph, Node], Fused | None]:
    """Return what recognises some forms of the argument of an op, each with the function of what the sigmoid is of."""

    def recognise(graph: Graph, node: Node) -> Fused | None:
        found = [(origin(graph, node.args[0]), function) for origin, function in forms]
        return next((Fused(function, (before,)) for before, function in found if before is not None), None)

    return recognise


def _log(x: Tensor, *_: Any) -> Tensor:
    return logsigmoid(x)


def _log_of_rest(x: Tensor, *_: Any) -> Tensor:
    return logsigmoid(-x)


def _odds(x: Tensor, _: Tensor, eps: float | None = None) -> Tensor:
    """Return the log-odds, which between limits are what the sigmoid is of."""
    if eps is None:
        return x.clone()
    least, most = torch.logit(torch.tensor([eps, 1 - eps], dtype=torch.float64)).tolist()
    return x.clamp(least, most)


define_fusion(aten.log.default)(_fused(((_sigmoid, _log), (_rest, _log_of_rest))))
define_fusion(aten.log1p.default)(_fused(((_negative, _log_of_rest),)))
define_fusion(aten.logit.default)(_fused(((_sigmoid, _odds),)))
