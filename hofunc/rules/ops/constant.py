"""Ops whose real result does not depend differentiably on what they take.

An op with an integer or boolean result needs no rule, since there is nothing to differentiate.
"""

import torch

from hofunc.graph.draws import drawn
from hofunc.internals import schema_of
from hofunc.rules.registry import define_composite, define_constant

aten = torch.ops.aten

CUTS = ("detach",)
STEPS = ("sign", "sgn", "ceil", "floor", "round", "trunc", "floor_divide", "heaviside", "histc")
NEW_TENSORS = (
    *("zeros_like", "ones_like", "empty_like", "full_like"),
    *("new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"),
    "_new_zeros_with_same_feature_meta",  # of forward mode, for a tangent that is laid out unlike its primal
)
RANDOM_NUMBERS = (
    *("rand_like", "randn_like", "randint_like", "bernoulli", "normal", "normal_functional", "poisson"),
    *("uniform", "exponential", "geometric", "cauchy", "log_normal", "random"),
)

for _name in (*CUTS, *STEPS, *NEW_TENSORS, *RANDOM_NUMBERS):
    _packet = getattr(aten, _name)
    for _overload in (getattr(_packet, _key) for _key in _packet.overloads()):  # __getattr__ would make another
        if not schema_of(_overload).is_mutable and "Tensor" in str(schema_of(_overload)):
            define_constant(_overload)

define_constant(drawn)

define_composite(
    aten.div.Tensor_mode,
    lambda x, y, *, rounding_mode: (
        x / y if rounding_mode is None else torch.div(x.detach(), y.detach(), rounding_mode=rounding_mode)
    ),
)
