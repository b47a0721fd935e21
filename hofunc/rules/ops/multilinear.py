"""Products, linear in every operand, so that each derivative leaves the other operands as factors; and quotients."""

import torch

from hofunc.rules.quotient import Quotient
from hofunc.rules.registry import define, define_multilinear

aten = torch.ops.aten

define_multilinear(aten.mul.Tensor, "...,...->...")
define_multilinear(aten.mm.default, "ik,kj->ij")
define_multilinear(aten.bmm.default, "bik,bkj->bij")
define_multilinear(aten.mv.default, "ik,k->i")
define_multilinear(aten.dot.default, "i,i->")
define_multilinear(aten.vdot.default, "i,i->")

define(aten.div.Tensor, Quotient())
define(aten.div.Scalar, Quotient())
