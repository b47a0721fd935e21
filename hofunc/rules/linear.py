"""Linear ops: sums, scalings, masks, and maps along an axis."""

import torch

from hofunc.algebra.labels import Axes
from hofunc.rules.axes import dims_of
from hofunc.rules.registry import define_relabelling
from hofunc.rules.reshape import _same
aten = torch.ops.aten
def _reduced(x: Axes, dims=None, keepdim=False, **_: object):
    dropped = dims_of(dims, len(x))
    from hofunc.algebra.labels import full, Label
    return tuple((full(Label(1)),) if d in dropped else a for d,a in enumerate(x) if keepdim or d not in dropped)
define_relabelling(aten.neg.default, _same, scale=lambda x: -1)
define_relabelling(aten.sum.default, lambda x, **_: ())
define_relabelling(aten.sum.dim_IntList, _reduced)
