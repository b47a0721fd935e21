"""How rules work, and the functions that enter more of them; importing this package enters those of all known ops."""

from hofunc.rules import ops
from hofunc.rules.registry import (
    POSITIVE,
    REAL,
    UNIT,
    define_composite,
    define_constant,
    define_elementwise,
    define_elementwise_pair,
    define_expansion,
    define_linear,
    define_masked,
    define_multilinear,
    define_piecewise_linear,
    define_relabelling,
    define_sum,
)

__all__ = [
    "POSITIVE",
    "REAL",
    "UNIT",
    "define_composite",
    "define_constant",
    "define_elementwise",
    "define_elementwise_pair",
    "define_expansion",
    "define_linear",
    "define_masked",
    "define_multilinear",
    "define_piecewise_linear",
    "define_relabelling",
    "define_sum",
    "ops",
]
