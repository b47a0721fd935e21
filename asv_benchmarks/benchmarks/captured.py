"""Peers captured once as a graph of aten ops, and compiled."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx


def captured(function: Callable[..., Any], *inputs: Tensor) -> GraphModule:
    """Return the function as the graph of the ops that it calls for arguments like these, without those not needed."""
    graph = make_fx(function)(*inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def compiled(function: Callable[..., Any], *inputs: Tensor) -> Callable[..., Any]:
    """Return the captured function through torch.compile."""
    torch._dynamo.reset()
    return torch.compile(captured(function, *inputs), dynamic=False, fullgraph=True)
