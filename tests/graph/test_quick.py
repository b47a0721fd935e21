"""What stands for ops without a search for their kernels: that it is these ops, with the same arguments."""

from typing import Any

import pytest
import torch

from hofunc.graph.quick import QUICK
from tests.checks import Ops

aten = torch.ops.aten
X = torch.rand(2, 2)
ARGUMENTS: dict[Any, tuple] = {
    aten._log_softmax.default: (X, 0, False),
    aten._softmax.default: (X, 0, False),
    aten.addmm.default: (X, X, X),
    aten.bmm.default: (X[None], X[None]),
    aten.clamp.default: (X, 0, 1),
    aten.expand.default: (X, (3, 2, 2)),
    aten.gather.default: (X, 0, torch.zeros(1, 1, dtype=torch.long)),
    aten.permute.default: (X, (1, 0)),
    aten.select.int: (X, 0, 1),
    aten.squeeze.dim: (X[:, :1], 1),
    aten.sum.dim_IntList: (X, [0], True),
    aten.transpose.int: (X, 0, 1),
    aten.unsqueeze.default: (X, 0),
    aten.where.self: (X > 0, X, X),
}
ONE = {"cos", "exp", "log", "neg", "reciprocal", "relu", "sigmoid", "sin", "sqrt", "sum", "t", "tanh"}


@pytest.mark.parametrize("op", QUICK, ids=str)
def test_it_is_the_op(op: Any) -> None:
    name, overload = op.name().removeprefix("aten::").split(".")[0], op._overloadname
    default = (X,) if name in ONE else (X, X) if overload in {"Tensor", "default"} else (X, 2)
    args = ARGUMENTS.get(op, default)
    with Ops() as mode:
        found = QUICK[op](*args)
    assert mode.ops == [op]
    assert torch.equal(found, op(*args))
