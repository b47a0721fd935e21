"""Products: linear in every operand, so that each derivative leaves the other operands as factors."""

import torch

from hofunc.rules.registry import define_multilinear, define_sum

aten = torch.ops.aten

define_multilinear(aten.mul.Tensor, "...,...->...")
define_multilinear(aten.mm.default, "ik,kj->ij")
define_multilinear(aten.bmm.default, "bik,bkj->bij")
define_multilinear(aten.mv.default, "ik,k->i")
define_multilinear(aten.dot.default, "i,i->")
define_sum(aten.add.Tensor, lambda x, y, *, alpha=1: (1, alpha))
define_sum(aten.sub.Tensor, lambda x, y, *, alpha=1: (1, -alpha))
