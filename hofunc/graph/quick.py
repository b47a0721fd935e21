"""Functions that compute the same as ops do, without the overhead of finding an op's kernel from Python."""

from collections.abc import Callable
from typing import Any

import torch

from hofunc.internals import log_softmax, softmax

aten = torch.ops.aten

QUICK: dict[Any, Callable] = {  # they save about 1 microsecond, and take the same arguments
    aten._log_softmax.default: log_softmax,
    aten._softmax.default: softmax,
    aten.add.Tensor: torch.add,
    aten.addmm.default: torch.addmm,
    aten.bmm.default: torch.bmm,
    aten.clamp.default: torch.clamp,
    aten.cos.default: torch.cos,
    aten.div.Tensor: torch.div,
    aten.eq.Scalar: torch.eq,
    aten.eq.Tensor: torch.eq,
    aten.exp.default: torch.exp,
    aten.expand.default: torch.Tensor.expand,
    aten.gather.default: torch.gather,
    aten.ge.Scalar: torch.ge,
    aten.gt.Scalar: torch.gt,
    aten.le.Scalar: torch.le,
    aten.log.default: torch.log,
    aten.lt.Scalar: torch.lt,
    aten.mm.default: torch.mm,
    aten.mul.Tensor: torch.mul,
    aten.ne.Scalar: torch.ne,
    aten.neg.default: torch.neg,
    aten.permute.default: torch.permute,
    aten.pow.Tensor_Scalar: torch.pow,
    aten.reciprocal.default: torch.reciprocal,
    aten.relu.default: torch.relu,
    aten.select.int: torch.select,
    aten.sigmoid.default: torch.sigmoid,
    aten.sin.default: torch.sin,
    aten.sqrt.default: torch.sqrt,
    aten.squeeze.dim: torch.squeeze,
    aten.sub.Tensor: torch.sub,
    aten.sum.default: torch.sum,
    aten.sum.dim_IntList: torch.sum,
    aten.t.default: torch.t,
    aten.tanh.default: torch.tanh,
    aten.transpose.int: torch.transpose,
    aten.unsqueeze.default: torch.unsqueeze,
    aten.where.self: torch.where,
}
